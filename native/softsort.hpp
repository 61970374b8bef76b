// P v and P^T u of SoftSort, with their derivatives, for sorted scores: what _kernels/README.md
// derives, block by block and chunk by chunk.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "block_solver.hpp"
#include "chunk_kernels.hpp"
#include "parallel.hpp"
#include "rows.hpp"

namespace softorder {

// For every row: calls fill_unused(row, blocks), then work(row, block, solver, threads, memory) for
// every block. Threads go over rows or inside one.
template <class Float, class FillUnused, class Work>
void for_each_block(const Rows<Float>& rows, const FillUnused& fill_unused, const Work& work) {
    const int64_t cost = std::max<int64_t>(1, rows.n * (rows.features + 1));
    const auto one = [&](int64_t row, const Blocks& blocks, double scale, int threads,
                         Workspace& memory) {
        fill_unused(row, blocks);
        for (const Block& block : blocks) {
            BlockSolver<Float> solver(rows.sorted + row * rows.n, block, scale, rows.terms, threads,
                                      memory);
            work(row, block, solver, threads, memory);
        }
    };
    for_each_row<Workspace>(rows, rows.n > 2 * kChunk, 1 + kWorthAThread / cost, one);
}

// What a mean of some numbers cannot leave: complex terms cancel, and may leave a little less than 0
// where all numbers are at least 0. (`Recurrence._bounded` in recurrence.py does the same.)
struct Bounds {
    double lowest = std::numeric_limits<double>::infinity(), highest = -lowest;

