// The kernels as targets of XLA's foreign function interface, for JAX on the CPU.
//
// Arguments and results are whole arrays in row-major order. One that is left out is an array of
// shape (0,). Indices are int64, or int32 where JAX has no 64-bit types; the scale likewise.
#include "xla.hpp"

#include <algorithm>
#include <cstdint>
#include <exception>
#include <stdexcept>
#include <string>
#include <string_view>
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

// Of a number with 4 or 8 bytes.
template <class T>
constexpr DataType kDataType =
    std::is_floating_point_v<T> ? (sizeof(T) == 8 ? DataType::kFloat64 : DataType::kFloat32)
                                : (sizeof(T) == 8 ? DataType::kInt64 : DataType::kInt32);

// The data of a buffer; null if it is left out.
template <class T>
T* data(const Buffer& buffer) {
    if (is_left_out(buffer)) return nullptr;
    require(buffer.dtype == kDataType<std::remove_const_t<T>>, "an array has an unexpected dtype");
    return static_cast<T*>(buffer.data);
}

// Numbers of a buffer in a wider type: in `copy`, if they are narrow.
template <class Narrow, class Wide>
const Wide* widen(const Buffer& buffer, std::vector<Wide>& copy) {
    if (is_left_out(buffer) || buffer.dtype == kDataType<Wide>) return data<const Wide>(buffer);
    const Narrow* from = data<const Narrow>(buffer);
    copy.assign(from, from + size_of(buffer));
    return copy.data();
}

// Calls write(indices), whose indices are int64, and hands them on as what the result holds.
template <class Write>
void write_indices(const Buffer& result, const Write& write) {
    if (result.dtype == DataType::kInt64) return write(static_cast<int64_t*>(result.data));
    int32_t* to = data<int32_t>(result);
    std::vector<int64_t> wide(static_cast<size_t>(size_of(result)));
    write(wide.data());
    std::copy(wide.begin(), wide.end(), to);
}

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
        const int64_t shape[] = {static_cast<int64_t>(array.size / 4), 4};
        return {static_cast<const double*>(array.data), 2, shape};
    }

  private:
    const void* attribute(const char* name, AttributeType type) const {
        const Attributes& all = frame_.attributes;
        for (int64_t i = 0; i < all.size; ++i) {
            const std::string_view found(all.names[i]->begin, all.names[i]->length);
            if (found == name && all.types[i] == type) return all.values[i];
        }
        throw std::invalid_argument(std::string("softorder: missing attribute ") + name);
    }

    const CallFrame& frame_;
};

// The data and the shape of a buffer; `data` may be a copy in a wider type.
template <class T>
View<T> view(const Buffer& buffer, T* data) {
    return {is_left_out(buffer) ? nullptr : data, buffer.rank, buffer.dims};
}

template <class T>
View<T> view(const Buffer& buffer) {
    return view(buffer, data<T>(buffer));
}

template <class Narrow, class Wide>
View<const Wide> widened_view(const Buffer& buffer, std::vector<Wide>& copy) {
    return view(buffer, widen<Narrow>(buffer, copy));
}

// A call, and the copies of arrays that XLA has in another type.
template <class Float>
struct WidenedCall {
    std::vector<int64_t> order, counts, items;
    std::vector<double> scale;
    Call<Float> call;

    explicit WidenedCall(const Frame& frame)
        : call(check<Float>({frame.number("product"), frame.number("formula"),
                             frame.number("own_scores") != 0, frame.number("flip") != 0,
                             frame.number("threads"), frame.table(),
                             view<const Float>(frame.argument(0)),
                             widened_view<int32_t>(frame.argument(1), order),
                             widened_view<int32_t>(frame.argument(2), counts),
                             widened_view<float>(frame.argument(3), scale),
                             view<const Float>(frame.argument(4)),
                             widened_view<int32_t>(frame.argument(5), items), {}})) {}
};

struct Forward {
    template <class Float>
    static void run(const Frame& frame) {
        const WidenedCall<Float> held(frame);
        require(size_of(frame.result(0)) == held.call.out_size(), "the result has another size");
        forward(held.call, data<Float>(frame.result(0)));
    }
};

struct Backward {
    template <class Float>
    static void run(const Frame& frame) {
        const WidenedCall<Float> held(frame);
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
        const void* mask = is_left_out(valid) ? nullptr : valid.data;
        write_indices(frame.result(0), [&](int64_t* order) {
            sort_descending(data<const Float>(scores), static_cast<const uint8_t*>(mask),
                            scores.dims[0], scores.dims[1], order, data<Float>(frame.result(1)),
                            frame.number("threads"));
        });
    }
};

template <class Sums>
struct Pool {
    template <class Float>
    static void run(const Frame& frame) {
        // (..., 3, n): a transformation of JAX may put dimensions in front.
        const Buffer& x = frame.argument(0);
        const int64_t n = x.dims[x.rank - 1], rows = n ? size_of(x) / (3 * n) : 0;
        std::vector<double> copy;
        write_indices(frame.result(0), [&](int64_t* first) {
            pool<Sums>(widen<float>(x, copy), rows, n, first, frame.number("threads"));
        });
    }
};

// XLA asks for the version before it calls: ours is whichever it has, see xla_ffi.hpp. Before version
// 0.2 it did not tell its own.
bool tell_version(const CallFrame& frame) {
    if (!frame.extensions || frame.extensions->type != kMetadataExtension) return false;
    auto* extension = reinterpret_cast<MetadataExtension*>(frame.extensions);
    const Version first = {{sizeof(Version), nullptr}, 0, 1};
    extension->metadata->version = frame.api ? frame.api->version : first;
    extension->metadata->traits = 0;
    return true;
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
        ErrorArguments arguments = {
            {sizeof(ErrorArguments), nullptr}, error.what(), kInvalidArgument};
        return frame->api->create_error(&arguments);
    }
    return nullptr;
}

template <class Work>
void* handler() {
    return reinterpret_cast<void*>(&handle<Work>);
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
