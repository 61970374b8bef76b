// P v and P^T u of NeuralSort, with their derivatives, for sorted scores: what _kernels/README.md
// derives, block by block. Costs and sums are those of band_kernels.hpp.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "band_block.hpp"
#include "band_kernels.hpp"
#include "rows.hpp"

namespace softorder {
namespace neuralsort {

// What apply may save of the sums over rows for its derivatives: (rows, n, 2, f + 1), up and down.
struct SavedSums {
    double* memory;
    int64_t n, f;

    // Calls move(number in memory, number in the planes) for all numbers of a block.
    template <class Float, class Move>
    void each(const BandBlock<Float>& block, int64_t row, double* up, double* down,
              const Move& move) const {
        for (int64_t i = 0; i < block.length; ++i) {
            double* here = memory + (row * n + block.begin + i) * 2 * (f + 1);
            for (int64_t c = 0; c <= f; ++c) {
                move(here[c], block.at(up, c, i));
                move(here[f + 1 + c], block.at(down, c, i));
            }
        }
    }
};

// y = P v by position, and log Z, which may be null. v is by item; null for the scores themselves.
// What is saved, if not null, serves apply_backward.
template <class Float>
void apply(const Rows<Float>& rows, const Float* v, Float* y, Float* log_z, double* saved) {
    const int64_t n = rows.n, f = rows.features;
    const bool infinite = v && any_infinite(v, rows.rows * n * f);
    const int64_t planes = infinite ? 3 * f : f;
    const auto fill_unused = [&](int64_t row, double value) {
        fill_with(y + row * n * f, n * f, value);
        if (log_z) fill_with(log_z + row * n, n, value);
    };
    const auto work = [&](int64_t row, BandBlock<Float>& block) {
        Float* y_block = y + (row * n + block.begin) * f;
        const bool own = !v && block.all_infinite;  // infinite scores: the mean of equal ones
        double* values = block.take_cleared(planes);
        double *up = block.take(planes + 1), *down = block.take(f + 1);
        for (int64_t i = 0; i < block.length; ++i) {
            const Float* from = values_at<0>(rows, v, row, block.begin + i);
            for (int64_t c = 0; c < f; ++c) {
                split(own ? Float{0} : from[c], infinite, [&](int64_t part, double x) {
                    block.at(values, part * f + c, i) = x;
                });
            }
        }
        if (saved || !infinite) block.sum_rows(values, f, true, up, down);
        if (saved) {
            SavedSums{saved, n, f}.each(block, row, up, down, [](double& to, double x) { to = x; });
        }
        if (infinite) block.sum_rows(values, planes, false, up, up);
        for (int64_t i = 0; i < block.length; ++i) {
            const double z = 1 + up[i] + (infinite ? 0 : down[i]);
            if (log_z) log_z[row * n + block.begin + i] = static_cast<Float>(std::log(z));
            const auto total = [&](int64_t c) {
                return block.at(values, c, i) + block.at(up, 1 + c, i);
            };
            for (int64_t c = 0; c < f; ++c) {
                double mean = static_cast<double>(rows.sorted[row * n + block.begin]);
                if (infinite) {
                    mean = with_ends(total(c) / z, total(f + c), total(2 * f + c), kUnderflow<Float>);
                } else if (!own) {
                    const double shift = block.at(up, 1 + c, i) + block.at(down, 1 + c, i);
                    mean = block.at(values, c, i) + shift / z;
                }
                y_block[i * f + c] = static_cast<Float>(mean);
            }
        }
    };
    const double smallest = infinite ? kUnderflow<Float> : kNegligible<Float>;
    for_each_block(rows, smallest, 2 * planes + f + 2, fill_unused, work);
}

// w = P^T u by item; u is by position.
template <class Float>
void apply_transposed(const Rows<Float>& rows, const Float* u, Float* w) {
    const int64_t n = rows.n, f = rows.features;
    const bool infinite = any_infinite(u, rows.rows * n * f);
    const int64_t planes = infinite ? 3 * f : f;
    const auto fill_unused = [&](int64_t row, double value) {
        fill_with(w + row * n * f, n * f, value);
    };
    const double smallest = infinite ? kUnderflow<Float> : kNegligible<Float>;
    for_each_block(rows, smallest, 2 * planes + 1, fill_unused, [&](int64_t row, BandBlock<Float>& block) {
        double* shares = block.take_cleared(planes);
        double* sums = block.take(planes);
        double* z = block.take(1);
        block.sum_rows(nullptr, 0, false, z, z);
        const Float* from = u + (row * n + block.begin) * f;
        for (int64_t i = 0; i < block.length; ++i) {
            for (int64_t c = 0; c < f; ++c) {
                split(from[i * f + c], infinite, [&](int64_t part, double x) {
                    block.at(shares, part * f + c, i) = x / (1 + z[i]);
                });
            }
        }
        block.sum_columns(shares, planes, sums);
        const int64_t* order = rows.order + row * n + block.begin;
        for (int64_t i = 0; i < block.length; ++i) {
            Float* item = w + (row * n + order[i]) * f;
            const auto total = [&](int64_t c) { return block.at(shares, c, i) + block.at(sums, c, i); };
            for (int64_t c = 0; c < f; ++c) {
                double sum = total(c);
                if (infinite) {
                    sum = with_ends(sum, total(f + c), total(2 * f + c), kUnderflow<Float>);
                }
                item[c] = static_cast<Float>(sum);
            }
        }
    });
}

// The planes of a derivative. For a loss L, M_rp = w_rp dL/dw_rp is w_rp (s_r . (p_p - p_r) + t_r).
struct Planes {
    double *p, *s, *t;
    double *up, *down;  // the sums over rows, and then what M adds up to in each row
    double *sums, *flow, *force;

