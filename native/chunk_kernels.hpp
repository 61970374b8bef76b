// What the chunk kernels do: the recurrences over one chunk of one sorted row.
//
// A chunk holds `length` consecutive positions of a block (positions whose weights for each other
// are not zero). Gate i carries a state from position i - 1 to position i and back; gate 0 links
// the chunk to the one before it. A state has `width` numbers for each channel: one for a real
// exponential, 16 for eight complex ones.
//
// chunk_kernels.cpp is compiled once for each instruction set, so it must not use anything that
// the linker could share with the rest (no standard library): memory and threads are the
// caller's.
#pragma once

#include <cstdint>

namespace softorder {

constexpr int kMostTerms = 8;

// k(u) = Re sum_m weight_m exp(-decay_m u), with k(0) = 1.
struct Terms {
    int count;
    double reach;  // nothing crosses a wider gap between neighbours
    double noise;  // smaller sums cannot be told from zero: rounding errors of complex terms, say
    double weight_re[kMostTerms], weight_im[kMostTerms];
    double decay_re[kMostTerms], decay_im[kMostTerms];
};

struct ChunkKernels {
    int width;

    // gate[i] = exp(-decay * gap[i]), for gaps between neighbours in units of the scale.
    void (*gates)(const Terms& terms, const double* gap, int64_t length, double* gate);

    // The states that leave the chunk when nothing enters it, and the product of its gates.
    // With `moments` > 0, the first `moments` channels carry first moments too.
    // Inputs of neighbouring positions are `stride` numbers apart, here and below.
    void (*aggregate)(const double* gate, const double* gap, int64_t length, const double* input,
                      int stride, int channels, int moments, double* left, double* right,
                      double* product);

    // sums[i, c] = sum_j k(u_ij) input[j, c]. `left` and `right` hold what enters the chunk.
    void (*sum)(const Terms& terms, const double* gate, int64_t length, const double* input,
                int stride, int channels, double* left, double* right, double* sums);

    // For channels (p_1..p_f, 1, s_1..s_f, q) and C_ij = s_i . p_j - q_i:
    //   spread[i] = sum_j k(u_ij) s_j,
    //   force[i] = derivative of sum_ij C_ij k(u_ij) with respect to the score at i, in units of the
    //     scale,
    //   input[i, f] = the part of it that row i has, in place of 1, if `keeps_rows`; the rest is the
    //     item's,
    //   returns sum_ij C_ij u_ij (-k'(u_ij)), if `with_moment`; it is the scale's derivative.
    double (*differentiate)(const Terms& terms, const double* gate, const double* gap,
                            int64_t length, double* input, int features, bool with_moment,
                            bool keeps_rows, double* left, double* right, double* spread,
                            double* force);
};

// The kernels for this machine: one real term, or several complex ones.
const ChunkKernels& chunk_kernels(const Terms& terms);

// The name of the instruction set that chunk_kernels uses.
const char* instruction_set();

}  // namespace softorder
