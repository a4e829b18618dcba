// Loops over several threads. The number of threads belongs to the calling thread: ranks may be threads of one process,
// and each sets its own.
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>

namespace holon {

// Threads that parallel_for() of this thread may use; OMP_NUM_THREADS at first.
int num_threads();
// Errors: n < 1 (ValueError).
void set_num_threads(int n);

namespace detail {
void run_parallel(int64_t n, int64_t grain, void (*body)(void*, int64_t, int64_t), void* state);
}  // namespace detail

// Calls f(begin, end) on ranges that partition [0, n), each of at least `grain` items unless there are fewer. Runs in
// the calling thread if one range is enough or the thread is inside a parallel loop. An exception of f is thrown on,
// one of them if several throw.
template <class F>
void parallel_for(int64_t n, int64_t grain, F&& f) {
  if (n <= 0) return;
  if (n <= grain) {
    f(int64_t{0}, n);
    return;
  }
  using Body = std::remove_reference_t<F>;
  detail::run_parallel(
      n, grain, [](void* state, int64_t begin, int64_t end) { (*static_cast<Body*>(state))(begin, end); },
      const_cast<void*>(static_cast<const void*>(&f)));
}

}  // namespace holon
