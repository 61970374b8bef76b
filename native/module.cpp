// The Python module softorder._native: checks arrays, releases the GIL, calls the kernels.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <optional>
#include <stdexcept>
#include <string>

#include "isotonic.hpp"
#include "likelihood.hpp"
#include "products.hpp"
#include "sort.hpp"
#include "xla.hpp"

namespace nb = nanobind;

namespace softorder {
namespace {

template <class T, size_t Dimensions>
using Array = nb::ndarray<T, nb::ndim<Dimensions>, nb::c_contig, nb::device::cpu>;
template <class T, size_t Dimensions>
using Maybe = std::optional<Array<T, Dimensions>>;

template <class A>
auto data_or_null(const std::optional<A>& array) -> decltype(array->data()) {
    return array ? array->data() : nullptr;
}

void require(bool condition, const char* what) {
    if (!condition) throw std::invalid_argument(std::string("softorder._native: ") + what);
}

template <class A, class B>
bool same_shape(const A& a, const B& b) {
    if (a.ndim() != b.ndim()) return false;
    for (size_t d = 0; d < a.ndim(); ++d) {
        if (a.shape(d) != b.shape(d)) return false;
    }
    return true;
}

template <class A, class B>
void require_same(const std::optional<A>& a, const B& b, const char* what) {
    require(!a || same_shape(*a, b), what);
}

Terms read_table(const Array<const double, 2>& table) {
    require(table.shape(1) == 4 && (table.shape(0) == 1 || table.shape(0) == kMostTerms),
            "terms must have shape (1, 4) or (8, 4)");
    return read_terms(table.data(), table.shape(0));
}

// What every product is given: sorted scores, order, counts, scale, terms, threads.
template <class Float>
struct Given {
    Array<const Float, 2> sorted;
    Array<const int64_t, 2> order;
    Maybe<const int64_t, 1> counts;
    Array<const double, 1> scale;
    Array<const double, 2> terms;
    int threads;

    // For values of shape (rows, n, f); f = 1 for the scores themselves.
    template <class Values>
    Rows<Float> rows(const std::optional<Values>& values) const {
        const size_t rows = sorted.shape(0), n = sorted.shape(1);
        const size_t features = values ? values->shape(2) : 1;
        require(same_shape(sorted, order), "order must have the shape of the sorted scores");
        require(!counts || counts->shape(0) == rows, "one count for each row");
        for (size_t row = 0; counts && row < rows; ++row) {
            const int64_t count = counts->data()[row];
            require(0 <= count && count <= static_cast<int64_t>(n), "counts must be 0 to n");
        }
        require(scale.shape(0) == rows || scale.shape(0) == 1, "one scale, or one for each row");
        require(!values || (values->shape(0) == rows && values->shape(1) == n),
                "values must be (rows, n, f)");
        require(features < (size_t{1} << 24), "too many features");
        return {sorted.data(),
                order.data(),
                data_or_null(counts),
                scale.data(),
                scale.shape(0) != 1,
                read_table(terms),
                static_cast<int64_t>(rows),
                static_cast<int64_t>(n),
                static_cast<int64_t>(features),
                threads};
    }
};

template <class Float>
struct Wanted {
    Maybe<Float, 2> scores;
    Maybe<Float, 3> values;
    Maybe<double, 1> scale;

