// The recurrences of SoftSort over one block of one sorted row, cut into chunks that threads share
// (_kernels/README.md, "Recurrences").
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "chunk_kernels.hpp"
#include "parallel.hpp"
#include "rows.hpp"

namespace softorder {

// Long blocks are cut into chunks of this many positions: they fit a cache, and threads share them.
constexpr int64_t kChunk = 4096;
// A block of real exponentials up to this long is one chunk: cutting it would cost more than threads
// give back, and they may be busy. Complex gates are large, and take longer.
constexpr int64_t kUncut = 1 << 17;
// Less work than this many positions is done before a thread starts.
constexpr int64_t kWorthAThread = 1 << 13;

// What a thread needs for the chunk that it works on.
struct ChunkScratch {
    Scratch gate, sums, force;
};

// What a block needs, kept from row to row.
struct Workspace {
    Scratch gap, gate, input, left, right;
    Scratch z, force;
    ChunkScratch chunk;

    int64_t capacity() const {
        int64_t total = 0;
        for (const Scratch* s : {&gap, &gate, &input, &left, &right, &z, &force, &chunk.gate,
                                 &chunk.sums, &chunk.force}) {
            total += s->capacity();
        }
        return total;
    }
};

// The recurrences over one block, cut into chunks.
template <class Float>
class BlockSolver {
  public:
    struct Chunk {
        int64_t begin, length;
        double *gap, *gate, *input;
        double *left, *right;  // what enters it
        ChunkScratch& scratch;
    };

    BlockSolver(const Float* sorted, Block block, double scale, const Terms& terms, int threads,
              Workspace& memory)
        : sorted_(sorted),
          block_(block),
          length_(block.end - block.begin),
          chunk_size_(chunk_kernels(terms).width == 1 && length_ <= kUncut ? length_ : kChunk),
          chunks_((length_ + chunk_size_ - 1) / chunk_size_),
          inverse_scale_(inverse(scale)),
          terms_(terms),
          kernels_(chunk_kernels(terms)),
          keeps_gates_(chunks_ == 1 || kernels_.width == 1),
          threads_(threads),
          memory_(memory) {}

    // Sums of all channels, by position: done(begin, length, sums, input). There may be room
    // between the inputs of one position and the next: `stride` numbers in all.
    template <class Fill, class Done>
    void sums(int channels, int stride, const Fill& fill, const Done& done) {
        sweep(channels, stride, 0, fill, [&](const Chunk& chunk) {
            double* sums = chunk.scratch.sums.get(chunk.length * channels);
            kernels_.sum(terms_, chunk.gate, chunk.length, chunk.input, stride, channels,
                         chunk.left, chunk.right, sums);
            done(chunk.begin, chunk.length, sums, chunk.input);
        });
    }

    // The derivatives, for the inputs that the last sums left: done(begin, length, spread, force).
    // If keeps_rows, what rows have of the force, in units of the scale too, takes the place of the
    // input that is 1. Returns the scale's derivative.
    template <class Done>
    double derivatives(int features, bool with_moment, bool keeps_rows, const Done& done) {
        std::vector<double> moment(with_moment ? index(chunks_) : 0);
        const int channels = 2 * features + 2, moments = with_moment ? features + 1 : 0;
        const auto as_they_are = [](int64_t, int64_t, double*) {};
        sweep(channels, channels, moments, as_they_are, [&](const Chunk& chunk) {
            double* spread = chunk.scratch.sums.get(chunk.length * features);
            double* force = chunk.scratch.force.get(chunk.length);
            const double of_chunk = kernels_.differentiate(
                terms_, chunk.gate, chunk.gap, chunk.length, chunk.input, features, with_moment,
                keeps_rows, chunk.left, chunk.right, spread, force);
            if (with_moment) moment[index((chunk.begin - block_.begin) / chunk_size_)] = of_chunk;
            done(chunk.begin, chunk.length, spread, force);
        });
        double sum = 0;
        for (double m : moment) sum += m;
        return sum * unit();
    }

    // The factor that makes a derivative with respect to a score of the force.
    double unit() const { return block_.all_infinite ? 0 : inverse_scale_; }
    // p_1..p_f, 1 or what the row has of the force, s_1..s_f, q of every position, as the derivatives
    // left them.
    double* inputs() const { return memory_.input.get(0); }

