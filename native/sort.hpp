// Stable descending argsort of rows of scores, with NaN first and masked items last.
//
// Every item is one 64-bit integer: a 32-bit key above the 32-bit index. Ascending order of these
// integers is the order wanted, and since no two are equal any correct sort of them is stable. A
// double has a 64-bit key: its upper half is sorted first, and then each run of items that agree in
// it, mostly short, by the lower half. The output array `order` serves as one of the two buffers.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "parallel.hpp"

namespace softorder {
namespace sorting {

using Item = uint64_t;

template <class Real>
using KeyOf = std::conditional_t<sizeof(Real) == 4, uint32_t, uint64_t>;

// Where one way becomes faster than another, as measured on a 2-core x86-64.
constexpr int64_t kInsertionLength = 16;         // longer rows: merge sort
constexpr int64_t kMergeLength = 300;            // longer rows: radix sort
constexpr int64_t kItemsPerThread = 1 << 13;     // sorting fewer takes no longer than starting one
constexpr int64_t kItemsPerRowThread = 1 << 17;  // within a row, every radix pass starts threads

constexpr uint32_t kMaskedKey = 0xffffffffu;  // above the key of every score, -inf included

// Maps scores to integers that ascend as the scores descend: NaN to 0, both zeros to the same key.
// Works on the bits alone, so that no floating-point mode (denormals as zero, say) changes it.
template <class Real>
KeyOf<Real> descending_key(Real score) {
    using Key = KeyOf<Real>;
    constexpr Key sign = Key{1} << (8 * sizeof(Key) - 1);
    constexpr Key infinity = sizeof(Key) == 4 ? Key{0x7f800000u}
                                              : static_cast<Key>(uint64_t{0x7ff} << 52);
    Key bits;
    std::memcpy(&bits, &score, sizeof bits);
    const Key magnitude = bits & ~sign;
    const Key key = bits > sign ? bits : magnitude ^ ~sign;
    return magnitude > infinity ? Key{0} : key;
}

// The inverse for float; a NaN comes back from key 0 by itself.
inline float score_of_key(uint32_t key) {
    constexpr uint32_t sign = 0x80000000u;
    const uint32_t bits = key == kMaskedKey ? 0u : key >= sign ? key : key ^ ~sign;
    float score;
    std::memcpy(&score, &bits, sizeof score);
    return score;
}

inline Item pack(uint32_t key, int64_t index) {
    return Item{key} << 32 | static_cast<uint32_t>(index);
}
inline uint32_t key_of(Item item) { return static_cast<uint32_t>(item >> 32); }
inline uint32_t index_of(Item item) { return static_cast<uint32_t>(item); }

template <class Real>
uint32_t upper_key(Real score) {
    return static_cast<uint32_t>(descending_key(score) >> (8 * sizeof(Real) - 32));
}

// Has no early exit, because mispredicting one costs more than the steps it saves.
inline void insertion_sort(Item* items, int64_t count) {
    for (int64_t i = 1; i < count; ++i) {
        Item moving = items[i];
        for (int64_t j = i; j > 0; --j) {
            const Item other = items[j - 1];
            items[j] = std::max(other, moving);
            moving = std::min(other, moving);
        }
        items[0] = moving;
    }
}

// Merges the sorted halves of `from` without branches on the data, and from both ends at once: the
// two chains of steps run side by side in the processor, and as neither takes more than count / 2
// items, neither can run off its half.
inline void merge_halves(const Item* from, Item* to, int64_t count) {
    const int64_t half = count / 2;
    const Item* left = from;
    const Item* right = from + half;
    const Item* left_last = right - 1;
    const Item* right_last = from + count - 1;
    for (int64_t i = 0; i < half; ++i) {
        const bool take_right = *right < *left;
        to[i] = std::min(*left, *right);
        right += take_right;
        left += !take_right;
        const bool take_left = *right_last < *left_last;
        to[count - 1 - i] = std::max(*left_last, *right_last);
        left_last -= take_left;
        right_last -= !take_left;
    }
    if (count % 2 != 0) to[half] = left <= left_last ? *left : *right;
}

// Leaves the result in `items`, or in `spare` if so asked.
inline void merge_sort(Item* items, Item* spare, int64_t count, bool into_spare = false) {
    if (count <= kInsertionLength) {
        insertion_sort(items, count);
        if (into_spare) std::copy_n(items, count, spare);
        return;
    }
    const int64_t half = count / 2;
    merge_sort(items, spare, half, !into_spare);
    merge_sort(items + half, spare + half, count - half, !into_spare);
    if (into_spare) {
        merge_halves(items, spare, count);
    } else {
        merge_halves(spare, items, count);
    }
}

constexpr int kDigits = 3;
constexpr int kDigitBits = 11;
constexpr uint32_t kBuckets = 1u << kDigitBits;

inline uint32_t digit_of(Item item, int digit) {
    return static_cast<uint32_t>(item >> (32 + kDigitBits * digit)) & (kBuckets - 1);
}

struct Histograms {
    uint32_t of_digit[kDigits][kBuckets];
};

// Turns the counts of one digit into the places where each worker puts its items of each bucket.
// Returns false, with nothing changed, if all items share the digit that `any_item` has.
inline bool counts_to_places(std::vector<Histograms>& workers, int digit, Item any_item,
                             int64_t count) {
    int64_t in_same_bucket = 0;
    for (const Histograms& worker : workers) {
        in_same_bucket += worker.of_digit[digit][digit_of(any_item, digit)];
    }
    if (in_same_bucket == count) return false;
    uint32_t place = 0;
    for (uint32_t bucket = 0; bucket < kBuckets; ++bucket) {
        for (Histograms& worker : workers) {
            place += std::exchange(worker.of_digit[digit][bucket], place);
        }
    }
    return true;
}

// Least significant digit first. Returns whichever of the two buffers holds the result.
inline Item* radix_sort(Item* items, Item* spare, int64_t count, int workers) {
    std::vector<Histograms> histograms(static_cast<std::size_t>(workers));
    for_each_worker_range(workers, count, [&](int worker, int64_t begin, int64_t end) {
        Histograms& mine = histograms[static_cast<std::size_t>(worker)];
        for (int64_t i = begin; i < end; ++i) {
            for (int digit = 0; digit < kDigits; ++digit) {
                ++mine.of_digit[digit][digit_of(items[i], digit)];
            }
        }
    });
    bool moved = false;
    for (int digit = 0; digit < kDigits; ++digit) {
        if (workers > 1 && moved) {  // each worker's range holds other items than were counted
            for_each_worker_range(workers, count, [&](int worker, int64_t begin, int64_t end) {
                uint32_t* counts = histograms[static_cast<std::size_t>(worker)].of_digit[digit];
                std::fill_n(counts, kBuckets, 0u);
                for (int64_t i = begin; i < end; ++i) ++counts[digit_of(items[i], digit)];
            });
        }
        if (!counts_to_places(histograms, digit, items[0], count)) continue;
        for_each_worker_range(workers, count, [&](int worker, int64_t begin, int64_t end) {
            uint32_t* places = histograms[static_cast<std::size_t>(worker)].of_digit[digit];
            for (int64_t i = begin; i < end; ++i) {
                spare[places[digit_of(items[i], digit)]++] = items[i];
            }
        });
        std::swap(items, spare);
        moved = true;
    }
    return items;
}

inline Item* sort_items(Item* items, Item* spare, int64_t count, int workers) {
    if (count > kMergeLength) return radix_sort(items, spare, count, workers);
    merge_sort(items, spare, count);
    return items;
}

// Writes the part [begin, end) of the result; `items` or `spare` is the memory of `order`.
inline void unpack(Item* items, Item* /*spare*/, int64_t begin, int64_t end,
                   const float* /*scores*/, int64_t* order, float* sorted) {
    for (int64_t i = begin; i < end; ++i) {
        const Item item = items[i];
        order[i] = index_of(item);
        sorted[i] = score_of_key(key_of(item));
    }
}

// The same where only the upper halves of the keys are sorted yet; [begin, end) cuts no run of
// items equal in them. The scores are fetched in a loop of their own so that the processor has
// many of these cache misses under way at once.
inline void unpack(Item* items, Item* spare, int64_t begin, int64_t end, const double* scores,
                   int64_t* order, double* sorted) {
    for (int64_t i = begin; i < end; ++i) {
        sorted[i] = key_of(items[i]) == kMaskedKey ? 0.0 : scores[index_of(items[i])];
    }
    for (int64_t run_end; begin < end; begin = run_end) {
        run_end = begin + 1;
        while (run_end < end && key_of(items[run_end]) == key_of(items[begin])) ++run_end;
        const int64_t length = run_end - begin;
        const Item* run = items + begin;
        if (length > 1) {
            for (int64_t i = begin; i < run_end; ++i) {
                const uint32_t lower_key = static_cast<uint32_t>(descending_key(sorted[i]));
                items[i] = pack(lower_key, index_of(items[i]));
            }
            if (!std::is_sorted(run, run + length)) {
                run = sort_items(items + begin, spare + begin, length, 1);
                for (int64_t i = 0; i < length; ++i) sorted[begin + i] = scores[index_of(run[i])];
            }
        }
        for (int64_t i = 0; i < length; ++i) order[begin + i] = index_of(run[i]);
    }
}

template <class Real>
void sort_row(const Real* scores, const uint8_t* valid, int64_t n, int64_t* order, Real* sorted,
              Item* scratch, int workers) {
    Item* in_order = reinterpret_cast<Item*>(order);  // may alias: differs in signedness only
    for_each_worker_range(workers, n, [&](int, int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
            const bool masked = valid != nullptr && valid[i] == 0;
            in_order[i] = pack(masked ? kMaskedKey : upper_key(scores[i]), i);
        }
    });
    Item* result = sort_items(in_order, scratch, n, workers);
    Item* spare = result == in_order ? scratch : in_order;
    if (workers <= 1) return unpack(result, spare, 0, n, scores, order, sorted);

