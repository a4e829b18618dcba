// Copies and conversions on a device, and filling.
#include "holon/kernels/cpu/copy.h"

#include "holon/kernels/cuda/launch.h"
#include "holon/kernels/cuda/strides.h"
#include "holon/kernels/cuda/types.h"
#include "holon/kernels/device.h"

namespace holon::kernels::cuda {
namespace {

constexpr int kThreads = 256;

template <class S, class D>
__global__ void copy_strided(const S* src, D* dst, Strided<2> index) {
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < index.count; i += int64_t{kThreads} * gridDim.x) {
    const auto at = index.at(i);
    dst[at.v[1]] = convert<D>(src[at.v[0]]);
  }
}

template <class S, class D, int kN>
__global__ void copy_packs(const S* src, D* dst, int64_t packs, int64_t count) {
  const int64_t first = blockIdx.x * int64_t{kThreads} + threadIdx.x, step = int64_t{kThreads} * gridDim.x;
  for (int64_t i = first; i < packs; i += step) {
    const auto in = reinterpret_cast<const Pack<S, kN>*>(src)[i];
    Pack<D, kN> out;
#pragma unroll
    for (int k = 0; k < kN; ++k) out.v[k] = convert<D>(in.v[k]);
    reinterpret_cast<Pack<D, kN>*>(dst)[i] = out;
  }
  for (int64_t i = packs * kN + first; i < count; i += step) dst[i] = convert<D>(src[i]);
}

bool aligned(const Array& a) { return reinterpret_cast<uintptr_t>(a.bytes()) % 16 == 0; }

template <class S, class D>
void run_copy(const Array& src, Array& dst) {
  const Strided<2> index(dst.shape, {src.strides, dst.strides});
  constexpr int n = std::min(kPack<S>, kPack<D>);
  if (index.contiguous() && aligned(src) && aligned(dst)) {
    const int64_t packs = index.count / n;
    launch(copy_packs<S, D, n>, blocks_for(index.count, int64_t{kThreads} * n), kThreads, 0, src.data<S>(), dst.data<D>(), packs, index.count);
  } else {
    launch(copy_strided<S, D>, blocks_for(index.count, kThreads), kThreads, 0, src.data<S>(), dst.data<D>(), index);
  }
}

// The same dtype: what counts is how wide an element is.
template <class T>
void run_move(const Array& src, Array& dst) {
  run_copy<T, T>(src, dst);
}

void copy(const Array& src, Array& dst) {
  if (dst.numel() == 0) return;
  const cudaStream_t s = use_device_of(dst);
  if (src.dtype == dst.dtype) {
    if (Strided<2>(dst.shape, {src.strides, dst.strides}).contiguous())
      return check(cudaMemcpyAsync(dst.bytes(), src.bytes(), dst.nbytes(), cudaMemcpyDeviceToDevice, s), "a copy on the device");
    switch (size_bytes(src.dtype)) {
      case 1: return run_move<uint8_t>(src, dst);
      case 2: return run_move<uint16_t>(src, dst);
      case 4: return run_move<uint32_t>(src, dst);
      default: return run_move<uint64_t>(src, dst);
    }
  }
  visit_dtype(src.dtype, [&](auto from) {
    visit_dtype(dst.dtype, [&](auto to) { run_copy<typename decltype(from)::type, typename decltype(to)::type>(src, dst); });
  });
}

template <class T>
__global__ void fill_strided(T* dst, T value, Strided<1> index) {
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < index.count; i += int64_t{kThreads} * gridDim.x)
    dst[index.at(i).v[0]] = value;
}

void fill(Array& out, Scalar value) {
  if (out.numel() == 0) return;
  use_device_of(out);
  visit_dtype(out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    T v;
    if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>)
      v = static_cast<T>(value.as_int());
    else if constexpr (std::is_same_v<T, bool>)
      v = value.as_double() != 0;
    else
      v = static_cast<T>(static_cast<DTypeOf<T>::Compute>(value.as_double()));
    const Strided<1> index(out.shape, {out.strides});
    launch(fill_strided<T>, blocks_for(index.count, kThreads), kThreads, 0, out.data<T>(), v, index);
  });
}

HOLON_DEVICE_KERNEL(copy, copy);
HOLON_DEVICE_KERNEL(fill, fill);

}  // namespace
}  // namespace holon::kernels::cuda
