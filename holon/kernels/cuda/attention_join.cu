// Joins partial results of attention on a device: a warp for each row.
#include <algorithm>

#include "holon/base/error.h"
#include "holon/kernels/attention.h"
#include "holon/kernels/cuda/launch.h"
#include "holon/kernels/variants.h"

namespace holon::kernels::cuda {
namespace {

constexpr int kWarps = 8;

// Of rows [b, h, t], each of `width` adjacent elements; strides in elements.
struct Rows {
  void* data;
  int64_t image, head, row;
};
Rows rows_of(const Array& x) { return {x.bytes(), x.strides[0], x.strides[1], x.strides[2]}; }

template <class T>
__device__ __forceinline__ T* at(const Rows& x, int64_t image, int64_t head, int64_t i) {
  return static_cast<T*>(x.data) + image * x.image + head * x.head + i * x.row;
}

template <class T>
__global__ void __launch_bounds__(kWarps* kWarp)
    join_rows(Rows more, Rows more_lse, Rows out, Rows lse, int64_t b, int64_t heads, int64_t rows, int64_t width) {
  const int lane = threadIdx.x % kWarp;
  for (int64_t n = blockIdx.x * int64_t{kWarps} + threadIdx.x / kWarp; n < b * heads * rows;
       n += int64_t{kWarps} * gridDim.x) {
    const int64_t image = n / rows / heads, head = n / rows % heads, i = n % rows;
    T* const sum = at<T>(lse, image, head, i);
    const T here = *sum, other = *at<T>(more_lse, image, head, i);
    __syncwarp();  // before it is written
    if (other == -INFINITY) continue;  // no key was seen: zeros
    const T most = here > other ? here : other, joint = most + log(exp(here - most) + exp(other - most));
    const T keep = exp(here - joint), add = exp(other - joint);
    T* const to = at<T>(out, image, head, i);
    const T* const from = at<T>(more, image, head, i);
    for (int64_t c = lane; c < width; c += kWarp) to[c] = to[c] * keep + from[c] * add;
    if (lane == 0) *sum = joint;
  }
}

void join(const Array& more, const Array& more_lse, Array& out, Array& lse) {
  if (out.dtype != float32 && out.dtype != float64)
    fail_type("join_attention of {} is not defined; convert to float32 first.", name(out.dtype));
  const int64_t b = out.shape[0], heads = out.shape[1], rows = out.shape[2], width = out.shape[3];
  auto run = [&](auto kernel) {
    launch(kernel, blocks_for(b * heads * rows, kWarps), kWarps * kWarp, 0, rows_of(more), rows_of(more_lse),
           rows_of(out), rows_of(lse), b, heads, rows, width);
  };
  out.dtype == float64 ? run(join_rows<double>) : run(join_rows<float>);
}

HOLON_DEVICE_KERNEL(join_attention, join);

}  // namespace
}  // namespace holon::kernels::cuda
