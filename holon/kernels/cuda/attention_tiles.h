// Attention by tiles (after Dao, "FlashAttention-2: faster attention with better parallelism and work partitioning",
// 2023). A block keeps a tile of rows, a warp 16 of them, and tiles of the other side pass by in shared memory. Of the
// scores every warp holds its rows' in registers, in the layout of the tensor cores' results (mma.h: g, t) for all
// types, so that what is done to scores is written once:
//   forward            rows are queries, keys pass by
//   backward_queries   the same: dq
//   backward_keys      rows are keys, queries pass by, scores are transposed: dk, dv
// Products: float16 and bfloat16 in tensor cores with sums in float32, float32 by fused multiply-adds. There are no
// atomics: results are the same in every run.
#pragma once

#include <limits>

#include "holon/base/error.h"
#include "holon/kernels/cuda/attention.h"
#include "holon/kernels/cuda/mma.h"

namespace holon::kernels::cuda::attention {

constexpr float kNothing = -INFINITY;

// How a kernel for type T and widths up to kWidth is cut. Where registers or shared memory would not do, tiles are
// smaller.
template <class T, int kWidth>
struct Shape {
  static constexpr bool kHalf = sizeof(T) == 2;
  static constexpr int kRows = !kHalf && kWidth == 256 ? 32 : 64;  // of the block's own tile
  static constexpr int kWarps = kRows / 16, kThreads = kWarps * kWarp;
  static constexpr int kCols = (kHalf ? kWidth == 256 : kWidth >= 128) ? 32 : 64;  // rows of the tiles that pass by
  static constexpr int kStages = kHalf ? 2 : 1;                                    // tiles on their way
  static constexpr int kStride = kWidth + 16 / static_cast<int>(sizeof(T));  // of rows in shared memory: no bank twice
  static constexpr int kOut = kWidth < 128 ? kWidth : 128;                   // columns of dk, dv that a block makes
  static constexpr int kOwn = kRows * kStride, kPassing = kCols * kStride;   // elements of tiles
  static constexpr int kProbabilities = kHalf ? 0 : kWarps * 16 * (kCols + 4);  // floats: see add_rows
  // Bytes, with `own` and `passing` tiles of each kind.
  static constexpr size_t shared_bytes(int own, int passing) {
    return static_cast<size_t>(own * kOwn + passing * kStages * kPassing) * sizeof(T) + kProbabilities * sizeof(float) +
        64 * 8 + 2 * 64 * 4;
  }
};

// The unit of scores: powers of two are what the hardware computes; float32 takes the exact function of the CPU's kind.
template <class T>
inline constexpr float kUnit = sizeof(T) == 2 ? 1.44269504088896340736f : 1.f;
template <class T>
__device__ __forceinline__ float power(float x) {
  if constexpr (sizeof(T) == 2)
    return fast_exp2(x);
  else
    return expf(x);
}

// Where a block stands: an image and a head, and which of its tiles.
struct Place {
  int64_t image, head;
  int64_t tile;
};
__device__ __forceinline__ Place place_of(int64_t block, int64_t tiles, int64_t heads) {
  const int64_t rest = block / tiles;
  return {rest / heads, rest % heads, block - rest * tiles};
}

template <class T>
__device__ __forceinline__ T* head_of(const Rows& x, int64_t image, int64_t head) {
  return static_cast<T*>(x.data) + image * x.image + head * x.head;
}

// to[kRows, kWidth] = rows [first, first + kRows) of x, zeros beyond `count` rows and `width` columns. By all threads;
// the copies are under way until copies_wait.
template <class T, int kWidth, int kRows, int kThreads>
__device__ __forceinline__ void fetch_tile(T* to, const Rows& x, const T* from, int64_t first, int64_t count,
                                           int width) {
  constexpr int kStride = Shape<T, kWidth>::kStride, kN = kPack<T>, kPacks = kWidth / kN;
#pragma unroll 4
  for (int i = threadIdx.x; i < kRows * kPacks; i += kThreads) {
    const int r = i / kPacks, c = i % kPacks * kN;
    const bool there = first + r < count;
    const T* source = from + (first + r) * x.row + c;
    T* target = to + r * kStride + c;
    if (x.packs) {
      copy_async(target, there && c < width ? source : from, there && c < width);
    } else {
#pragma unroll
      for (int k = 0; k < kN; ++k) target[k] = there && c + k < width ? source[k] : T{};
    }
  }
}

// The column of element i of part n of a warp's result [16, 8 parts]; its row is g + 8 (i / 2). float32 has four
// neighbours in two parts, for loads of 16 bytes.
template <class T>
__device__ __forceinline__ int out_column(int n, int i, int t) {
  return sizeof(T) == 2 ? 8 * n + 2 * t + i % 2 : n / 2 * 16 + 4 * t + n % 2 * 2 + i % 2;
}

// c[16, kN] = a[16, width] b[kN, width]^T; a and b in shared memory, with zeros up to a multiple of 16 columns.
template <class T, int kN, int kStride>
__device__ __forceinline__ void scores_of(float (&c)[kN / 8][4], const T* a, const T* b, int width) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int n = 0; n < kN / 8; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) c[n][i] = 0;
  if constexpr (sizeof(T) == 2) {
    const T* row_a = a + lane % 16 * kStride + lane / 16 * 8;
    const T* row_b = b + (lane % 8 + lane / 16 * 8) * kStride + lane / 8 % 2 * 8;
#pragma unroll 4
    for (int k = 0; k < width; k += 16) {
      uint32_t fa[4];
      load_matrices(fa, row_a + k);
#pragma unroll
      for (int n = 0; n < kN / 16; ++n) {
        uint32_t fb[4];
        load_matrices(fb, row_b + n * 16 * kStride + k);
        mma<T>(c[2 * n], fa, fb[0], fb[1]);
        mma<T>(c[2 * n + 1], fa, fb[2], fb[3]);
      }
    }
  } else {
    using P = Pack<T, 4>;
    const int g = lane / 4, t = lane % 4;
    for (int k = 0; k < width; k += 4) {
      const P low = *reinterpret_cast<const P*>(a + g * kStride + k),
              high = *reinterpret_cast<const P*>(a + (g + 8) * kStride + k);
#pragma unroll
      for (int n = 0; n < kN / 8; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const P y = *reinterpret_cast<const P*>(b + (8 * n + 2 * t + i) * kStride + k);
#pragma unroll
          for (int u = 0; u < 4; ++u) {
            c[n][i] += low.v[u] * y.v[u];
            c[n][2 + i] += high.v[u] * y.v[u];
          }
        }
    }
  }
}

