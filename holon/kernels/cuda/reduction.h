// Reductions of any axes of one array, or of several of one shape together. Groups of threads fold an output each:
// along the reduced axes where those are together in memory, with the outputs side by side where the kept ones do. Few
// outputs of many elements are folded in parts first, whose number depends on the sizes and the device alone: results
// are the same each time.
//
// A reduction R is a value that is passed to the kernels:
//   Stored            what the elements are loaded as (rows.h); they arrive as x[kInputs] of Value<Stored>
//   Lane, State       what a thread folds a few dozen elements into, and what lanes are folded into; of whole 4 bytes
//   lane(), state()   of no elements
//   take(lane, x, at, index)   at: the output's place in out; index: the element's number along the reduced axis, if it
//   is one fold(state, lane), merge(state, state) -> state, store(at, state)
#pragma once

#include <algorithm>

#include "holon/base/error.h"
#include "holon/kernels/cuda/rows.h"

namespace holon::kernels::cuda {

template <int kInputs>
struct Reduction {
  Strided<kInputs + 1> kept;  // the inputs, and out
  Strided<kInputs> reduced;   // items: elements, or units of them
  const void* data[kInputs];
  DType dtype;  // of all inputs
  bool units = false, columns = false, wide = false;
  int group = 1;
  int64_t splits = 1, per_split = 0;  // items
};

template <bool kWide, int kArrays>
__device__ __forceinline__ void place_of(const Strided<kArrays>& s, bool single, int64_t i,
                                         int64_t (&offset)[kArrays]) {
#pragma unroll
  for (int64_t& o : offset) o = 0;
  if (single) {
#pragma unroll
    for (int k = 0; k < kArrays; ++k) offset[k] = i * s.stride[0][k];
    return;
  }
  auto n = static_cast<uint32_t>(i);
#pragma unroll 1
  for (int a = 0; a < s.axes; ++a) {
    int64_t rest;
    if constexpr (kWide) {
      const int64_t q = i / s.size[a];
      rest = i - q * s.size[a];
      i = q;
    } else {
      const uint32_t q = s.divider[a].quotient(n);
      rest = n - q * s.divider[a].d;
      n = q;
    }
#pragma unroll
    for (int k = 0; k < kArrays; ++k) offset[k] += rest * s.stride[a][k];
  }
}

// kWide: 2^31 items or more of several axes, whose places take 64-bit divisions.
template <class R, class T, int kWidth, bool kWide>
__device__ __forceinline__ void fold_items(const R& r, const Reduction<R::kInputs>& p, const Group& g,
                                           const int64_t* at, int64_t begin, int64_t end, typename R::State& state) {
  constexpr int kUnroll = kWide ? 1 : kWidth > 1 || std::is_integral_v<T> ? 4 : 8, kLanes = kWide ? 1 : 4, kRounds = 16;
  typename R::Lane lanes[kLanes];
  const int64_t step = int64_t{g.size} * kUnroll;
  const bool single = p.reduced.axes == 1;
  for (int64_t first = begin + g.rank; first < end;) {
#pragma unroll
    for (auto& l : lanes) l = r.lane();
    for (int round = 0; round < kRounds && first < end; ++round, first += step) {
      Pack<T, kWidth> in[kUnroll][R::kInputs];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const int64_t i = first + u * g.size;
        if (i >= end) continue;
        int64_t offset[R::kInputs];
        place_of<kWide>(p.reduced, single, i, offset);
#pragma unroll
        for (int k = 0; k < R::kInputs; ++k)
          in[u][k] = *reinterpret_cast<const Pack<T, kWidth>*>(static_cast<const T*>(p.data[k]) + at[k] + offset[k]);
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const int64_t i = first + u * g.size;
        if (i >= end) continue;
#pragma unroll
        for (int w = 0; w < kWidth; ++w) {
          Value<typename R::Stored> x[R::kInputs];
#pragma unroll
          for (int k = 0; k < R::kInputs; ++k) x[k] = value_of<typename R::Stored>(in[u][k].v[w]);
          r.take(lanes[(u * kWidth + w) % kLanes], x, at[R::kInputs], i * kWidth + w);
        }
      }
    }
#pragma unroll
    for (auto& l : lanes) r.fold(state, l);
  }
}

