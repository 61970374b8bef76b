// The products of each relaxation in one table, for those who call them.
#pragma once

#include "neuralsort.hpp"
#include "rows.hpp"
#include "softsort.hpp"

namespace softorder {

template <class Float>
struct Products {
    void (*apply)(const Rows<Float>&, const Float* v, Float* y, Float* log_z, double* kept);
    void (*apply_backward)(const Rows<Float>&, const Float* v, const Float* g_y, const Float* g_z,
                           double* kept, const Gradients<Float>&);
    void (*apply_transposed)(const Rows<Float>&, const Float* u, Float* w);
    void (*apply_transposed_backward)(const Rows<Float>&, const Float* u, const Float* g,
                                      const Gradients<Float>&);
};

template <class Float, int Features>
constexpr Products<Float> kSoftSort = {apply<Float, Features>, apply_backward<Float, Features>,
                                       apply_transposed<Float, Features>,
                                       apply_transposed_backward<Float, Features>};
template <class Float>
constexpr Products<Float> kNeuralSort = {
    neuralsort::apply<Float>, neuralsort::apply_backward<Float>,
    neuralsort::apply_transposed<Float>, neuralsort::apply_transposed_backward<Float>};

// Reads a table of (count, 4) numbers: weight and decay of each term, real and imaginary part.
inline Terms read_terms(const double* table, size_t count) {
    Terms terms = {};
    terms.count = static_cast<int>(count);
    for (int m = 0; m < terms.count; ++m) {
        const double* row = table + 4 * m;
        terms.weight_re[m] = row[0];
        terms.weight_im[m] = row[1];
        terms.decay_re[m] = row[2];
        terms.decay_im[m] = row[3];
    }
    return terms;
}

}  // namespace softorder
