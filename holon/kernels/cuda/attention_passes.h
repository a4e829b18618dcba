// Attention's kernels, by tiles (attention_tiles.h), and their launches:
//   forward            rows are queries, keys pass by
//   backward_queries   the same: dq
//   backward_keys      rows are keys, queries pass by, scores are transposed: dk, dv
// There are no atomics: results are the same in every run.
#pragma once

#include "holon/kernels/cuda/attention_tiles.h"

namespace holon::kernels::cuda::attention {

// Keys and values take turns: while scores are computed values come, and the next keys while values are summed up. A
// warp has kM times 16 rows, which share what it loads of keys and values.
template <class T, int kWidth, int kM>
__global__ void __launch_bounds__(Shape<T, kWidth>::kThreads) forward(Numbers p) {
  using S = Shape<T, kWidth>;
  constexpr int kN = S::kCols, kStride = S::kStride, kRows = kM * S::kRows, kOfWarp = 16 * kM;
  T* const q = dynamic_shared<T>();
  T *const k = q + kM * S::kOwn, *const v = k + S::kPassing;
  float* const staged = reinterpret_cast<float*>(v + S::kPassing);
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
  uint64_t* const kept = reinterpret_cast<uint64_t*>(staged + S::kWarps * S::kStaged) + warp * kOfWarp;
  T* const own_q = q + warp * kOfWarp * kStride;
  const int64_t tiles = (p.t + kRows - 1) / kRows;
  const Place at = place_of(blockIdx.x, tiles, p.h);
  const int64_t i0 = (tiles - 1 - at.tile) * kRows, own = i0 + warp * kOfWarp;  // the tiles with most keys first
  const T *from_k = head_of<T>(p.k, at.image, at.head / p.share),
          *from_v = head_of<T>(p.v, at.image, at.head / p.share);
  const int64_t passing = (keys_seen(p, i0 + kRows) + kN - 1) / kN;
  fetch_tile<T, kWidth, kRows, S::kThreads>(q, p.q, head_of<T>(p.q, at.image, at.head), i0, p.t, p.d);
  if (passing > 0) fetch_tile<T, kWidth, kN, S::kThreads>(k, p.k, from_k, 0, p.s, p.d);
  copies_commit();

  float out[kM][kWidth / 8][4] = {}, max[kM][2], sum[kM][2];
#pragma unroll
  for (int m = 0; m < kM; ++m) max[m][0] = max[m][1] = kNothing, sum[m][0] = sum[m][1] = 0;
  for (int64_t tile = 0; tile < passing; ++tile) {
    const int64_t j0 = tile * kN;
    copies_wait<0>();
    __syncthreads();  // keys are there, and nobody reads the last values any more
    fetch_tile<T, kWidth, kN, S::kThreads>(v, p.v, from_v, j0, p.s, p.e);
    copies_commit();
    float c[kM][kN / 8][4];
    scores_of<T, kN, kStride>(c, own_q, k, p.d);
    finish_scores<T, false, kN>(c, p, at.image, at.head, own, j0);
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      float factor[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float now = max[m][r];
#pragma unroll
        for (int n = 0; n < kN / 8; ++n) now = fmaxf(now, fmaxf(c[m][n][2 * r], c[m][n][2 * r + 1]));
        now = quad_max(now);
        const float base = now == kNothing ? 0.f : now;
        factor[r] = power<T>(max[m][r] - base);
        max[m][r] = now;
        float sums = 0;
#pragma unroll
        for (int n = 0; n < kN / 8; ++n)
#pragma unroll
          for (int i = 2 * r; i < 2 * r + 2; ++i) sums += c[m][n][i] = power<T>(c[m][n][i] - base);
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
      fetch_tile<T, kWidth, kN, S::kThreads>(k, p.k, from_k, j0 + kN, p.s, p.d);
      copies_commit();
    }
    add_rows<T, kN, kWidth, kStride>(out, c, v, p.e, staged + warp * S::kStaged);
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
      const int64_t i = own + 16 * m + g + 8 * r;
      if (p.lse && t == 0 && i < p.t)
        static_cast<float*>(p.lse)[at.image * p.lse_image + at.head * p.lse_head + i * p.lse_row] =
            total != 0 ? max[m][r] * (1.f / kUnit<T>)+logf(total) : kNothing;
    }
    store_rows<T, kWidth, kStride>(p.out, head_of<T>(p.out, at.image, at.head), out[m], factor,
                                   own_q + 16 * m * kStride, own + 16 * m, p.t, 0, p.e);
  }
}