// out[16, kOut] += c[16, kK] b[kK, width], c as scores_of leaves it. float32 passes c through `staged` [16, kK + 4],
// the warp's own.
template <class T, int kK, int kOut, int kStride>
__device__ __forceinline__ void add_rows(float (&out)[kOut / 8][4], const float (&c)[kK / 8][4], const T* b, int width,
                                         float* staged) {
  const int lane = threadIdx.x % kWarp;
  if constexpr (sizeof(T) == 2) {
    const T* row_b = b + lane % 16 * kStride + lane / 16 * 8;
#pragma unroll
    for (int k = 0; k < kK / 16; ++k) {
      const uint32_t fa[4] = {pack_halves<T>(c[2 * k][0], c[2 * k][1]), pack_halves<T>(c[2 * k][2], c[2 * k][3]),
                              pack_halves<T>(c[2 * k + 1][0], c[2 * k + 1][1]),
                              pack_halves<T>(c[2 * k + 1][2], c[2 * k + 1][3])};
#pragma unroll
      for (int n = 0; n < kOut / 16; ++n) {
        if (16 * n >= width) continue;
        uint32_t fb[4];
        load_matrices_transposed(fb, row_b + k * 16 * kStride + n * 16);
        mma<T>(out[2 * n], fa, fb[0], fb[1]);
        mma<T>(out[2 * n + 1], fa, fb[2], fb[3]);
      }
    }
  } else {
    using P = Pack<T, 4>;
    constexpr int kS = kK + 4;
    const int g = lane / 4, t = lane % 4;
#pragma unroll
    for (int n = 0; n < kK / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) staged[(g + i / 2 * 8) * kS + 8 * n + 2 * t + i % 2] = c[n][i];
    __syncwarp();
    for (int k = 0; k < kK; k += 4) {
      const P low = *reinterpret_cast<const P*>(staged + g * kS + k),
              high = *reinterpret_cast<const P*>(staged + (g + 8) * kS + k);
#pragma unroll
      for (int u = 0; u < 4; ++u)
#pragma unroll
        for (int n = 0; n < kOut / 16; ++n) {
          if (16 * n >= width) continue;
          const P y = *reinterpret_cast<const P*>(b + (k + u) * kStride + n * 16 + 4 * t);
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            out[2 * n + i / 2][i % 2] += low.v[u] * y.v[i];
            out[2 * n + i / 2][2 + i % 2] += high.v[u] * y.v[i];
          }
        }
    }
    __syncwarp();  // staged is written again
  }
}

