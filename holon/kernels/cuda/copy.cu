// Copies and conversions on a device, and filling.
#include "holon/kernels/cpu/copy.h"

#include "holon/kernels/cuda/launch.h"
#include "holon/kernels/cuda/layout.h"
#include "holon/kernels/cuda/types.h"
#include "holon/kernels/device.h"

namespace holon::kernels::cuda {
namespace {

constexpr int kThreads = 256;

constexpr int kAtOnce = 4;  // packs or elements that a thread has under way

// Packs of neighbours, then the elements from layout.rest on. The array written comes first.
template <class S, class D, int kN>
__global__ void __launch_bounds__(kThreads) copy_packs(const S* src, D* dst, Layout<2> layout) {
  constexpr int64_t tile = int64_t{kThreads} * kAtOnce;
  const bool repeated = layout.repeated[1];
#pragma unroll 1
  for (int64_t first = blockIdx.x * tile + threadIdx.x; first < layout.packs; first += gridDim.x * tile) {
    Pack<S, kN> in[kAtOnce];
    int64_t to[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int64_t u = first + j * kThreads;
      if (u >= layout.packs) continue;
      const auto at = layout.at_pack(u, kN);
      to[j] = at.v[0];
      if (repeated)
        in[j].v[0] = src[at.v[1]];
      else
        in[j] = *reinterpret_cast<const Pack<S, kN>*>(src + at.v[1]);
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      if (first + j * kThreads >= layout.packs) continue;
      Pack<D, kN> out;
#pragma unroll
      for (int k = 0; k < kN; ++k) out.v[k] = convert<D>(repeated ? in[j].v[0] : in[j].v[k]);
      *reinterpret_cast<Pack<D, kN>*>(dst + to[j]) = out;
    }
  }
#pragma unroll 1
  for (int64_t first = layout.rest + blockIdx.x * tile + threadIdx.x; first < layout.count; first += gridDim.x * tile) {
    S in[kAtOnce];
    int64_t to[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      if (first + j * kThreads >= layout.count) continue;
      const auto at = layout.index.at(first + j * kThreads);
      to[j] = at.v[0];
      in[j] = src[at.v[1]];
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j)
      if (first + j * kThreads < layout.count) dst[to[j]] = convert<D>(in[j]);
  }
}

// For a loop over packs and one over the elements behind them.
template <int kArrays>
unsigned blocks_of(const Layout<kArrays>& l) {
  constexpr int64_t tile = int64_t{kThreads} * kAtOnce;
  return std::max(blocks_for(l.packs, tile), blocks_for(l.count - l.rest, tile));
}

template <class S, class D>
void run_copy(const Array& src, Array& dst) {
  constexpr int n = std::min(kPack<S>, kPack<D>);
  const Layout<2> layout(dst.shape, {part_of(dst, dst.shape), part_of(src, dst.shape)}, n);
  launch(copy_packs<S, D, n>, blocks_of(layout), kThreads, 0, src.data<S>(), dst.data<D>(), layout);
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
      return check(cudaMemcpyAsync(dst.bytes(), src.bytes(), dst.nbytes(), cudaMemcpyDeviceToDevice, s),
                   "a copy on the device");
    switch (size_bytes(src.dtype)) {
      case 1: return run_move<uint8_t>(src, dst);
      case 2: return run_move<uint16_t>(src, dst);
      case 4: return run_move<uint32_t>(src, dst);
      default: return run_move<uint64_t>(src, dst);
    }
  }
  visit_dtype(src.dtype, [&](auto from) {
    visit_dtype(dst.dtype,
                [&](auto to) { run_copy<typename decltype(from)::type, typename decltype(to)::type>(src, dst); });
  });
}

template <class T>
__global__ void __launch_bounds__(kThreads) fill_packs(T* dst, T value, Layout<1> layout) {
  constexpr int kN = kPack<T>;
  const int64_t first = blockIdx.x * int64_t{kThreads} + threadIdx.x, step = int64_t{kThreads} * gridDim.x;
  Pack<T, kN> pack;
#pragma unroll
  for (int k = 0; k < kN; ++k) pack.v[k] = value;
  for (int64_t u = first; u < layout.packs; u += step)
    *reinterpret_cast<Pack<T, kN>*>(dst + layout.at_pack(u, kN).v[0]) = pack;
  for (int64_t i = layout.rest + first; i < layout.count; i += step) dst[layout.index.at(i).v[0]] = value;
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
    const Layout<1> layout(out.shape, {part_of(out, out.shape)}, kPack<T>);
    launch(fill_packs<T>, blocks_of(layout), kThreads, 0, out.data<T>(), v, layout);
  });
}

HOLON_DEVICE_KERNEL(copy, copy);
HOLON_DEVICE_KERNEL(fill, fill);

}  // namespace
}  // namespace holon::kernels::cuda
