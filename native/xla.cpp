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
#include <type_traits>
#include <vector>

#include "call.hpp"
#include "isotonic.hpp"
#include "sort.hpp"
#include "xla_ffi.hpp"

namespace softorder::xla {
namespace {

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
    require(buffer.dtype == kDataType<std::remove_const_t<T>>, "an array has an unexpected dtype");
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

// What XLA hands over: arguments, results, attributes.
class Frame {
  public:
    explicit Frame(const CallFrame& frame) : frame_(frame) {}

    const Buffer& argument(int64_t i) const {
        require(i < frame_.arguments.size, "an argument is missing");
        return *frame_.arguments.buffers[i];
    }
    const Buffer& result(int64_t i) const {
        require(i < frame_.results.size, "a result is missing");
        return *frame_.results.buffers[i];
    }
    int number(const char* name) const {
        const auto& scalar = *static_cast<const Scalar*>(attribute(name, AttributeType::kScalar));
        require(scalar.dtype == DataType::kInt32, "a number must be int32");
        return *static_cast<const int32_t*>(scalar.value);
    }
    // Rows of 4 numbers.
    View<const double> table() const {
        const auto& array = *static_cast<const Array*>(attribute("table", AttributeType::kArray));
        require(array.dtype == DataType::kFloat64, "the table must be float64");
        return {static_cast<const double*>(array.data), 2, {static_cast<int64_t>(array.size / 4), 4}};
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

// The data and the shape of a buffer; `data` may be a copy in a wider type.
template <class T>
View<T> view(const Buffer& buffer, T* data) {
    require(buffer.rank <= 3, "an array has too many dimensions");
    View<T> view;
    view.data = is_left_out(buffer) ? nullptr : data;
    view.rank = buffer.rank;
    std::copy(buffer.dims, buffer.dims + buffer.rank, view.shape);
    return view;
}

template <class T>
View<T> view(const Buffer& buffer) {
    return view(buffer, data<T>(buffer));
}

// The arguments of a product: sorted scores, order, counts, scale, values, items.
template <class Float>
struct HeldCall {
    Indices order, counts, items;
    Doubles scale;
    Call<Float> call;

    explicit HeldCall(const Frame& frame)
        : order(frame.argument(1)),
          counts(frame.argument(2)),
          items(frame.argument(5)),
          scale(frame.argument(3)),
          call(check<Float>({frame.number("product"), frame.number("formula"),
                             frame.number("own_scores") != 0, frame.number("flip") != 0,
                             frame.number("threads"), view<const Float>(frame.argument(0)),
                             view(frame.argument(1), order.data()),
                             view(frame.argument(2), counts.data()),
                             view(frame.argument(3), scale.data()), frame.table(),
                             view<const Float>(frame.argument(4)),
                             view(frame.argument(5), items.data()), {}})) {}
};

struct Forward {
    template <class Float>
    static void run(const Frame& frame) {
        const HeldCall<Float> held(frame);
        require(size_of(frame.result(0)) == held.call.out_size(), "the result has another size");
        forward(held.call, data<Float>(frame.result(0)));
    }
};

struct Backward {
    template <class Float>
    static void run(const Frame& frame) {
        const HeldCall<Float> held(frame);
        require(size_of(frame.argument(6)) == held.call.out_size(), "g has another size");
        const Buffer& to_scale = frame.result(2);
        // The gradient of the scale is in float64, whatever the result holds.
        std::vector<double> by_row(is_left_out(to_scale) ? 0 : size_of(to_scale));
        const auto to = check_gradients(held.call, view<Float>(frame.result(0)),
                                        view<Float>(frame.result(1)), view(to_scale, by_row.data()));
        backward(held.call, data<const Float>(frame.argument(6)), to);
        std::copy(by_row.begin(), by_row.end(), data<Float>(to_scale));
    }
};

struct Sort {
    template <class Float>
    static void run(const Frame& frame) {
        const Buffer& scores = frame.argument(0);
        const Buffer& valid = frame.argument(1);
        NewIndices order(frame.result(0));
        sort_descending<Float>(data<const Float>(scores),
                               is_left_out(valid) ? nullptr : static_cast<const uint8_t*>(valid.data),
                               scores.dims[0], scores.dims[1], order.data(),
                               data<Float>(frame.result(1)), frame.number("threads"));
        order.finish();
    }
};

template <class Sums>
struct Pool {
    template <class Float>
    static void run(const Frame& frame) {
        // (..., 3, n): a transformation of JAX may put dimensions in front.
        const Buffer& x = frame.argument(0);
        const Doubles numbers(x);
        NewIndices first(frame.result(0));
        const int64_t n = x.dims[x.rank - 1], rows = n ? size_of(x) / (3 * n) : 0;
        pool<Sums>(numbers.data(), rows, n, first.data(), frame.number("threads"));
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
        const Frame arguments(*frame);
        if (arguments.argument(0).dtype == DataType::kFloat64) {
            Work::template run<double>(arguments);
        } else {
            require(arguments.argument(0).dtype == DataType::kFloat32, "scores must be floats");
            Work::template run<float>(arguments);
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
        {"softorder_forward", handler<Forward>()},
        {"softorder_backward", handler<Backward>()},
        {"softorder_pool_l2", handler<Pool<isotonic::Difference>>()},
        {"softorder_pool_kl", handler<Pool<isotonic::LogRatio>>()},
    };
}

}  // namespace softorder::xla
