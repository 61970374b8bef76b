// Chooses the kernels for the machine that this runs on.
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include "band_kernels.hpp"
#include "chunk_kernels.hpp"

namespace softorder {

#define SOFTORDER_DECLARE(arch)                 \
    namespace arch {                            \
    extern const ChunkKernels real_kernels;     \
    extern const ChunkKernels complex_kernels;  \
    extern const BandKernels band_kernels;      \
    }

SOFTORDER_DECLARE(baseline)
#ifdef SOFTORDER_X86_LEVELS
SOFTORDER_DECLARE(avx2)
SOFTORDER_DECLARE(avx512)
#endif

namespace {

struct Choice {
    const char* name;
    const ChunkKernels* real;
    const ChunkKernels* complex;
    const BandKernels* band;
};

#define SOFTORDER_CHOICE(arch) \
    Choice { #arch, &arch::real_kernels, &arch::complex_kernels, &arch::band_kernels }

// What this machine can run, the best last.
std::vector<Choice> choices() {
    std::vector<Choice> all = {SOFTORDER_CHOICE(baseline)};
#ifdef SOFTORDER_X86_LEVELS
    __builtin_cpu_init();
    const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (has_avx2) all.push_back(SOFTORDER_CHOICE(avx2));
    // Exactly what CMakeLists.txt lets the compiler use.
    if (has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")) {
        all.push_back(SOFTORDER_CHOICE(avx512));
    }
#endif
    return all;
}

// The best, or the one that SOFTORDER_INSTRUCTIONS names: for tests on a machine that has more.
Choice choose() {
    const std::vector<Choice> all = choices();
    const char* wanted = std::getenv("SOFTORDER_INSTRUCTIONS");
    if (!wanted) return all.back();
    std::string names;
    for (const Choice& one : all) {
        if (std::string(one.name) == wanted) return one;
        names += std::string(names.empty() ? "" : ", ") + one.name;
    }
    throw std::invalid_argument("SOFTORDER_INSTRUCTIONS must be one of " + names +
                                " on this machine, got \"" + wanted + "\". Unset it for the best.");
}

const Choice& choice() {
    static const Choice chosen = choose();
    return chosen;
}

}  // namespace

const ChunkKernels& chunk_kernels(const Terms& terms) {
    return terms.count == 1 ? *choice().real : *choice().complex;
}

const BandKernels& band_kernels() { return *choice().band; }

const char* instruction_set() { return choice().name; }

}  // namespace softorder
