// What the items of a permutation cost at their positions: log P[i, permutation_i] is minus this,
// less log Z_i. It is infinite for an item of another block, and 0 at a position past the valid ones.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "parallel.hpp"
#include "rows.hpp"

namespace softorder {

// Items of a row that are worth a thread.
constexpr int64_t kItemsPerCostThread = 1 << 14;

// Which item stands at each position: (rows, n), or one row for all.
struct Permutations {
    const int64_t* items;
    bool per_row;

    const int64_t* of(int64_t row, int64_t n) const { return items + (per_row ? row * n : 0); }
};

// exp(-u^p) with u = |x_i - x_j| / scale; p is 1 for one real term, else 2.
template <class Float>
struct SoftSortCost {
    const Float* x;
    double inverse_scale;
    bool is_square;

    std::vector<double> tie_slope;  // of |x_i - x_j| between ties; empty if there are none

    SoftSortCost(const Rows<Float>& rows, const Float* sorted, int64_t length, double scale)
        : x(sorted),
          inverse_scale(inverse(scale)),
          is_square(rows.terms.count > 1) {
        if (is_square) return;
        for_each_tie(x, 0, length, [&](int64_t first, int64_t last) {
            tie_slope.resize(static_cast<size_t>(length));
            const double others = static_cast<double>(last - first - 1);
            for (int64_t i = first; i < last; ++i) {
                tie_slope[i] = imbalance(last - first, i - first) / others;
            }
        });
    }

    double difference(int64_t i, int64_t j) const {
        return (static_cast<double>(x[i]) - static_cast<double>(x[j])) * inverse_scale;
    }
    // Cut off where it would overflow, and then constant. (Also bounded_power in Python.)
    double bound() const {
        const double most = static_cast<double>(std::numeric_limits<Float>::max());
        return 0.5 * (is_square ? std::sqrt(most) : most);
    }
    double operator()(int64_t i, int64_t j) const {
        const double u = std::min(std::fabs(difference(i, j)), bound());
        return is_square ? u * u : u;
    }
    double slope(int64_t i, double u) const {
        if (is_square) return 2 * u;
        if (u != 0) return std::copysign(1.0, u);
        return tie_slope.empty() ? 0.0 : tie_slope[i];
    }
    void differentiate(int64_t i, int64_t j, double g, double* of_positions, double* of_items) const {
        const double u = difference(i, j);
        if (!(std::fabs(u) < bound())) return;
        const double force = g * inverse_scale * slope(i, u);
        of_positions[i] += force;
        of_items[j] -= force;
    }
    void finish(double* of_positions, int64_t length, double*) const {
        average_ties(x, 0, length, of_positions);
    }
    // By the scale, the derivative of a cost is minus this many times cost / scale.
    double power() const { return is_square ? 2 : 1; }
};

// (2 (V_j - V_i) + (2 i + 1) (x_j - x_i)) / tau, where V_k adds up m (x_{m-1} - x_m) for m up to k:
// see `_Logits.of_positions` in _kernels/neuralsort.py. Positions count from the beginning of the block.
template <class Float>
struct NeuralSortCost {
    const Float* x;
    int64_t n;
    double inverse_scale;
    std::vector<double> sums;  // V

    NeuralSortCost(const Rows<Float>&, const Float* sorted, int64_t length, double scale)
        : x(sorted),
          n(length),
          inverse_scale(inverse(scale)),
          sums(static_cast<size_t>(length)) {
        for (int64_t k = 1; k < n; ++k) {
            sums[k] = sums[k - 1] + static_cast<double>(k) * (at(k - 1) - at(k));
        }
        by_sums.assign(sums.size(), 0.0);
    }

