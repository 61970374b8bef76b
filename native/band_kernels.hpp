// What the band kernels do: sums over the weights of NeuralSort near the diagonal.
//
// A block is `length` positions whose weights for each other are not zero. In units of tau, with
// gap_i between the positions i - 1 and i, the weight of position p in row r is exp(-cost), and
//
//     cost_r(r + k) = gap_{r+1} + 3 gap_{r+2} + ... + (2k - 1) gap_{r+k}
//     cost_r(r - k) = gap_r + 3 gap_{r-1} + ... + (2k - 1) gap_{r-k+1}
//
// It grows with k, so that a sum goes from the diagonal outwards and stops. Neighbouring rows (or
// columns) do it together, one in each lane of a register: whatever is by position is read several
// at a time, and nothing is added up across lanes. A weight is the one before it times a power of
// exp(-gap); only a few of the powers cost an exponential. No cost is a difference of large
// numbers.
//
// band_kernels.cpp is compiled once for each instruction set, so it must not use anything that
// the linker could share with the rest (no standard library): memory and threads are the caller's.
#pragma once

#include <cstdint>

namespace softorder {

// The most lanes of any instruction set, and the steps between two looks at the weights.
constexpr int64_t kLanes = 8, kSteps = 8;
// Numbers before the first position of a plane and after the last (which is rounded up to lanes).
constexpr int64_t kMargin = 16;

// A plane holds one number for each position; several lie `stride` numbers apart.
struct Band {
    const double* score;   // sorted; outside of the block, that at its end
    const double* gap;     // outside of the block, too wide to cross
    const double* powers;  // kSteps planes: exp(-gap), exp(-2 gap), exp(-4 gap), exp(-6 gap), ...
    double inverse_scale;  // 1 / tau, for the scores; gaps are divided already
    double smallest;       // a sum may stop where all weights are less
    int64_t stride;
};

// Positions begin to end are whole lanes. A position's own weight, which is 1, is left out. What
// is read outside of the block must be finite.
struct BandKernels {
    void (*write_powers)(const double* gap, int64_t begin, int64_t end, int64_t stride,
                         double* powers);

    // up[0, r] = sum_{p > r} w_rp and up[1 + c, r] = sum_{p > r} w_rp (v[c, p] - own), where own is
    // v[c, r] if `relative` and 0 if not; `down` likewise for p < r, and may be the same memory.
    void (*sum_rows)(const Band& band, int64_t begin, int64_t end, const double* v, int64_t planes,
                     bool relative, double* up, double* down);

    // sums[c, p] = sum_{r != p} w_rp s[c, r].
    void (*sum_columns)(const Band& band, int64_t begin, int64_t end, const double* s,
                        int64_t planes, double* sums);

    // For M_rp = w_rp (s_r . (v_p - v_r) + t_r), besides sums[c, p] of sum_columns:
    //   flow[0, p] = sum_{r < p} M_rp
    //   flow[1, p] = sum_{r > p} M_rp
    //   flow[2, p] = sum_{r > p} (2 (r - p) - 1) M_rp - sum_{r < p} (2 (p - r) - 1) M_rp
    //   flow[3, p] = sum_r cost_r(p) M_rp, if `with_moment`
    void (*differentiate)(const Band& band, int64_t begin, int64_t end, const double* v,
                          const double* s, const double* t, int64_t planes, bool with_moment,
                          double* sums, double* flow);
};

// The kernels for this machine.
const BandKernels& band_kernels();

}  // namespace softorder