    template <class Values>
    Gradients<Float> check(const Given<Float>& given, const std::optional<Values>& v) const {
        require_same(scores, given.sorted, "the gradient of the scores has their shape");
        require(!values || (v && same_shape(*values, *v)),
                "the gradient of the values has their shape");
        require(!scale || scale->shape(0) == given.sorted.shape(0), "one scale for each row");
        return {data_or_null(scores), data_or_null(values), data_or_null(scale)};
    }
};

// What a product may keep for its derivatives: two sums, each for 1 and for every feature.
template <class Float>
void require_kept(const Maybe<double, 1>& kept, const Rows<Float>& rows) {
    require(!kept || static_cast<int64_t>(kept->size()) ==
                         rows.rows * rows.n * 2 * (rows.features + 1),
            "kept must have room for 2 (f + 1) numbers at each position");
}

template <class Float>
void bind_sort(nb::module_& m) {
    using Scores = Array<const Float, 2>;

    m.def("sort",
          [](Scores scores, Maybe<const bool, 2> valid, Array<int64_t, 2> order,
             Array<Float, 2> sorted, int threads) {
              require(same_shape(scores, order) && same_shape(scores, sorted),
                      "order and sorted must have the shape of the scores");
              require_same(valid, scores, "valid must have the shape of the scores");
              const nb::gil_scoped_release release;
              sort_descending<Float>(scores.data(), reinterpret_cast<const uint8_t*>(data_or_null(valid)),
                                     static_cast<int64_t>(scores.shape(0)),
                                     static_cast<int64_t>(scores.shape(1)), order.data(),
                                     sorted.data(), threads);
          },
          nb::arg("scores").noconvert(), nb::arg("valid").none(), nb::arg("order").noconvert(),
          nb::arg("sorted").noconvert(), nb::arg("threads"));
}

// Binds the products for one feature and for any number of them, under names with a prefix.
template <class Float>
void bind_products(nb::module_& m, const std::string& prefix, const Products<Float>& one,
                   const Products<Float>& any) {
    using Scores = Array<const Float, 2>;
    using Order = Array<const int64_t, 2>;
    using Counts = Maybe<const int64_t, 1>;
    using Scale = Array<const double, 1>;
    using Table = Array<const double, 2>;
    using Values = Array<const Float, 3>;
    const auto products = [&one, &any](const Rows<Float>& rows) -> const Products<Float>& {
        return rows.features == 1 ? one : any;
    };

    m.def((prefix + "apply").c_str(),
          [products](Scores sorted, Order order, Counts counts, Scale scale, Table terms,
                     int threads, Maybe<const Float, 3> v, Array<Float, 3> y,
                     Maybe<Float, 2> log_z, Maybe<double, 1> kept) {
              const Given<Float> given{sorted, order, counts, scale, terms, threads};
              const Rows<Float> rows = given.rows(v);
              require(static_cast<int64_t>(y.size()) == rows.rows * rows.n * rows.features,
                      "y must have the shape of v");
              require_same(log_z, sorted, "log_z must have the shape of the scores");
              require_kept(kept, rows);
              const nb::gil_scoped_release release;
              products(rows).apply(rows, data_or_null(v), y.data(), data_or_null(log_z),
                                   data_or_null(kept));
          },
          nb::arg("sorted").noconvert(), nb::arg("order"), nb::arg("counts").none(),
          nb::arg("scale"), nb::arg("terms"), nb::arg("threads"), nb::arg("v").none(),
          nb::arg("y").noconvert(), nb::arg("log_z").noconvert().none(),
          nb::arg("kept").noconvert().none() = nb::none());
    m.def((prefix + "apply_backward").c_str(),
          [products](Scores sorted, Order order, Counts counts, Scale scale, Table terms,
                     int threads, Maybe<const Float, 3> v, Maybe<const Float, 3> g_y,
                     Maybe<const Float, 2> g_z, Maybe<Float, 2> to_scores, Maybe<Float, 3> to_v,
                     Maybe<double, 1> to_scale, Maybe<double, 1> kept) {
              const Given<Float> given{sorted, order, counts, scale, terms, threads};
              const Rows<Float> rows = given.rows(v);
              const auto to = Wanted<Float>{to_scores, to_v, to_scale}.check(given, v);
              require_kept(kept, rows);
              require(!g_y || static_cast<int64_t>(g_y->size()) ==
                                  rows.rows * rows.n * rows.features,
                      "g_y must have the shape of v");
              require_same(g_z, sorted, "g_z must have the shape of the scores");
              const nb::gil_scoped_release release;
              products(rows).apply_backward(rows, data_or_null(v), data_or_null(g_y),
                                            data_or_null(g_z), data_or_null(kept), to);
          },
          nb::arg("sorted").noconvert(), nb::arg("order"), nb::arg("counts").none(),
          nb::arg("scale"), nb::arg("terms"), nb::arg("threads"), nb::arg("v").none(),
          nb::arg("g_y").none(), nb::arg("g_z").none(), nb::arg("to_scores").noconvert().none(),
          nb::arg("to_v").noconvert().none(), nb::arg("to_scale").noconvert().none(),
          nb::arg("kept").noconvert().none() = nb::none());
    m.def((prefix + "apply_transposed").c_str(),
          [products](Scores sorted, Order order, Counts counts, Scale scale, Table terms,
                     int threads, Values u, Array<Float, 3> w) {
              const Given<Float> given{sorted, order, counts, scale, terms, threads};
              const Rows<Float> rows = given.rows(std::optional<Values>(u));
              require(same_shape(u, w), "w must have the shape of u");
              const nb::gil_scoped_release release;
              products(rows).apply_transposed(rows, u.data(), w.data());
          },
          nb::arg("sorted").noconvert(), nb::arg("order"), nb::arg("counts").none(),
          nb::arg("scale"), nb::arg("terms"), nb::arg("threads"), nb::arg("u").noconvert(),
          nb::arg("w").noconvert());
    m.def((prefix + "apply_transposed_backward").c_str(),
          [products](Scores sorted, Order order, Counts counts, Scale scale, Table terms,
                     int threads, Values u, Array<const Float, 3> g, Maybe<Float, 2> to_scores,
                     Maybe<Float, 3> to_u, Maybe<double, 1> to_scale) {
              const Given<Float> given{sorted, order, counts, scale, terms, threads};
              const Rows<Float> rows = given.rows(std::optional<Values>(u));
              const auto to = Wanted<Float>{to_scores, to_u, to_scale}.check(given, std::optional<Values>(u));
              require(same_shape(u, g), "g must have the shape of u");
              const nb::gil_scoped_release release;
              products(rows).apply_transposed_backward(rows, u.data(), g.data(), to);
          },
          nb::arg("sorted").noconvert(), nb::arg("order"), nb::arg("counts").none(),
          nb::arg("scale"), nb::arg("terms"), nb::arg("threads"), nb::arg("u").noconvert(),
          nb::arg("g").noconvert(), nb::arg("to_scores").noconvert().none(), nb::arg("to_u").noconvert().none(),
          nb::arg("to_scale").noconvert().none());
}

// Binds what a permutation costs, under names with a prefix.
template <class Float, class Cost>
void bind_cost(nb::module_& m, const std::string& prefix) {
    using Scores = Array<const Float, 2>;
    using Order = Array<const int64_t, 2>;
    using Counts = Maybe<const int64_t, 1>;
    using Scale = Array<const double, 1>;
    using Table = Array<const double, 2>;
    const std::optional<Array<const Float, 3>> none;
    // Each index is one of 0..n-1: the caller has looked, or the array would be overrun.
    const auto permutations = [](const Order& items, const Rows<Float>& rows) {
        const int64_t given = static_cast<int64_t>(items.shape(0)), n = rows.n;
        require((given == 1 || given == rows.rows) && static_cast<int64_t>(items.shape(1)) == n,
                "a permutation must be (rows, n) or (1, n)");
        for (int64_t i = 0; i < given * n; ++i) {
            require(0 <= items.data()[i] && items.data()[i] < n, "items must be 0 to n - 1");
        }
        return Permutations{items.data(), given != 1};
    };
    m.def((prefix + "cost").c_str(),
          [=](Scores sorted, Order order, Counts counts, Scale scale, Table terms, int threads,
              Order items, Array<Float, 2> out) {
              const Rows<Float> rows =
                  Given<Float>{sorted, order, counts, scale, terms, threads}.rows(none);
              require(same_shape(out, sorted), "one cost for each position");
              const Permutations all = permutations(items, rows);
              const nb::gil_scoped_release release;
              cost<Float, Cost>(rows, all, out.data());
          },
          nb::arg("sorted").noconvert(), nb::arg("order"), nb::arg("counts").none(),
          nb::arg("scale"), nb::arg("terms"), nb::arg("threads"), nb::arg("items").noconvert(),
          nb::arg("out").noconvert());
    m.def((prefix + "cost_backward").c_str(),
          [=](Scores sorted, Order order, Counts counts, Scale scale, Table terms, int threads,
              Order items, Array<const Float, 2> g, Maybe<Float, 2> to_scores,
              Maybe<double, 1> to_scale) {
              const Given<Float> given{sorted, order, counts, scale, terms, threads};
              const Rows<Float> rows = given.rows(none);
              const auto to = Wanted<Float>{to_scores, {}, to_scale}.check(given, none);
              require(same_shape(g, sorted), "one g for each position");
              const Permutations all = permutations(items, rows);
              const nb::gil_scoped_release release;
              cost_backward<Float, Cost>(rows, all, g.data(), to);
          },
          nb::arg("sorted").noconvert(), nb::arg("order"), nb::arg("counts").none(),
          nb::arg("scale"), nb::arg("terms"), nb::arg("threads"), nb::arg("items").noconvert(),
          nb::arg("g").noconvert(), nb::arg("to_scores").noconvert().none(),
          nb::arg("to_scale").noconvert().none());
}

template <class Float>
void bind(nb::module_& m) {
    bind_sort<Float>(m);
    bind_products<Float>(m, "", kSoftSort<Float, 1>, kSoftSort<Float, 0>);
    bind_products<Float>(m, "neuralsort_", kNeuralSort<Float>, kNeuralSort<Float>);
    bind_cost<Float, SoftSortCost<Float>>(m, "");
    bind_cost<Float, NeuralSortCost<Float>>(m, "neuralsort_");
}

template <class Sums>
void bind_pool(nb::module_& m, const char* name) {
    m.def(name,
          [](Array<const double, 3> x, Array<int64_t, 2> first, int threads) {
              require(x.shape(1) == 3, "x must have shape (rows, 3, n)");
              require(first.shape(0) == x.shape(0) && first.shape(1) == x.shape(2),
                      "first must have shape (rows, n)");
              const nb::gil_scoped_release release;
              pool<Sums>(x.data(), static_cast<int64_t>(x.shape(0)),
                         static_cast<int64_t>(x.shape(2)), first.data(), threads);
          },
          nb::arg("x").noconvert(), nb::arg("first").noconvert(), nb::arg("threads"));
}

}  // namespace
}  // namespace softorder

NB_MODULE(_native, m) {
    softorder::instruction_set();  // what is wrong with the choice shows when it is imported
    softorder::bind<float>(m);
    softorder::bind<double>(m);
    softorder::bind_pool<softorder::isotonic::Difference>(m, "pool_l2");
    softorder::bind_pool<softorder::isotonic::LogRatio>(m, "pool_kl");
    m.def("instruction_set", &softorder::instruction_set);
    m.def("xla_targets", [] {
        nb::dict targets;
        for (const auto& [name, handler] : softorder::xla::targets()) {
            targets[name] = nb::capsule(handler);
        }
        return targets;
    });
}