// The sum that a row's scores are normalised by, in units of kUnit: for a row that sees nothing, one that makes
// everything 0.
template <class T>
__device__ __forceinline__ float row_base(const Numbers& p, int64_t image, int64_t head, int64_t i) {
  if (i >= p.t) return INFINITY;
  const float lse = static_cast<const float*>(p.lse)[image * p.lse_image + head * p.lse_head + i * p.lse_row];
  return lse == kNothing ? INFINITY : lse * kUnit<T>;
}
__device__ __forceinline__ float row_delta(const Numbers& p, int64_t image, int64_t head, int64_t i) {
  return i < p.t ? static_cast<const float*>(p.delta)[(image * p.h + head) * p.t + i] : 0.f;
}

template <class T, int kWidth>
__global__ void __launch_bounds__(Shape<T, kWidth>::kThreads) backward_queries(Numbers p) {
  using S = Shape<T, kWidth>;
  constexpr int kN = S::kCols, kStride = S::kStride;
  T* const q = dynamic_shared<T>();
  T *const dout = q + S::kOwn, *const k = dout + S::kOwn, *const v = k + S::kStages * S::kPassing;
  float* const staged = reinterpret_cast<float*>(v + S::kStages * S::kPassing);
  uint64_t* const kept = reinterpret_cast<uint64_t*>(staged + S::kWarps * S::kStaged);
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
  const int64_t tiles = (p.t + S::kRows - 1) / S::kRows;
  const Place at = place_of(blockIdx.x, tiles, p.h);
  const int64_t i0 = (tiles - 1 - at.tile) * S::kRows, own = i0 + warp * 16;
  const T *from_k = head_of<T>(p.k, at.image, at.head / p.share),
          *from_v = head_of<T>(p.v, at.image, at.head / p.share);
  auto fetch = [&](int64_t tile) {
    const int stage = static_cast<int>(tile % S::kStages);
    fetch_tile<T, kWidth, kN, S::kThreads>(k + stage * S::kPassing, p.k, from_k, tile * kN, p.s, p.d);
    fetch_tile<T, kWidth, kN, S::kThreads>(v + stage * S::kPassing, p.v, from_v, tile * kN, p.s, p.e);
    copies_commit();
  };
  const int64_t passing = (keys_seen(p, i0 + S::kRows) + kN - 1) / kN;
  fetch_tile<T, kWidth, S::kRows, S::kThreads>(q, p.q, head_of<T>(p.q, at.image, at.head), i0, p.t, p.d);
  fetch_tile<T, kWidth, S::kRows, S::kThreads>(dout, p.dout, head_of<T>(p.dout, at.image, at.head), i0, p.t, p.e);
  if (passing > 0) fetch(0);

  const float base[2] = {row_base<T>(p, at.image, at.head, own + g), row_base<T>(p, at.image, at.head, own + g + 8)};
  const float delta[2] = {row_delta(p, at.image, at.head, own + g), row_delta(p, at.image, at.head, own + g + 8)};
  float dq[1][kWidth / 8][4] = {};
  for (int64_t tile = 0; tile < passing; ++tile) {
    if (S::kStages == 2 && tile + 1 < passing) {
      fetch(tile + 1);
      copies_wait<1>();
    } else {
      copies_wait<0>();
    }
    __syncthreads();
    const int64_t j0 = tile * kN;
    const T *this_k = k + tile % S::kStages * S::kPassing, *this_v = v + tile % S::kStages * S::kPassing;
    float c[1][kN / 8][4], dp[1][kN / 8][4];
    scores_of<T, kN, kStride>(c, q + warp * 16 * kStride, this_k, p.d);
    scores_of<T, kN, kStride>(dp, dout + warp * 16 * kStride, this_v, p.e);
    if (p.dropout) draw_kept(kept + warp * 16, p, at.image, at.head, own, 16, j0, kN);
    finish_scores<T, false, kN>(c, p, at.image, at.head, own, j0);
#pragma unroll
    for (int n = 0; n < kN / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int r = g + i / 2 * 8, col = 8 * n + 2 * t + i % 2;
        const float probability = power<T>(c[0][n][i] - base[i / 2]);
        if (p.dropout) dp[0][n][i] = kept[warp * 16 + r] >> col & 1 ? dp[0][n][i] * p.factor : 0.f;
        c[0][n][i] = probability * (dp[0][n][i] - delta[i / 2]);
      }
    if (p.dropout) __syncwarp();
    add_rows<T, kN, kWidth, kStride>(dq, c, this_k, p.d, staged + warp * S::kStaged);
    __syncthreads();
    if (S::kStages == 1 && tile + 1 < passing) fetch(tile + 1);
  }
  if (passing <= 0) {
    copies_finish();
    __syncthreads();
  }
  const float factor[2] = {static_cast<float>(p.scale), static_cast<float>(p.scale)};
  store_rows<T, kWidth, kStride>(p.dq, head_of<T>(p.dq, at.image, at.head), dq[0], factor, q + warp * 16 * kStride, own,
                                 p.t, 0, p.d);
}

