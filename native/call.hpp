// One call of a product: what it is made of, and the two functions that compute it. Python (module.cpp)
// and XLA (xla.cpp) both hand over views of their arrays; everything is checked here.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <vector>

#include "likelihood.hpp"
#include "neuralsort.hpp"
#include "rows.hpp"
#include "softsort.hpp"

namespace softorder {

// The numbers are those of Product in _kernels/products.py.
enum class Product : int { kApply, kApplyTransposed, kLogProb };
// The numbers are those of `native` in _kernels/spec.py and _kernels/neuralsort.py.
enum class Formula : int { kStationary, kNeuralSort };

inline void require(bool condition, const char* what) {
    if (!condition) throw std::invalid_argument(std::string("softorder._native: ") + what);
}

// A dense array of someone else's. An argument that is left out has no data.
template <class T>
struct View {
    T* data = nullptr;
    int64_t rank = 0, shape[3] = {};

    View() = default;
    View(T* first, int64_t dimensions, const int64_t* sizes) : data(first), rank(dimensions) {
        require(rank <= 3, "an array has too many dimensions");
        std::copy(sizes, sizes + rank, shape);
    }
    bool is(std::initializer_list<int64_t> other) const {
        return rank == static_cast<int64_t>(other.size()) &&
               std::equal(other.begin(), other.end(), shape);
    }
};

// The arguments of every product, as they come.
template <class Float>
struct Arguments {
    int product, formula;
    bool own_scores, flip;
    int threads;
    View<const double> table;
    View<const Float> sorted;
    View<const int64_t> order, counts;
    View<const double> scale;
    View<const Float> values;
    View<const int64_t> items;
    View<double> saved;
};

// The same, checked.
template <class Float>
struct Call {
    Product product;
    Formula formula;
    bool flip;  // the positions of a result are in increasing order of the scores
    Rows<Float> rows;
    const Float* values;       // (rows, n, f); null for the scores themselves
    Permutations permutations;  // of the likelihood
    double* saved;              // sums that forward saves for backward; may be null