    void add(double x) {
        if (x < lowest) lowest = x;
        if (x > highest) highest = x;
    }
    // A NaN stays.
    double clamp(double x) const { return x < lowest ? lowest : x > highest ? highest : x; }
    // A sum of the numbers, with any weights of at least 0: no bound but 0.
    double clamp_sum(double x) const {
        return x < 0 && lowest >= 0 ? 0.0 : x > 0 && highest <= 0 ? 0.0 : x;
    }
};

// The bounds of each feature of a block, whose values at a position are from(position); none are
// needed, and none returned, where no terms cancel.
template <class From>
std::vector<Bounds> find_bounds(const Terms& terms, Block block, int64_t f, const From& from) {
    std::vector<Bounds> bounds(terms.count > 1 ? static_cast<size_t>(f) : 0);
    for (int64_t i = block.begin; !bounds.empty() && i < block.end; ++i) {
        const auto* values = from(i);
        for (int64_t c = 0; c < f; ++c) bounds[static_cast<size_t>(c)].add(finite_or_zero(values[c]));
    }
    return bounds;
}

// Writes the f values from(i), times weight(i), as channels for each position: where there are
// infinities, as those that `with_ends` reads. If `WithOne`, the last channel is 1.
template <bool WithOne, class From, class Weight>
void write_channels(int64_t begin, int64_t size, int64_t f, bool infinite, const From& from,
                    const Weight& weight, double* input) {
    const auto write = [&](auto with_infinite) {
        const int64_t channels = f * (with_infinite ? 3 : 1) + WithOne;
        for (int64_t i = begin; i < begin + size; ++i, input += channels) {
            const auto* values = from(i);
            const double share = weight(i);
            for (int64_t c = 0; c < f; ++c) {
                split(values[c], with_infinite,
                      [&](int64_t part, double x) { input[part * f + c] = x * share; });
            }
            if (WithOne) input[channels - 1] = 1;
        }
    };
    // Mostly there are none: the compiler makes a loop for that.
    infinite ? write(std::true_type{}) : write(std::false_type{});
}

// y = P v by position, or log Z where there are no features; the other is null. v is by item; null for
// the scores themselves, or without features. Nothing is saved for the derivatives.
template <class Float, int Features>
void apply(const Rows<Float>& rows, const Float* v, Float* y, Float* log_z, double*) {
    const int64_t n = rows.n, f = features_of<Features>(rows);
    const bool own = !v && f > 0, infinite = v && any_infinite(v, rows.rows * n * f);
    const int channels = static_cast<int>(f * (infinite ? 3 : 1) + 1);
    const auto fill_unused = [&](int64_t row, const Blocks& blocks) {
        const int64_t done = row * n + blocks.length(), left = n - blocks.length();
        fill_with(y + done * f, left * f, blocks.blank());
        if (log_z) fill_with(log_z + done, left, blocks.blank());
    };
    for_each_block(rows, fill_unused, [&](int64_t row, Block block, BlockSolver<Float>& solver, int,
                                          Workspace&) {
        Float* y_row = y + row * n * f;
        Float* z_row = log_z ? log_z + row * n : nullptr;
        if (own && block.all_infinite) {  // infinite scores: the mean of equal ones
            std::fill(y_row + block.begin, y_row + block.end, rows.sorted[row * n + block.begin]);
            return;
        }
        const auto at = [&](int64_t i) { return values_at<Features>(rows, v, row, i); };
        const std::vector<Bounds> bounds = find_bounds(rows.terms, block, f, at);
        const auto fill = [&](int64_t begin, int64_t size, double* input) {
            const auto one = [](int64_t) { return 1.0; };
            write_channels<true>(begin, size, features_of<Features>(rows), infinite, at, one, input);
        };
        solver.sums(channels, channels, fill, [&](int64_t begin, int64_t size, const double* sums,
                                                  const double*) {
            // Not captured, or the compiler would forget that it is one.
            const int64_t f = features_of<Features>(rows);
            for (int64_t i = 0; i < size; ++i, sums += channels) {
                const double z = sums[channels - 1];
                if (z_row) z_row[begin + i] = static_cast<Float>(std::log(z));
                for (int64_t c = 0; c < f; ++c) {
                    double mean = sums[c] / z;
                    if (!bounds.empty()) mean = bounds[c].clamp(mean);
                    if (infinite) {
                        mean = with_ends(mean, sums[f + c], sums[2 * f + c], rows.terms.noise);
                    }
                    y_row[(begin + i) * f + c] = static_cast<Float>(mean);
                }
            }
        });
    });
}

// For one group of ties and k(u) = exp(-u), whose slope at 0 depends on which of two comes first:
// replaces the slopes for the present order of the ties by their mean over all orders
// (_kernels/README.md, "Tied scores"). `force` is the derivative with respect to the scores; what
// rows have of it, in units of `unit`, stands among the inputs. Both begin with the group; `scratch`
// has room for 4 numbers for each feature.
template <int Features>
void average_tied_slopes(int64_t size, int64_t any_features, double* inputs, double unit,
                          double* scratch, double* force) {
    const int64_t f = Features ? Features : any_features, channels = 2 * f + 2;
    double held[4 * (Features ? Features : 1)];
    // Sums over those before less those after; each s times its imbalance; the mean of p.
    double* p_balance = Features ? held : scratch;
    double *s_balance = p_balance + f, *s_by_imbalance = s_balance + f, *mean = s_by_imbalance + f;
    double q_balance = 0;
    std::fill(p_balance, p_balance + 4 * f, 0.0);
    for (int64_t i = 0; i < size; ++i) {
        const double *p = inputs + i * channels, *s = p + f + 1;
        q_balance -= s[f];
        for (int64_t c = 0; c < f; ++c) {
            p_balance[c] -= p[c];
            s_balance[c] -= s[c];
            s_by_imbalance[c] += imbalance(size, i) * s[c];
        }
    }
    const double share = 1 / static_cast<double>(size), others = 1 / static_cast<double>(size - 1);
    for (int64_t c = 0; c < f; ++c) {
        mean[c] = -p_balance[c] * share;
        s_by_imbalance[c] *= others;
    }
    for (int64_t i = 0; i < size; ++i) {
        double *p = inputs + i * channels, *s = p + f + 1;
        q_balance += s[f];
        double row = imbalance(size, i) * s[f], column = -q_balance, averaged = 0;
        q_balance += s[f];
        for (int64_t c = 0; c < f; ++c) {
            p_balance[c] += p[c];
            s_balance[c] += s[c];
            row += s[c] * p_balance[c];
            column += p[c] * s_balance[c];
            averaged += s_by_imbalance[c] * (p[c] - mean[c]);
            p_balance[c] += p[c];
            s_balance[c] += s[c];
        }
        p[f] -= row;
        force[i] += unit * (averaged - row - column);
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

// Where the first group of ties at or after a position begins, which is the position itself unless it
// is inside one: a range of positions has the groups that begin in it.
template <class Float>
int64_t next_group(const Float* sorted, Block block, int64_t at) {
    while (at > block.begin && at < block.end && sorted[at] == sorted[at - 1]) ++at;
    return at;
}

// Gives each group of ties among the positions b to e of a block the mean of the force over all orders
// of its scores. `inputs` are those of the block, as BlockSolver::derivatives left them.
template <int Features, class Float>
void average_over_orders(const Rows<Float>& rows, const Float* sorted, Block block, int64_t b,
                         int64_t e, double* inputs, double unit, double* force) {
    const int64_t f = features_of<Features>(rows), channels = 2 * f + 2;
    std::vector<double> scratch(Features ? 0 : 4 * static_cast<size_t>(f));
    for_each_tie(sorted, b, e, [&](int64_t first, int64_t last) {
        double* group = inputs + (first - block.begin) * channels;
        if (rows.terms.count == 1) {
            average_tied_slopes<Features>(last - first, f, group, unit, scratch.data(),
                                           force + first);
        }
        share_among_ties(last - first, channels, unit, group + f, force + first);
    });
}

// The derivatives of a product for every row. The first stage has the channels p, which
// load(row, position, p) gives, and 1; from their sums, weigh(row, position, sums, s)
// computes s and q. The second stage has all of them; what add_spread(row, position, K s) returns is
// added to the derivative of the score there. A `symmetric` function of the scores does not depend
// on which item is which, so tied scores have equal derivatives.
template <int Features, class Float, class Load, class Weigh, class Spread>
void differentiate(const Rows<Float>& rows, const Gradients<Float>& to, bool symmetric,
                   const Load& load, const Weigh& weigh, const Spread& add_spread) {
    const int64_t n = rows.n, f = features_of<Features>(rows);
    const auto fill_unused = [&](int64_t row, const Blocks& blocks) {
        fill_gradients(to, row, n, f, blocks.blank());
    };
    for_each_block(rows, fill_unused, [&](int64_t row, Block block, BlockSolver<Float>& solver,
                                          int threads, Workspace& memory) {
        const Float* sorted = rows.sorted + row * n;
        const int64_t* order = rows.order + row * n;
        double* force = memory.force.get(n);
        // The inputs of the second stage; the first uses p and 1 of them, and writes the rest.
        const int channels = static_cast<int>(2 * f + 2);
        const auto fill = [&](int64_t begin, int64_t size, double* input) {
            for (int64_t i = 0; i < size; ++i, input += channels) {
                load(row, begin + i, input);
                input[f] = 1;
            }
        };
        solver.sums(static_cast<int>(f + 1), channels, fill,
                    [&](int64_t begin, int64_t size, const double* sums, double* input) {
                        for (int64_t i = 0; i < size; ++i, sums += f + 1, input += channels) {
                            weigh(row, begin + i, sums, input + f + 1);
                        }
                    });
        const bool ties = to.scores && !block.all_infinite && any_ties(sorted, block.begin, block.end);
        const double unit = solver.unit();
        const auto done = [&](int64_t begin, int64_t size, const double* spread, const double* slope) {
            for (int64_t i = 0; i < size; ++i) {
                force[begin + i] = unit * slope[i] + add_spread(row, begin + i, spread + i * f);
            }
        };
        const double moment =
            solver.derivatives(static_cast<int>(f), to.scale, ties && !symmetric, done);
        // Infinite scores have equal weights, whatever the scale; as values they are no moment.
        if (to.scale && !block.all_infinite) to.scale[row] += moment;
        if (!to.scores || block.all_infinite) return;
        for_each_range(threads, block.end - block.begin, kUncut, [&](int64_t b, int64_t e) {
            b = next_group(sorted, block, block.begin + b);
            e = next_group(sorted, block, block.begin + e);
            if (ties && symmetric) {
                average_ties(sorted, b, e, force);
            } else if (ties) {
                average_over_orders<Features>(rows, sorted, block, b, e, solver.inputs(), unit, force);
            }
            for (int64_t i = b; i < e; ++i) {
                to.scores[row * n + order[i]] = static_cast<Float>(force[i]);
            }
        });
    });
}

// The derivatives of sum(g_y * y) + sum(g_z * log Z) for y, log Z = apply(v). Null means zero. Where
// the values are the scores themselves, all of the derivative goes to them.
template <class Float, int Features>
void apply_backward(const Rows<Float>& rows, const Float* v, const Float* g_y, const Float* g_z,
                    double*, const Gradients<Float>& to) {
    const int64_t n = rows.n, f = features_of<Features>(rows);
    const bool own = !v && f > 0, infinite = v && any_infinite(v, rows.rows * n * f);
    const auto load = [&](int64_t row, int64_t position, double* p) {
        const Float* from = values_at<Features>(rows, v, row, position);
        for (int64_t c = 0; c < f; ++c) {
            p[c] = infinite ? finite_or_zero(from[c]) : static_cast<double>(from[c]);
        }
    };
    const auto weigh = [&](int64_t row, int64_t position, const double* sums, double* s) {
        const int64_t at = row * n + position;
        const double share = 1 / sums[f];
        double q = g_z ? -static_cast<double>(g_z[at]) * share : 0.0;
        for (int64_t c = 0; c < f; ++c) {
            s[c] = g_y ? static_cast<double>(g_y[at * f + c]) * share : 0.0;
            q += s[c] * (sums[c] * share);
        }
        s[f] = q;
    };
    const auto add_spread = [&](int64_t row, int64_t position, const double* spread) {
        if (own) return spread[0];
        if (!to.values) return 0.0;
        const int64_t item = row * n + rows.order[row * n + position];
        for (int64_t c = 0; c < f; ++c) {
            const bool fixed = infinite && std::isinf(v[item * f + c]);
            to.values[item * f + c] = fixed ? Float{0} : static_cast<Float>(spread[c]);
        }
        return 0.0;
    };
    differentiate<Features>(rows, to, own, load, weigh, add_spread);
}

// w = P^T u = K (u / Z), by item; u is by position.
template <class Float, int Features>
void apply_transposed(const Rows<Float>& rows, const Float* u, Float* w) {
    const int64_t n = rows.n, f = features_of<Features>(rows);
    const bool infinite = any_infinite(u, rows.rows * n * f);
    const int channels = static_cast<int>(f * (infinite ? 3 : 1));
    const auto fill_unused = [&](int64_t row, const Blocks& blocks) {
        fill_with(w + row * n * f, n * f, blocks.blank());
    };
    for_each_block(rows, fill_unused, [&](int64_t row, Block block, BlockSolver<Float>& solver, int,
                                          Workspace& memory) {
        double* const z = memory.z.get(block.end - block.begin);
        const auto ones = [](int64_t, int64_t size, double* input) { fill_with(input, size, 1); };
        solver.sums(1, 1, ones, [&](int64_t begin, int64_t size, const double* sums, const double*) {
            std::copy(sums, sums + size, z + (begin - block.begin));
        });
        const auto at = [&](int64_t i) { return u + (row * n + i) * f; };
        const std::vector<Bounds> bounds = find_bounds(rows.terms, block, f, at);
        const auto fill = [&](int64_t begin, int64_t size, double* input) {
            const auto share = [&](int64_t i) { return 1 / z[i - block.begin]; };
            write_channels<false>(begin, size, features_of<Features>(rows), infinite, at, share, input);
        };
        solver.sums(channels, channels, fill, [&](int64_t begin, int64_t size, const double* sums,
                                                  const double*) {
            // Not captured, or the compiler would forget that it is one.
            const int64_t f = features_of<Features>(rows);
            for (int64_t i = 0; i < size; ++i, sums += channels) {
                Float* item = w + (row * n + rows.order[row * n + begin + i]) * f;
                for (int64_t c = 0; c < f; ++c) {
                    double sum = bounds.empty() ? sums[c] : bounds[c].clamp_sum(sums[c]);
                    if (infinite) {
                        sum = with_ends(sum, sums[f + c], sums[2 * f + c], rows.terms.noise);
                    }
                    item[c] = static_cast<Float>(sum);
                }
            }
        });
    });
}

// The derivatives of sum(g * w) for w = apply_transposed(u).
template <class Float, int Features>
void apply_transposed_backward(const Rows<Float>& rows, const Float* u, const Float* g,
                               const Gradients<Float>& to) {
    const int64_t n = rows.n, f = features_of<Features>(rows);
    const auto load = [&](int64_t row, int64_t position, double* p) {
        const Float* from = g + (row * n + rows.order[row * n + position]) * f;
        for (int64_t c = 0; c < f; ++c) p[c] = static_cast<double>(from[c]);
    };
    const auto weigh = [&](int64_t row, int64_t position, const double* sums, double* s) {
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
    const auto add_spread = [](int64_t, int64_t, const double*) { return 0.0; };
    differentiate<Features>(rows, to, false, load, weigh, add_spread);
}

}  // namespace softorder
