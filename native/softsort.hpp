// P v and P^T u of SoftSort, with their derivatives, for sorted scores: what _kernels/README.md
// derives, run by run and block by block.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "block_kernels.hpp"
#include "parallel.hpp"
#include "rows.hpp"

namespace softorder {

// Long runs are cut into blocks of this many positions: they fit a cache, and threads share them.
constexpr int64_t kBlock = 4096;
// A run of real exponentials up to this long is one block: cutting it would cost more than threads
// give back, and they may be busy. Complex gates are large, and take longer.
constexpr int64_t kUncut = 1 << 17;
// Less work than this many positions is done before a thread starts.
constexpr int64_t kWorthAThread = 1 << 13;

// What a thread needs for the block that it works on.
struct BlockScratch {
    Scratch gate, sums, force;
};

// What a run needs, kept from row to row.
struct Workspace {
    Scratch gap, gate, input, left, right;
    Scratch z, force;
    BlockScratch block;

    int64_t capacity() const {
        int64_t total = 0;
        for (const Scratch* s : {&gap, &gate, &input, &left, &right, &z, &force, &block.gate,
                                 &block.sums, &block.force}) {
            total += s->capacity();
        }
        return total;
    }
};

// The recurrences over one run, cut into blocks.
template <class Float>
class RunSolver {
  public:
    struct Block {
        int64_t begin, length;
        double *gap, *gate, *input;
        double *left, *right;  // what enters it
        BlockScratch& scratch;
    };

    RunSolver(const Float* sorted, Run run, double scale, const Terms& terms, int threads,
              Workspace& memory)
        : sorted_(sorted),
          run_(run),
          length_(run.end - run.begin),
          block_size_(block_kernels(terms).width == 1 && length_ <= kUncut ? length_ : kBlock),
          blocks_((length_ + block_size_ - 1) / block_size_),
          inverse_scale_(std::min(1 / scale, std::numeric_limits<double>::max())),
          terms_(terms),
          kernels_(block_kernels(terms)),
          keeps_gates_(blocks_ == 1 || kernels_.width == 1),
          threads_(threads),
          memory_(memory) {}

    // Sums of all channels, by position: done(begin, length, sums, input). There may be room
    // between the inputs of one position and the next: `stride` numbers in all.
    template <class Fill, class Done>
    void sums(int channels, int stride, const Fill& fill, const Done& done) {
        sweep(channels, stride, 0, fill, [&](const Block& block) {
            double* sums = block.scratch.sums.get(block.length * channels);
            kernels_.sum(terms_, block.gate, block.length, block.input, stride, channels,
                         block.left, block.right, sums);
            done(block.begin, block.length, sums, block.input);
        });
    }

    // The derivatives, for the inputs that the last sums left: done(begin, length, spread, force).
    // If keeps_rows, what rows have of the force, in units of the scale too, takes the place of the
    // input that is 1. Returns the scale's derivative.
    template <class Done>
    double derivatives(int features, bool with_moment, bool keeps_rows, const Done& done) {
        std::vector<double> moment(with_moment ? index(blocks_) : 0);
        const int channels = 2 * features + 2, moments = with_moment ? features + 1 : 0;
        const auto as_they_are = [](int64_t, int64_t, double*) {};
        sweep(channels, channels, moments, as_they_are, [&](const Block& block) {
            double* spread = block.scratch.sums.get(block.length * features);
            double* force = block.scratch.force.get(block.length);
            const double of_block = kernels_.differentiate(
                terms_, block.gate, block.gap, block.length, block.input, features, with_moment,
                keeps_rows, block.left, block.right, spread, force);
            if (with_moment) moment[index((block.begin - run_.begin) / block_size_)] = of_block;
            done(block.begin, block.length, spread, force);
        });
        double sum = 0;
        for (double m : moment) sum += m;
        return sum * unit();
    }