// Above 128 columns blockIdx.y makes 128 of them each: more would not fit in registers, so the scores are computed for
// each.
template <class T, int kWidth>
__global__ void __launch_bounds__(Shape<T, kWidth>::kThreads) backward_keys(Numbers p) {
  using S = Shape<T, kWidth>;
  constexpr int kN = S::kCols, kStride = S::kStride;
  T* const k = dynamic_shared<T>();
  T *const v = k + S::kOwn, *const q = v + S::kOwn, *const dout = q + S::kStages * S::kPassing;
  float* const staged = reinterpret_cast<float*>(dout + S::kStages * S::kPassing);
  uint64_t* const kept = reinterpret_cast<uint64_t*>(staged + S::kWarps * S::kStaged);
  float *const bases = reinterpret_cast<float*>(kept + 64), *const deltas = bases + 64;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
  const int64_t tiles = (p.s + S::kRows - 1) / S::kRows;
  const Place at = place_of(blockIdx.x, tiles, p.h / p.share);
  const int64_t j0 = at.tile * S::kRows, own = j0 + warp * 16;
  const int column = static_cast<int>(blockIdx.y) * S::kOut;
  fetch_tile<T, kWidth, S::kRows, S::kThreads>(k, p.k, head_of<T>(p.k, at.image, at.head), j0, p.s, p.d);
  fetch_tile<T, kWidth, S::kRows, S::kThreads>(v, p.v, head_of<T>(p.v, at.image, at.head), j0, p.s, p.e);

  // All tiles of queries of all heads that share this one.
  const int64_t first = first_seeing(p, j0) / kN, end = (p.t + kN - 1) / kN, each = end > first ? end - first : 0,
                passing = each * p.share;
  auto fetch = [&](int64_t number) {
    const int stage = static_cast<int>(number % S::kStages);
    const int64_t head = at.head * p.share + number / each, i0 = (first + number % each) * kN;
    fetch_tile<T, kWidth, kN, S::kThreads>(q + stage * S::kPassing, p.q, head_of<T>(p.q, at.image, head), i0, p.t, p.d);
    fetch_tile<T, kWidth, kN, S::kThreads>(dout + stage * S::kPassing, p.dout, head_of<T>(p.dout, at.image, head), i0,
                                           p.t, p.e);
    copies_commit();
  };
  if (passing > 0) fetch(0);

  float dk[1][S::kOut / 8][4] = {}, dv[1][S::kOut / 8][4] = {};
  for (int64_t number = 0; number < passing; ++number) {
    const int64_t head = at.head * p.share + number / each, i0 = (first + number % each) * kN;
    if (S::kStages == 2 && number + 1 < passing) {
      fetch(number + 1);
      copies_wait<1>();
    } else {
      copies_wait<0>();
    }
    for (int i = threadIdx.x; i < kN; i += S::kThreads) {
      bases[i] = row_base<T>(p, at.image, head, i0 + i);
      deltas[i] = row_delta(p, at.image, head, i0 + i);
    }
    if (p.dropout)
      draw_kept(kept + warp * (kN / S::kWarps), p, at.image, head, i0 + warp * (kN / S::kWarps), kN / S::kWarps, j0,
                S::kRows);
    __syncthreads();
    const T *this_q = q + number % S::kStages * S::kPassing, *this_dout = dout + number % S::kStages * S::kPassing;
    float c[1][kN / 8][4], dp[1][kN / 8][4];
    scores_of<T, kN, kStride>(c, k + warp * 16 * kStride, this_q, p.d);
    finish_scores<T, true, kN>(c, p, at.image, head, own, i0);
#pragma unroll
    for (int n = 0; n < kN / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int col = 8 * n + 2 * t + i % 2;
        c[0][n][i] = power<T>(c[0][n][i] - bases[col]);
      }
    scores_of<T, kN, kStride>(dp, v + warp * 16 * kStride, this_dout, p.e);
    if (p.dropout) {
      float seen[1][kN / 8][4];
#pragma unroll
      for (int n = 0; n < kN / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const bool keep = kept[8 * n + 2 * t + i % 2] >> (warp * 16 + g + i / 2 * 8) & 1;
          seen[0][n][i] = keep ? c[0][n][i] : 0.f;
          dp[0][n][i] = keep ? dp[0][n][i] * p.factor : 0.f;
        }
      add_rows<T, kN, S::kOut, kStride>(dv, seen, this_dout + column, p.e - column, staged + warp * S::kStaged);
    } else {
      add_rows<T, kN, S::kOut, kStride>(dv, c, this_dout + column, p.e - column, staged + warp * S::kStaged);
    }
#pragma unroll
    for (int n = 0; n < kN / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) c[0][n][i] *= dp[0][n][i] - deltas[8 * n + 2 * t + i % 2];
    add_rows<T, kN, S::kOut, kStride>(dk, c, this_q + column, p.d - column, staged + warp * S::kStaged);
    __syncthreads();
    if (S::kStages == 1 && number + 1 < passing) fetch(number + 1);
  }
  if (passing <= 0) {
    copies_finish();
    __syncthreads();
  }
  const float of_k[2] = {static_cast<float>(p.scale), static_cast<float>(p.scale)}, of_v[2] = {p.factor, p.factor};
  store_rows<T, S::kOut, kStride>(p.dk, head_of<T>(p.dk, at.image, at.head), dk[0], of_k, k + warp * 16 * kStride, own,
                                  p.s, column, p.d);
  store_rows<T, S::kOut, kStride>(p.dv, head_of<T>(p.dv, at.image, at.head), dv[0], of_v, v + warp * 16 * kStride, own,
                                  p.s, column, p.e);
}

