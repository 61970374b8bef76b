// Chooses the block kernels for the machine that this runs on.
#include "block_kernels.hpp"

namespace softorder {

#define SOFTORDER_DECLARE(arch)                 \
    namespace arch {                            \
    extern const BlockKernels real_kernels;     \
    extern const BlockKernels complex_kernels;  \
    }

SOFTORDER_DECLARE(baseline)
#ifdef SOFTORDER_X86_LEVELS
SOFTORDER_DECLARE(avx2)
SOFTORDER_DECLARE(avx512)
#endif

namespace {

struct Choice {
    const char* name;
    const BlockKernels* real;
    const BlockKernels* complex;
};

Choice choose() {
#ifdef SOFTORDER_X86_LEVELS
    __builtin_cpu_init();
    const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    // Exactly what CMakeLists.txt lets the compiler use.
    if (has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")) {
        return {"avx512", &avx512::real_kernels, &avx512::complex_kernels};
    }
    if (has_avx2) return {"avx2", &avx2::real_kernels, &avx2::complex_kernels};
#endif
    return {"baseline", &baseline::real_kernels, &baseline::complex_kernels};
}

const Choice& choice() {
    static const Choice chosen = choose();
    return chosen;
}

}  // namespace

const BlockKernels& block_kernels(const Terms& terms) {
    return terms.count == 1 ? *choice().real : *choice().complex;
}

const char* instruction_set() { return choice().name; }

}  // namespace softorder
