// The kernels as targets of XLA's foreign function interface, for JAX on the CPU.
//
// Arguments and results are whole arrays in row-major order. One that is left out is an array of
// shape (0,). Indices are int64, or int32 where JAX has no 64-bit types; the scale likewise.
#include "xla.hpp"

#include <cstdint>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

#include "isotonic.hpp"
#include "likelihood.hpp"
#include "products.hpp"
#include "sort.hpp"
#include "xla_ffi.hpp"

namespace softorder::xla {
namespace {

void require(bool condition, const char* what) {
    if (!condition) throw std::invalid_argument(std::string("softorder: ") + what);
}

int64_t size_of(const Buffer& buffer) {
    int64_t size = 1;
    for (int64_t d = 0; d < buffer.rank; ++d) size *= buffer.dims[d];
    return size;
}

bool is_left_out(const Buffer& buffer) { return buffer.rank == 1 && buffer.dims[0] == 0; }

template <class T>
constexpr DataType kDataType = DataType::kBool;
template <>
constexpr DataType kDataType<int32_t> = DataType::kInt32;
template <>
constexpr DataType kDataType<int64_t> = DataType::kInt64;
template <>
constexpr DataType kDataType<float> = DataType::kFloat32;
template <>
constexpr DataType kDataType<double> = DataType::kFloat64;

// The data of a buffer; null if it is left out.
template <class T>
T* data(const Buffer& buffer) {
    if (is_left_out(buffer)) return nullptr;
    require(buffer.dtype == kDataType<T>, "an array has an unexpected dtype");
    return static_cast<T*>(buffer.data);
}

// Numbers of a buffer in a wider type, copied only if they are narrow.
template <class Wide, class Narrow>
class Widened {
  public:
    explicit Widened(const Buffer& buffer) {
        if (is_left_out(buffer)) return;
        if (buffer.dtype == kDataType<Wide>) {
            data_ = static_cast<const Wide*>(buffer.data);
            return;
        }
        const Narrow* from = xla::data<const Narrow>(buffer);
        copy_.assign(from, from + size_of(buffer));
        data_ = copy_.data();
    }
    const Wide* data() const { return data_; }

  private:
    std::vector<Wide> copy_;
    const Wide* data_ = nullptr;
};

template <>
constexpr DataType kDataType<const int32_t> = DataType::kInt32;
template <>
constexpr DataType kDataType<const float> = DataType::kFloat32;
template <>
constexpr DataType kDataType<const double> = DataType::kFloat64;

using Indices = Widened<int64_t, int32_t>;
using Doubles = Widened<double, float>;

// Indices that are written as int64, and handed on as what the result holds.
class NewIndices {
  public:
    explicit NewIndices(const Buffer& result) : result_(result) {
        if (result.dtype == DataType::kInt64) {
            data_ = static_cast<int64_t*>(result.data);
        } else {
            copy_.resize(static_cast<size_t>(size_of(result)));
            data_ = copy_.data();
        }
    }
    int64_t* data() { return data_; }
    void finish() {
        if (copy_.empty()) return;
        int32_t* to = xla::data<int32_t>(result_);
        for (size_t i = 0; i < copy_.size(); ++i) to[i] = static_cast<int32_t>(copy_[i]);
    }

  private:
    const Buffer& result_;
    std::vector<int64_t> copy_;
    int64_t* data_;
};

class Call {
  public:
    explicit Call(const CallFrame& frame) : frame_(frame) {}

    const Buffer& argument(int64_t i) const {
        require(i < frame_.arguments.size, "an argument is missing");
        return *frame_.arguments.buffers[i];
    }
    const Buffer& result(int64_t i) const {
        require(i < frame_.results.size, "a result is missing");
        return *frame_.results.buffers[i];
    }
    int threads() const {
        const auto& scalar = *static_cast<const Scalar*>(attribute("threads", AttributeType::kScalar));
        require(scalar.dtype == DataType::kInt32, "threads must be int32");
        return *static_cast<const int32_t*>(scalar.value);
    }
    Terms terms() const {
        const auto& array = *static_cast<const Array*>(attribute("terms", AttributeType::kArray));
        require(array.dtype == DataType::kFloat64 && (array.size == 4 || array.size == 4 * kMostTerms),
                "terms must be 4 or 32 numbers of float64");
        return read_terms(static_cast<const double*>(array.data), array.size / 4);
    }