    // What the force is multiplied by: the derivative by a place, in units of the scale.
    double unit() const { return run_.tied ? 0 : inverse_scale_; }
    // p_1..p_f, 1 or what the row has of the force, s_1..s_f, q of every position, as the derivatives
    // left them.
    double* inputs() const { return memory_.input.get(0); }

  private:
    // Calls visit(block) for every block, with `channels` inputs for each position as
    // fill(begin, length, input) writes them; first moments for the first `moments` of them.
    template <class Fill, class Visit>
    void sweep(int channels, int stride, int moments, const Fill& fill, const Visit& visit) {
        const int64_t states = static_cast<int64_t>(channels + moments) * kernels_.width;
        double* left = memory_.left.get(blocks_ * states);
        double* right = memory_.right.get(blocks_ * states);
        double* input = memory_.input.get(length_ * stride);
        double* gap = memory_.gap.get(length_);
        double* gate = keeps_gates_ ? memory_.gate.get(length_ * kernels_.width) : nullptr;
        const auto block_at = [&](int64_t b, BlockScratch& scratch) {
            const int64_t at = b * block_size_, size = std::min(block_size_, length_ - at);
            double* block_gate = gate ? gate + at * kernels_.width
                                      : scratch.gate.get(block_size_ * kernels_.width);
            return Block{run_.begin + at,      size,
                         gap + at,             block_gate,
                         input + at * stride,  left + b * states,
                         right + b * states,   scratch};
        };
        const auto prepare = [&](const Block& block) {
            if (!has_gaps_) write_gaps(block);
            if (!has_gaps_ || !keeps_gates_) {
                kernels_.gates(terms_, block.gap, block.length, block.gate);
            }
            fill(block.begin, block.length, block.input);
        };
        if (blocks_ == 1) {
            const Block block = block_at(0, memory_.block);
            prepare(block);
            std::fill(left, left + states, 0.0);
            std::fill(right, right + states, 0.0);
            has_gaps_ = true;
            visit(block);
            return;
        }
        const auto each_block = [&](const auto& work) {
            for_each_range(threads_, blocks_, kWorthAThread / kBlock, [&](int64_t b0, int64_t b1) {
                BlockScratch scratch;
                for (int64_t b = b0; b < b1; ++b) work(b, block_at(b, scratch));
            });
        };
        std::vector<double> product(static_cast<size_t>(blocks_ * kernels_.width));
        std::vector<double> extent(static_cast<size_t>(blocks_));
        each_block([&](int64_t b, const Block& block) {
            prepare(block);
            kernels_.aggregate(block.gate, block.gap, block.length, block.input, stride, channels,
                               moments, block.left, block.right,
                               &product[index(b * kernels_.width)]);
            for (int64_t i = 0; i < block.length; ++i) extent[index(b)] += block.gap[i];
        });
        has_gaps_ = true;
        const auto through = [&](double* of_block, double* state, int64_t b) {
            enter(of_block + b * states, state, channels, moments,
                  &product[index(b * kernels_.width)], extent[index(b)]);
        };
        std::vector<double> from_left(index(states)), from_right(index(states));
        for (int64_t b = 0; b < blocks_; ++b) {
            through(left, from_left.data(), b);
            through(right, from_right.data(), blocks_ - 1 - b);
        }
        each_block([&](int64_t, const Block& block) {
            if (!keeps_gates_) kernels_.gates(terms_, block.gap, block.length, block.gate);
            visit(block);
        });
    }

    static size_t index(int64_t i) { return static_cast<size_t>(i); }

    // In units of the scale. What would cross the run's first gate is zero, so any gap will do.
    void write_gaps(const Block& block) const {
        const Float* x = sorted_ + block.begin;
        const auto difference = [&](int64_t i) {
            const double apart = static_cast<double>(x[i - 1]) - static_cast<double>(x[i]);
            return std::min(apart * inverse_scale_, kFar);
        };
        if (run_.tied) {
            std::fill(block.gap, block.gap + block.length, 0.0);
            return;
        }
        block.gap[0] = block.begin == run_.begin ? 0.0 : difference(0);
        for (int64_t i = 1; i < block.length; ++i) block.gap[i] = difference(i);
    }

