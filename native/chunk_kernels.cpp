// The recurrences, for one instruction set: SOFTORDER_ARCH names it (see CMakeLists.txt).
#include "chunk_kernels.hpp"

#include <type_traits>

#include "vector.hpp"

namespace softorder {
namespace SOFTORDER_ARCH {
namespace {

typedef Pack<8> Vector;

// The sum of all eight: first of registers, then of halves.
inline double total(const Vector& v) {
    Register sum = v.part[0];
    for (int i = 1; i < Vector::parts; ++i) sum += v.part[i];
#if defined(__AVX__)
    typedef double Half __attribute__((vector_size(sizeof(Register) / 2)));
    struct Halves {
        Half low, high;
    } halves;
    __builtin_memcpy(&halves, &sum, sizeof sum);
    const Half rest = halves.low + halves.high;
    double all = 0;
    for (int i = 0; i < kWidth / 2; ++i) all += rest[i];
    return all;
#else
    return sum[0] + sum[1];
#endif
}

// The highest power comes first.
template <int Count>
inline Register polynomial(const double (&coefficients)[Count], Register z) {
    Register sum = Register{} + coefficients[0];
    for (int i = 1; i < Count; ++i) sum = coefficients[i] + z * sum;
    return sum;
}

// cos and sin of angles in [0, 1000], to two units in the last place.
inline void cos_sin(Register angle, Register& cosine, Register& sine) {
    const Register zero = {};
    const Register shifted = angle * 0.63661977236758134308 + kRound;
    const Register k = shifted - kRound;
    const Register r = ((angle - k * 1.57079632673412561417) - k * 6.07710050630396597660e-11) -
                     k * 2.02226624879595063154e-21;
    const Register z = r * r;
    const double of_sine[] = {1.58969099521155010221e-10, -2.50507602534068634195e-08,
                              2.75573137070700676789e-06, -1.98412698298579493134e-04,
                              8.33333333332248946124e-03, -1.66666666666666324348e-01};
    const double of_cosine[] = {-1.13596475577881948265e-11, 2.08757232129817482790e-09,
                                -2.75573143513906633035e-07, 2.48015872894767294178e-05,
                                -1.38888888888741095749e-03, 4.16666666666666019037e-02};
    const Register s = r + r * z * polynomial(of_sine, z);
    const Register c = 1.0 - 0.5 * z + z * z * polynomial(of_cosine, z);
    const Register rounding = zero + kRound;
    const RegisterBits quadrant = (RegisterBits)shifted - (RegisterBits)rounding;
    const RegisterBits odd = -(quadrant & 1);
    const RegisterBits flip_sine = (quadrant & 2) << 62, flip_cosine = ((quadrant + 1) & 2) << 62;
    sine = (Register)(((odd & (RegisterBits)c) | (~odd & (RegisterBits)s)) ^ flip_sine);
    cosine = (Register)(((odd & (RegisterBits)s) | (~odd & (RegisterBits)c)) ^ flip_cosine);
}

inline void cos_sin(const Vector& angle, Vector& cosine, Vector& sine) {
    for (int i = 0; i < Vector::parts; ++i) cos_sin(angle.part[i], cosine.part[i], sine.part[i]);
}

// One real exponential: k(u) = exp(-u).
struct Real {
    static constexpr int width = 1;
    typedef double State;

    explicit Real(const Terms&) {}

    static State read(const double* from) { return *from; }
    static void write(double* to, State s) { *to = s; }
    static State add(State s, double input) { return s + input; }
    static State pass(const double* gate, State s) { return *gate * s; }
    static double value(State s) { return s; }
    static double slope(State s) { return s; }

    SOFTORDER_KERNEL
    static void gates(const Terms&, const double* gap, int64_t length, double* gate) {
        int64_t i = 0;
        for (; i + 8 <= length; i += 8) exp_minus(Vector::load(gap + i)).store(gate + i);
        if (i == length) return;
        double rest[8] = {};
        for (int64_t j = i; j < length; ++j) rest[j - i] = gap[j];
        exp_minus(Vector::load(rest)).store(rest);
        for (int64_t j = i; j < length; ++j) gate[j] = rest[j - i];
    }
};

// Eight complex exponentials, one in each lane.
struct Complex {
    static constexpr int width = 16;
    struct State {
        Vector re, im;
        State operator+(State o) const { return {re + o.re, im + o.im}; }
        State operator-(State o) const { return {re - o.re, im - o.im}; }
        friend State operator*(double a, State s) { return {a * s.re, a * s.im}; }
    };

    Vector weight_re, weight_im, slope_re, slope_im;

