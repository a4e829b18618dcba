#include "holon/base/parallel.h"

#include <omp.h>

#include <algorithm>
#include <exception>

#include "holon/base/error.h"

namespace holon {

int num_threads() { return omp_get_max_threads(); }

void set_num_threads(int n) {
  if (n < 1) fail_value("set_num_threads: {} threads were requested. Request at least 1.", n);
  omp_set_num_threads(n);
}

void detail::run_parallel(int64_t n, int64_t grain, void (*body)(void*, int64_t, int64_t), void* state) {
  const int64_t parts = std::min<int64_t>(num_threads(), n / std::max<int64_t>(grain, 1));
  if (parts <= 1 || omp_in_parallel()) {
    body(state, 0, n);
    return;
  }
  std::exception_ptr error;
#pragma omp parallel num_threads(static_cast <int>(parts))
  {
    // The runtime may give fewer threads than were requested.
    const int64_t k = omp_get_num_threads(), i = omp_get_thread_num();
    const int64_t begin = n / k * i + std::min(i, n % k), end = begin + n / k + (i < n % k ? 1 : 0);
    try {
      if (begin < end) body(state, begin, end);
    } catch (...) {
#pragma omp critical(holon_parallel_error)
      error = std::current_exception();
    }
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace holon
