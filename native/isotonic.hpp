// Blocks of decreasing isotonic regression, by pooling adjacent violators.
//
// The solution is constant on blocks of neighbours, and its value on a block follows from sums over
// the block's items. Each item comes as a block of its own and is merged with the one before it for
// as long as that one is not larger. An item is merged away once at most, so a row takes O(n).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "parallel.hpp"

namespace softorder {
namespace isotonic {

constexpr int64_t kItemsPerThread = 1 << 13;  // pooling fewer takes no longer than starting one

// Least squares: the value of a block is the mean of a - b.
struct Difference {
    double sum;

    Difference(double a, double b) : sum(a - b) {}
    double value(int64_t count) const { return sum / static_cast<double>(count); }
    void add(const Difference& right) { sum += right.sum; }
};

// The logarithm of a sum of exponentials, as top + log(sum) where top is the largest exponent:
// sum lies between 1 and the number of items, and equal exponents add up without rounding.
struct LogSum {
    double top;
    double sum = 1.0;

    void add(LogSum other) {
        if (top < other.top) std::swap(*this, other);
        sum += other.sum * std::exp(other.top - top);
    }
};

// Kullback-Leibler: the value of a block is logsumexp(a) - logsumexp(b).
struct LogRatio {
    LogSum a, b;

    LogRatio(double a_item, double b_item) : a{a_item}, b{b_item} {}
    double value(int64_t /*count*/) const { return a.top - b.top + std::log(a.sum / b.sum); }
    void add(const LogRatio& right) {
        a.add(right.a);
        b.add(right.b);
    }
};

template <class Sums>
struct Block {
    int64_t first;
    double value;
    Sums sums;

    // Takes in the block that follows and reaches to `end`. Two equal values stay as they are:
    // a sum would round them, and split a long tie.
    void take_in(const Block& right, int64_t end) {
        sums.add(right.sums);
        if (value != right.value) value = sums.value(end - first);
    }
};

// A NaN compares as false: it is never merged, and the row goes on after it.
template <class Sums>
void pool_row(const double* a, const double* b, const double* begins, int64_t n,
              std::vector<Block<Sums>>& blocks, int64_t* first) {
    blocks.clear();
    std::size_t of_earlier_segments = 0;
    for (int64_t i = 0; i < n; ++i) {
        if (begins[i] != 0) of_earlier_segments = blocks.size();
        const Sums item(a[i], b[i]);
        Block<Sums> last{i, item.value(1), item};
        while (blocks.size() > of_earlier_segments && blocks.back().value <= last.value) {
            blocks.back().take_in(last, i + 1);
            last = blocks.back();
            blocks.pop_back();
        }
        blocks.push_back(last);
    }
    int64_t end = n;
    for (std::size_t block = blocks.size(); block-- > 0; end = blocks[block].first) {
        std::fill(first + blocks[block].first, first + end, blocks[block].first);
    }
}

}  // namespace isotonic

// For each of `rows` contiguous triples (a, b, begins) of n numbers each: first[] tells for every
// position where its block begins. No block reaches over a position whose begins[] is not 0. Sums
// is isotonic::Difference or isotonic::LogRatio. Takes up to 48 bytes of memory per item of a row
// and thread beyond the output.
template <class Sums>
void pool(const double* x, int64_t rows, int64_t n, int64_t* first, int threads) {
    if (rows <= 0 || n <= 0) return;
    const int64_t rows_per_thread = (isotonic::kItemsPerThread + n - 1) / n;
    for_each_range(threads, rows, rows_per_thread, [&](int64_t begin, int64_t end) {
        std::vector<isotonic::Block<Sums>> blocks;
        blocks.reserve(static_cast<std::size_t>(n));
        for (int64_t row = begin; row < end; ++row) {
            const double* a = x + 3 * row * n;
            isotonic::pool_row(a, a + n, a + 2 * n, n, blocks, first + row * n);
        }
    });
}

}  // namespace softorder
