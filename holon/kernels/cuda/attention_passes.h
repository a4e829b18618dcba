// Attention's kernels, by tiles (attention_tiles.h), and their launches:
//   forward            rows are queries, keys pass by
//   backward_queries   the same: dq
//   backward_keys      rows are keys, queries pass by, scores are transposed: dk, dv
// There are no atomics: results are the same in every run.
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

// The sum that a row's scores are normalised by, in units of kUnit: for a row that sees nothing, one that makes
// everything 0.
template <class T>
__device__ __forceinline__ float row_base(const Numbers& p, int image, int head, int i) {
  if (i >= p.t) return INFINITY;
  const float lse = static_cast<const float*>(p.lse)[image * p.lse_image + head * p.lse_head + i * p.lse_row];
  return lse == kNothing ? INFINITY : lse * kUnit<T>;
}
__device__ __forceinline__ float row_delta(const Numbers& p, int image, int head, int i) {
  return i < p.t ? static_cast<const float*>(p.delta)[(image * p.h + head) * p.t + i] : 0.f;
}

// What the blocks of the backward pass have in shared memory: two tiles of their own rows, and two that pass by for
// each stage.
template <class T, int kWidth, bool kSmall>
struct BackwardTiles {
  using S = Shape<T, kWidth, Pass::kBackward, kSmall>;
  static constexpr int kStep = kStride<T, kWidth>, kKept = S::kRows > S::kCols ? S::kRows : S::kCols;
  int warp = threadIdx.x / kWarp;
  T* own[2];
  T* passing[2];
  float* staged;          // this warp's: add_rows
  uint64_t* kept;         // [kStages, kKept]
  float *bases, *deltas;  // [kStages, kCols]

  __device__ __forceinline__ BackwardTiles() {
    own[0] = dynamic_shared<T>(), own[1] = own[0] + S::kOwn;
    passing[0] = own[1] + S::kOwn, passing[1] = passing[0] + S::kStages * S::kPassing;
    float* const floats = reinterpret_cast<float*>(passing[1] + S::kStages * S::kPassing);
    staged = floats + warp * S::kStaged;
    kept = reinterpret_cast<uint64_t*>(floats + S::kWarps * S::kStaged);
    bases = reinterpret_cast<float*>(kept + S::kStages * kKept), deltas = bases + S::kStages * S::kCols;
  }
  // The rows that begin at `first` of both arrays, of widths d and e.
  __device__ __forceinline__ void fetch_own(const Numbers& p, const Rows& a, const T* of_a, const Rows& b,
                                            const T* of_b, int first, int count) const {
    fetch_tile<T, kWidth, S::kRows, S::kThreads>(own[0], a, of_a, first, count, p.d);
    fetch_tile<T, kWidth, S::kRows, S::kThreads>(own[1], b, of_b, first, count, p.e);
  }
  __device__ __forceinline__ void fetch_passing(const Numbers& p, int stage, const Rows& a, const T* of_a,
                                                const Rows& b, const T* of_b, int first, int count) const {
    fetch_tile<T, kWidth, S::kCols, S::kThreads>(passing[0] + stage * S::kPassing, a, of_a, first, count, p.d);
    fetch_tile<T, kWidth, S::kCols, S::kThreads>(passing[1] + stage * S::kPassing, b, of_b, first, count, p.e);
  }
  __device__ __forceinline__ T* own_rows(int which) const { return own[which] + warp * 16 * kStep; }
  __device__ __forceinline__ const T* passing_rows(int which, int stage) const {
    return passing[which] + stage * S::kPassing;
  }

  // use(n, stage) for each n of [0, count) when its tiles are there, while the next ones come that fetch(n, stage)
  // requested. What put(n, stage) stores before is there, too. Also waits for what was fetched before.
  template <class Fetch, class Put, class Use>
  __device__ __forceinline__ void each(int count, Fetch&& fetch, Put&& put, Use&& use) const {
    if (count > 0) fetch(0, 0);
    copies_commit();
#pragma unroll 1
    for (int n = 0; n < count; ++n) {
      const int stage = S::kStages == 2 ? n % 2 : 0;
      put(n, stage);
      copies_wait<0>();
      __syncthreads();  // these are there, and nobody reads the last ones any more
      if (S::kStages == 2 && n + 1 < count) fetch(n + 1, 1 - stage);
      copies_commit();
      use(n, stage);
      if (S::kStages == 2) continue;
      __syncthreads();
      if (n + 1 < count) fetch(n + 1, 0);
      copies_commit();
    }
    copies_wait<0>();
    __syncthreads();  // own rows are written over
  }
};

