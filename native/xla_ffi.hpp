// The part of XLA's foreign function interface (a stable C ABI, version 0) that is needed here.
// Declared by ourselves, so that the extension builds without JAX, and one build serves every
// version of it: these structures have not changed since they came with jaxlib 0.4.31.
#pragma once

#include <cstddef>
#include <cstdint>

namespace softorder::xla {

enum class DataType : int { kBool = 1, kInt32 = 4, kInt64 = 5, kFloat32 = 11, kFloat64 = 12 };
enum class AttributeType : int { kArray = 1, kScalar = 3 };
constexpr int kMetadataExtension = 1;
constexpr int kInvalidArgument = 3;

struct Extension {
    size_t struct_size;
    int type;
    Extension* next;
};

// What most structures begin with.
struct Header {
    size_t struct_size;
    Extension* extensions;
};

struct Version : Header {
    int major, minor;
};

struct Metadata {
    size_t struct_size;
    Version version;
    uint32_t traits;
};

struct MetadataExtension {
    Extension base;
    Metadata* metadata;
};

struct Error;

struct ErrorArguments : Header {
    const char* message;
    int code;
};

struct Api : Header {
    Version version;
    const void* internal;
    Error* (*create_error)(ErrorArguments*);
    // Further functions follow.
};

struct Buffer : Header {
    DataType dtype;
    void* data;
    int64_t rank;
    int64_t* dims;
};

struct Buffers : Header {
    int64_t size;
    int* types;
    Buffer** buffers;
};

struct Name {
    const char* begin;
    size_t length;
};

struct Scalar {
    DataType dtype;
    void* value;
};

struct Array {
    DataType dtype;
    size_t size;
    void* data;
};

struct Attributes : Header {
    int64_t size;
    AttributeType* types;
    Name** names;
    void** values;
};

struct CallFrame : Header {
    const Api* api;
    void* context;
    int stage;
    Buffers arguments;
    Buffers results;
    Attributes attributes;
    // More may follow.
};

}  // namespace softorder::xla