// Block (x, y): outputs by x, splits by y.
template <class R>
__global__ void __launch_bounds__(256) reduce_groups(R r, Reduction<R::kInputs> p, typename R::State* parts) {
  const Group g(p.group, p.columns);
  const int64_t begin = blockIdx.y * p.per_split;
  for (int64_t o0 = int64_t{blockIdx.x} * g.count; o0 < p.kept.count; o0 += int64_t{gridDim.x} * g.count) {
    const int64_t o = o0 + g.index;
    const bool live = o < p.kept.count;
    const auto at = p.kept.at(live ? o : 0);
    const int64_t end = !live ? begin : begin + p.per_split < p.reduced.count ? begin + p.per_split : p.reduced.count;
    typename R::State state = r.state();
    visit_stored<typename R::Stored>(p.dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      if constexpr (!std::is_integral_v<T>) {
        if (p.units) return fold_items<R, T, kUnit, false>(r, p, g, at.v, begin, end, state);
      }
      if (p.wide)
        fold_items<R, T, 1, true>(r, p, g, at.v, begin, end, state);
      else
        fold_items<R, T, 1, false>(r, p, g, at.v, begin, end, state);
    });
    state = g.reduce(state, [&](const auto& a, const auto& b) { return r.merge(a, b); });
    if (!live || g.rank != 0) continue;
    if (parts)
      parts[blockIdx.y * p.kept.count + o] = state;
    else
      r.store(at.v[R::kInputs], state);
  }
}

template <class R>
__global__ void __launch_bounds__(256) reduce_parts(R r, Strided<R::kInputs + 1> kept, const typename R::State* parts,
                                                    int64_t splits, int group, bool columns) {
  const Group g(group, columns);
  for (int64_t o0 = int64_t{blockIdx.x} * g.count; o0 < kept.count; o0 += int64_t{gridDim.x} * g.count) {
    const int64_t o = o0 + g.index;
    const bool live = o < kept.count;
    typename R::State state = r.state();
    for (int64_t s = g.rank; s < splits && live; s += g.size) state = r.merge(state, parts[s * kept.count + o]);
    state = g.reduce(state, [&](const auto& a, const auto& b) { return r.merge(a, b); });
    if (live && g.rank == 0) r.store(kept.at(o).v[R::kInputs], state);
  }
}

