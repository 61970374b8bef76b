// A batch of rows of sorted scores: what every kernel that reads them shares.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <new>

#ifdef __linux__
#include <sys/mman.h>
#endif

#include "chunk_kernels.hpp"
#include "parallel.hpp"

namespace softorder {

// No weight crosses a gap this wide, in units of the scale. Wider ones count as this: a moment must
// not be zero times infinity.
constexpr double kFar = 1000;

// A batch of rows of sorted scores.
template <class Float>
struct Rows {
    const Float* sorted;    // (rows, n), descending; 0 where masked
    const int64_t* order;   // (rows, n), item at each position
    const int64_t* counts;  // (rows,), how many items take part; null if all do
    const double* scale;    // (rows,), or one for all
    bool scale_per_row;
    Terms terms;
    int64_t rows, n, features;
    int threads;

    int64_t count_of(int64_t row) const { return counts ? counts[row] : n; }
    double scale_of(int64_t row) const { return scale[scale_per_row ? row : 0]; }
};

// Finite, so that two equal scores are no distance apart whatever the scale.
inline double inverse(double scale) {
    return std::min(1 / scale, std::numeric_limits<double>::max());
}

// Positions of one row whose weights for each other are not zero.
struct Block {
    int64_t begin, end;
    bool all_infinite;  // infinite scores: all weights are equal
};

struct Blocks {
    Block block[3];
    int number = 0;
    bool has_nan = false;  // then everything in this row is NaN

    const Block* begin() const { return block; }
    const Block* end() const { return block + number; }
    int64_t length() const { return number ? block[number - 1].end : 0; }
    // What results hold where no block is.
    double blank() const { return has_nan ? std::numeric_limits<double>::quiet_NaN() : 0.0; }

    void add(int64_t begin, int64_t end, bool all_infinite) {
        if (begin < end) block[number++] = {begin, end, all_infinite};
    }
};

template <class Float>
Blocks find_blocks(const Float* sorted, int64_t count, double scale) {
    Blocks blocks;
    // Not `scale <= 0`: a NaN must not pass.
    blocks.has_nan = count > 0 && (std::isnan(sorted[0]) || !(scale > 0));
    if (blocks.has_nan) return blocks;
    int64_t first = 0, last = count;
    while (first < count && sorted[first] == std::numeric_limits<Float>::infinity()) ++first;
    while (last > first && sorted[last - 1] == -std::numeric_limits<Float>::infinity()) --last;
    blocks.add(0, first, true);
    blocks.add(first, last, false);
    blocks.add(last, count, true);
    return blocks;
}

// Memory that grows and is never cleared: numbers are written before they are read.
class Scratch {
  public:
    double* get(int64_t size) {
        if (size > capacity_) {
            memory_.reset();
            capacity_ = 0;
            memory_.reset(allocate(static_cast<size_t>(size) * sizeof(double)));
            capacity_ = size;
        }
        return memory_.get();
    }

    int64_t capacity() const { return capacity_; }

  private:
    struct Free {
        void operator()(double* memory) const { std::free(memory); }
    };

    static double* allocate(size_t bytes) {
        void* memory = nullptr;
#ifdef MADV_HUGEPAGE
        // A page fault for every 4 KiB would cost as much as the recurrences.
        constexpr size_t huge_page = size_t{1} << 21;
        if (bytes >= 2 * huge_page && posix_memalign(&memory, huge_page, bytes) == 0) {
            madvise(memory, bytes, MADV_HUGEPAGE);
        }
#endif
        if (!memory) memory = std::malloc(bytes);
        if (!memory) throw std::bad_alloc();
        return static_cast<double*>(memory);
    }

    std::unique_ptr<double, Free> memory_;
    int64_t capacity_ = 0;
};

// A thread's memory, reused from call to call: fresh memory costs a page fault for every 4 KiB, as
// much as the recurrences. What is large is given back.
template <class Memory>
class ThreadMemory {
  public:
    Memory& get() { return memory(); }
    ~ThreadMemory() {
        constexpr int64_t most = int64_t{1} << 23;  // 64 MiB: what a row of a million takes
        if (static_cast<int64_t>(memory().capacity()) > most) memory() = Memory();
    }

