// Weighted sums of rows that lists of indices name.
#include "holon/kernels/expert_rows.h"

#include "holon/base/error.h"
#include "holon/kernels/cuda/launch.h"
#include "holon/kernels/cuda/types.h"
#include "holon/kernels/variants.h"

namespace holon::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// A block for a row of out at a time; neighbouring threads have neighbouring columns.
template <class T>
__global__ void __launch_bounds__(kThreads)
    sum_each_row(const T* x, int64_t step, const int64_t* starts, const int64_t* rows, const T* weights, T* out,
                 int64_t out_step, int64_t count, int64_t width) {
  for (int64_t i = blockIdx.x; i < count; i += gridDim.x)
    for (int64_t c = threadIdx.x; c < width; c += kThreads) {
      Compute<T> sum = 0;
      for (int64_t j = starts[i]; j < starts[i + 1]; ++j) {
        const Compute<T> w = weights ? widen(weights[rows[j]]) : Compute<T>(1);
        sum += w * widen(x[rows[j] * step + c]);
      }
      out[i * out_step + c] = narrow<T>(sum);
    }
}

void sum_rows(const Array& x, const Array& starts, const Array& rows, const Array& weights, Array& out) {
  HOLON_CHECK(x.ndim() == 2 && out.ndim() == 2 && x.shape[1] == out.shape[1] && x.dtype == out.dtype &&
                  starts.shape == Dims{out.shape[0] + 1} &&
                  (!weights.defined() || (weights.shape == Dims{x.shape[0]} && weights.dtype == x.dtype)),
              "sum_rows: {} of {} into {}", rows.shape, x.shape, out.shape);
  if (out.numel() == 0) return;
  use_device_of(out);
  visit_floating(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    launch(sum_each_row<T>, blocks_for(out.shape[0], 1), kThreads, 0, x.data<T>(), x.strides[0], starts.data<int64_t>(),
           rows.data<int64_t>(), weights.defined() ? weights.data<T>() : nullptr, out.data<T>(), out.strides[0],
           out.shape[0], out.shape[1]);
  });
}

HOLON_DEVICE_KERNEL(sum_rows, sum_rows);

}  // namespace
}  // namespace holon::kernels::cuda