    int64_t out_size() const {
        if (product == Product::kLogProb) return rows.rows;
        return rows.rows * rows.n * rows.features;
    }
};

// The table has a first row (power, reach, noise, 0), and then for each term weight and decay, real and
// imaginary part.
inline Terms read_terms(const View<const double>& table) {
    const int64_t count = table.shape[0] - 1;
    require(table.rank == 2 && table.shape[1] == 4 && (count == 1 || count == kMostTerms),
            "the table of terms must have shape (2, 4) or (9, 4)");
    Terms terms = {};
    terms.count = static_cast<int>(count);
    terms.reach = table.data[1];
    terms.noise = table.data[2];
    for (int m = 0; m < terms.count; ++m) {
        const double* row = table.data + 4 * (m + 1);
        terms.weight_re[m] = row[0];
        terms.weight_im[m] = row[1];
        terms.decay_re[m] = row[2];
        terms.decay_im[m] = row[3];
    }
    return terms;
}

template <class Float>
Call<Float> check(const Arguments<Float>& a) {
    require(0 <= a.product && a.product <= static_cast<int>(Product::kLogProb), "unknown product");
    require(a.formula == 0 || a.formula == 1, "unknown formula");
    require(a.sorted.rank == 2, "sorted scores must be (rows, n)");
    const int64_t rows = a.sorted.shape[0], n = a.sorted.shape[1];
    const Product product = static_cast<Product>(a.product);
    const bool has_values = product == Product::kApplyTransposed ||
                            (product == Product::kApply && !a.own_scores);
    require(a.order.is({rows, n}), "order must have the shape of the sorted scores");
    require(!a.counts.data || a.counts.is({rows}), "one count for each row");
    for (int64_t row = 0; a.counts.data && row < rows; ++row) {
        const int64_t count = a.counts.data[row];
        require(0 <= count && count <= n, "counts must be 0 to n");
    }
    require(a.scale.is({rows}) || a.scale.is({1}), "one scale, or one for each row");
    require(!a.flip || product == Product::kApply, "only P v has positions to flip");
    int64_t features = product == Product::kApply ? 1 : 0;
    if (has_values) {
        features = a.values.shape[2];
        require(a.values.is({rows, n, features}), "values must be (rows, n, f)");
        require(features < (int64_t{1} << 24), "too many features");
    }
    if (product == Product::kLogProb) {
        require(a.items.is({rows, n}) || a.items.is({1, n}), "a permutation must be (rows, n) or (1, n)");
        // Each index is looked at: a traced program could not, and an array would be overrun.
        for (int64_t i = 0; i < a.items.shape[0] * n; ++i) {
            require(0 <= a.items.data[i] && a.items.data[i] < n,
                    "a permutation holds each of 0..n-1 once");
        }
    }
    require(!a.saved.data || a.saved.is({rows * n * 2 * (features + 1)}),
            "saved must have room for 2 (f + 1) numbers at each position");
    return {product,
            static_cast<Formula>(a.formula),
            a.flip,
            {a.sorted.data, a.order.data, a.counts.data, a.scale.data, a.scale.shape[0] != 1,
             read_terms(a.table), rows, n, features, a.threads},
            has_values ? a.values.data : nullptr,
            {a.items.data, a.items.shape[0] != 1},
            a.saved.data};
}

// The products of each formula, for a number of features that is known to be one, or for any.
template <class Float>
struct Products {
    void (*apply)(const Rows<Float>&, const Float* v, Float* y, Float* log_z, double* saved);
    void (*apply_backward)(const Rows<Float>&, const Float* v, const Float* g_y, const Float* g_z,
                           double* saved, const Gradients<Float>&);
    void (*apply_transposed)(const Rows<Float>&, const Float* u, Float* w);
    void (*apply_transposed_backward)(const Rows<Float>&, const Float* u, const Float* g,
                                      const Gradients<Float>&);
    void (*cost)(const Rows<Float>&, const Permutations&, Float* out);
    void (*cost_backward)(const Rows<Float>&, const Permutations&, const Float* g,
                          const Gradients<Float>&);
};

template <class Float, int Features>
constexpr Products<Float> kSoftSort = {apply<Float, Features>,
                                       apply_backward<Float, Features>,
                                       apply_transposed<Float, Features>,
                                       apply_transposed_backward<Float, Features>,
                                       cost<Float, SoftSortCost<Float>>,
                                       cost_backward<Float, SoftSortCost<Float>>};
template <class Float>
constexpr Products<Float> kNeuralSort = {neuralsort::apply<Float>,
                                         neuralsort::apply_backward<Float>,
                                         neuralsort::apply_transposed<Float>,
                                         neuralsort::apply_transposed_backward<Float>,
                                         cost<Float, NeuralSortCost<Float>>,
                                         cost_backward<Float, NeuralSortCost<Float>>};

template <class Float>
const Products<Float>& products(const Call<Float>& call) {
    if (call.formula == Formula::kNeuralSort) return kNeuralSort<Float>;
    return call.rows.features == 1 ? kSoftSort<Float, 1> : kSoftSort<Float, 0>;
}

// Reverses the positions that take part, in every row of (rows, n, f).
template <class Float>
void flip_positions(const Rows<Float>& rows, Float* y) {
    const int64_t f = rows.features;
    for (int64_t row = 0; row < rows.rows; ++row) {
        Float* first = y + row * rows.n * f;
        for (int64_t i = 0, j = rows.count_of(row) - 1; i < j; ++i, --j) {
            std::swap_ranges(first + i * f, first + (i + 1) * f, first + j * f);
        }
    }
}

template <class Float>
void log_prob(const Call<Float>& call, Float* out) {
    const Rows<Float>& rows = call.rows;
    const size_t size = static_cast<size_t>(rows.rows * rows.n);
    std::vector<Float> log_z(size), costs(size);
    products(call).apply(rows, nullptr, nullptr, log_z.data(), call.saved);
    products(call).cost(rows, call.permutations, costs.data());
    for (int64_t row = 0; row < rows.rows; ++row) {
        double total = 0;
        for (int64_t i = row * rows.n; i < (row + 1) * rows.n; ++i) {
            total += static_cast<double>(costs[i]) + static_cast<double>(log_z[i]);
        }
        out[row] = static_cast<Float>(0.0 - total);
    }
}

template <class Float>
void log_prob_backward(const Call<Float>& call, const Float* g, const Gradients<Float>& to) {
    const Rows<Float>& rows = call.rows;
    std::vector<Float> by_position(static_cast<size_t>(rows.rows * rows.n));
    for (int64_t row = 0; row < rows.rows; ++row) {
        fill_with(by_position.data() + row * rows.n, rows.n, -static_cast<double>(g[row]));
    }
    products(call).apply_backward(rows, nullptr, nullptr, by_position.data(), call.saved, to);
    products(call).cost_backward(rows, call.permutations, by_position.data(), to);
}

template <class Float>
void forward(const Call<Float>& call, Float* out) {
    switch (call.product) {
        case Product::kApply:
            products(call).apply(call.rows, call.values, out, nullptr, call.saved);
            if (call.flip) flip_positions(call.rows, out);
            return;
        case Product::kApplyTransposed:
            return products(call).apply_transposed(call.rows, call.values, out);
        case Product::kLogProb:
            return log_prob(call, out);
    }
}

// The derivatives of sum(g * out): what is null is not wanted.
template <class Float>
void backward(const Call<Float>& call, const Float* g, const Gradients<Float>& to) {
    switch (call.product) {
        case Product::kApply: {
            std::vector<Float> flipped;
            if (call.flip) {
                flipped.assign(g, g + call.out_size());
                flip_positions(call.rows, flipped.data());
                g = flipped.data();
            }
            return products(call).apply_backward(call.rows, call.values, g, nullptr, call.saved, to);
        }
        case Product::kApplyTransposed:
            return products(call).apply_transposed_backward(call.rows, call.values, g, to);
        case Product::kLogProb:
            return log_prob_backward(call, g, to);
    }
}

template <class Float>
Gradients<Float> check_gradients(const Call<Float>& call, const View<Float>& to_scores,
                                 const View<Float>& to_values, const View<double>& to_scale) {
    const Rows<Float>& rows = call.rows;
    require(!to_scores.data || to_scores.is({rows.rows, rows.n}),
            "the gradient of the scores has their shape");
    require(!to_values.data || (call.values && to_values.is({rows.rows, rows.n, rows.features})),
            "the gradient of the values has their shape");
    require(!to_scale.data || to_scale.is({rows.rows}), "one scale for each row");
    return {to_scores.data, to_values.data, to_scale.data};
}

}  // namespace softorder