  private:
    // Calls visit(chunk) for every chunk, with `channels` inputs for each position as
    // fill(begin, length, input) writes them; first moments for the first `moments` of them.
    template <class Fill, class Visit>
    void sweep(int channels, int stride, int moments, const Fill& fill, const Visit& visit) {
        const int64_t states = static_cast<int64_t>(channels + moments) * kernels_.width;
        double* left = memory_.left.get(chunks_ * states);
        double* right = memory_.right.get(chunks_ * states);
        double* input = memory_.input.get(length_ * stride);
        double* gap = memory_.gap.get(length_);
        double* gate = keeps_gates_ ? memory_.gate.get(length_ * kernels_.width) : nullptr;
        const auto chunk_at = [&](int64_t b, ChunkScratch& scratch) {
            const int64_t at = b * chunk_size_, size = std::min(chunk_size_, length_ - at);
            double* chunk_gate = gate ? gate + at * kernels_.width
                                      : scratch.gate.get(chunk_size_ * kernels_.width);
            return Chunk{block_.begin + at,   size,
                         gap + at,            chunk_gate,
                         input + at * stride, left + b * states, right + b * states, scratch};
        };
        const auto prepare = [&](const Chunk& chunk) {
            if (!has_gaps_) write_gaps(chunk);
            if (!has_gaps_ || !keeps_gates_) {
                kernels_.gates(terms_, chunk.gap, chunk.length, chunk.gate);
            }
            fill(chunk.begin, chunk.length, chunk.input);
        };
        if (chunks_ == 1) {
            const Chunk chunk = chunk_at(0, memory_.chunk);
            prepare(chunk);
            std::fill(left, left + states, 0.0);
            std::fill(right, right + states, 0.0);
            has_gaps_ = true;
            return visit(chunk);
        }
        const auto each_chunk = [&](const auto& work) {
            for_each_range(threads_, chunks_, kWorthAThread / kChunk, [&](int64_t b0, int64_t b1) {
                ChunkScratch scratch;
                for (int64_t b = b0; b < b1; ++b) work(b, chunk_at(b, scratch));
            });
        };
        std::vector<double> product(static_cast<size_t>(chunks_ * kernels_.width));
        std::vector<double> extent(static_cast<size_t>(chunks_));
        each_chunk([&](int64_t b, const Chunk& chunk) {
            prepare(chunk);
            kernels_.aggregate(chunk.gate, chunk.gap, chunk.length, chunk.input, stride, channels,
                               moments, chunk.left, chunk.right,
                               &product[index(b * kernels_.width)]);
            for (int64_t i = 0; i < chunk.length; ++i) extent[index(b)] += chunk.gap[i];
        });
        has_gaps_ = true;
        const auto through = [&](double* of_chunk, double* state, int64_t b) {
            enter(of_chunk + b * states, state, channels, moments,
                  &product[index(b * kernels_.width)], extent[index(b)]);
        };
        std::vector<double> from_left(index(states)), from_right(index(states));
        for (int64_t b = 0; b < chunks_; ++b) {
            through(left, from_left.data(), b);
            through(right, from_right.data(), chunks_ - 1 - b);
        }
        each_chunk([&](int64_t, const Chunk& chunk) {
            if (!keeps_gates_) kernels_.gates(terms_, chunk.gap, chunk.length, chunk.gate);
            visit(chunk);
        });
    }

    static size_t index(int64_t i) { return static_cast<size_t>(i); }

    // In units of the scale. What would cross the block's first gate is zero, so any gap will do.
    void write_gaps(const Chunk& chunk) const {
        const Float* x = sorted_ + chunk.begin;
        const auto difference = [&](int64_t i) {
            const double apart = static_cast<double>(x[i - 1]) - static_cast<double>(x[i]);
            return std::min(apart * inverse_scale_, kFar);
        };
        if (block_.all_infinite) {
            std::fill(chunk.gap, chunk.gap + chunk.length, 0.0);
            return;
        }
        chunk.gap[0] = chunk.begin == block_.begin ? 0.0 : difference(0);
        for (int64_t i = 1; i < chunk.length; ++i) chunk.gap[i] = difference(i);
    }

    // Exchanges what a chunk gives with nothing entering for what enters it, and moves on.
    void enter(double* of_chunk, double* state, int channels, int moments, const double* product,
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
        std::vector<double> next(of_chunk, of_chunk + (channels + moments) * width);
        for (int c = 0; c < channels; ++c) pass(&next[index(c * width)], state + c * width);
        for (int c = 0; c < moments; ++c) {
            double* moment = state + (channels + c) * width;
            std::vector<double> moved(moment, moment + width);
            for (int m = 0; m < width; ++m) moved[index(m)] += extent * state[c * width + m];
            pass(&next[index((channels + c) * width)], moved.data());
        }
        std::copy(state, state + next.size(), of_chunk);
        std::copy(next.begin(), next.end(), state);
    }

    const Float* sorted_;
    Block block_;
    int64_t length_, chunk_size_, chunks_;
    double inverse_scale_;
    const Terms& terms_;
    const ChunkKernels& kernels_;
    bool keeps_gates_;  // for the whole block; complex ones are computed again for each chunk
    int threads_;
    Workspace& memory_;
    bool has_gaps_ = false;
};

}  // namespace softorder
