// Attention's forward pass by tiles (attention_tiles.h): a block's own rows are queries, keys and values pass by.
#pragma once

#include <algorithm>
#include <limits>

#include "holon/kernels/cuda/attention_tiles.h"

namespace holon::kernels::cuda::attention {

// Keys and values take turns: while scores are computed values come, and the next keys while values are summed up. A
// warp has kM times 16 rows, which share what it loads of keys and values.
template <class T, int kWidth, int kM>
__global__ void __launch_bounds__(Shape<T, kWidth, Pass::kForward>::kThreads) forward(Numbers p) {
  using S = Shape<T, kWidth, Pass::kForward>;
  constexpr int kN = S::kCols, kStep = kStride<T, kWidth>, kRows = kM * S::kRows, kOfWarp = 16 * kM;
  T* const q = dynamic_shared<T>();
  T *const k = q + kM * S::kOwn, *const v = k + S::kPassing;
  float* const staged = reinterpret_cast<float*>(v + S::kPassing);
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
  uint64_t* const kept = reinterpret_cast<uint64_t*>(staged + S::kWarps * S::kStaged) + warp * kOfWarp;
  T* const own_q = q + warp * kOfWarp * kStep;
  const int rows = static_cast<int>(p.t), keys = static_cast<int>(p.s), tiles = (rows + kRows - 1) / kRows;
  const Place at = place_of(blockIdx.x, tiles, p.h);
  const int i0 = (tiles - 1 - at.tile) * kRows, own = i0 + warp * kOfWarp;  // the tiles with most keys first
  const T *from_k = head_of<T>(p.k, at.image, at.head / p.share),
          *from_v = head_of<T>(p.v, at.image, at.head / p.share);
  const int passing = (static_cast<int>(keys_seen(p, i0 + kRows)) + kN - 1) / kN;
  fetch_tile<T, kWidth, kRows, S::kThreads>(q, p.q, head_of<T>(p.q, at.image, at.head), i0, rows, p.d);
  if (passing > 0) fetch_tile<T, kWidth, kN, S::kThreads>(k, p.k, from_k, 0, keys, p.d);
  copies_commit();

  float out[kM][kWidth / 8][4] = {}, max[kM][2], sum[kM][2];
#pragma unroll
  for (int m = 0; m < kM; ++m) max[m][0] = max[m][1] = kNothing, sum[m][0] = sum[m][1] = 0;
#pragma unroll 1
  for (int tile = 0; tile < passing; ++tile) {
    const int j0 = tile * kN;
    copies_wait<0>();
    __syncthreads();  // keys are there, and nobody reads the last values any more
    fetch_tile<T, kWidth, kN, S::kThreads>(v, p.v, from_v, j0, keys, p.e);
    copies_commit();
    float c[kM][kN / 8][4];
    scores_of<T, kN, kStep>(c, own_q, k, p.d);
    const float unit = finish_scores<T, false, kN>(c, p, at, own, j0);
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      float factor[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float now = kNothing;
#pragma unroll
        for (int n = 0; n < kN / 8; ++n) now = fmaxf(now, fmaxf(c[m][n][2 * r], c[m][n][2 * r + 1]));
        now = fmaxf(max[m][r], quad_max(now) * unit);
        const float base = now == kNothing ? 0.f : now;
        factor[r] = power<T>(max[m][r] - base);
        max[m][r] = now;
        float sums = 0;
#pragma unroll
        for (int n = 0; n < kN / 8; ++n)
#pragma unroll
          for (int i = 2 * r; i < 2 * r + 2; ++i) sums += c[m][n][i] = power<T>(c[m][n][i] * unit - base);
        sum[m][r] = sum[m][r] * factor[r] + sums;
      }
      // After a few tiles maxima seldom grow.
      if (__any_sync(kAllLanes, factor[0] != 1 || factor[1] != 1)) {
#pragma unroll
        for (int n = 0; n < kWidth / 8; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i) out[m][n][i] *= factor[i / 2];
      }
    }
    if (p.dropout) {
      draw_kept(kept, p, at.image, at.head, own, kOfWarp, j0, kN);
#pragma unroll
      for (int m = 0; m < kM; ++m)
#pragma unroll
        for (int n = 0; n < kN / 8; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i)
            if (!(kept[16 * m + g + i / 2 * 8] >> (8 * n + 2 * t + i % 2) & 1)) c[m][n][i] = 0;
    }
    copies_wait<0>();
    __syncthreads();  // values are there, and nobody reads these keys any more
    if (tile + 1 < passing) {
      fetch_tile<T, kWidth, kN, S::kThreads>(k, p.k, from_k, j0 + kN, keys, p.d);
      copies_commit();
    }
    add_rows<T, kN, kWidth, kStep>(out, c, v, p.e, staged + warp * S::kStaged);
  }
  if (passing <= 0) {
    copies_finish();
    __syncthreads();  // q is written over
  }
#pragma unroll
  for (int m = 0; m < kM; ++m) {
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float total = quad_sum(sum[m][r]);
      factor[r] = total != 0 ? p.factor / total : 0;
      const int i = own + 16 * m + g + 8 * r;
      if (p.lse && t == 0 && i < rows)
        static_cast<float*>(p.lse)[at.image * p.lse_image + at.head * p.lse_head + i * p.lse_row] =
            total != 0 ? max[m][r] * (1.f / kUnit<T>)+logf(total) : kNothing;
    }
    store_rows<T, kWidth, kStep>(p.out, head_of<T>(p.out, at.image, at.head), out[m], factor, own_q + 16 * m * kStep,
                                 own + 16 * m, rows, 0, p.e);
  }
}

template <class T, int kWidth, int kM>
void start_forward(const Numbers& p) {
  using S = Shape<T, kWidth, Pass::kForward>;
  launch(forward<T, kWidth, kM>, grid_of(p.b * p.h, p.t, kM * S::kRows), S::kThreads, S::template kForwardBytes<kM>, p);
}

template <class T>
void run_forward(const Numbers& p) {
  with_width(std::max(p.d, p.e), [&](auto width) {
    constexpr int w = decltype(width)::value;
    using S = Shape<T, w, Pass::kForward>;
    // Tiles of twice the rows where there is enough for all multiprocessors.
    if constexpr (S::kHalf && w <= 128) {
      if (p.b * p.h * ((p.t + 2 * S::kRows - 1) / (2 * S::kRows)) >= multiprocessors())
        return start_forward<T, w, 2>(p);
    }
    start_forward<T, w, 1>(p);
  });
}

}  // namespace holon::kernels::cuda::attention