  private:
    const void* attribute(const char* name, AttributeType type) const {
        const Attributes& all = frame_.attributes;
        for (int64_t i = 0; i < all.size; ++i) {
            const Name& found = *all.names[i];
            const bool same = std::strlen(name) == found.length &&
                              std::memcmp(name, found.begin, found.length) == 0;
            if (same && all.types[i] == type) return all.values[i];
        }
        throw std::invalid_argument(std::string("softorder: missing attribute ") + name);
    }

    const CallFrame& frame_;
};

// What every product is given: sorted scores, order, counts and scale are the first arguments.
template <class Float>
struct Given {
    Indices order, counts;
    Doubles scale;
    Rows<Float> rows;

    Given(const Call& call, const Buffer* values)
        : order(call.argument(1)), counts(call.argument(2)), scale(call.argument(3)) {
        const Buffer& sorted = call.argument(0);
        const int64_t number = sorted.dims[0], n = sorted.dims[1];
        const int64_t scales = call.argument(3).dims[0];
        require(sorted.rank == 2 && size_of(call.argument(1)) == number * n,
                "sorted scores and order must be (rows, n)");
        require(!counts.data() || call.argument(2).dims[0] == number, "one count for each row");
        require(scales == 1 || scales == number, "one scale, or one for each row");
        const bool own = !values || is_left_out(*values);
        require(own || (values->rank == 3 && values->dims[0] == number && values->dims[1] == n),
                "values must be (rows, n, f)");
        rows = {static_cast<const Float*>(sorted.data),
                order.data(),
                counts.data(),
                scale.data(),
                scales != 1,
                call.terms(),
                number,
                n,
                own ? 1 : values->dims[2],
                call.threads()};
    }
};

template <class Float>
void require_dtype(const Buffer& buffer) {
    require(is_left_out(buffer) || buffer.dtype == kDataType<Float>, "arrays must have one dtype");
}

// The gradients among the results: scores, values, scale (in the dtype of the scores).
template <class Float>
class Wanted {
  public:
    Wanted(const Call& call, int64_t rows)
        : scale_(call.result(2)), scales_(is_left_out(scale_) ? 0 : static_cast<size_t>(rows)) {
        for (int64_t i = 0; i < 3; ++i) require_dtype<Float>(call.result(i));
        to_ = {data<Float>(call.result(0)), data<Float>(call.result(1)),
               scales_.empty() ? nullptr : scales_.data()};
    }
    const Gradients<Float>& gradients() const { return to_; }
    void finish() const {
        Float* to = data<Float>(scale_);
        for (size_t i = 0; i < scales_.size(); ++i) to[i] = static_cast<Float>(scales_[i]);
    }