    explicit Complex(const Terms& t)
        : weight_re(Vector::load(t.weight_re)), weight_im(Vector::load(t.weight_im)) {
        const Vector decay_re = Vector::load(t.decay_re), decay_im = Vector::load(t.decay_im);
        slope_re = weight_re * decay_re - weight_im * decay_im;
        slope_im = weight_re * decay_im + weight_im * decay_re;
    }

    static State read(const double* from) { return {Vector::load(from), Vector::load(from + 8)}; }
    static void write(double* to, State s) {
        s.re.store(to);
        s.im.store(to + 8);
    }
    static State add(State s, double input) { return {s.re + Vector::of(input), s.im}; }
    static State pass(const double* gate, State s) {
        const Vector re = Vector::load(gate), im = Vector::load(gate + 8);
        return {re * s.re - im * s.im, re * s.im + im * s.re};
    }
    double value(State s) const { return total(weight_re * s.re - weight_im * s.im); }
    double slope(State s) const { return total(slope_re * s.re - slope_im * s.im); }

    SOFTORDER_KERNEL
    static void gates(const Terms& terms, const double* gap, int64_t length, double* gate) {
        const Vector decay_re = Vector::load(terms.decay_re);
        const Vector decay_im = Vector::load(terms.decay_im);
        for (int64_t i = 0; i < length; ++i) {
            // What would cross a wider gap is below the rounding errors: nothing does, so that
            // points far from all others feel no noise.
            const bool open = gap[i] <= terms.reach;
            const double u = open ? gap[i] : 0.0;
            Vector cosine, sine;
            cos_sin(u * decay_im, cosine, sine);
            const Vector size = (open ? 1.0 : 0.0) * exp_minus(u * decay_re);
            (size * cosine).store(gate + 16 * i);
            (-1.0 * (size * sine)).store(gate + 16 * i + 8);
        }
    }
};

// `Count` channels in flight together.
template <class Kernel, int Count, bool Moments>
SOFTORDER_KERNEL
void aggregate_channels(const double* gate, const double* gap, int64_t length, const double* input,
                        int stride, double* left, double* right, double* left_moment,
                        double* right_moment) {
    constexpr int width = Kernel::width;
    typename Kernel::State l[Count] = {}, r[Count] = {}, lm[Count] = {}, rm[Count] = {};
    for (int64_t i = 0; i < length; ++i) {
        const int64_t j = length - 1 - i;
        const double *from_left = gate + i * width, *from_right = gate + j * width;
        for (int c = 0; c < Count; ++c) {
            if (Moments) lm[c] = Kernel::pass(from_left, lm[c] + gap[i] * l[c]);
            l[c] = Kernel::add(Kernel::pass(from_left, l[c]), input[i * stride + c]);
            r[c] = Kernel::add(r[c], input[j * stride + c]);
            if (Moments) rm[c] = Kernel::pass(from_right, rm[c] + gap[j] * r[c]);
            r[c] = Kernel::pass(from_right, r[c]);
        }
    }
    for (int c = 0; c < Count; ++c) {
        Kernel::write(left + c * width, l[c]);
        Kernel::write(right + c * width, r[c]);
        if (!Moments) continue;
        Kernel::write(left_moment + c * width, lm[c]);
        Kernel::write(right_moment + c * width, rm[c]);
    }
}

template <class Kernel>
void aggregate(const double* gate, const double* gap, int64_t length, const double* input,
               int stride, int channels, int moments, double* left, double* right,
               double* product) {
    constexpr int width = Kernel::width;
    typename Kernel::State all = Kernel::read(gate);
    for (int64_t i = 1; i < length; ++i) all = Kernel::pass(gate + i * width, all);
    Kernel::write(product, all);
    for (int c = 0; c < channels;) {
        const bool with_moment = c < moments;
        const bool pair = with_moment ? c + 2 <= moments : c + 2 <= channels;
        const auto run = with_moment ? (pair ? aggregate_channels<Kernel, 2, true>
                                             : aggregate_channels<Kernel, 1, true>)
                                     : (pair ? aggregate_channels<Kernel, 2, false>
                                             : aggregate_channels<Kernel, 1, false>);
        run(gate, gap, length, input + c, stride, left + c * width, right + c * width,
            left + (channels + c) * width, right + (channels + c) * width);
        c += pair ? 2 : 1;
    }
}

// Visits every position from both ends at once, up(i, first) from the first on and down(i, first)
// from the last: two chains of steps that the processor runs side by side. `first` is a constant,
// whether this is the first visit to the position.
template <class Up, class Down>
inline void sweep_both(int64_t length, const Up& up, const Down& down) {
    const std::true_type first;
    const std::false_type second;
    int64_t i = 0;
    for (; i < length / 2; ++i) {
        up(i, first);
        down(length - 1 - i, first);
    }
    if (length % 2 != 0) {
        up(i, first);
        down(i, second);
        ++i;
    }
    for (; i < length; ++i) {
        up(i, second);
        down(length - 1 - i, second);
    }
}

template <class First>
inline void put_or_add(double& to, double x, First) {
    to = First::value ? x : to + x;
}

// A gate that changes nothing: before the first position from the right.
alignas(64) const double kOpenGate[16] = {1, 1, 1, 1, 1, 1, 1, 1};

// The states of some channels: `Count` of them, known to the compiler, stay in registers; 0 means any
// number, in memory.
template <class Kernel, int Count>
struct States {
    typedef typename Kernel::State State;

