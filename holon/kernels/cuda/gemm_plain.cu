// Products by an own kernel: integers, bools, and what the library has no way to do.
#include <algorithm>

#include "holon/kernels/cuda/gemm.h"
#include "holon/kernels/cuda/launch.h"
#include "holon/kernels/cuda/strides.h"
#include "holon/kernels/cuda/types.h"
#include "holon/kernels/functors.h"

namespace holon::kernels::cuda {
namespace {

constexpr int kTile = 32, kRows = 8, kEach = kTile / kRows;

struct Sizes {
  int64_t m, n, k, ars, acs, brs, bcs, crs, ccs;
};

// A tile of 32 x 32 for each block of 32 x 8 threads, at blockIdx.x; the batch is strided over by blockIdx.y.
// bools: "and" and "or".
template <class In, class Out>
__global__ void __launch_bounds__(kTile* kRows)
    tiles(const In* a, const In* b, Out* c, Sizes s, Strided<3> batch, Compute<Out> alpha, Compute<Out> beta) {
  using C = Compute<Out>;
  constexpr bool logical = std::is_same_v<Out, bool>;
  HOLON_SHARED(C, left, kTile * (kTile + 1));
  HOLON_SHARED(C, right, kTile * (kTile + 1));
  const int tx = threadIdx.x, ty = threadIdx.y;
  const int64_t across = (s.n + kTile - 1) / kTile;
  const int64_t i0 = blockIdx.x / across * kTile, j0 = blockIdx.x % across * kTile, j = j0 + tx;
  for (int64_t item = blockIdx.y; item < batch.count; item += gridDim.y) {
    const auto at = batch.at(item);
    C sums[kEach] = {};
    for (int64_t p0 = 0; p0 < s.k; p0 += kTile) {
#pragma unroll
      for (int r = 0; r < kEach; ++r) {
        const int row = ty + r * kRows;
        left[row * (kTile + 1) + tx] = i0 + row < s.m && p0 + tx < s.k
            ? static_cast<C>(widen(a[at.v[0] + (i0 + row) * s.ars + (p0 + tx) * s.acs]))
            : C(0);
        right[row * (kTile + 1) + tx] =
            p0 + row < s.k && j < s.n ? static_cast<C>(widen(b[at.v[1] + (p0 + row) * s.brs + j * s.bcs])) : C(0);
      }
      __syncthreads();
      for (int p = 0; p < kTile; ++p) {
        const C y = right[p * (kTile + 1) + tx];
#pragma unroll
        for (int r = 0; r < kEach; ++r) {
          const C x = left[(ty + r * kRows) * (kTile + 1) + p];
          if constexpr (logical)
            sums[r] |= x & y;
          else
            sums[r] += x * y;
        }
      }
      __syncthreads();
    }
#pragma unroll
    for (int r = 0; r < kEach; ++r) {
      const int64_t i = i0 + ty + r * kRows;
      if (i >= s.m || j >= s.n) continue;
      Out& to = c[at.v[2] + i * s.crs + j * s.ccs];
      C v;
      if constexpr (logical)
        v = (alpha != C(0) && sums[r] != C(0)) || (beta != C(0) && to);
      else
        v = beta == C(0) ? alpha * sums[r] : alpha * sums[r] + beta * static_cast<C>(widen(to));
      to = narrow<Out>(v);
    }
  }
}

template <class In, class Out>
void run(const MatmulPlan& plan, const Array& a, const Array& b, Array& out, double alpha, double beta) {
  const Sizes sizes{plan.m, plan.n, plan.k, plan.ars, plan.acs, plan.brs, plan.bcs, plan.crs, plan.ccs};
  const Strided<3> batch(plan.shape, {plan.a, plan.b, plan.c});
  const int64_t blocks = (plan.m + kTile - 1) / kTile * ((plan.n + kTile - 1) / kTile);
  HOLON_CHECK(blocks < int64_t{1} << 31, "a product of {} by {} elements", plan.m, plan.n);
  launch(tiles<In, Out>,
         dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(std::min<int64_t>(batch.count, 65535))),
         dim3(kTile, kRows), 0, a.data<In>(), b.data<In>(), out.data<Out>(), sizes, batch,
         static_cast<Compute<Out>>(alpha), static_cast<Compute<Out>>(beta));
}

template <class T>
struct GeluAndSlope {
  bool by_tanh;
  __device__ __forceinline__ void operator()(T& y, T& slope) const {
    using C = Compute<T>;
    C bend;
    const C value =
        by_tanh ? HOLON_ISA::f::gelu_tanh_and_slope(widen(y), &bend) : HOLON_ISA::f::gelu_and_slope(widen(y), &bend);
    y = narrow<T>(value);
    slope = narrow<T>(bend);
  }
};

constexpr int kThreads = 256;

template <class T>
__global__ void gelu_strided(T* y, T* slope, Strided<2> index, GeluAndSlope<T> f) {
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < index.count; i += int64_t{kThreads} * gridDim.x) {
    const auto at = index.at(i);
    f(y[at.v[0]], slope[at.v[1]]);
  }
}

template <class T, int kN>
__global__ void gelu_packs(T* y, T* slope, int64_t packs, int64_t count, GeluAndSlope<T> f) {
  const int64_t first = blockIdx.x * int64_t{kThreads} + threadIdx.x, step = int64_t{kThreads} * gridDim.x;
  for (int64_t i = first; i < packs; i += step) {
    auto v = reinterpret_cast<Pack<T, kN>*>(y)[i];
    Pack<T, kN> bend;
#pragma unroll
    for (int k = 0; k < kN; ++k) f(v.v[k], bend.v[k]);
    reinterpret_cast<Pack<T, kN>*>(y)[i] = v;
    reinterpret_cast<Pack<T, kN>*>(slope)[i] = bend;
  }
  for (int64_t i = packs * kN + first; i < count; i += step) f(y[i], slope[i]);
}

bool aligned(const Array& a) { return reinterpret_cast<uintptr_t>(a.bytes()) % 16 == 0; }

template <class T>
void run_gelu(Array& y, Array& slope, bool by_tanh) {
  const Strided<2> index(y.shape, {y.strides, slope.strides});
  if (index.contiguous() && aligned(y) && aligned(slope)) {
    constexpr int n = kPack<T>;
    launch(gelu_packs<T, n>, blocks_for(index.count, int64_t{kThreads} * n), kThreads, 0, y.data<T>(), slope.data<T>(),
           index.count / n, index.count, GeluAndSlope<T>{by_tanh});
  } else {
    launch(gelu_strided<T>, blocks_for(index.count, kThreads), kThreads, 0, y.data<T>(), slope.data<T>(), index,
           GeluAndSlope<T>{by_tanh});
  }
}

}  // namespace

void plain_product(const MatmulPlan& plan, const Array& a, const Array& b, Array& out, double alpha, double beta) {
  visit_dtype(a.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>)
      if (out.dtype == DType::kFloat32) return run<T, float>(plan, a, b, out, alpha, beta);
    run<T, T>(plan, a, b, out, alpha, beta);
  });
}

void gelu_and_slope(Array& y, Array& slope, bool by_tanh) {
  switch (y.dtype) {
    case DType::kFloat16: return run_gelu<Float16>(y, slope, by_tanh);
    case DType::kBFloat16: return run_gelu<BFloat16>(y, slope, by_tanh);
    case DType::kFloat64: return run_gelu<double>(y, slope, by_tanh);
    default: return run_gelu<float>(y, slope, by_tanh);
  }
}

}  // namespace holon::kernels::cuda