// delta[b, h, i] = dout[b, h, i] . out[b, h, i]; eight lanes take a row.
template <class T>
__global__ void __launch_bounds__(256) row_products(Numbers p) {
  const int lane = threadIdx.x % 8;
  const int64_t rows = p.b * p.h * p.t;
  for (int64_t row = blockIdx.x * int64_t{32} + threadIdx.x / 8; row - threadIdx.x / 8 < rows;
       row += int64_t{32} * gridDim.x) {
    float sum = 0;
    if (row < rows) {
      const Place at = place_of(row, p.t, p.h);
      const T* x = head_of<T>(p.dout, at.image, at.head) + at.tile * p.dout.row;
      const T* y = head_of<T>(p.out, at.image, at.head) + at.tile * p.out.row;
      if (p.dout.packs && p.out.packs) {
        for (int c = lane * kPack<T>; c < p.e; c += 8 * kPack<T>) {
          const auto u = *reinterpret_cast<const Pack<T, kPack<T>>*>(x + c),
                     w = *reinterpret_cast<const Pack<T, kPack<T>>*>(y + c);
#pragma unroll
          for (int i = 0; i < kPack<T>; ++i) sum += widen(u.v[i]) * widen(w.v[i]);
        }
      } else {
        for (int c = lane; c < p.e; c += 8) sum += widen(x[c]) * widen(y[c]);
      }
    }
#pragma unroll
    for (int o = 4; o > 0; o /= 2) sum += __shfl_xor_sync(kAllLanes, sum, o);
    if (lane == 0 && row < rows) static_cast<float*>(p.delta)[row] = sum;
  }
}

// f(a number that is the width padded to 64, 128 or 256)
template <class F>
void with_width(int width, F&& f) {
  if (width <= 64)
    f(std::integral_constant<int, 64>{});
  else if (width <= 128)
    f(std::integral_constant<int, 128>{});
  else
    f(std::integral_constant<int, 256>{});
}

inline unsigned grid_of(int64_t heads, int64_t rows, int per_block) {
  const int64_t blocks = heads * ((rows + per_block - 1) / per_block);
  HOLON_CHECK(blocks <= std::numeric_limits<int32_t>::max(),
              "attention: {} heads of {} rows are more than one launch holds.", heads, rows);
  return static_cast<unsigned>(blocks);
}

template <class T, int kWidth, int kM>
void start_forward(const Numbers& p) {
  using S = Shape<T, kWidth>;
  launch(forward<T, kWidth, kM>, grid_of(p.b * p.h, p.t, kM * S::kRows), S::kThreads, S::template kForwardBytes<kM>, p);
}

template <class T>
void run_forward(const Numbers& p) {
  with_width(std::max(p.d, p.e), [&](auto width) {
    constexpr int w = decltype(width)::value;
    using S = Shape<T, w>;
    // Tiles of twice the rows where there is enough for all multiprocessors.
    if constexpr (S::kHalf && w <= 128) {
      if (p.b * p.h * ((p.t + 2 * S::kRows - 1) / (2 * S::kRows)) >= multiprocessors())
        return start_forward<T, w, 2>(p);
    }
    start_forward<T, w, 1>(p);
  });
}

template <class T>
void run_backward(const Numbers& p) {
  launch(row_products<T>, blocks_for(p.b * p.h * p.t, 32), 256, 0, p);
  with_width(std::max(p.d, p.e), [&](auto width) {
    constexpr int w = decltype(width)::value;
    using S = Shape<T, w>;
    const unsigned parts = static_cast<unsigned>((std::max(p.d, p.e) + S::kOut - 1) / S::kOut);
    launch(backward_keys<T, w>, dim3(grid_of(p.b * (p.h / p.share), p.s, S::kRows), parts), S::kThreads,
           S::kBackwardBytes, p);
    launch(backward_queries<T, w>, grid_of(p.b * p.h, p.t, S::kRows), S::kThreads, S::kBackwardBytes, p);
  });
}

}  // namespace holon::kernels::cuda::attention