    double* memory;
    State held[Count ? Count : 1];

    explicit States(double* from) : memory(from) {
        for (int c = 0; c < Count; ++c) held[c] = Kernel::read(memory + c * Kernel::width);
    }
    State operator[](int c) const {
        return Count ? held[c] : Kernel::read(memory + c * Kernel::width);
    }
    void set(int c, State s) {
        if (Count) held[c] = s; else Kernel::write(memory + c * Kernel::width, s);
    }
};

template <class Kernel, int Count>
SOFTORDER_KERNEL
void sum_channels(const Kernel& kernel, const double* gate, int64_t length, const double* input,
                  int stride, int channels, double* left, double* right, double* sums) {
    typedef typename Kernel::State State;
    constexpr int width = Kernel::width;
    const int count = Count ? Count : channels;
    States<Kernel, Count> from_left(left), from_right(right);
    // Crosses a gate and takes in an input, in one instruction where there is one for it; returns
    // the state between.
    const auto step = [](const double* through, States<Kernel, Count>& states, int c, double w) {
        const State s = Kernel::pass(through, states[c]);
        states.set(c, Kernel::add(s, w));
        return s;
    };
    const auto up = [&](int64_t i, auto first) {
        for (int c = 0; c < count; ++c) {
            const double w = input[i * stride + c];
            const State s = step(gate + i * width, from_left, c, w);
            put_or_add(sums[i * count + c], kernel.value(s), first);
        }
    };
    const double* gate_above = kOpenGate;
    const auto down = [&](int64_t i, auto first) {
        for (int c = 0; c < count; ++c) {
            const double w = input[i * stride + c];
            const State s = step(gate_above, from_right, c, w);
            put_or_add(sums[i * count + c], kernel.value(s) + w, first);
        }
        gate_above = gate + i * width;
    };
    sweep_both(length, up, down);
}

template <class Kernel>
void sum(const Terms& terms, const double* gate, int64_t length, const double* input, int stride,
         int channels, double* left, double* right, double* sums) {
    const Kernel kernel(terms);
    const auto run = channels == 1   ? sum_channels<Kernel, 1>
                     : channels == 2 ? sum_channels<Kernel, 2>
                                     : sum_channels<Kernel, 0>;
    run(kernel, gate, length, input, stride, channels, left, right, sums);
}

// The states of all channels, with first moments of the first ones, moving through a chunk.
// `carry` is memory for them; `Features` known to the compiler stay in registers instead.
template <class Kernel, int Features, bool Moments>
struct Bank {
    typedef typename Kernel::State State;

    int any_features;
    States<Kernel, Features ? 2 * Features + 2 : 0> states;
    States<Kernel, Features && Moments ? Features + 1 : 0> moments;

    Bank(int f, double* carry)
        : any_features(f), states(carry), moments(carry + channels() * Kernel::width) {}

    int features() const { return Features ? Features : any_features; }
    int channels() const { return 2 * features() + 2; }