  private:
    const Buffer& scale_;
    std::vector<double> scales_;
    Gradients<Float> to_;
};

struct SoftSort {
    template <class Float>
    static const Products<Float>& products(const Rows<Float>& rows) {
        static constexpr const auto& one = kSoftSort<Float, 1>;
        static constexpr const auto& any = kSoftSort<Float, 0>;
        return rows.features == 1 ? one : any;
    }
};

struct NeuralSort {
    template <class Float>
    static const Products<Float>& products(const Rows<Float>&) {
        return kNeuralSort<Float>;
    }
};

template <class Relaxation>
struct Apply {
    template <class Float>
    static void run(const Call& call) {
        const Buffer& v = call.argument(4);
        const Given<Float> given(call, &v);
        Relaxation::products(given.rows).apply(given.rows, data<const Float>(v),
                                               data<Float>(call.result(0)),
                                               data<Float>(call.result(1)), nullptr);
    }
};

template <class Relaxation>
struct ApplyBackward {
    template <class Float>
    static void run(const Call& call) {
        const Buffer& v = call.argument(4);
        const Given<Float> given(call, &v);
        const Wanted<Float> wanted(call, given.rows.rows);
        Relaxation::products(given.rows).apply_backward(
            given.rows, data<const Float>(v), data<const Float>(call.argument(5)),
            data<const Float>(call.argument(6)), nullptr, wanted.gradients());
        wanted.finish();
    }
};

template <class Relaxation>
struct ApplyTransposed {
    template <class Float>
    static void run(const Call& call) {
        const Buffer& u = call.argument(4);
        const Given<Float> given(call, &u);
        Relaxation::products(given.rows).apply_transposed(given.rows, data<const Float>(u),
                                                          data<Float>(call.result(0)));
    }
};

template <class Relaxation>
struct ApplyTransposedBackward {
    template <class Float>
    static void run(const Call& call) {
        const Buffer& u = call.argument(4);
        const Given<Float> given(call, &u);
        const Wanted<Float> wanted(call, given.rows.rows);
        Relaxation::products(given.rows).apply_transposed_backward(
            given.rows, data<const Float>(u), data<const Float>(call.argument(5)),
            wanted.gradients());
        wanted.finish();
    }
};

struct Sort {
    template <class Float>
    static void run(const Call& call) {
        const Buffer& scores = call.argument(0);
        const Buffer& valid = call.argument(1);
        NewIndices order(call.result(0));
        sort_descending<Float>(data<const Float>(scores),
                               is_left_out(valid) ? nullptr : static_cast<const uint8_t*>(valid.data),
                               scores.dims[0], scores.dims[1], order.data(),
                               data<Float>(call.result(1)), call.threads());
        order.finish();
    }
};

// The items of permutations: (rows, n), or (1, n) for all.
struct Items {
    Indices indices;
    Permutations permutations;