    // Exchanges what a block gives with nothing entering for what enters it, and moves on.
    void enter(double* of_block, double* state, int channels, int moments, const double* product,
               double extent) const {
        const int width = kernels_.width;
        const auto pass = [&](double* to, const double* s) {
            if (width == 1) {
                to[0] += product[0] * s[0];
                return;
            }
            const int half = width / 2;
            for (int m = 0; m < half; ++m) {
                to[m] += product[m] * s[m] - product[half + m] * s[half + m];
                to[half + m] += product[m] * s[half + m] + product[half + m] * s[m];
            }
        };
        std::vector<double> next(of_block, of_block + (channels + moments) * width);
        for (int c = 0; c < channels; ++c) pass(&next[index(c * width)], state + c * width);
        for (int c = 0; c < moments; ++c) {
            double* moment = state + (channels + c) * width;
            std::vector<double> moved(moment, moment + width);
            for (int m = 0; m < width; ++m) moved[index(m)] += extent * state[c * width + m];
            pass(&next[index((channels + c) * width)], moved.data());
        }
        std::copy(state, state + next.size(), of_block);
        std::copy(next.begin(), next.end(), state);
    }

    const Float* sorted_;
    Run run_;
    int64_t length_, block_size_, blocks_;
    double inverse_scale_;
    const Terms& terms_;
    const BlockKernels& kernels_;
    bool keeps_gates_;  // for the whole run; complex ones are computed again for each block
    int threads_;
    Workspace& memory_;
    bool has_gaps_ = false;
};

// Calls work(row, runs, scale, threads, memory) for every row; threads go over rows or inside one.
template <class Float, class Work>
void for_each_row(const Rows<Float>& rows, const Work& work) {
    const int64_t cost = std::max<int64_t>(1, rows.n * (rows.features + 1));
    for_each_row<Workspace>(rows, rows.n > 2 * kBlock, 1 + kWorthAThread / cost, work);
}

// How a result at a position is put together where the input holds infinities: the finite part,
// and which end is reached with a weight above 0. Zero times infinity counts as zero. What cannot be
// told from zero: a state on its way to zero that sticks at the smallest number, and sums of complex
// terms below their rounding errors. (Also `noise` in exponentials.py.)
inline double with_ends(const Terms& terms, double finite, double up, double down) {
    const double infinity = std::numeric_limits<double>::infinity();
    const double noise = terms.count == 1 ? 1e-300 : 1e-12;
    return finite + (up > noise ? infinity : 0.0) + (down > noise ? -infinity : 0.0);
}

// What a mean of some numbers cannot leave: complex terms cancel, and may leave a little less than 0
// where all numbers are at least 0. (Also `_bounded` in scan.py.)
struct Bounds {
    double lowest = std::numeric_limits<double>::infinity(), highest = -lowest;

