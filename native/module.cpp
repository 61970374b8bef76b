// The Python module softorder._native: hands NumPy arrays to call.hpp, without the GIL.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <optional>
#include <tuple>

#include "call.hpp"
#include "isotonic.hpp"
#include "sort.hpp"
#include "xla.hpp"

namespace nb = nanobind;

namespace softorder {
namespace {

template <class T>
using Array = nb::ndarray<T, nb::c_contig, nb::device::cpu>;
template <class T>
using Maybe = std::optional<Array<T>>;

template <class T>
View<T> view(const Array<T>& array) {
    return {array.data(), static_cast<int64_t>(array.ndim()), array.shape_ptr()};
}

template <class T>
View<T> view(const Maybe<T>& array) {
    return array ? view(*array) : View<T>{};
}

template <class Float>
void bind_sort(nb::module_& m) {
    m.def("sort",
          [](Array<const Float> scores, Maybe<const bool> valid, Array<int64_t> order,
             Array<Float> sorted, int threads) {
              const View<const Float> from = view(scores);
              const int64_t rows = from.shape[0], n = from.shape[1];
              require(from.rank == 2 && view(order).is({rows, n}) && view(sorted).is({rows, n}),
                      "order and sorted must have the shape of the scores, (rows, n)");
              require(!valid || view(valid).is({rows, n}), "valid must have the shape of the scores");
              const nb::gil_scoped_release release;
              sort_descending<Float>(from.data,
                                     reinterpret_cast<const uint8_t*>(view(valid).data), rows, n,
                                     order.data(), sorted.data(), threads);
          },
          nb::arg("scores").noconvert(), nb::arg("valid").none(), nb::arg("order").noconvert(),
          nb::arg("sorted").noconvert(), nb::arg("threads"));
}

// A call and the arrays it is made of, which it keeps alive from forward to backward.
template <class Float, class... Arrays>
struct HeldCall {
    Call<Float> call;
    std::tuple<Arrays...> arrays;

    static HeldCall make(int product, int formula, bool own_scores, bool flip, int threads,
                         Arrays... arrays) {
        return {check<Float>({product, formula, own_scores, flip, threads, view(arrays)...}),
                {arrays...}};
    }

    void forward(Array<Float> out) const {
        require(static_cast<int64_t>(out.size()) == call.out_size(), "out has another size");
        const nb::gil_scoped_release release;
        softorder::forward(call, out.data());
    }

    void backward(Array<const Float> g, Maybe<Float> to_scores, Maybe<Float> to_values,
                  Maybe<double> to_scale) const {
        require(static_cast<int64_t>(g.size()) == call.out_size(), "g has another size");
        const Gradients<Float> to =
            check_gradients(call, view(to_scores), view(to_values), view(to_scale));
        const nb::gil_scoped_release release;
        softorder::backward(call, g.data(), to);
    }
};

template <class Float>
void bind_call(nb::module_& m, const char* name) {
    // In the order of Arguments.
    using Held = HeldCall<Float, Array<const double>, Array<const Float>, Array<const int64_t>,
                          Maybe<const int64_t>, Array<const double>, Maybe<const Float>,
                          Maybe<const int64_t>, Maybe<double>>;
    nb::class_<Held>(m, name)
        .def("forward", &Held::forward, nb::arg("out").noconvert())
        .def("backward", &Held::backward, nb::arg("g"), nb::arg("to_scores").noconvert().none(),
             nb::arg("to_values").noconvert().none(), nb::arg("to_scale").noconvert().none());
    m.def("call", &Held::make, nb::arg("product"), nb::arg("formula"), nb::arg("own_scores"),
          nb::arg("flip"), nb::arg("threads"), nb::arg("table"), nb::arg("sorted").noconvert(),
          nb::arg("order"), nb::arg("counts").none(), nb::arg("scale"), nb::arg("values").none(),
          nb::arg("items").none(), nb::arg("saved").noconvert().none());
}

template <class Sums>
void bind_pool(nb::module_& m, const char* name) {
    m.def(name,
          [](Array<const double> x, Array<int64_t> first, int threads) {
              const View<const double> from = view(x);
              const int64_t rows = from.shape[0], n = from.shape[2];
              require(from.is({rows, 3, n}), "x must have shape (rows, 3, n)");
              require(view(first).is({rows, n}), "first must have shape (rows, n)");
              const nb::gil_scoped_release release;
              pool<Sums>(from.data, rows, n, first.data(), threads);
          },
          nb::arg("x").noconvert(), nb::arg("first").noconvert(), nb::arg("threads"));
}

}  // namespace
}  // namespace softorder

NB_MODULE(_native, m) {
    nb::set_leak_warnings(false);  // a graph may hold calls until the interpreter is gone
    softorder::instruction_set();  // what is wrong with the choice shows when it is imported
    softorder::bind_sort<float>(m);
    softorder::bind_sort<double>(m);
    softorder::bind_call<float>(m, "CallFloat32");
    softorder::bind_call<double>(m, "CallFloat64");
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
