// Sums over a band, for one instruction set: SOFTORDER_ARCH names it (see CMakeLists.txt).
#include "band_kernels.hpp"

#include "vector.hpp"

namespace softorder {
namespace SOFTORDER_ARCH {
namespace {

// One number for each lane.
typedef Pack<kLanes> Lanes;
constexpr int kParts = Lanes::parts;

inline Lanes read(const double* from) { return Lanes::load(from); }
inline void write(double* to, const Lanes& all) { all.store(to); }

inline bool any_above(const Lanes& v, double limit) {
    auto above = v.part[0] >= limit;
    for (int64_t i = 1; i < kParts; ++i) above |= v.part[i] >= limit;
    int64_t any = 0;
    for (int64_t i = 0; i < kWidth; ++i) any |= above[i];
    return any != 0;
}

SOFTORDER_KERNEL
void write_powers(const double* gap, int64_t begin, int64_t end, int64_t stride, double* powers) {
    for (int64_t at = begin; at < end; at += kLanes) {
        const Lanes one = exp_minus(read(gap + at)), two = one * one;
        write(powers + at, one);
        Lanes power = two;
        for (int64_t j = 1; j < kSteps; ++j, power *= two) write(powers + j * stride + at, power);
    }
}

// Where the gap lies that step k crosses, seen from a lane's own position.
template <int Side>
constexpr int64_t gap_at(int64_t k) {
    return Side > 0 ? k : 1 - k;
}

// The weights of the items k steps to one side, in the rows of the lanes.
template <int Side>
struct AlongRows {
    Lanes weight = Lanes::of(1);

    // Step k multiplies by exp(-(2k - 1) gap): by what the first of these steps would, and a power.
    void next(const Band& band, int64_t at, int64_t k, Lanes* w) {
        constexpr int64_t span = kSteps + kLanes;
        const int64_t lowest = at + (Side > 0 ? gap_at<Side>(k) : gap_at<Side>(k + kSteps - 1));
        double first[span];
        for (int64_t i = 0; i < span; i += kLanes) {
            const Lanes gaps = read(band.gap + lowest + i);
            write(first + i, exp_minus(static_cast<double>(2 * k - 1) * gaps));
        }
        for (int64_t j = 0; j < kSteps; ++j) {
            const int64_t i = Side > 0 ? j : kSteps - 1 - j;
            Lanes factor = read(first + i);
            if (j > 0) factor *= read(band.powers + j * band.stride + lowest + i);
            w[j] = weight *= factor;
        }
    }
};

// The weights of the items of the lanes, in the rows k steps to one side.
template <int Side>
struct AlongColumns {
    Lanes weight = Lanes::of(1);

    // Step k multiplies by exp(-gap - 2 d), d being the distance before it.
    void next(const Band& band, int64_t at, int64_t k, Lanes* w) {
        const Lanes here = read(band.score + at), there = read(band.score + at + Side * (k - 1));
        const Lanes distance = Side > 0 ? here - there : there - here;
        Lanes twice = exp_minus(band.inverse_scale * (distance + distance));
        for (int64_t j = 0; j < kSteps; ++j) {
            const double* power = band.powers + at + gap_at<Side>(k + j);
            w[j] = weight *= twice * read(power);
            twice *= read(power + band.stride);
        }
    }
};

// The costs that go with AlongColumns.
template <int Side>
struct Costs {
    Lanes cost = Lanes::of(0), distance = Lanes::of(0);