    void add(double x) {
        if (x < lowest) lowest = x;
        if (x > highest) highest = x;
    }
    // A NaN stays.
    double hold(double x) const { return x < lowest ? lowest : x > highest ? highest : x; }
    // A sum of the numbers, with any weights of at least 0: no bound but 0.
    double hold_sum(double x) const {
        return x < 0 && lowest >= 0 ? 0.0 : x > 0 && highest <= 0 ? 0.0 : x;
    }
};

// y = P v by position, and log Z, which may be null. v is by item; null for the scores themselves.
// Nothing is kept for the derivatives.
template <class Float, int Features>
void apply(const Rows<Float>& rows, const Float* v, Float* y, Float* log_z, double*) {
    const int64_t n = rows.n, f = features_of<Features>(rows);
    const int parts = v && any_infinite(v, rows.rows * n * f) ? 3 : 1;
    const int channels = static_cast<int>(f * parts + 1);
    for_each_row(rows, [&](int64_t row, const Runs& runs, double scale, int threads,
                           Workspace& memory) {
        Float* y_row = y + row * n * f;
        Float* z_row = log_z ? log_z + row * n : nullptr;
        const double blank = runs.spoiled ? std::numeric_limits<double>::quiet_NaN() : 0.0;
        const int64_t done = runs.number ? runs.run[runs.number - 1].end : 0;
        fill_with(y_row + done * f, (n - done) * f, blank);
        if (z_row) fill_with(z_row + done, n - done, blank);
        for (int r = 0; r < runs.number; ++r) {
            const Run run = runs.run[r];
            if (!v && run.tied) {
                // Infinite scores: the mean of equal ones.
                std::fill(y_row + run.begin, y_row + run.end, rows.sorted[row * n + run.begin]);
                if (!z_row) continue;
            }
            RunSolver<Float> solver(rows.sorted + row * n, run, scale, rows.terms, threads,
                                    memory);
            std::vector<Bounds> bounds(rows.terms.count > 1 ? static_cast<size_t>(f) : 0);
            for (int64_t i = run.begin; !bounds.empty() && i < run.end; ++i) {
                const Float* from = values_at<Features>(rows, v, row, i);
                for (int64_t c = 0; c < f; ++c) bounds[c].add(finite_or_zero(from[c]));
            }
            const auto fill = [&](int64_t begin, int64_t size, double* input) {
                if (parts == 1) {
                    for (int64_t i = 0; i < size; ++i, input += f + 1) {
                        const Float* from = values_at<Features>(rows, v, row, begin + i);
                        for (int64_t c = 0; c < f; ++c) input[c] = static_cast<double>(from[c]);
                        input[f] = 1;
                    }
                    return;
                }
                for (int64_t i = 0; i < size; ++i, input += channels) {
                    const Float* from = values_at<Features>(rows, v, row, begin + i);
                    for (int64_t c = 0; c < f; ++c) {
                        input[c] = finite_or_zero(from[c]);
                        input[f + c] = std::isinf(from[c]) && from[c] > 0;
                        input[2 * f + c] = std::isinf(from[c]) && from[c] < 0;
                    }
                    input[channels - 1] = 1;
                }
            };
            solver.sums(channels, channels, fill, [&](int64_t begin, int64_t size,
                                                      const double* sums, const double*) {
                for (int64_t i = 0; i < size; ++i, sums += channels) {
                    const double z = sums[channels - 1];
                    if (z_row) z_row[begin + i] = static_cast<Float>(std::log(z));
                    for (int64_t c = 0; c < f; ++c) {
                        double mean = sums[c] / z;
                        if (!bounds.empty()) mean = bounds[c].hold(mean);
                        if (parts == 3) {
                            mean = with_ends(rows.terms, mean, sums[f + c], sums[2 * f + c]);
                        }
                        if (v || !run.tied) y_row[(begin + i) * f + c] = static_cast<Float>(mean);
                    }
                }
            });
        }
    });
}

// For one group of ties and k(u) = exp(-u), whose slope at 0 depends on which of two comes first:
// exchanges the slopes of the order that the ties stand in for the mean over all orders
// (_kernels/README.md, "Tied scores"). `force` is the derivative by the scores; what rows have of it,
// in units of `unit`, stands among the inputs. Both begin with the group; `scratch` has room for 4
// numbers for each feature.
template <int Features>
void exchange_tied_slopes(int64_t size, int64_t any_features, double* inputs, double unit,
                          double* scratch, double* force) {
    const int64_t f = Features ? Features : any_features, channels = 2 * f + 2;
    double held[4 * (Features ? Features : 1)];
    // Sums over those before less those after; each s times its imbalance; the mean of p.
    double* p_beside = Features ? held : scratch;
    double *s_beside = p_beside + f, *lean = s_beside + f, *mean = lean + f;
    double q_beside = 0;
    std::fill(p_beside, p_beside + 4 * f, 0.0);
    for (int64_t i = 0; i < size; ++i) {
        const double *p = inputs + i * channels, *s = p + f + 1;
        q_beside -= s[f];
        for (int64_t c = 0; c < f; ++c) {
            p_beside[c] -= p[c];
            s_beside[c] -= s[c];
            lean[c] += imbalance(size, i) * s[c];
        }
    }
    const double share = 1 / static_cast<double>(size), others = 1 / static_cast<double>(size - 1);
    for (int64_t c = 0; c < f; ++c) {
        mean[c] = -p_beside[c] * share;
        lean[c] *= others;
    }
    for (int64_t i = 0; i < size; ++i) {
        double *p = inputs + i * channels, *s = p + f + 1;
        q_beside += s[f];
        double row = imbalance(size, i) * s[f], column = -q_beside, of_all_orders = 0;
        q_beside += s[f];
        for (int64_t c = 0; c < f; ++c) {
            p_beside[c] += p[c];
            s_beside[c] += s[c];
            row += s[c] * p_beside[c];
            column += p[c] * s_beside[c];
            of_all_orders += lean[c] * (p[c] - mean[c]);
            p_beside[c] += p[c];
            s_beside[c] += s[c];
        }
        p[f] -= row;
        force[i] += unit * (of_all_orders - row - column);
    }
}

// Shares what positions have of the force among the items of a group of ties.
inline void share_among_ties(int64_t size, int64_t channels, double unit, const double* of_row,
                             double* force) {
    double sum = 0;
    for (int64_t i = 0; i < size; ++i) sum += of_row[i * channels];
    const double mean = sum / static_cast<double>(size);
    for (int64_t i = 0; i < size; ++i) force[i] += unit * (mean - of_row[i * channels]);
}

// The derivatives of a product for every row. The first stage has the channels p, which
// read(row, position, p) gives, and 1; from their sums, middle(row, position, sums, s)
// computes s and q. The second stage has all of them; what spread_to(row, position, K s) returns is
// added to the derivative by the score there. A `symmetric` function of the scores does not depend
// on which item is which, so tied scores have equal derivatives.
template <int Features, class Float, class Read, class Middle, class Spread>
void differentiate(const Rows<Float>& rows, const Gradients<Float>& to, bool symmetric,
                   const Read& read, const Middle& middle, const Spread& spread_to) {
    const int64_t n = rows.n, f = features_of<Features>(rows);
    for_each_row(rows, [&](int64_t row, const Runs& runs, double scale, int threads,
                           Workspace& memory) {
        fill_gradients(to, row, n, f, runs.spoiled ? std::numeric_limits<double>::quiet_NaN() : 0.0);
        const Float* sorted = rows.sorted + row * n;
        const int64_t* order = rows.order + row * n;
        double* force = memory.force.get(n);
        for (int r = 0; r < runs.number; ++r) {
            const Run run = runs.run[r];
            RunSolver<Float> solver(sorted, run, scale, rows.terms, threads,
                                    memory);
            // The inputs of the second stage; the first uses p and 1 of them, and writes the rest.
            const int channels = static_cast<int>(2 * f + 2);
            const auto fill = [&](int64_t begin, int64_t size, double* input) {
                for (int64_t i = 0; i < size; ++i, input += channels) {
                    read(row, begin + i, input);
                    input[f] = 1;
                }
            };
            solver.sums(static_cast<int>(f + 1), channels, fill,
                        [&](int64_t begin, int64_t size, const double* sums, double* input) {
                            for (int64_t i = 0; i < size; ++i, sums += f + 1, input += channels) {
                                middle(row, begin + i, sums, input + f + 1);
                            }
                        });
            const bool ties = to.scores && !run.tied && any_ties(sorted, run.begin, run.end);
            const double unit = solver.unit();
            const auto done = [&](int64_t begin, int64_t size, const double* spread,
                                  const double* slope) {
                for (int64_t i = 0; i < size; ++i) {
                    force[begin + i] = unit * slope[i] + spread_to(row, begin + i, spread + i * f);
                }
            };
            const double moment =
                solver.derivatives(static_cast<int>(f), to.scale, ties && !symmetric, done);
            // Infinite scores have equal weights, whatever the scale; as values they are no moment.
            if (to.scale && !run.tied) to.scale[row] += moment;
            if (!to.scores || run.tied) continue;
            for_each_range(threads, run.end - run.begin, kUncut, [&](int64_t b, int64_t e) {
                // A group of ties belongs to the range that it begins in.
                b += run.begin, e += run.begin;
                while (b > run.begin && b < e && sorted[b] == sorted[b - 1]) ++b;
                while (b < e && e < run.end && sorted[e] == sorted[e - 1]) ++e;
                const size_t room = ties && !symmetric && !Features ? 4 * static_cast<size_t>(f) : 0;
                std::vector<double> scratch(room);
                const auto share = [&](int64_t first, int64_t last) {
                    const int64_t size = last - first;
                    double* inputs = solver.inputs() + (first - run.begin) * channels;
                    if (rows.terms.count == 1) {
                        exchange_tied_slopes<Features>(size, f, inputs, unit, scratch.data(),
                                                       force + first);
                    }
                    share_among_ties(size, channels, unit, inputs + f, force + first);
                };
                if (ties && symmetric) {
                    average_ties(sorted, b, e, force);
                } else if (ties) {
                    for_each_tie(sorted, b, e, share);
                }
                for (int64_t i = b; i < e; ++i) {
                    to.scores[row * n + order[i]] = static_cast<Float>(force[i]);
                }
            });
        }
    });
}

// The derivatives of sum(g_y * y) + sum(g_z * log Z) for y, log Z = apply(v). Null means zero. If v
// itself is null, all of the derivative goes to the scores.
template <class Float, int Features>
void apply_backward(const Rows<Float>& rows, const Float* v, const Float* g_y, const Float* g_z,
                    double*, const Gradients<Float>& to) {
    const int64_t n = rows.n, f = features_of<Features>(rows);
    const bool infinite = v && any_infinite(v, rows.rows * n * f);
    const auto read = [&](int64_t row, int64_t position, double* p) {
        const Float* from = values_at<Features>(rows, v, row, position);
        for (int64_t c = 0; c < f; ++c) {
            p[c] = infinite ? finite_or_zero(from[c]) : static_cast<double>(from[c]);
        }
    };
    const auto middle = [&](int64_t row, int64_t position, const double* sums, double* s) {
        const int64_t at = row * n + position;
        const double share = 1 / sums[f];
        double q = g_z ? -static_cast<double>(g_z[at]) * share : 0.0;
        for (int64_t c = 0; c < f; ++c) {
            s[c] = g_y ? static_cast<double>(g_y[at * f + c]) * share : 0.0;
            q += s[c] * (sums[c] * share);
        }
        s[f] = q;
    };
    const auto spread_to = [&](int64_t row, int64_t position, const double* spread) {
        if (!v) return spread[0];
        if (!to.values) return 0.0;
        const int64_t item = row * n + rows.order[row * n + position];
        for (int64_t c = 0; c < f; ++c) {
            const bool fixed = infinite && std::isinf(v[item * f + c]);
            to.values[item * f + c] = fixed ? Float{0} : static_cast<Float>(spread[c]);
        }
        return 0.0;
    };
    differentiate<Features>(rows, to, !v, read, middle, spread_to);
}

// w = P^T u = K (u / Z), by item; u is by position.
template <class Float, int Features>
void apply_transposed(const Rows<Float>& rows, const Float* u, Float* w) {
    const int64_t n = rows.n, f = features_of<Features>(rows);
    const int parts = any_infinite(u, rows.rows * n * f) ? 3 : 1;
    const int channels = static_cast<int>(f * parts);
    for_each_row(rows, [&](int64_t row, const Runs& runs, double scale, int threads,
                           Workspace& memory) {
        const double blank = runs.spoiled ? std::numeric_limits<double>::quiet_NaN() : 0.0;
        Float* w_row = w + row * n * f;
        fill_with(w_row, n * f, blank);
        for (int r = 0; r < runs.number; ++r) {
            const Run run = runs.run[r];
            RunSolver<Float> solver(rows.sorted + row * n, run, scale, rows.terms, threads,
                                    memory);
            double* const z = memory.z.get(run.end - run.begin);
            const auto ones = [](int64_t, int64_t size, double* input) {
                for (int64_t i = 0; i < size; ++i) input[i] = 1;
            };
            solver.sums(1, 1, ones, [&](int64_t begin, int64_t size, const double* sums,
                                        const double*) {
                std::copy(sums, sums + size, z + (begin - run.begin));
            });
            std::vector<Bounds> bounds(rows.terms.count > 1 ? static_cast<size_t>(f) : 0);
            for (int64_t i = run.begin; !bounds.empty() && i < run.end; ++i) {
                const Float* from = u + (row * n + i) * f;
                for (int64_t c = 0; c < f; ++c) bounds[c].add(finite_or_zero(from[c]));
            }
            const auto fill = [&](int64_t begin, int64_t size, double* input) {
                for (int64_t i = 0; i < size; ++i, input += channels) {
                    const Float* from = u + (row * n + begin + i) * f;
                    const double share = 1 / z[begin - run.begin + i];
                    for (int64_t c = 0; c < f; ++c) {
                        input[c] = finite_or_zero(from[c]) * share;
                        if (parts == 1) continue;
                        input[f + c] = std::isinf(from[c]) && from[c] > 0 ? share : 0.0;
                        input[2 * f + c] = std::isinf(from[c]) && from[c] < 0 ? share : 0.0;
                    }
                }
            };
            solver.sums(channels, channels, fill, [&](int64_t begin, int64_t size,
                                                      const double* sums, const double*) {
                for (int64_t i = 0; i < size; ++i, sums += channels) {
                    Float* item = w_row + rows.order[row * n + begin + i] * f;
                    for (int64_t c = 0; c < f; ++c) {
                        double sum = bounds.empty() ? sums[c] : bounds[c].hold_sum(sums[c]);
                        if (parts == 3) {
                            sum = with_ends(rows.terms, sum, sums[f + c], sums[2 * f + c]);
                        }
                        item[c] = static_cast<Float>(sum);
                    }
                }
            });
        }
    });
}

// The derivatives of sum(g * w) for w = apply_transposed(u).
template <class Float, int Features>
void apply_transposed_backward(const Rows<Float>& rows, const Float* u, const Float* g,
                               const Gradients<Float>& to) {
    const int64_t n = rows.n, f = features_of<Features>(rows);
    const auto read = [&](int64_t row, int64_t position, double* p) {
        const Float* from = g + (row * n + rows.order[row * n + position]) * f;
        for (int64_t c = 0; c < f; ++c) p[c] = static_cast<double>(from[c]);
    };
    const auto middle = [&](int64_t row, int64_t position, const double* sums, double* s) {
        const int64_t at = row * n + position;
        const double share = 1 / sums[f];
        s[f] = 0;
        for (int64_t c = 0; c < f; ++c) {
            const Float from = u[at * f + c];
            s[c] = finite_or_zero(from) * share;
            s[f] += s[c] * (sums[c] * share);
            if (!to.values) continue;
            to.values[at * f + c] = std::isinf(from) ? Float{0}
                                                     : static_cast<Float>(sums[c] * share);
        }
    };
    const auto spread_to = [](int64_t, int64_t, const double*) { return 0.0; };
    differentiate<Features>(rows, to, false, read, middle, spread_to);
}

}  // namespace softorder
