// Several numbers at a time, for one instruction set: SOFTORDER_ARCH names it (see CMakeLists.txt).
#pragma once

#include <cstdint>

namespace softorder {
namespace SOFTORDER_ARCH {
namespace {

// Eight doubles. GCC and Clang lower these to what the instruction set has.
typedef double Vector __attribute__((vector_size(64)));
typedef uint64_t Bits __attribute__((vector_size(64)));

// As many doubles as a register holds: comparisons of wider vectors are lowered to single numbers.
#if defined(__AVX512F__)
typedef double Register __attribute__((vector_size(64)));
#elif defined(__AVX__)
typedef double Register __attribute__((vector_size(32)));
#else
typedef double Register __attribute__((vector_size(16)));
#endif

template <class V = Vector>
inline V load(const double* from) {
    V v;
    __builtin_memcpy(&v, from, sizeof v);
    return v;
}

template <class V>
inline void store(double* to, V v) {
    __builtin_memcpy(to, &v, sizeof v);
}

// Adding this rounds a double below 2^51 to an integer, which is then in its lowest bits.
constexpr double kRound = 6755399441055744.0;

// exp(-u) for u >= 0, to about one unit in the last place; exactly 0 from 708.
template <class V>
inline V exp_minus(V u) {
    typedef decltype(u < u) Integers;
    const V zero = {};
    const V limit = zero + 708.0;
    const V bounded = u < limit ? u : limit;
    const V shifted = bounded * 1.4426950408889634 + kRound;
    const V k = shifted - kRound;
    const V r = (bounded - k * 0.693147180369123816490) - k * 1.90821492927058770002e-10;
    V e = zero + 1.0 / 6227020800;
    const double inverse_factorials[] = {1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800,
                                         1.0 / 362880,    1.0 / 40320,    1.0 / 5040,
                                         1.0 / 720,       1.0 / 120,      1.0 / 24,
                                         1.0 / 6,         1.0 / 2,        1.0};
    for (double coefficient : inverse_factorials) e = coefficient - r * e;
    e = 1.0 - r * e;
    const V rounding = zero + kRound;
    const Integers exponent = 1023 - ((Integers)shifted - (Integers)rounding);
    const V scaled = e * (V)(exponent << 52);
    return u < limit ? scaled : zero;
}

}  // namespace
}  // namespace SOFTORDER_ARCH
}  // namespace softorder