    Lanes next(const Band& band, int64_t at, int64_t k) {
        const Lanes before = distance;
        distance += read(band.gap + at + gap_at<Side>(k));
        return cost += before + distance;
    }
};

// Calls visit(k, weights) for the next kSteps steps, again and again until all weights are small.
// The nearest neighbours are always visited: where all weights are tiny, they still count.
template <class Weights, class Visit>
inline __attribute__((always_inline)) void walk(const Band& band, int64_t at, const Visit& visit) {
    Weights weights;
    int64_t k = 1;
    do {
        Lanes w[kSteps];
        weights.next(band, at, k, w);
        visit(k, w);
        k += kSteps;
    } while (any_above(weights.weight, band.smallest));
}

template <int Side, bool Relative>
inline void sum_row_side(const Band& band, int64_t at, const double* v, int64_t planes,
                         double* sums) {
    walk<AlongRows<Side>>(band, at, [&](int64_t k, const Lanes* w) {
        Lanes z = read(sums + at);
        for (int64_t j = 0; j < kSteps; ++j) z += w[j];
        write(sums + at, z);
        for (int64_t c = 0; c < planes; ++c) {
            const double* plane = v + c * band.stride + at;
            double* to = sums + (1 + c) * band.stride + at;
            const Lanes own = read(plane);
            Lanes sum = read(to);
            for (int64_t j = 0; j < kSteps; ++j) {
                const Lanes there = read(plane + Side * (k + j));
                sum += w[j] * (Relative ? there - own : there);
            }
            write(to, sum);
        }
    });
}

template <bool Relative>
SOFTORDER_KERNEL
void sum_rows_of(const Band& band, int64_t begin, int64_t end, const double* v, int64_t planes,
                 double* up, double* down) {
    const Lanes zero = Lanes::of(0);
    for (int64_t at = begin; at < end; at += kLanes) {
        for (int64_t c = 0; c <= planes; ++c) {
            write(up + c * band.stride + at, zero);
            write(down + c * band.stride + at, zero);
        }
        sum_row_side<1, Relative>(band, at, v, planes, up);
        sum_row_side<-1, Relative>(band, at, v, planes, down);
    }
}

void sum_rows(const Band& band, int64_t begin, int64_t end, const double* v, int64_t planes,
              bool relative, double* up, double* down) {
    (relative ? sum_rows_of<true> : sum_rows_of<false>)(band, begin, end, v, planes, up, down);
}

template <int Side>
inline void add_column(const double* s, int64_t k, const Lanes* w, double* to) {
    Lanes sum = read(to);
    for (int64_t j = 0; j < kSteps; ++j) sum += w[j] * read(s + Side * (k + j));
    write(to, sum);
}

template <int Side>
inline void sum_column_side(const Band& band, int64_t at, const double* s, int64_t planes,
                            double* sums) {
    walk<AlongColumns<Side>>(band, at, [&](int64_t k, const Lanes* w) {
        for (int64_t c = 0; c < planes; ++c) {
            add_column<Side>(s + c * band.stride + at, k, w, sums + c * band.stride + at);
        }
    });
}

SOFTORDER_KERNEL
void sum_columns(const Band& band, int64_t begin, int64_t end, const double* s, int64_t planes,
                 double* sums) {
    const Lanes zero = Lanes::of(0);
    for (int64_t at = begin; at < end; at += kLanes) {
        for (int64_t c = 0; c < planes; ++c) write(sums + c * band.stride + at, zero);
        sum_column_side<1>(band, at, s, planes, sums);
        sum_column_side<-1>(band, at, s, planes, sums);
    }
}

struct Flow {
    Lanes before = Lanes::of(0), after = before, lever = before, moment = before;
};

template <int Side, bool Moment>
inline void differentiate_side(const Band& band, int64_t at, const double* v, const double* s,
                               const double* t, int64_t planes, double* sums, Flow& flow) {
    Costs<Side> costs;
    Lanes& arriving = Side > 0 ? flow.after : flow.before;
    walk<AlongColumns<Side>>(band, at, [&](int64_t k, const Lanes* w) {
        Lanes m[kSteps];
        for (int64_t j = 0; j < kSteps; ++j) m[j] = read(t + at + Side * (k + j));
        for (int64_t c = 0; c < planes; ++c) {
            const int64_t plane = c * band.stride + at;
            const Lanes own = read(v + plane);
            for (int64_t j = 0; j < kSteps; ++j) {
                const int64_t there = plane + Side * (k + j);
                m[j] += read(s + there) * (own - read(v + there));
            }
            add_column<Side>(s + plane, k, w, sums + plane);
        }
        for (int64_t j = 0; j < kSteps; ++j) {
            m[j] *= w[j];
            arriving += m[j];
            flow.lever += static_cast<double>(Side * (2 * (k + j) - 1)) * m[j];
            if (Moment) flow.moment += costs.next(band, at, k + j) * m[j];
        }
    });
}

template <bool Moment>
SOFTORDER_KERNEL
void differentiate_with(const Band& band, int64_t begin, int64_t end, const double* v,
                        const double* s, const double* t, int64_t planes, double* sums,
                        double* flow) {
    const Lanes zero = Lanes::of(0);
    for (int64_t at = begin; at < end; at += kLanes) {
        for (int64_t c = 0; c < planes; ++c) write(sums + c * band.stride + at, zero);
        Flow here;
        differentiate_side<-1, Moment>(band, at, v, s, t, planes, sums, here);
        differentiate_side<1, Moment>(band, at, v, s, t, planes, sums, here);
        write(flow + at, here.before);
        write(flow + band.stride + at, here.after);
        write(flow + 2 * band.stride + at, here.lever);
        write(flow + 3 * band.stride + at, here.moment);
    }
}

void differentiate(const Band& band, int64_t begin, int64_t end, const double* v, const double* s,
                   const double* t, int64_t planes, bool with_moment, double* sums, double* flow) {
    const auto run = with_moment ? differentiate_with<true> : differentiate_with<false>;
    run(band, begin, end, v, s, t, planes, sums, flow);
}

}  // namespace

extern const BandKernels band_kernels;
const BandKernels band_kernels = {write_powers, sum_rows, sum_columns, differentiate};

}  // namespace SOFTORDER_ARCH
}  // namespace softorder