template <class T, int kWidth, bool kSmall>
__global__ void __launch_bounds__(Shape<T, kWidth, Pass::kBackward, kSmall>::kThreads) backward_queries(Numbers p) {
  using Tiles = BackwardTiles<T, kWidth, kSmall>;
  using S = typename Tiles::S;
  constexpr int kN = S::kCols, kStep = Tiles::kStep;
  const Tiles tile;
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
  const int rows = static_cast<int>(p.t), keys = static_cast<int>(p.s), tiles = (rows + S::kRows - 1) / S::kRows;
  const Place at = place_of(blockIdx.x, tiles, p.h);
  const int i0 = (tiles - 1 - at.tile) * S::kRows, own = i0 + tile.warp * 16, shared = at.head / p.share;
  uint64_t* const kept = tile.kept + tile.warp * 16;
  tile.fetch_own(p, p.q, head_of<T>(p.q, at.image, at.head), p.dout, head_of<T>(p.dout, at.image, at.head), i0, rows);

  const float base[2] = {row_base<T>(p, at.image, at.head, own + g), row_base<T>(p, at.image, at.head, own + g + 8)};
  const float delta[2] = {row_delta(p, at.image, at.head, own + g), row_delta(p, at.image, at.head, own + g + 8)};
  float dq[1][kWidth / 8][4] = {};
  const T *const from_k = head_of<T>(p.k, at.image, shared), *const from_v = head_of<T>(p.v, at.image, shared);
  tile.each((static_cast<int>(keys_seen(p, i0 + S::kRows)) + kN - 1) / kN,
            [&](int n, int stage) { tile.fetch_passing(p, stage, p.k, from_k, p.v, from_v, n * kN, keys); },
            [](int, int) {},
            [&](int number, int stage) {
              const int j0 = number * kN;
              const T *k = tile.passing_rows(0, stage), *v = tile.passing_rows(1, stage);
              float c[1][kN / 8][4], dp[1][kN / 8][4];
              scores_of<T, kN, kStep>(c, tile.own_rows(0), k, p.d);
              scores_of<T, kN, kStep>(dp, tile.own_rows(1), v, p.e);
              if (p.dropout) draw_kept(kept, p, at.image, at.head, own, 16, j0, kN);
              const float unit = finish_scores<T, false, kN>(c, p, at, own, j0);
#pragma unroll
              for (int n = 0; n < kN / 8; ++n)
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                  const float probability = power<T>(c[0][n][i] * unit - base[i / 2]);
                  if (p.dropout)
                    dp[0][n][i] = kept[g + i / 2 * 8] >> (8 * n + 2 * t + i % 2) & 1 ? dp[0][n][i] * p.factor : 0.f;
                  c[0][n][i] = probability * (dp[0][n][i] - delta[i / 2]);
                }
              if (p.dropout) __syncwarp();
              add_rows<T, kN, kWidth, kStep>(dq, c, k, p.d, tile.staged);
            });
  const float factor[2] = {static_cast<float>(p.scale), static_cast<float>(p.scale)};
  store_rows<T, kWidth, kStep>(p.dq, head_of<T>(p.dq, at.image, at.head), dq[0], factor, tile.own_rows(0), own, rows, 0,
                               p.d);
}