// out_strides: out's stride for each axis of the inputs; those of reduced axes (bits of `axes`) are not looked at.
template <class R>
void run_reduction(const R& r, const Array* const (&in)[R::kInputs], uint32_t axes, const Dims& out_strides) {
  constexpr int kIn = R::kInputs;
  const Dims& shape = in[0]->shape;
  Reduction<kIn> p;
  int order[kMaxAxes];
  for (int i = 0; i < shape.size(); ++i) order[i] = i;
  std::stable_sort(order, order + shape.size(),
                   [&](int i, int j) { return std::abs(in[0]->strides[i]) > std::abs(in[0]->strides[j]); });
  Dims kept, reduced, kept_strides[kIn + 1], reduced_strides[kIn];
  for (int o = 0; o < shape.size(); ++o) {
    const int i = order[o];
    const bool goes = axes >> i & 1u;
    (goes ? reduced : kept).push_back(shape[i]);
    for (int k = 0; k < kIn; ++k) (goes ? reduced_strides[k] : kept_strides[k]).push_back(in[k]->strides[i]);
    if (!goes) kept_strides[kIn].push_back(out_strides[i]);
  }
  p.kept = Strided<kIn + 1>(kept, kept_strides);
  p.reduced = Strided<kIn>(reduced, reduced_strides);
  p.dtype = in[0]->dtype;
  for (int k = 0; k < kIn; ++k) {
    HOLON_CHECK(in[k]->dtype == p.dtype && in[k]->shape == shape, "reduction: {} {} with {} {}", in[k]->shape,
                name(in[k]->dtype), shape, name(p.dtype));
    p.data[k] = in[k]->bytes();
  }
  if (p.kept.count == 0) return;
  Strided<kIn>& q = p.reduced;
  p.columns = p.kept.axes > 0 && (q.axes == 0 || std::abs(p.kept.stride[0][0]) < std::abs(q.stride[0][0]));
  p.wide = q.axes > 1 && q.count >= int64_t{1} << 31;
  p.units = !p.columns && !p.wide && is_floating(p.dtype) && q.axes > 0 && q.size[0] % kUnit == 0;
  for (int k = 0; k < kIn && p.units; ++k) {
    p.units = q.stride[0][k] == 1 && reinterpret_cast<uintptr_t>(p.data[k]) % (size_bytes(p.dtype) * kUnit) == 0;
    for (int a = 1; a < q.axes; ++a) p.units = p.units && q.stride[a][k] % kUnit == 0;
    for (int a = 0; a < p.kept.axes; ++a) p.units = p.units && p.kept.stride[a][k] % kUnit == 0;
  }
  if (p.units) {
    q.size[0] /= kUnit;
    q.count /= kUnit;
    q.small = q.count < (int64_t{1} << 31);
    for (int k = 0; k < kIn; ++k) q.stride[0][k] = kUnit;
    for (int a = 0; a < q.axes && q.small && q.count > 0; ++a) q.divider[a] = Divider(static_cast<uint32_t>(q.size[a]));
  }
  const int64_t items = q.count, each = 4;
  const int most = p.columns ? 8 : 256;
  while (p.group < most && p.group * each < items) p.group *= 2;
  const int threads = p.columns ? p.group * kWarp : 256;
  const int64_t outputs_of_block = threads / p.group;
  const int64_t blocks = (p.kept.count + outputs_of_block - 1) / outputs_of_block,
                wanted = int64_t{6} * multiprocessors();
  p.per_split = items;
  if (2 * blocks < wanted && items > int64_t{p.group} * 64) {
    const int64_t splits = std::min(wanted / blocks, items / (int64_t{p.group} * 32));
    p.per_split = (items + splits - 1) / splits;
    p.splits = (items + p.per_split - 1) / p.per_split;
  }
  const auto grid_x = static_cast<unsigned>(std::min<int64_t>(blocks, int64_t{32} * multiprocessors()));
  if (p.splits == 1) return launch(reduce_groups<R>, grid_x, threads, 0, r, p, nullptr);
  const Scratch parts(static_cast<size_t>(p.splits * p.kept.count) * sizeof(typename R::State));
  auto* to = parts.data<typename R::State>();
  launch(reduce_groups<R>, dim3(grid_x, static_cast<unsigned>(p.splits)), threads, 0, r, p, to);
  const bool by_columns = p.kept.count >= kWarp;
  launch(reduce_parts<R>, blocks_for(p.kept.count, by_columns ? kWarp : 1), 256, 0, r, p.kept, to, p.splits,
         by_columns ? 8 : 256, by_columns);
}

// A reduction's result in whatever dtype.
template <class V>
__device__ __forceinline__ void store_any(void* out, DType dtype, int64_t at, V v) {
  visit_stored<Truth>(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (std::is_same_v<T, bool>)
      static_cast<T*>(out)[at] = v != V(0);
    else
      static_cast<T*>(out)[at] = narrow<T>(v);
  });
}
template <class V>
__device__ __forceinline__ V load_any(const void* in, DType dtype, int64_t at) {
  V v = 0;
  visit_stored<Truth>(dtype, [&](auto tag) {
    v = static_cast<V>(widen(static_cast<const typename decltype(tag)::type*>(in)[at]));
  });
  return v;
}

// The strides that an output of the kept axes has for each axis of the input; the reduced ones may be left out or be
// there as size 1.
inline Dims kept_strides(const Array& a, uint32_t axes, const Array& out) {
  int kept = 0;
  for (int i = 0; i < a.ndim(); ++i) kept += !(axes >> i & 1u);
  const bool keeps_axes = out.ndim() == a.ndim();
  HOLON_CHECK(keeps_axes || out.ndim() == kept, "reduce: {} into {}", a.shape, out.shape);
  Dims strides = Dims::filled(a.ndim(), 0);
  for (int i = 0, at = 0; i < a.ndim(); ++i) {
    const bool goes = axes >> i & 1u;
    const int j = keeps_axes ? i : at;
    at += !goes;
    if (goes && !keeps_axes) continue;
    HOLON_CHECK(out.shape[j] == (goes ? 1 : a.shape[i]), "reduce: {} into {}", a.shape, out.shape);
    if (!goes) strides[i] = out.strides[j];
  }
  return strides;
}

}  // namespace holon::kernels::cuda
