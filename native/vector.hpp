// Several numbers at a time, for one instruction set: SOFTORDER_ARCH names it (see CMakeLists.txt).
#pragma once

#include <cstdint>

namespace softorder {
namespace SOFTORDER_ARCH {
namespace {

// Everything that a kernel calls becomes part of it: a call would pass its states through memory.
#define SOFTORDER_KERNEL __attribute__((flatten))

// As many doubles as a register holds. Of wider vectors the compilers compare one number after
// another, and keep them in memory between any two operations.
#if defined(__AVX512F__)
constexpr int kRegisterBytes = 64;
#elif defined(__AVX__)
constexpr int kRegisterBytes = 32;
#else
constexpr int kRegisterBytes = 16;
#endif
typedef double Register __attribute__((vector_size(kRegisterBytes)));
typedef uint64_t RegisterBits __attribute__((vector_size(kRegisterBytes)));
constexpr int kWidth = kRegisterBytes / sizeof(double);

// `Count` doubles, in as many registers as that takes.
template <int Count>
struct Pack {
    static constexpr int parts = Count / kWidth;
    Register part[parts];

    static Pack of(double x) {
        Pack all;
        for (Register& part : all.part) part = Register{} + x;
        return all;
    }
    static Pack load(const double* from) {
        Pack all;
        for (int i = 0; i < parts; ++i) {
            __builtin_memcpy(&all.part[i], from + i * kWidth, sizeof(Register));
        }
        return all;
    }
    void store(double* to) const {
        for (int i = 0; i < parts; ++i) {
            __builtin_memcpy(to + i * kWidth, &part[i], sizeof(Register));
        }
    }
    Pack& operator+=(const Pack& o) {
        for (int i = 0; i < parts; ++i) part[i] += o.part[i];
        return *this;
    }
    Pack& operator-=(const Pack& o) {
        for (int i = 0; i < parts; ++i) part[i] -= o.part[i];
        return *this;
    }
    Pack& operator*=(const Pack& o) {
        for (int i = 0; i < parts; ++i) part[i] *= o.part[i];
        return *this;
    }
    friend Pack operator+(Pack a, const Pack& b) { return a += b; }
    friend Pack operator-(Pack a, const Pack& b) { return a -= b; }
    friend Pack operator*(Pack a, const Pack& b) { return a *= b; }
    friend Pack operator*(double a, const Pack& b) { return of(a) * b; }
};

// Adding this rounds a double below 2^51 to an integer, which is then in its lowest bits.
constexpr double kRound = 6755399441055744.0;

// exp(-u) for u >= 0, to about one unit in the last place; exactly 0 from 708.
inline Register exp_minus(Register u) {
    typedef decltype(u < u) Integers;
    const Register zero = {};
    const Register limit = zero + 708.0;
    const Register bounded = u < limit ? u : limit;
    const Register shifted = bounded * 1.4426950408889634 + kRound;
    const Register k = shifted - kRound;
    const Register r = (bounded - k * 0.693147180369123816490) - k * 1.90821492927058770002e-10;
    Register e = zero + 1.0 / 6227020800;
    const double inverse_factorials[] = {1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800,
                                         1.0 / 362880,    1.0 / 40320,    1.0 / 5040,
                                         1.0 / 720,       1.0 / 120,      1.0 / 24,
                                         1.0 / 6,         1.0 / 2,        1.0};
    for (double coefficient : inverse_factorials) e = coefficient - r * e;
    e = 1.0 - r * e;
    const Register rounding = zero + kRound;
    const Integers exponent = 1023 - ((Integers)shifted - (Integers)rounding);
    const Register scaled = e * (Register)(exponent << 52);
    return u < limit ? scaled : zero;
}

template <int Count>
inline Pack<Count> exp_minus(const Pack<Count>& u) {
    Pack<Count> e;
    for (int i = 0; i < Pack<Count>::parts; ++i) e.part[i] = exp_minus(u.part[i]);
    return e;
}

}  // namespace
}  // namespace SOFTORDER_ARCH
}  // namespace softorder