  private:
    static Memory& memory() {
        static thread_local Memory memory;
        return memory;
    }
};

// Calls work(row, blocks, scale, threads, memory) for every row. Threads go over rows, `minimum` or
// more for each, or inside one if that can be `cut` and there are few.
template <class Memory, class Float, class Work>
void for_each_row(const Rows<Float>& rows, bool cut, int64_t minimum, const Work& work) {
    const auto some = [&](int64_t begin, int64_t end, int threads) {
        ThreadMemory<Memory> own;
        for (int64_t row = begin; row < end; ++row) {
            const double scale = rows.scale_of(row);
            const Blocks blocks = find_blocks(rows.sorted + row * rows.n, rows.count_of(row), scale);
            work(row, blocks, scale, threads, own.get());
        }
    };
    if (cut && rows.rows / 2 < rows.threads) return some(0, rows.rows, rows.threads);
    for_each_range(rows.threads, rows.rows, minimum,
                   [&](int64_t begin, int64_t end) { some(begin, end, 1); });
}

// The number of features: one, known to the compiler, or any (0).
template <int Features, class Float>
int64_t features_of(const Rows<Float>& rows) {
    return Features ? Features : rows.features;
}

// The values of the item at a position.
template <int Features, class Float>
const Float* values_at(const Rows<Float>& rows, const Float* v, int64_t row, int64_t position) {
    const int64_t at = row * rows.n + position;
    if (!v) return rows.sorted + at;
    return v + (row * rows.n + rows.order[at]) * features_of<Features>(rows);
}

template <class Float>
bool any_infinite(const Float* x, int64_t size) {
    // Infinity minus itself is the only way from not-NaN to NaN: one pass without branches.
    bool found = false;
    for (int64_t i = 0; i < size; ++i) found |= x[i] == x[i] && !(x[i] - x[i] == 0);
    return found;
}

template <class Float>
double finite_or_zero(Float x) {
    return std::isinf(x) ? 0.0 : static_cast<double>(x);
}

// Calls put(part, value) for a number; where there are infinities, for its finite part, and for
// whether it is +inf and whether it is -inf.
template <class Float, class Put>
void split(Float x, bool infinite, const Put& put) {
    put(0, infinite ? finite_or_zero(x) : static_cast<double>(x));
    if (!infinite) return;
    put(1, std::isinf(x) && x > 0 ? 1.0 : 0.0);
    put(2, std::isinf(x) && x < 0 ? 1.0 : 0.0);
}

// How a result is put together where values are infinite: the finite part, and which end is reached
// with a weight above 0, or above what cannot be told from 0. Zero times infinity counts as zero.
inline double with_ends(double finite, double up, double down, double smallest) {
    const double infinity = std::numeric_limits<double>::infinity();
    return finite + (up > smallest ? infinity : 0.0) + (down > smallest ? -infinity : 0.0);
}

template <class Float>
void fill_with(Float* to, int64_t size, double value) {
    for (int64_t i = 0; i < size; ++i) to[i] = static_cast<Float>(value);
}

// Calls work(first, end) for every group of two or more tied scores among the positions begin to end.
template <class Float, class Work>
void for_each_tie(const Float* sorted, int64_t begin, int64_t end, const Work& work) {
    for (int64_t i = begin + 1; i < end; ++i) {
        if (sorted[i] != sorted[i - 1]) continue;
        const int64_t first = i - 1;
        while (i < end && sorted[i] == sorted[first]) ++i;
        work(first, i);
    }
}

template <class Float>
bool any_ties(const Float* sorted, int64_t begin, int64_t end) {
    bool found = false;
    for (int64_t i = begin + 1; i < end; ++i) found |= sorted[i] == sorted[i - 1];
    return found;
}

// Replaces what each position of a group of ties holds by the mean of the group.
template <class Float>
void average_ties(const Float* sorted, int64_t begin, int64_t end, double* values) {
    for_each_tie(sorted, begin, end, [&](int64_t first, int64_t last) {
        double sum = 0;
        for (int64_t i = first; i < last; ++i) sum += values[i];
        std::fill(values + first, values + last, sum / static_cast<double>(last - first));
    });
}

// Of `size` tied scores, the one at `index`: how many come after it, less how many come before.
inline double imbalance(int64_t size, int64_t index) {
    return static_cast<double>(size - 1 - 2 * index);
}

// For the sum over i of weight_i A_i, where A_i adds up the distances of score i to all others:
// takes from the derivative of the scores, `force`, the part of tied pairs, whose distance has no
// slope. It is there with the sign of the order that they stand in.
template <class Float, class Weight>
void remove_tied_distances(const Float* sorted, int64_t length, const Weight& weight,
                           double* force) {
    for_each_tie(sorted, 0, length, [&](int64_t first, int64_t last) {
        double after = 0, before = 0;
        for (int64_t i = first; i < last; ++i) after += weight(i);
        for (int64_t i = first; i < last; ++i) {
            after -= weight(i);
            force[i] -= weight(i) * imbalance(last - first, i - first) - before + after;
            before += weight(i);
        }
    });
}

// Where a gradient is not asked for, its pointer is null.
template <class Float>
struct Gradients {
    Float* scores;   // (rows, n) by item
    Float* values;   // (rows, n, features): by item for P v, by position for P^T u
    double* scale;   // (rows,)
};

template <class Float>
void fill_gradients(const Gradients<Float>& to, int64_t row, int64_t n, int64_t f, double value) {
    if (to.scores) fill_with(to.scores + row * n, n, value);
    if (to.values) fill_with(to.values + row * n * f, n * f, value);
    if (to.scale) to.scale[row] = value;
}

}  // namespace softorder