    static constexpr int64_t number(int64_t f) { return 5 * f + 8; }

    template <class Float>
    Planes(BandBlock<Float>& block, int64_t f)
        : p(block.take_cleared(f)),
          s(block.take_cleared(f)),
          t(block.take_cleared(1)),
          up(block.take(f + 1)),
          down(block.take(f + 1)),
          sums(block.take(f)),
          flow(block.take(4)),
          force(block.take(1)) {}
};

// Writes the derivative of the score at each position to `force`, and returns that of the scale.
// With cost_r(p) = x_r + 2 x_{r+1} + ... + 2 x_{p-1} - (2 (p - r) - 1) x_p for p > r, and the
// negative of the same for p < r: `crossing` adds up the pairs with the position between them.
template <class Float>
double collect(const BandBlock<Float>& block, const Planes& planes) {
    double crossing = 0, moment = 0;
    for (int64_t i = 0; i < block.length; ++i) {
        const double up = planes.up[i], down = planes.down[i];
        crossing -= planes.flow[i] - down;
        const double pull = up - down + block.at(planes.flow, 2, i) + 2 * crossing;
        crossing += up - block.at(planes.flow, 1, i);
        planes.force[i] = -block.inverse_scale * pull;
        moment += block.at(planes.flow, 3, i);
    }
    return moment * block.inverse_scale;
}

// The derivatives of a product, for what load(row, position, c) is p there and
// weigh(row, position, c, mean) is s Z, given the mean of p in the row; g_z is dL/d(log Z), or
// null; `saved` are the sums of p over rows if they are known, or null.
// What add_spread(row, position, c, P^T (s Z)) returns is added to the derivative of the score.
template <class Float, class Load, class Weigh, class Spread>
void differentiate(const Rows<Float>& rows, const Gradients<Float>& to, const Float* g_z,
                   double* saved, const Load& load, const Weigh& weigh, const Spread& add_spread) {
    const int64_t n = rows.n, f = rows.features;
    const auto fill_unused = [&](int64_t row, double value) { fill_gradients(to, row, n, f, value); };
    const auto work = [&](int64_t row, BandBlock<Float>& block) {
        const Planes planes(block, f);
        const auto [p, s, t, up, down, sums, flow, force] = planes;
        for (int64_t i = 0; i < block.length; ++i) {
            for (int64_t c = 0; c < f; ++c) block.at(p, c, i) = load(row, block.begin + i, c);
        }
        if (saved) {
            SavedSums{saved, n, f}.each(block, row, up, down, [](double x, double& to) { to = x; });
        } else {
            block.sum_rows(p, f, true, up, down);
        }
        for (int64_t i = 0; i < block.length; ++i) {
            const double share = 1 / (1 + up[i] + down[i]);
            t[i] = g_z ? share * static_cast<double>(g_z[row * n + block.begin + i]) : 0.0;
            double m_up = 0, m_down = 0;
            for (int64_t c = 0; c < f; ++c) {
                const double above = block.at(up, 1 + c, i), below = block.at(down, 1 + c, i);
                const double shift = (above + below) * share;  // of the mean, from p
                const double mean = block.at(p, c, i) + shift;
                const double weight = share * weigh(row, block.begin + i, c, mean);
                block.at(s, c, i) = weight;
                t[i] -= weight * shift;
                m_up += weight * above;
                m_down += weight * below;
            }
            up[i] = m_up + t[i] * up[i];
            down[i] = m_down + t[i] * down[i];
        }
        block.differentiate(p, s, t, f, to.scale, sums, flow);
        const double by_scale = collect(block, planes);
        if (!block.all_infinite) {
            // What the logits of an item add up to, over all rows: its own is minus the others.
            remove_tied_distances(rows.sorted + row * n + block.begin, block.length, [&](int64_t i) {
                const double others = flow[i] + block.at(flow, 1, i);
                return -block.inverse_scale * (others - up[i] - down[i]);
            }, force);
        }
        for (int64_t i = 0; i < block.length; ++i) {
            for (int64_t c = 0; c < f; ++c) {
                const double spread = block.at(s, c, i) + block.at(sums, c, i);
                force[i] += add_spread(row, block.begin + i, c, spread);
            }
        }
        if (block.all_infinite) return;  // infinite scores
        if (to.scale) to.scale[row] += by_scale;
        if (!to.scores) return;
        const int64_t at = row * n + block.begin;
        for (int64_t i = 0; i < block.length; ++i) {
            to.scores[row * n + rows.order[at + i]] = static_cast<Float>(force[i]);
        }
    };
    for_each_block(rows, kNegligible<Float>, Planes::number(f), fill_unused, work);
}

// The derivatives of sum(g_y * y) + sum(g_z * log Z) for y, log Z = apply(v). Null means zero. If v
// itself is null, all of the derivative goes to the scores. `saved` is what apply saved, or null.
template <class Float>
void apply_backward(const Rows<Float>& rows, const Float* v, const Float* g_y, const Float* g_z,
                    double* saved, const Gradients<Float>& to) {
    const int64_t n = rows.n, f = rows.features;
    const auto load = [&](int64_t row, int64_t position, int64_t c) {
        return finite_or_zero(values_at<0>(rows, v, row, position)[c]);
    };
    const auto weigh = [&](int64_t row, int64_t position, int64_t c, double) {
        return g_y ? static_cast<double>(g_y[(row * n + position) * f + c]) : 0.0;
    };
    const auto add_spread = [&](int64_t row, int64_t position, int64_t c, double spread) {
        if (!v) return spread;
        if (!to.values) return 0.0;
        const int64_t at = (row * n + rows.order[row * n + position]) * f + c;
        to.values[at] = std::isinf(v[at]) ? Float{0} : static_cast<Float>(spread);
        return 0.0;
    };
    differentiate(rows, to, g_z, saved, load, weigh, add_spread);
}

// The derivatives of sum(g * w) for w = apply_transposed(u).
template <class Float>
void apply_transposed_backward(const Rows<Float>& rows, const Float* u, const Float* g,
                               const Gradients<Float>& to) {
    const int64_t n = rows.n, f = rows.features;
    const auto load = [&](int64_t row, int64_t position, int64_t c) {
        return static_cast<double>(g[(row * n + rows.order[row * n + position]) * f + c]);
    };
    const auto weigh = [&](int64_t row, int64_t position, int64_t c, double mean) {
        const int64_t at = (row * n + position) * f + c;
        if (to.values) to.values[at] = std::isinf(u[at]) ? Float{0} : static_cast<Float>(mean);
        return finite_or_zero(u[at]);
    };
    const auto add_spread = [](int64_t, int64_t, int64_t, double) { return 0.0; };
    const Float* no_g_z = nullptr;
    differentiate(rows, to, no_g_z, nullptr, load, weigh, add_spread);
}

}  // namespace neuralsort
}  // namespace softorder
