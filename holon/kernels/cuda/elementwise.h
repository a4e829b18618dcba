// The kernel of all element-wise operations, and the table of its instances. There is one for each operation and
// compute type; what the elements are stored as, strides and broadcasting are looked at while it runs, uniformly for
// all threads.
#pragma once

#include <algorithm>

#include "holon/kernels/cuda/launch.h"
#include "holon/kernels/cuda/layout.h"
#include "holon/kernels/cuda/types.h"
#include "holon/kernels/elementwise_functors.h"
#include "holon/kernels/numbers.h"

namespace holon::kernels::cuda {

constexpr int kElementwiseThreads = 256;
// Elements of a pack: those of 16 bytes of the compute type. A thread has as many packs under way as keep 32 bytes or
// more of two-byte elements in flight.
template <class C>
inline constexpr int kWide = 16 / static_cast<int>(sizeof(C));
template <int kInputs>
inline constexpr int kPacksAtOnce = kInputs == 1 ? 4 : 2;

template <int kInputs>
struct Call {
  Layout<kInputs + 1> layout;  // the output comes first
  void* out;
  const void* in[kInputs];  // null: the constant
  Number constant;
  Number p[3];
  DType stored;  // of the inputs
  FaultReport* faults;
  const char* op;
};

template <int kInputs>
using RunFn = void (*)(const Call<kInputs>&);
struct Variants {
  RunFn<1> unary[static_cast<int>(UnaryOp::kCount)][kComputeCount];
  RunFn<2> binary[static_cast<int>(BinaryOp::kCount)][kComputeCount];
  RunFn<3> ternary[static_cast<int>(TernaryOp::kCount)][kComputeCount];
};
// Each in a file of its own, for the compiler's sake.
void fill_unary_f32(Variants& t);
void fill_unary_f64(Variants& t);
void fill_unary_int(Variants& t);
void fill_binary_f32(Variants& t);
void fill_binary_f64(Variants& t);
void fill_binary_int(Variants& t);
void fill_ternary(Variants& t);

namespace ops = HOLON_ISA::ops;
namespace f = HOLON_ISA::f;

// One element's value. A divisor of 0 is reported and taken as 1.
template <class Op, class C, int kInputs>
__device__ __forceinline__ typename Op::template Out<C> apply(const C* x, const C* p, const Call<kInputs>& c) {
  if constexpr (kInputs == 1) {
    return Op::template apply<C>(x[0], p[0], p[1], p[2]);
  } else if constexpr (kInputs == 2) {
    C y = x[1];
    if constexpr (Op::types == ops::kDivides && !f::IsFloat<C>::value) y = divisor(y, c.faults, c.op);
    return Op::template apply<C>(x[0], y, p[0], p[1]);
  } else {
    return Op::template apply<C>(x[0], x[1], x[2], p[0]);
  }
}

// Blocks that a multiprocessor has at once, at least: with their packs that is 24 KB of two-byte elements under way.
template <class C, int kInputs>
inline constexpr int kElementwiseBlocks = kInputs == 3 || !std::is_same_v<C, float> ? 2
    : kInputs == 2                                                                  ? 4
                                                                                    : 3;

template <class Op, class C, int kInputs>
__global__ void __launch_bounds__(kElementwiseThreads, kElementwiseBlocks<C, kInputs>)
    elementwise(const Call<kInputs> c) {
  constexpr int wide = kWide<C>, at_once = kPacksAtOnce<kInputs>;
  using Out = typename Op::template Out<C>;
  constexpr bool to_bool = !std::is_same_v<Out, C>;
  const C p[3] = {c.p[0].template to<C>(), c.p[1].template to<C>(), c.p[2].template to<C>()};
  const C constant = c.constant.template to<C>();

  constexpr int64_t tile = int64_t{kElementwiseThreads} * at_once;
#pragma unroll 1
  for (int64_t first = blockIdx.x * tile + threadIdx.x; first < c.layout.packs; first += gridDim.x * tile) {
    typename Layout<kInputs + 1>::At at[at_once];
    C x[at_once][wide][kInputs];
    bool is[at_once];
#pragma unroll
    for (int j = 0; j < at_once; ++j) {
      const int64_t u = first + j * kElementwiseThreads;
      is[j] = u < c.layout.packs;
      at[j] = c.layout.at_pack(is[j] ? u : first, wide);
    }
    // All loads come before the first conversion, so that they are under way together.
    with_stored<C>(c.stored, [&](auto tag) {
      using S = typename decltype(tag)::type;
      Pack<S, wide> raw[at_once][kInputs];
#pragma unroll
      for (int j = 0; j < at_once; ++j) {
#pragma unroll
        for (int k = 0; k < kInputs; ++k) {
          if (c.in[k] == nullptr) continue;
          const S* from = static_cast<const S*>(c.in[k]) + at[j].v[k + 1];
          if (c.layout.repeated[k + 1])
            raw[j][k].v[0] = *from;
          else
            raw[j][k] = *reinterpret_cast<const Pack<S, wide>*>(from);
        }
      }
#pragma unroll
      for (int k = 0; k < kInputs; ++k) {
        const bool repeated = c.layout.repeated[k + 1], given = c.in[k] != nullptr;
#pragma unroll
        for (int j = 0; j < at_once; ++j) {
#pragma unroll
          for (int w = 0; w < wide; ++w)
            x[j][w][k] = given ? widen(repeated ? raw[j][k].v[0] : raw[j][k].v[w]) : constant;
        }
      }
    });
    Out y[at_once][wide];
#pragma unroll
    for (int j = 0; j < at_once; ++j) {
      if (!is[j]) continue;
#pragma unroll
      for (int w = 0; w < wide; ++w) y[j][w] = apply<Op, C, kInputs>(x[j][w], p, c);
    }
    const auto store = [&](auto tag) {
      using S = typename decltype(tag)::type;
#pragma unroll
      for (int j = 0; j < at_once; ++j) {
        Pack<S, wide> z;
#pragma unroll
        for (int w = 0; w < wide; ++w) z.v[w] = narrow<S>(y[j][w]);
        if (is[j]) *reinterpret_cast<Pack<S, wide>*>(static_cast<S*>(c.out) + at[j].v[0]) = z;
      }
    };
    if constexpr (to_bool)
      store(TypeTag<bool>{});
    else
      with_stored<C>(c.stored, store);
  }

  const int64_t step = int64_t{kElementwiseThreads} * gridDim.x;
#pragma unroll 1
  for (int64_t e = c.layout.rest + blockIdx.x * int64_t{kElementwiseThreads} + threadIdx.x; e < c.layout.count;
       e += step) {
    const auto at = c.layout.index.at(e);
    C x[kInputs];
    with_stored<C>(c.stored, [&](auto tag) {
      using S = typename decltype(tag)::type;
#pragma unroll
      for (int k = 0; k < kInputs; ++k) x[k] = c.in[k] ? widen(static_cast<const S*>(c.in[k])[at.v[k + 1]]) : constant;
    });
    const Out y = apply<Op, C, kInputs>(x, p, c);
    if constexpr (to_bool)
      static_cast<bool*>(c.out)[at.v[0]] = y != 0;
    else
      with_stored<C>(c.stored, [&](auto tag) {
        using S = typename decltype(tag)::type;
        static_cast<S*>(c.out)[at.v[0]] = narrow<S>(y);
      });
  }
}

template <int kArrays>
unsigned elementwise_blocks(const Layout<kArrays>& l) {
  return std::max(blocks_for(l.packs, int64_t{kElementwiseThreads} * kPacksAtOnce<kArrays - 1>),
                  blocks_for(l.count - l.rest, kElementwiseThreads));
}

template <class Op, class C, int kInputs>
void run_elementwise(const Call<kInputs>& c) {
  launch(elementwise<Op, C, kInputs>, elementwise_blocks(c.layout), kElementwiseThreads, 0, c);
}

template <class Op, class C, int kInputs>
void fill_form(RunFn<kInputs>* row) {
  constexpr bool floats = f::IsFloat<C>::value;
  constexpr int at = floats ? (sizeof(C) == 4 ? 0 : 1) : sizeof(C) == 4 ? 2 : 3;
  if constexpr ((Op::types & (floats ? ops::kFloats : ops::kInts)) != 0) row[at] = run_elementwise<Op, C, kInputs>;
}

}  // namespace holon::kernels::cuda
