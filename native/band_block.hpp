// One block of one row of NeuralSort: the planes that its sums are made of, and the sums.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "band_kernels.hpp"
#include "parallel.hpp"
#include "rows.hpp"

namespace softorder {
namespace neuralsort {

// Smaller weights may be left out: all of them together do not change a result. In a product with
// infinities they count until they underflow.
template <class Float>
constexpr double kNegligible = sizeof(Float) == 4 ? 1e-13 : 1e-20;
template <class Float>
constexpr double kUnderflow = sizeof(Float) == 4 ? 1e-45 : 1e-307;

// Fewer weights than this are computed before a thread has started.
constexpr double kWorthAThread = 1 << 18;

// About how many weights a row has to compute, if its scores are evenly spread.
template <class Float>
double count_weights(const Rows<Float>& rows, int64_t row) {
    const Float* sorted = rows.sorted + row * rows.n;
    const double scale = rows.scale_of(row), n = static_cast<double>(rows.n);
    const double range = static_cast<double>(sorted[0]) - static_cast<double>(sorted[rows.n - 1]);
    // The cost k steps away is k^2 gaps. A NaN or an infinite range counts as narrow.
    const double reach = std::sqrt(-std::log(kNegligible<Float>) * n * scale / range);
    return n * std::min(n, 4 * kSteps + (reach > 0 ? 2 * reach : 0.0));
}

// One block of one row, and the planes (band_kernels.hpp) that its sums are made of.
template <class Float>
class BandBlock {
  public:
    // Takes memory for this many planes, and prepares the band. A thread gets at least `minimum`
    // positions.
    BandBlock(const Float* sorted, Block block, double scale, double smallest, int threads,
              int64_t minimum, int64_t planes, Scratch& memory)
        : begin(block.begin),
          length(block.end - block.begin),
          all_infinite(block.all_infinite),
          inverse_scale(inverse(scale)),
          stride_(padded() + 2 * kMargin),
          threads_(threads),
          minimum_(minimum),
          next_(memory.get((planes + 2 + kSteps) * stride_) + kMargin) {
        if (all_infinite) return;
        double *scores = take(1), *gap = take(1), *powers = take(kSteps);
        const auto score = [&](int64_t i) { return static_cast<double>(sorted[begin + i]); };
        std::fill(scores - kMargin, scores, score(0));
        std::fill(scores + length, scores + padded() + kMargin, score(length - 1));
        std::fill(gap - kMargin, gap + 1, kFar);
        std::fill(gap + length, gap + padded() + kMargin, kFar);
        for (int64_t i = 0; i < length; ++i) scores[i] = score(i);
        for (int64_t i = 1; i < length; ++i) {
            gap[i] = std::min((scores[i - 1] - scores[i]) * inverse_scale, kFar);
        }
        band_kernels().write_powers(gap, -kMargin, padded() + kMargin, stride_, powers);
        band_ = {scores, gap, powers, inverse_scale, smallest, stride_};
    }

    const int64_t begin, length;
    const bool all_infinite;
    const double inverse_scale;

    // The next `planes` of them.
    double* take(int64_t planes) {
        double* first = next_;
        next_ += planes * stride_;
        return first;
    }

    // The same, 0 outside of the block.
    double* take_cleared(int64_t planes) {
        double* first = take(planes);
        for (int64_t c = 0; c < planes; ++c) {
            double* plane = first + c * stride_;
            std::fill(plane - kMargin, plane, 0.0);
            std::fill(plane + length, plane + padded() + kMargin, 0.0);
        }
        return first;
    }

    double& at(double* planes, int64_t c, int64_t i) const { return planes[c * stride_ + i]; }

    // As in BandKernels, for all positions.
    void sum_rows(const double* v, int64_t planes, bool relative, double* up, double* down) const {
        if (all_infinite) {
            clear(planes + 1, down);
            std::fill(up, up + length, static_cast<double>(length - 1));
            sum_others(v, planes, relative, up + stride_);
            return;
        }
        for_all_lanes(band_kernels().sum_rows, v, planes, relative, up, down);
    }

    void sum_columns(const double* s, int64_t planes, double* sums) const {
        if (all_infinite) {
            sum_others(s, planes, false, sums);
            return;
        }
        for_all_lanes(band_kernels().sum_columns, s, planes, sums);
    }

    void differentiate(const double* v, const double* s, const double* t, int64_t planes,
                       bool with_moment, double* sums, double* flow) const {
        if (all_infinite) {
            sum_others(s, planes, false, sums);
            clear(4, flow);
            return;
        }
        for_all_lanes(band_kernels().differentiate, v, s, t, planes, with_moment, sums, flow);
    }

  private:
    int64_t padded() const { return (length + kLanes - 1) / kLanes * kLanes; }

    template <class Kernel, class... Arguments>
    void for_all_lanes(Kernel kernel, Arguments... arguments) const {
        for_each_range(
            threads_, padded() / kLanes, 1 + minimum_ / kLanes,
            [&](int64_t b, int64_t e) { kernel(band_, b * kLanes, e * kLanes, arguments...); });
    }

    // Where all weights are 1: the sum over all positions but the own.
    void sum_others(const double* v, int64_t planes, bool relative, double* sums) const {
        for (int64_t c = 0; c < planes; ++c) {
            const double* from = v + c * stride_;
            double total = 0;
            for (int64_t i = 0; i < length; ++i) total += from[i];
            const double own = relative ? static_cast<double>(length) : 1.0;
            for (int64_t i = 0; i < length; ++i) sums[c * stride_ + i] = total - own * from[i];
        }
    }

    void clear(int64_t planes, double* first) const {
        for (int64_t c = 0; c < planes; ++c) {
            std::fill(first + c * stride_, first + c * stride_ + length, 0.0);
        }
    }

    const int64_t stride_;
    const int threads_;
    const int64_t minimum_;
    double* next_;
    Band band_ = {};
};

// Calls work(row, block) for every block of every row, with memory for this many planes, and
// fill_unused(row, value) first for every row: 0, or NaN if the row holds one.
template <class Float, class FillUnused, class Work>
void for_each_block(const Rows<Float>& rows, double smallest, int64_t planes,
                    const FillUnused& fill_unused, const Work& work) {
    if (rows.rows * rows.n == 0) {
        for (int64_t row = 0; row < rows.rows; ++row) fill_unused(row, 0.0);
        return;
    }
    double weights = 0;  // of one row, on average
    for (int64_t row = 0; row < rows.rows; ++row) weights += count_weights(rows, row);
    weights /= static_cast<double>(rows.rows);
    // The number of rows, or of positions of one row, that is worth a thread.
    const double fewest = kWorthAThread / weights;
    const int64_t minimum = 1 + static_cast<int64_t>(fewest);
    const int64_t positions = static_cast<int64_t>(fewest * static_cast<double>(rows.n));
    for_each_row<Scratch>(
        rows, fewest < 0.5, minimum,
        [&](int64_t row, const Blocks& blocks, double scale, int threads, Scratch& memory) {
            fill_unused(row, blocks.blank());
            for (const Block& one : blocks) {
                BandBlock<Float> block(rows.sorted + row * rows.n, one, scale, smallest, threads,
                                       positions, planes, memory);
                work(row, block);
            }
        });
}

}  // namespace neuralsort
}  // namespace softorder