    std::vector<int64_t> bounds;  // found before any worker overwrites the items it shares
    for (int worker = 0; worker < workers; ++worker) {
        const Item first_of_run = pack(key_of(result[range_begin(n, workers, worker)]), 0);
        bounds.push_back(std::lower_bound(result, result + n, first_of_run) - result);
    }
    bounds.push_back(n);
    run_parallel(workers, [&](int worker) {
        const int64_t* bound = &bounds[static_cast<std::size_t>(worker)];
        unpack(result, spare, bound[0], bound[1], scores, order, sorted);
    });
}

}  // namespace sorting

// For each of `rows` contiguous rows of n scores, float or double: order[] is the stable descending
// argsort and sorted[] the scores in that order. NaNs of either sign come first, both zeros are
// equal, and the items that valid[] marks with 0 (it may be null: none) come last, by index, with
// 0 in sorted[]. Takes 8 bytes of memory per item of a row and thread beyond the two outputs.
template <class Real>
void sort_descending(const Real* scores, const uint8_t* valid, int64_t rows, int64_t n,
                     int64_t* order, Real* sorted, int threads) {
    using namespace sorting;
    if (rows <= 0 || n <= 0) return;
    if (n > std::numeric_limits<uint32_t>::max()) {
        throw std::length_error("softorder can sort rows of at most 4294967295 items, not " +
                                std::to_string(n));
    }
    const auto sort_rows = [&](int64_t begin, int64_t end, int workers_per_row) {
        Item small_scratch[kMergeLength];  // short rows must not cost an allocation
        std::unique_ptr<Item[]> large_scratch;
        if (n > kMergeLength) large_scratch.reset(new Item[static_cast<std::size_t>(n)]);
        Item* scratch = large_scratch ? large_scratch.get() : small_scratch;
        for (int64_t row = begin; row < end; ++row) {
            const int64_t at = row * n;
            sort_row(scores + at, valid == nullptr ? nullptr : valid + at, n, order + at,
                     sorted + at, scratch, workers_per_row);
        }
    };
    const int workers_per_row = useful_workers(threads, n, kItemsPerRowThread);
    if (workers_per_row > rows) {
        sort_rows(0, rows, workers_per_row);
    } else {
        for_each_range(threads, rows, (kItemsPerThread + n - 1) / n,
                       [&](int64_t begin, int64_t end) { sort_rows(begin, end, 1); });
    }
}

}  // namespace softorder