// Above 128 columns blockIdx.y makes 128 of them each: more would not fit in registers, so the scores are computed for
// each.
template <class T, int kWidth, bool kSmall>
__global__ void __launch_bounds__(Shape<T, kWidth, Pass::kBackward, kSmall>::kThreads) backward_keys(Numbers p) {
  using Tiles = BackwardTiles<T, kWidth, kSmall>;
  using S = typename Tiles::S;
  constexpr int kN = S::kCols, kStep = Tiles::kStep, kDrawn = kN / S::kWarps;
  const Tiles tile;
  const int thread = threadIdx.x, lane = thread % kWarp, g = lane / 4, t = lane % 4;
  const int rows = static_cast<int>(p.t), keys = static_cast<int>(p.s), tiles = (keys + S::kRows - 1) / S::kRows;
  const Place at = place_of(blockIdx.x, tiles, p.h / p.share);
  const int j0 = at.tile * S::kRows, own = j0 + tile.warp * 16, column = static_cast<int>(blockIdx.y) * S::kOut;
  tile.fetch_own(p, p.k, head_of<T>(p.k, at.image, at.head), p.v, head_of<T>(p.v, at.image, at.head), j0, keys);

  // All tiles of queries of all heads that share this one.
  const int first = static_cast<int>(first_seeing(p, j0)) / kN, end = (rows + kN - 1) / kN,
            of_head = end > first ? end - first : 0;
  auto head_at = [&](int n) { return at.head * p.share + n / of_head; };
  auto query_at = [&](int n) { return (first + n % of_head) * kN; };
  float dk[1][S::kOut / 8][4] = {}, dv[1][S::kOut / 8][4] = {};
  float next_base = 0, next_delta = 0;  // on their way, as the tiles are
  static_assert(kN <= S::kThreads);
  tile.each(
      of_head * p.share,
      [&](int n, int stage) {
        const int head = head_at(n), i0 = query_at(n);
        tile.fetch_passing(p, stage, p.q, head_of<T>(p.q, at.image, head), p.dout, head_of<T>(p.dout, at.image, head),
                           i0, rows);
        if (thread >= kN) return;
        next_base = row_base<T>(p, at.image, head, i0 + thread);
        next_delta = row_delta(p, at.image, head, i0 + thread);
      },
      [&](int n, int stage) {
        if (thread < kN) tile.bases[stage * kN + thread] = next_base, tile.deltas[stage * kN + thread] = next_delta;
        if (p.dropout)
          draw_kept(tile.kept + stage * Tiles::kKept + tile.warp * kDrawn, p, at.image, head_at(n),
                    query_at(n) + tile.warp * kDrawn, kDrawn, j0, S::kRows);
      },
      [&](int number, int stage) {
        const T *q = tile.passing_rows(0, stage), *dout = tile.passing_rows(1, stage);
        const float *bases = tile.bases + stage * kN + 2 * t, *deltas = tile.deltas + stage * kN + 2 * t;
        const uint64_t* kept = tile.kept + stage * Tiles::kKept + 2 * t;
        float c[1][kN / 8][4], dp[1][kN / 8][4];
        scores_of<T, kN, kStep>(c, tile.own_rows(0), q, p.d);
        const float unit = finish_scores<T, true, kN>(c, p, Place{at.image, head_at(number), 0}, own, query_at(number));
#pragma unroll
        for (int n = 0; n < kN / 8; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i) c[0][n][i] = power<T>(c[0][n][i] * unit - bases[8 * n + i % 2]);
        scores_of<T, kN, kStep>(dp, tile.own_rows(1), dout, p.e);
        if (p.dropout) {
          float seen[1][kN / 8][4];
#pragma unroll
          for (int n = 0; n < kN / 8; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              const bool keep = kept[8 * n + i % 2] >> (tile.warp * 16 + g + i / 2 * 8) & 1;
              seen[0][n][i] = keep ? c[0][n][i] : 0.f;
              dp[0][n][i] = keep ? dp[0][n][i] * p.factor : 0.f;
            }
          add_rows<T, kN, S::kOut, kStep>(dv, seen, dout + column, p.e - column, tile.staged);
        } else {
          add_rows<T, kN, S::kOut, kStep>(dv, c, dout + column, p.e - column, tile.staged);
        }
#pragma unroll
        for (int n = 0; n < kN / 8; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i) c[0][n][i] *= dp[0][n][i] - deltas[8 * n + i % 2];
        add_rows<T, kN, S::kOut, kStep>(dk, c, q + column, p.d - column, tile.staged);
      });
  const float of_k[2] = {static_cast<float>(p.scale), static_cast<float>(p.scale)}, of_v[2] = {p.factor, p.factor};
  store_rows<T, S::kOut, kStep>(p.dk, head_of<T>(p.dk, at.image, at.head), dk[0], of_k, tile.own_rows(0), own, keys,
                                column, p.d);
  store_rows<T, S::kOut, kStep>(p.dv, head_of<T>(p.dv, at.image, at.head), dv[0], of_v, tile.own_rows(1), own, keys,
                                column, p.e);
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
      const int64_t head = row / p.t, i = row - head * p.t;
      const int image = static_cast<int>(head / p.h), of_image = static_cast<int>(head - image * p.h);
      const T* x = head_of<T>(p.dout, image, of_image) + i * p.dout.row;
      const T* y = head_of<T>(p.out, image, of_image) + i * p.out.row;
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

template <class T, int kWidth, bool kSmall>
void start_backward(const Numbers& p) {
  using S = Shape<T, kWidth, Pass::kBackward, kSmall>;
  const unsigned parts = static_cast<unsigned>((std::max(p.d, p.e) + S::kOut - 1) / S::kOut);
  launch(backward_keys<T, kWidth, kSmall>, dim3(grid_of(p.b * (p.h / p.share), p.s, S::kRows), parts), S::kThreads,
         S::kBackwardBytes, p);
  launch(backward_queries<T, kWidth, kSmall>, grid_of(p.b * p.h, p.t, S::kRows), S::kThreads, S::kBackwardBytes, p);
}

template <class T>
void run_backward(const Numbers& p) {
  launch(row_products<T>, blocks_for(p.b * p.h * p.t, 32), 256, 0, p);
  with_width(std::max(p.d, p.e), [&](auto width) {
    constexpr int w = decltype(width)::value;
    if constexpr (has_small_tiles<T>(w)) {
      if (shared_bytes_of_block() < Shape<T, w, Pass::kBackward>::kBackwardBytes) return start_backward<T, w, true>(p);
    }
    start_backward<T, w, false>(p);
  });
}

}  // namespace holon::kernels::cuda::attention
