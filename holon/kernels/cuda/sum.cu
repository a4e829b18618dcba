// Sums of several arrays on a device, in their order: what is added when ranks' parts have arrived.
#include "holon/kernels/regions.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/cuda/launch.h"
#include "holon/kernels/cuda/strides.h"
#include "holon/kernels/cuda/types.h"
#include "holon/kernels/variants.h"

namespace holon::kernels::cuda {
namespace {

constexpr int kThreads = 256;
// As many addresses as fit into a launch's arguments with the rest.
constexpr size_t kMostParts = 256;

template <class T>
struct Parts {
  const T* at[kMostParts];
  int count;
};

template <class T>
__device__ __forceinline__ Compute<T> join(Compute<T> sum, T x) {
  if constexpr (std::is_same_v<T, bool>)
    return sum | widen(x);
  else
    return sum + widen(x);
}

template <class T, int kN>
__global__ void sum_packs(Parts<T> parts, T* out, int64_t packs, int64_t count) {
  const int64_t first = blockIdx.x * int64_t{kThreads} + threadIdx.x, step = int64_t{kThreads} * gridDim.x;
  for (int64_t i = first; i < packs; i += step) {
    Compute<T> sum[kN];
    const auto head = reinterpret_cast<const Pack<T, kN>*>(parts.at[0])[i];
#pragma unroll
    for (int k = 0; k < kN; ++k) sum[k] = widen(head.v[k]);
    for (int p = 1; p < parts.count; ++p) {
      const auto in = reinterpret_cast<const Pack<T, kN>*>(parts.at[p])[i];
#pragma unroll
      for (int k = 0; k < kN; ++k) sum[k] = join<T>(sum[k], in.v[k]);
    }
    Pack<T, kN> result;
#pragma unroll
    for (int k = 0; k < kN; ++k) result.v[k] = narrow<T>(sum[k]);
    reinterpret_cast<Pack<T, kN>*>(out)[i] = result;
  }
  for (int64_t i = packs * kN + first; i < count; i += step) {
    Compute<T> sum = widen(parts.at[0][i]);
    for (int p = 1; p < parts.count; ++p) sum = join<T>(sum, parts.at[p][i]);
    out[i] = narrow<T>(sum);
  }
}

template <class T>
__global__ void sum_strided(Parts<T> parts, T* out, Strided<1> index) {
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < index.count; i += int64_t{kThreads} * gridDim.x) {
    Compute<T> sum = widen(parts.at[0][i]);
    for (int p = 1; p < parts.count; ++p) sum = join<T>(sum, parts.at[p][i]);
    out[index.at(i).v[0]] = narrow<T>(sum);
  }
}

void sum_arrays(std::span<const Array* const> parts, Array& out) {
  if (out.numel() == 0) return;
  if (parts.size() > kMostParts) return run_on_host("sum_arrays", &kernels::sum_arrays, parts, out);
  std::vector<Array> packed;
  for (const Array* part : parts) packed.push_back(contiguous(*part));
  use_device_of(out);
  visit_dtype(out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    Parts<T> at;
    at.count = static_cast<int>(packed.size());
    bool aligned = reinterpret_cast<uintptr_t>(out.bytes()) % 16 == 0;
    for (size_t p = 0; p < packed.size(); ++p) {
      at.at[p] = packed[p].template data<T>();
      aligned &= reinterpret_cast<uintptr_t>(packed[p].bytes()) % 16 == 0;
    }
    const Strided<1> index(out.shape, {out.strides});
    constexpr int n = kPack<T>;
    if (index.contiguous())
      launch(sum_packs<T, n>, blocks_for(index.count, int64_t{kThreads} * n), kThreads, 0, at, out.data<T>(),
             aligned ? index.count / n : 0, index.count);
    else
      launch(sum_strided<T>, blocks_for(index.count, kThreads), kThreads, 0, at, out.data<T>(), index);
  });
}

HOLON_DEVICE_KERNEL(sum_arrays, sum_arrays);

}  // namespace
}  // namespace holon::kernels::cuda