    double at(int64_t i) const { return static_cast<double>(x[i]); }
    double operator()(int64_t i, int64_t j) const {
        const double step = static_cast<double>(2 * i + 1) * (at(j) - at(i));
        const double cost = (2 * (sums[j] - sums[i]) + step) * inverse_scale;
        return std::min(cost, 0.5 * static_cast<double>(std::numeric_limits<Float>::max()));
    }
    // A position enters by its number alone.
    void differentiate(int64_t i, int64_t j, double g, double*, double* force) {
        const double share = g * inverse_scale, step = static_cast<double>(2 * i + 1) * share;
        by_sums[j] += 2 * share;
        by_sums[i] -= 2 * share;
        force[j] += step;
        force[i] -= step;
    }
    // From the sums to the scores that they are made of.
    void finish(double*, int64_t, double* force) const {
        remove_tied_distances(x, n, [&](int64_t i) { return 0.5 * by_sums[i]; }, force);
        double later = 0;
        for (int64_t k = n - 1; k > 0; --k) {
            later += by_sums[k];
            force[k - 1] += static_cast<double>(k) * later;
            force[k] -= static_cast<double>(k) * later;
        }
    }
    double power() const { return 1; }

  private:
    std::vector<double> by_sums;
};

// Calls work(row, scale, blocks, position) for every row, position(i) being that of the item which the
// permutation puts at i.
template <class Float, class Work>
void for_each_permutation(const Rows<Float>& rows, const Permutations& permutations,
                          const Work& work) {
    const int64_t n = rows.n, fewest = 1 + kItemsPerCostThread / std::max<int64_t>(n, 1);
    const auto one = [&](int64_t row, const Blocks& blocks, double scale, int,
                         std::vector<int64_t>& memory) {
        const int64_t *order = rows.order + row * n, *items = permutations.of(row, n);
        memory.resize(static_cast<size_t>(n));
        int64_t* position = memory.data();
        for (int64_t i = 0; i < n; ++i) position[order[i]] = i;
        work(row, scale, blocks, [=](int64_t i) { return position[items[i]]; });
    };
    for_each_row<std::vector<int64_t>>(rows, false, fewest, one);
}

inline bool holds(const Block& block, int64_t position) {
    return block.begin <= position && position < block.end;
}

// out (rows, n): the cost at each position.
template <class Float, class Cost>
void cost(const Rows<Float>& rows, const Permutations& permutations, Float* out) {
    const auto one = [&](int64_t row, double scale, const Blocks& blocks, const auto& position) {
        Float* to = out + row * rows.n;
        fill_with(to, rows.n, blocks.blank());
        for (const Block& block : blocks) {
            const int64_t begin = block.begin, length = block.all_infinite ? 0 : block.end - begin;
            const Cost of(rows, rows.sorted + row * rows.n + begin, length, scale);
            for (int64_t i = begin; i < block.end; ++i) {
                const int64_t j = position(i);
                if (!holds(block, j)) {
                    to[i] = std::numeric_limits<Float>::infinity();
                } else if (!block.all_infinite) {
                    to[i] = static_cast<Float>(of(i - begin, j - begin));
                }
            }
        }
    };
    for_each_permutation(rows, permutations, one);
}

// Adds the derivatives of sum(g * cost) for g (rows, n). An infinite cost is constant. A row with a NaN
// has no blocks: its gradients stay what apply_backward made of them, NaN.
template <class Float, class Cost>
void cost_backward(const Rows<Float>& rows, const Permutations& permutations, const Float* g,
                   const Gradients<Float>& to) {
    const int64_t n = rows.n;
    const auto one = [&](int64_t row, double scale, const Blocks& blocks, const auto& position) {
        for (const Block& block : blocks) {
            if (block.all_infinite) continue;
            const int64_t begin = block.begin, length = block.end - begin;
            const Float* sorted = rows.sorted + row * n + begin;
            Cost of(rows, sorted, length, scale);
            std::vector<double> positions(static_cast<size_t>(length)), items(positions);
            double total = 0;
            for (int64_t i = 0; i < length; ++i) {
                const int64_t j = position(begin + i) - begin;
                const double share = static_cast<double>(g[row * n + begin + i]);
                if (!holds(block, begin + j)) continue;
                if (to.scale) total += share * of(i, j);
                of.differentiate(i, j, share, positions.data(), items.data());
            }
            if (to.scale) to.scale[row] -= of.power() * total / scale;
            if (!to.scores) continue;
            of.finish(positions.data(), length, items.data());
            const int64_t* order = rows.order + row * n + begin;
            for (int64_t i = 0; i < length; ++i) {
                to.scores[row * n + order[i]] += static_cast<Float>(positions[i] + items[i]);
            }
        }
    };
    for_each_permutation(rows, permutations, one);
}

}  // namespace softorder