    Items(const Buffer& items, int64_t rows, int64_t n)
        : indices(items), permutations{indices.data(), items.dims[0] != 1} {
        require(items.rank == 2 && (items.dims[0] == 1 || items.dims[0] == rows) &&
                    items.dims[1] == n,
                "a permutation must be (rows, n) or (1, n)");
        // A traced program cannot be looked into: its indices are seen here for the first time.
        for (int64_t i = 0; i < size_of(items); ++i) {
            require(0 <= indices.data()[i] && indices.data()[i] < n,
                    "a permutation holds each of 0..n-1 once");
        }
    }
};

// The sum over positions of log P[i, item_i], (rows,): see likelihood.hpp.
template <class Relaxation, template <class> class Cost>
struct LogProb {
    template <class Float>
    static void run(const Call& call) {
        Given<Float> given(call, nullptr);
        Rows<Float>& rows = given.rows;
        const Items items(call.argument(4), rows.rows, rows.n);
        const size_t size = static_cast<size_t>(rows.rows * rows.n);
        std::vector<Float> log_z(size), costs(size);
        rows.features = 0;
        Relaxation::products(rows).apply(rows, log_z.data(), log_z.data(), log_z.data(), nullptr);
        cost<Float, Cost<Float>>(rows, items.permutations, costs.data());
        Float* out = data<Float>(call.result(0));
        for (int64_t row = 0; row < rows.rows; ++row) {
            const int64_t count = rows.counts ? rows.counts[row] : rows.n;
            double total = 0;
            for (int64_t i = row * rows.n; i < row * rows.n + count; ++i) {
                total += static_cast<double>(costs[i]) + static_cast<double>(log_z[i]);
            }
            out[row] = static_cast<Float>(0.0 - total);
        }
    }
};

template <class Relaxation, template <class> class Cost>
struct LogProbBackward {
    template <class Float>
    static void run(const Call& call) {
        Given<Float> given(call, nullptr);
        Rows<Float>& rows = given.rows;
        const Items items(call.argument(4), rows.rows, rows.n);
        const Wanted<Float> wanted(call, rows.rows);
        const Float* g = data<const Float>(call.argument(5));
        std::vector<Float> by_position(static_cast<size_t>(rows.rows * rows.n));
        for (int64_t row = 0; row < rows.rows; ++row) {
            fill_with(by_position.data() + row * rows.n, rows.n, -static_cast<double>(g[row]));
        }
        rows.features = 0;
        Relaxation::products(rows).apply_backward(rows, by_position.data(), nullptr,
                                                  by_position.data(), nullptr, wanted.gradients());
        cost_backward<Float, Cost<Float>>(rows, items.permutations, by_position.data(),
                                          wanted.gradients());
        wanted.finish();
    }
};

template <class Sums>
struct Pool {
    template <class Float>
    static void run(const Call& call) {
        // (..., 3, n): a transformation of JAX may put dimensions in front.
        const Buffer& x = call.argument(0);
        const Doubles numbers(x);
        NewIndices first(call.result(0));
        const int64_t n = x.dims[x.rank - 1], rows = n ? size_of(x) / (3 * n) : 0;
        pool<Sums>(numbers.data(), rows, n, first.data(), call.threads());
        first.finish();
    }
};

// XLA asks for the version before it calls: ours is whichever it has, see xla_ffi.hpp. Before version
// 0.2 it did not tell its own.
bool tell_version(const CallFrame& frame) {
    if (!frame.extensions || frame.extensions->type != kMetadataExtension) return false;
    auto* extension = reinterpret_cast<MetadataExtension*>(frame.extensions);
    const Version first = {sizeof(Version), nullptr, 0, 1};
    extension->metadata->version = frame.api ? frame.api->version : first;
    extension->metadata->traits = 0;
    return true;
}

Error* to_error(const CallFrame& frame, const char* what) {
    ErrorArguments arguments = {sizeof(ErrorArguments), nullptr, what, kInvalidArgument};
    return frame.api->create_error(&arguments);
}

// What XLA calls: the work in the dtype of the first argument. No exception leaves it.
template <class Work>
Error* handle(CallFrame* frame) {
    if (tell_version(*frame)) return nullptr;
    try {
        const Call call(*frame);
        if (call.argument(0).dtype == DataType::kFloat64) {
            Work::template run<double>(call);
        } else {
            require(call.argument(0).dtype == DataType::kFloat32, "scores must be floats");
            Work::template run<float>(call);
        }
    } catch (const std::exception& error) {
        return to_error(*frame, error.what());
    }
    return nullptr;
}

template <class Work>
void* handler() {
    return reinterpret_cast<void*>(static_cast<Handler*>(&handle<Work>));
}

}  // namespace

std::vector<std::pair<const char*, void*>> targets() {
    return {
        {"softorder_sort", handler<Sort>()},
        {"softorder_apply", handler<Apply<SoftSort>>()},
        {"softorder_apply_backward", handler<ApplyBackward<SoftSort>>()},
        {"softorder_apply_transposed", handler<ApplyTransposed<SoftSort>>()},
        {"softorder_apply_transposed_backward", handler<ApplyTransposedBackward<SoftSort>>()},
        {"softorder_neuralsort_apply", handler<Apply<NeuralSort>>()},
        {"softorder_neuralsort_apply_backward", handler<ApplyBackward<NeuralSort>>()},
        {"softorder_neuralsort_apply_transposed", handler<ApplyTransposed<NeuralSort>>()},
        {"softorder_neuralsort_apply_transposed_backward",
         handler<ApplyTransposedBackward<NeuralSort>>()},
        {"softorder_log_prob", handler<LogProb<SoftSort, SoftSortCost>>()},
        {"softorder_log_prob_backward", handler<LogProbBackward<SoftSort, SoftSortCost>>()},
        {"softorder_neuralsort_log_prob", handler<LogProb<NeuralSort, NeuralSortCost>>()},
        {"softorder_neuralsort_log_prob_backward",
         handler<LogProbBackward<NeuralSort, NeuralSortCost>>()},
        {"softorder_pool_l2", handler<Pool<isotonic::Difference>>()},
        {"softorder_pool_kl", handler<Pool<isotonic::LogRatio>>()},
    };
}

}  // namespace softorder::xla
