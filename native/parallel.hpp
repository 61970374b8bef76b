// Threads that live only inside one call: nothing to break after fork(), nothing shared between
// the Python threads that call in at the same time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace softorder {

// Calls work(worker) once for every worker in [0, workers), each on a thread of its own except the
// last, which runs on the calling thread. Returns when all are done; the first exception caught in
// any of them is rethrown then. Workers must not wait for each other, because where the system has
// no more threads to give, the rest of them run one after another on the calling thread.
template <class F>
void run_parallel(int workers, F&& work) {
    if (workers <= 1) {
        work(0);
        return;
    }
    std::exception_ptr first_error;
    std::mutex error_lock;
    const auto guarded_work = [&](int worker) noexcept {
        try {
            work(worker);
        } catch (...) {
            const std::lock_guard<std::mutex> hold(error_lock);
            if (!first_error) first_error = std::current_exception();
        }
    };

    std::vector<std::thread> threads;
    threads.reserve(static_cast<std::size_t>(workers - 1));  // may throw, so before any thread runs
    int started = 0;
    try {
        for (; started < workers - 1; ++started) threads.emplace_back(guarded_work, started);
    } catch (const std::exception&) {  // system_error: out of threads; bad_alloc: out of memory
    }
    for (int worker = started; worker < workers; ++worker) guarded_work(worker);
    for (std::thread& thread : threads) thread.join();
    if (first_error) std::rethrow_exception(first_error);
}

// How many of at most `threads` workers get at least `minimum_per_thread` of `count` items each.
inline int useful_workers(int threads, int64_t count, int64_t minimum_per_thread) {
    const int64_t most = count / std::max<int64_t>(minimum_per_thread, 1);
    return static_cast<int>(std::max<int64_t>(1, std::min<int64_t>(threads, most)));
}

// Where range `part` of `parts` nearly equal contiguous ranges of [0, count) begins; part == parts
// gives the end of the last. Written so that nothing overflows however large count is.
inline int64_t range_begin(int64_t count, int parts, int part) {
    return count / parts * part + std::min<int64_t>(part, count % parts);
}

// Splits [0, count) into exactly `workers` ranges and calls work(worker, begin, end) in parallel.
// The split depends on the arguments alone, so a worker sees the same range in every such call.
template <class F>
void for_each_worker_range(int workers, int64_t count, F&& work) {
    run_parallel(workers, [&](int worker) {
        work(worker, range_begin(count, workers, worker), range_begin(count, workers, worker + 1));
    });
}

// Splits [0, count) into at most `threads` contiguous ranges of at least `minimum_per_thread` items
// (one shorter range if count itself is less) and calls work(begin, end) for them in parallel.
template <class F>
void for_each_range(int threads, int64_t count, int64_t minimum_per_thread, F&& work) {
    if (count <= 0) return;
    for_each_worker_range(useful_workers(threads, count, minimum_per_thread), count,
                          [&](int, int64_t begin, int64_t end) { work(begin, end); });
}

}  // namespace softorder
