// Selection by a condition: elements are moved as they are, whatever their dtype.
#include <algorithm>

#include "holon/kernels/cuda/launch.h"
#include "holon/kernels/cuda/layout.h"
#include "holon/kernels/cuda/types.h"
#include "holon/kernels/elementwise.h"
#include "holon/kernels/variants.h"

namespace holon::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// A pack, or one element for all of it.
template <class S, int kN>
__device__ __forceinline__ Pack<S, kN> load_pack(const S* from, bool repeated) {
  if (!repeated) return *reinterpret_cast<const Pack<S, kN>*>(from);
  Pack<S, kN> p;
  const S v = *from;
#pragma unroll
  for (int w = 0; w < kN; ++w) p.v[w] = v;
  return p;
}

// out = condition ? a : b; a is null for one value. The layout's arrays: out, condition, a, b.
template <class S>
__global__ void __launch_bounds__(kThreads)
    select_elements(const uint8_t* condition, const S* a, S value, const S* b, S* out, Layout<4> layout) {
  constexpr int wide = kPack<S>;
  const int64_t first = blockIdx.x * int64_t{kThreads} + threadIdx.x, step = int64_t{kThreads} * gridDim.x;
  for (int64_t u = first; u < layout.packs; u += step) {
    const auto at = layout.at_pack(u, wide);
    const auto taken = load_pack<uint8_t, wide>(condition + at.v[1], layout.repeated[1]);
    const auto x = a ? load_pack<S, wide>(a + at.v[2], layout.repeated[2]) : load_pack<S, wide>(&value, true);
    auto y = load_pack<S, wide>(b + at.v[3], layout.repeated[3]);
#pragma unroll
    for (int w = 0; w < wide; ++w) y.v[w] = taken.v[w] != 0 ? x.v[w] : y.v[w];
    *reinterpret_cast<Pack<S, wide>*>(out + at.v[0]) = y;
  }
  for (int64_t e = layout.rest + first; e < layout.count; e += step) {
    const auto at = layout.index.at(e);
    const S x = a ? a[at.v[2]] : value;
    out[at.v[0]] = condition[at.v[1]] != 0 ? x : b[at.v[3]];
  }
}

template <class S>
void run(const Array& condition, const Array* a, uint64_t bits, const Array& b, Array& out) {
  use_device_of(out);
  Part parts[4];
  parts[0] = {out.bytes(), out.strides, sizeof(S)};
  parts[1] = part_of(condition, out.shape);
  parts[2] = a ? part_of(*a, out.shape) : Part{nullptr, Dims::filled(out.ndim(), 0), 1};
  parts[3] = part_of(b, out.shape);
  const Layout<4> layout(out.shape, parts, kPack<S>);
  const unsigned blocks =
      std::max(blocks_for(layout.packs, kThreads), blocks_for(layout.count - layout.rest, kThreads));
  launch(select_elements<S>, blocks, kThreads, 0, reinterpret_cast<const uint8_t*>(condition.bytes()),
         a ? a->data<S>() : nullptr, static_cast<S>(bits), b.data<S>(), out.data<S>(), layout);
}

void select(const Array& condition, const Array* a, uint64_t bits, const Array& b, Array& out) {
  if (out.numel() == 0) return;
  switch (size_bytes(out.dtype)) {
    case 1: return run<uint8_t>(condition, a, bits, b, out);
    case 2: return run<uint16_t>(condition, a, bits, b, out);
    case 4: return run<uint32_t>(condition, a, bits, b, out);
    default: return run<uint64_t>(condition, a, bits, b, out);
  }
}

void where(const Array& condition, const Array& a, const Array& b, Array& out) { select(condition, &a, 0, b, out); }
void masked_fill(const Array& a, const Array& mask, Scalar value, Array& out) {
  select(mask, nullptr, element_bits(value, out.dtype), a, out);
}

HOLON_DEVICE_KERNEL(where, where);
HOLON_DEVICE_KERNEL(masked_fill, masked_fill);

}  // namespace
}  // namespace holon::kernels::cuda