// Rows [first, first + 16) of x = out * factors (of rows g and g + 8), by way of the warp's 16 rows of `tile`, which
// nobody else uses.
template <class T, int kOut, int kStride>
__device__ __forceinline__ void store_rows(const Rows& x, T* to, const float (&out)[kOut / 8][4],
                                           const float (&factor)[2], T* tile, int64_t first, int64_t count, int column,
                                           int width) {
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
  __syncwarp();
#pragma unroll
  for (int n = 0; n < kOut / 8; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      tile[(g + i / 2 * 8) * kStride + out_column<T>(n, i, t)] = narrow<T>(out[n][i] * factor[i / 2]);
  __syncwarp();
  constexpr int kN = kPack<T>, kPacks = kOut / kN;
  for (int i = lane; i < 16 * kPacks; i += kWarp) {
    const int r = i / kPacks, c = i % kPacks * kN;
    if (first + r >= count || column + c >= width) continue;
    const T* source = tile + r * kStride + c;
    T* target = to + (first + r) * x.row + column + c;
    if (x.packs)
      *reinterpret_cast<Pack<T, kN>*>(target) = *reinterpret_cast<const Pack<T, kN>*>(source);
    else
      for (int k = 0; k < kN && column + c + k < width; ++k) target[k] = source[k];
  }
}

// What is done to a score, in units of kUnit: scale, mask, and -inf for what is not seen.
template <class T>
struct Scores {
  const Numbers& p;
  int64_t mask_head;
  float scale;
  bool partly;  // some of the tile's scores do not count
  __device__ __forceinline__ Scores(const Numbers& p, int64_t image, int64_t head)
      : p(p),
        mask_head(image * p.mask.image + head * p.mask.head),
        scale(static_cast<float>(p.scale) * kUnit<T>),
        partly(true) {}
  // Of the queries [i, i + queries) and the keys [j, j + keys).
  __device__ __forceinline__ void look_at(int64_t i, int queries, int64_t j, int keys) {
    partly = i + queries > p.t || j + keys > p.s || (p.causal && j + keys - 1 > i + p.diagonal);
  }
  __device__ __forceinline__ float operator()(float dot, int64_t i, int64_t j) const {
    float s = dot * scale;
    if (partly && (i >= p.t || j >= p.s || (p.causal && j > i + p.diagonal))) return kNothing;
    if (p.mask.kind == MaskKind::kNone) return s;
    const int64_t at = mask_head + i * p.mask.row + j * p.mask.col;
    if (p.mask.kind == MaskKind::kBool) return static_cast<const bool*>(p.mask.data)[at] ? s : kNothing;
    return s +
        (p.mask.kind == MaskKind::kFloat ? static_cast<const float*>(p.mask.data)[at]
                                         : widen(static_cast<const T*>(p.mask.data)[at])) *
        kUnit<T>;
  }
};

// kept[r] = which of the keys [j, j + keys) query i + r keeps, for n queries; bit by bit, keys <= 64. By one warp.
__device__ __forceinline__ void draw_kept(uint64_t* kept, const Numbers& p, int64_t image, int64_t head, int64_t i,
                                          int n, int64_t j, int keys) {
  const int lane = threadIdx.x % kWarp, block = lane % 16, half = lane / 16;
  const int64_t key = p.first_key + j, group = key / 64;
  const int shift = static_cast<int>(key % 64);
  const uint64_t row = draw_row(p, image, head, i);
  // A half of the warp draws a group of 64: of a row each, where keys lie in one group, else of two neighbours.
  const bool one = shift + keys <= 64;
  for (int r = 0; r < n; r += one ? 2 : 1) {
    const uint64_t of = (row + static_cast<uint64_t>(one ? r + half : r)) * static_cast<uint64_t>(p.groups) +
        static_cast<uint64_t>(group + (one ? 0 : half));
    uint32_t words[4];
    draw_words(p.seed, p.counter, of, static_cast<uint32_t>(block), words);
    uint64_t bits = 0;
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const unsigned keep = __ballot_sync(kAllLanes, static_cast<uint64_t>(words[w]) >= p.threshold);
      bits |= static_cast<uint64_t>(keep >> (16 * half) & 0xffffu) << (16 * w);
    }
    if (one) {
      if (block == 0 && r + half < n) kept[r + half] = bits >> shift;
    } else {
      const uint64_t next = __shfl_sync(kAllLanes, bits, 16);
      if (lane == 0) kept[r] = bits >> shift | next << (64 - shift);
    }
  }
  __syncwarp();
}

