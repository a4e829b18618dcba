// The products of a matmul with leading axes, one after the other or on threads.
#pragma once

#include "holon/base/parallel.h"
#include "holon/kernels/cpu/matrix_product.h"
#include "holon/kernels/matmul_plan.h"

namespace holon::kernels {

// Calls one(a, b, c) with the offsets, in elements, of each product's matrices. Each product is made by one thread,
// unless there are fewer than threads and each is worth several: then they come one after the other, in the calling
// thread.
template <class F>
void for_each_product(const MatmulPlan& g, F&& one) {
  const int64_t count = g.shape.numel();
  const double work = static_cast<double>(g.m) * static_cast<double>(g.n) * static_cast<double>(g.k);
  const bool apart =
      work * static_cast<double>(count) >= kParallelWork && (count >= num_threads() || work < kParallelWork);
  parallel_for(count, apart ? 1 : count, [&](int64_t begin, int64_t end) {
    for (int64_t product = begin; product < end; ++product) {
      int64_t a = 0, b = 0, c = 0, at = product;
      for (int i = g.shape.size() - 1; i >= 0; --i) {
        const int64_t index = at % g.shape[i];
        at /= g.shape[i];
        a += index * g.a[i], b += index * g.b[i], c += index * g.c[i];
      }
      one(a, b, c);
    }
  });
}

}  // namespace holon::kernels
