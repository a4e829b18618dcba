// What the examples share: each checks its own result, and exits with an error where it is wrong.
#pragma once

#include <holon/holon.h>

#include <atomic>
#include <cstdio>
#include <functional>

// Whether two tensors have the same values except for rounding. Collective where they are global.
inline bool close(const holon::Tensor& a, const holon::Tensor& b, double tolerance = 1e-5) {
  holon::NoGradGuard guard;
  holon::Tensor x = a.full(), y = b.full();
  return x.shape() == y.shape() && holon::amax(holon::abs(x - y)).item().as_double() <= tolerance;
}

inline int expect(bool ok) {
  if (!ok) std::fprintf(stderr, "rank %d: the result is not what this example promises\n", holon::rank());
  return ok ? 0 : 1;
}

// Runs the program on the launcher's ranks, or, where it was started alone, on n ranks that are threads of this
// process.
inline int on_ranks(int n, const std::function<int()>& program) {
  if (holon::world_size() > 1) return program();
  std::atomic<int> status = 0;
  holon::run_ranks(n, [&](int) {
    if (int failed = program()) status = failed;
  });
  return status;
}