    // Take in the inputs of a position. One of them is always 1, wherever its place is used for.
    void add(const double* w) {
        const int f = features();
        for (int c = 0; c < f; ++c) states.set(c, Kernel::add(states[c], w[c]));
        states.set(f, Kernel::add(states[f], 1.0));
        for (int c = f + 1; c < channels(); ++c) states.set(c, Kernel::add(states[c], w[c]));
    }
    // Cross a gap.
    void pass(const double* gate, double gap) {
        for (int c = 0; Moments && c <= features(); ++c) {
            moments.set(c, Kernel::pass(gate, moments[c] + gap * states[c]));
        }
        for (int c = 0; c < channels(); ++c) states.set(c, Kernel::pass(gate, states[c]));
    }
    // sum_j E_ij (s_i . p_j - q_i), before the real part is taken, for the states: what row i has. For
    // the moments, the same with E_ij u_ij.
    template <class Of>
    State of_position(const Of& of, const double* w) const {
        const int f = features();
        const double* s = w + f + 1;
        State all = -s[f] * of[f];
        for (int c = 0; c < f; ++c) all = all + s[c] * of[c];
        return all;
    }
    // sum_j E_ij (p_i . s_j - q_j): what column i has.
    State of_item(const double* p) const {
        const int f = features();
        State all = -1.0 * states[2 * f + 1];
        for (int c = 0; c < f; ++c) all = all + p[c] * states[f + 1 + c];
        return all;
    }
};

template <class Kernel, int Features, bool Moments, bool KeepsRows>
SOFTORDER_KERNEL
double differentiate_channels(const Kernel& kernel, const double* gate, const double* gap,
                              int64_t length, double* input, int features, double* left,
                              double* right, double* spread, double* force) {
    typedef typename Kernel::State State;
    constexpr int width = Kernel::width;
    const int f = Features ? Features : features, channels = 2 * f + 2;
    double moment_up = 0, moment_down = 0;
    Bank<Kernel, Features, Moments> from_left(features, left), from_right(features, right);
    const auto up = [&](int64_t i, auto first) {
        double* w = input + i * channels;
        from_left.pass(gate + i * width, gap[i]);
        const State own_row = from_left.of_position(from_left.states, w);
        put_or_add(force[i], kernel.slope(own_row + from_left.of_item(w)), first);
        if (KeepsRows) put_or_add(w[f], kernel.slope(own_row), first);
        for (int c = 0; c < f; ++c) {
            put_or_add(spread[i * f + c], kernel.value(from_left.states[f + 1 + c]), first);
        }
        if (Moments) moment_up += kernel.slope(from_left.of_position(from_left.moments, w));
        from_left.add(w);
    };
    const double* gate_above = kOpenGate;
    double gap_above = 0;
    const auto down = [&](int64_t i, auto first) {
        double* w = input + i * channels;
        from_right.pass(gate_above, gap_above);
        const State own_row = from_right.of_position(from_right.states, w);
        put_or_add(force[i], -kernel.slope(own_row + from_right.of_item(w)), first);
        if (KeepsRows) put_or_add(w[f], -kernel.slope(own_row), first);
        for (int c = 0; c < f; ++c) {
            const double own = w[f + 1 + c];
            put_or_add(spread[i * f + c], own + kernel.value(from_right.states[f + 1 + c]), first);
        }
        if (Moments) moment_down += kernel.slope(from_right.of_position(from_right.moments, w));
        from_right.add(w);
        gate_above = gate + i * width;
        gap_above = gap[i];
    };
    sweep_both(length, up, down);
    return moment_up + moment_down;
}

template <class Kernel, int F>
auto derivative_of(bool with_moment, bool keeps_rows) {
    using Function = decltype(&differentiate_channels<Kernel, F, true, true>);
    constexpr Function all[2][2] = {
        {differentiate_channels<Kernel, F, false, false>, differentiate_channels<Kernel, F, false, true>},
        {differentiate_channels<Kernel, F, true, false>, differentiate_channels<Kernel, F, true, true>}};
    return all[with_moment][keeps_rows];
}

// In the real kernel, the states of one feature (a sort) or two (ranks) stay in registers.
template <class Kernel>
auto choose_derivative(int features, bool with_moment, bool keeps_rows) {
    if (features == 1) return derivative_of<Kernel, 1>(with_moment, keeps_rows);
    if (features == 2 && Kernel::width == 1) {
        return derivative_of<Kernel, Kernel::width == 1 ? 2 : 0>(with_moment, keeps_rows);
    }
    return derivative_of<Kernel, 0>(with_moment, keeps_rows);
}

template <class Kernel>
double differentiate(const Terms& terms, const double* gate, const double* gap, int64_t length,
                     double* input, int features, bool with_moment, bool keeps_rows, double* left,
                     double* right, double* spread, double* force) {
    const auto run = choose_derivative<Kernel>(features, with_moment, keeps_rows);
    return run(Kernel(terms), gate, gap, length, input, features, left, right, spread, force);
}

template <class Kernel>
constexpr ChunkKernels table() {
    return {Kernel::width, Kernel::gates, aggregate<Kernel>, sum<Kernel>, differentiate<Kernel>};
}

}  // namespace

extern const ChunkKernels real_kernels;
extern const ChunkKernels complex_kernels;
const ChunkKernels real_kernels = table<Real>();
const ChunkKernels complex_kernels = table<Complex>();

}  // namespace SOFTORDER_ARCH
}  // namespace softorder