__device__ __forceinline__ float quad_sum(float v) {
  v += __shfl_xor_sync(kAllLanes, v, 1);
  return v + __shfl_xor_sync(kAllLanes, v, 2);
}
__device__ __forceinline__ float quad_max(float v) {
  v = fmaxf(v, __shfl_xor_sync(kAllLanes, v, 1));
  return fmaxf(v, __shfl_xor_sync(kAllLanes, v, 2));
}

template <class T, int kWidth>
__global__ void __launch_bounds__(Shape<T, kWidth>::kThreads) forward(Numbers p) {
  using S = Shape<T, kWidth>;
  constexpr int kN = S::kCols, kStride = S::kStride;
  T* const q = dynamic_shared<T>();
  T *const k = q + S::kOwn, *const v = k + S::kStages * S::kPassing;
  float* const staged = reinterpret_cast<float*>(v + S::kStages * S::kPassing);
  uint64_t* const kept = reinterpret_cast<uint64_t*>(staged + S::kProbabilities);
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
  const int64_t tiles = (p.t + S::kRows - 1) / S::kRows;
  const Place at = place_of(blockIdx.x, tiles, p.h);
  const int64_t i0 = (tiles - 1 - at.tile) * S::kRows, own = i0 + warp * 16;  // the tiles with most keys first
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
  if (passing > 0) fetch(0);

  Scores<T> score(p, at.image, at.head);
  float out[kWidth / 8][4] = {}, max[2] = {kNothing, kNothing}, sum[2] = {};
  for (int64_t tile = 0; tile < passing; ++tile) {
    if (S::kStages == 2 && tile + 1 < passing) {
      fetch(tile + 1);
      copies_wait<1>();
    } else {
      copies_wait<0>();
    }
    __syncthreads();
    const int64_t j0 = tile * kN;
    const int stage = static_cast<int>(tile % S::kStages);
    float c[kN / 8][4];
    scores_of<T, kN, kStride>(c, q + warp * 16 * kStride, k + stage * S::kPassing, p.d);
    score.look_at(own, 16, j0, kN);
    float now[2] = {max[0], max[1]};
#pragma unroll
    for (int n = 0; n < kN / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        c[n][i] = score(c[n][i], own + g + i / 2 * 8, j0 + 8 * n + 2 * t + i % 2);
        now[i / 2] = fmaxf(now[i / 2], c[n][i]);
      }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      now[r] = quad_max(now[r]);
      const float base = now[r] == kNothing ? 0.f : now[r], factor = power<T>(max[r] - base);
      max[r] = now[r];
      sum[r] *= factor;
#pragma unroll
      for (int n = 0; n < kWidth / 8; ++n) out[n][2 * r] *= factor, out[n][2 * r + 1] *= factor;
#pragma unroll
      for (int n = 0; n < kN / 8; ++n)
#pragma unroll
        for (int i = 2 * r; i < 2 * r + 2; ++i) sum[r] += c[n][i] = power<T>(c[n][i] - base);
    }
    if (p.dropout) {
      draw_kept(kept + warp * 16, p, at.image, at.head, own, 16, j0, kN);
#pragma unroll
      for (int n = 0; n < kN / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (!(kept[warp * 16 + g + i / 2 * 8] >> (8 * n + 2 * t + i % 2) & 1)) c[n][i] = 0;
      __syncwarp();
    }
    add_rows<T, kN, kWidth, kStride>(out, c, v + stage * S::kPassing, p.e, staged + warp * 16 * (kN + 4));
    __syncthreads();
    if (S::kStages == 1 && tile + 1 < passing) fetch(tile + 1);
  }
  if (passing <= 0) {
    copies_finish();
    __syncthreads();  // q is written over
  }
  float factor[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    sum[r] = quad_sum(sum[r]);
    factor[r] = sum[r] != 0 ? p.factor / sum[r] : 0;
    const int64_t i = own + g + 8 * r;
    if (p.lse && t == 0 && i < p.t)
      static_cast<float*>(p.lse)[at.image * p.lse_image + at.head * p.lse_head + i * p.lse_row] =
          sum[r] != 0 ? max[r] * (1.f / kUnit<T>)+logf(sum[r]) : kNothing;
  }
  store_rows<T, kWidth, kStride>(p.out, head_of<T>(p.out, at.image, at.head), out, factor, q + warp * 16 * kStride, own,
                                 p.t, 0, p.e);
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
  uint64_t* const kept = reinterpret_cast<uint64_t*>(staged + S::kProbabilities);
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

  Scores<T> score(p, at.image, at.head);
  const float base[2] = {row_base<T>(p, at.image, at.head, own + g), row_base<T>(p, at.image, at.head, own + g + 8)};
  const float delta[2] = {row_delta(p, at.image, at.head, own + g), row_delta(p, at.image, at.head, own + g + 8)};
  float dq[kWidth / 8][4] = {};
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
    float c[kN / 8][4], dp[kN / 8][4];
    scores_of<T, kN, kStride>(c, q + warp * 16 * kStride, this_k, p.d);
    scores_of<T, kN, kStride>(dp, dout + warp * 16 * kStride, this_v, p.e);
    if (p.dropout) draw_kept(kept + warp * 16, p, at.image, at.head, own, 16, j0, kN);
    score.look_at(own, 16, j0, kN);
#pragma unroll
    for (int n = 0; n < kN / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int r = g + i / 2 * 8, col = 8 * n + 2 * t + i % 2;
        const float probability = power<T>(score(c[n][i], own + r, j0 + col) - base[i / 2]);
        if (p.dropout) dp[n][i] = kept[warp * 16 + r] >> col & 1 ? dp[n][i] * p.factor : 0.f;
        c[n][i] = probability * (dp[n][i] - delta[i / 2]);
      }
    if (p.dropout) __syncwarp();
    add_rows<T, kN, kWidth, kStride>(dq, c, this_k, p.d, staged + warp * 16 * (kN + 4));
    __syncthreads();
    if (S::kStages == 1 && tile + 1 < passing) fetch(tile + 1);
  }
  if (passing <= 0) {
    copies_finish();
    __syncthreads();
  }
  const float factor[2] = {static_cast<float>(p.scale), static_cast<float>(p.scale)};
  store_rows<T, kWidth, kStride>(p.dq, head_of<T>(p.dq, at.image, at.head), dq, factor, q + warp * 16 * kStride, own,
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
  uint64_t* const kept = reinterpret_cast<uint64_t*>(staged + S::kProbabilities);
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

  float dk[S::kOut / 8][4] = {}, dv[S::kOut / 8][4] = {};
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
    Scores<T> score(p, at.image, head);
    score.look_at(i0, kN, own, 16);
    float c[kN / 8][4], dp[kN / 8][4];
    scores_of<T, kN, kStride>(c, k + warp * 16 * kStride, this_q, p.d);
#pragma unroll
    for (int n = 0; n < kN / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int col = 8 * n + 2 * t + i % 2;
        c[n][i] = power<T>(score(c[n][i], i0 + col, own + g + i / 2 * 8) - bases[col]);
      }
    scores_of<T, kN, kStride>(dp, v + warp * 16 * kStride, this_dout, p.e);
    if (p.dropout) {
      float seen[kN / 8][4];
#pragma unroll
      for (int n = 0; n < kN / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const bool keep = kept[8 * n + 2 * t + i % 2] >> (warp * 16 + g + i / 2 * 8) & 1;
          seen[n][i] = keep ? c[n][i] : 0.f;
          dp[n][i] = keep ? dp[n][i] * p.factor : 0.f;
        }
      add_rows<T, kN, S::kOut, kStride>(dv, seen, this_dout + column, p.e - column, staged + warp * 16 * (kN + 4));
    } else {
      add_rows<T, kN, S::kOut, kStride>(dv, c, this_dout + column, p.e - column, staged + warp * 16 * (kN + 4));
    }
#pragma unroll
    for (int n = 0; n < kN / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) c[n][i] *= dp[n][i] - deltas[8 * n + 2 * t + i % 2];
    add_rows<T, kN, S::kOut, kStride>(dk, c, this_q + column, p.d - column, staged + warp * 16 * (kN + 4));
    __syncthreads();
    if (S::kStages == 1 && number + 1 < passing) fetch(number + 1);
  }
  if (passing <= 0) {
    copies_finish();
    __syncthreads();
  }
  const float of_k[2] = {static_cast<float>(p.scale), static_cast<float>(p.scale)}, of_v[2] = {p.factor, p.factor};
  store_rows<T, S::kOut, kStride>(p.dk, head_of<T>(p.dk, at.image, at.head), dk, of_k, k + warp * 16 * kStride, own,
                                  p.s, column, p.d);
  store_rows<T, S::kOut, kStride>(p.dv, head_of<T>(p.dv, at.image, at.head), dv, of_v, v + warp * 16 * kStride, own,
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

template <class T>
void run_forward(const Numbers& p) {
  with_width(std::max(p.d, p.e), [&](auto width) {
    using S = Shape<T, decltype(width)::value>;
    launch(forward<T, decltype(width)::value>, grid_of(p.b * p.h, p.t, S::kRows), S::kThreads, S::shared_bytes(1, 2),
           p);
  });
}

template <class T>
void run_backward(const Numbers& p) {
  launch(row_products<T>, blocks_for(p.b * p.h * p.t, 32), 256, 0, p);
  with_width(std::max(p.d, p.e), [&](auto width) {
    using S = Shape<T, decltype(width)::value>;
    const unsigned parts = static_cast<unsigned>((std::max(p.d, p.e) + S::kOut - 1) / S::kOut);
    launch(backward_keys<T, decltype(width)::value>, dim3(grid_of(p.b * (p.h / p.share), p.s, S::kRows), parts),
           S::kThreads, S::shared_bytes(2, 2), p);
    launch(backward_queries<T, decltype(width)::value>, grid_of(p.b * p.h, p.t, S::kRows), S::kThreads,
           S::shared_bytes(2, 2), p);
  });
}

}  // namespace holon::kernels::cuda::attention
