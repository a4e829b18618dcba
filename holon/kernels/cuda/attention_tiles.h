// Attention by tiles (after Dao, "FlashAttention-2: faster attention with better parallelism and work partitioning",
// 2023). A block keeps a tile of rows, a warp 16 of them, and tiles of the other side pass by in shared memory. Of the
// scores every warp holds its rows' in registers, in the layout of the tensor cores' results (mma.h: g, t) for all
// types, so that what is done to scores is written once; the kernels that do it are in attention_passes.h. Products: float16
// and bfloat16 in tensor cores with sums in float32, float32 by fused multiply-adds.
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
  static constexpr int kWarps = !kHalf && kWidth == 256 ? 2 : 4, kThreads = kWarps * kWarp;
  static constexpr int kRows = kWarps * 16;                                        // of the block's own tile
  static constexpr int kCols = (kHalf ? kWidth == 256 : kWidth >= 128) ? 32 : 64;  // rows of the tiles that pass by
  static constexpr int kStages = kHalf ? 2 : 1;                              // of those under way in the backward pass
  static constexpr int kStride = kWidth + 16 / static_cast<int>(sizeof(T));  // of rows in shared memory: no bank twice
  static constexpr int kOut = kWidth < 128 ? kWidth : 128;                   // columns of dk, dv that a block makes
  static constexpr int kOwn = kRows * kStride, kPassing = kCols * kStride;   // elements of tiles
  static constexpr int kStaged = kHalf ? 0 : 16 * (kCols + 4);               // floats for a warp: see add_rows
  // Row after row of bits (draw_kept), and two numbers for each of the passing rows.
  static constexpr size_t kBackwardBytes = static_cast<size_t>(2 * kOwn + 2 * kStages * kPassing) * sizeof(T) +
      kWarps * kStaged * sizeof(float) + 64 * 8 + 2 * 64 * 4;
  // With kM times as many rows of queries for each warp.
  template <int kM>
  static constexpr size_t kForwardBytes =
      static_cast<size_t>(kM* kOwn + 2 * kPassing) * sizeof(T) + kWarps* kStaged * sizeof(float) + kM* kRows * 8;
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
  constexpr int kStride = Shape<T, kWidth>::kStride, kN = kPack<T>, kPacks = kWidth / kN, kStep = kThreads / kPacks;
  static_assert(kThreads % kPacks == 0 && kRows % kStep == 0);
  const int r = threadIdx.x / kPacks, c = threadIdx.x % kPacks * kN;
  const T* source = from + (first + r) * x.row + c;
  T* target = to + r * kStride + c;
  const int64_t left = count - first - r;
  const int rows = left < kRows ? static_cast<int>(left) : kRows;
  if (x.packs) {
#pragma unroll
    for (int n = 0; n < kRows; n += kStep, source += kStep * x.row, target += kStep * kStride) {
      const bool there = n < rows && c < width;
      copy_async(target, there ? source : from, there);
    }
  } else {
    for (int n = 0; n < kRows; n += kStep, source += kStep * x.row, target += kStep * kStride) {
#pragma unroll
      for (int k = 0; k < kN; ++k) target[k] = n < rows && c + k < width ? source[k] : T{};
    }
  }
}

// The column of element i of part n of a warp's result [16, 8 parts]; its row is g + 8 (i / 2). float32 has four
// neighbours in two parts, for loads of 16 bytes.
template <class T>
__device__ __forceinline__ int out_column(int n, int i, int t) {
  return sizeof(T) == 2 ? 8 * n + 2 * t + i % 2 : n / 2 * 16 + 4 * t + n % 2 * 2 + i % 2;
}

// c[16 kM, kN] = a[16 kM, width] b[kN, width]^T; a and b in shared memory, with zeros up to a multiple of 16 columns.
template <class T, int kN, int kStride, int kM>
__device__ __forceinline__ void scores_of(float (&c)[kM][kN / 8][4], const T* a, const T* b, int width) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int n = 0; n < kN / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) c[m][n][i] = 0;
  if constexpr (sizeof(T) == 2) {
    const T* row_a = a + lane % 16 * kStride + lane / 16 * 8;
    const T* row_b = b + (lane % 8 + lane / 16 * 8) * kStride + lane / 8 % 2 * 8;
#pragma unroll(kM == 1 ? 4 : 2)
    for (int k = 0; k < width; k += 16) {
      uint32_t fa[kM][4];
#pragma unroll
      for (int m = 0; m < kM; ++m) load_matrices(fa[m], row_a + m * 16 * kStride + k);
#pragma unroll
      for (int n = 0; n < kN / 16; ++n) {
        uint32_t fb[4];
        load_matrices(fb, row_b + n * 16 * kStride + k);
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          mma<T>(c[m][2 * n], fa[m], fb[0], fb[1]);
          mma<T>(c[m][2 * n + 1], fa[m], fb[2], fb[3]);
        }
      }
    }
  } else {
    static_assert(kM == 1);
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
            c[0][n][i] += low.v[u] * y.v[u];
            c[0][n][2 + i] += high.v[u] * y.v[u];
          }
        }
    }
  }
}

// out[16 kM, kOut] += c[16 kM, kK] b[kK, width], c as scores_of leaves it. float32 passes c through `staged` [16, kK +
// 4], the warp's own.
template <class T, int kK, int kOut, int kStride, int kM>
__device__ __forceinline__ void add_rows(float (&out)[kM][kOut / 8][4], const float (&c)[kM][kK / 8][4], const T* b,
                                         int width, float* staged) {
  const int lane = threadIdx.x % kWarp;
  if constexpr (sizeof(T) == 2) {
    const T* row_b = b + lane % 16 * kStride + lane / 16 * 8;
#pragma unroll
    for (int k = 0; k < kK / 16; ++k) {
      uint32_t fa[kM][4];
#pragma unroll
      for (int m = 0; m < kM; ++m)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float(&pair)[4] = c[m][2 * k + i / 2];
          fa[m][i] = pack_halves<T>(pair[i % 2 * 2], pair[i % 2 * 2 + 1]);
        }
#pragma unroll
      for (int n = 0; n < kOut / 16; ++n) {
        if (16 * n >= width) continue;
        uint32_t fb[4];
        load_matrices_transposed(fb, row_b + k * 16 * kStride + n * 16);
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          mma<T>(out[m][2 * n], fa[m], fb[0], fb[1]);
          mma<T>(out[m][2 * n + 1], fa[m], fb[2], fb[3]);
        }
      }
    }
  } else {
    using P = Pack<T, 4>;
    constexpr int kS = kK + 4;
    const int g = lane / 4, t = lane % 4;
#pragma unroll
    for (int n = 0; n < kK / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) staged[(g + i / 2 * 8) * kS + 8 * n + 2 * t + i % 2] = c[0][n][i];
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
            out[0][2 * n + i / 2][i % 2] += low.v[u] * y.v[i];
            out[0][2 * n + i / 2][2 + i % 2] += high.v[u] * y.v[i];
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

// Products become scores in units of kUnit: scale, mask, and -inf for what is not seen. Rows are queries and columns
// keys, or, with kTurned, the other way round; c[0][0] is that of row + g and column + 2 t.
template <class T, bool kTurned, int kN, int kM>
__device__ __forceinline__ void finish_scores(float (&c)[kM][kN / 8][4], const Numbers& p, int64_t image, int64_t head,
                                              int64_t row, int64_t column) {
  constexpr int kRows = 16 * kM;
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
  const float scale = static_cast<float>(p.scale) * kUnit<T>;
  const int64_t last_i = kTurned ? column + kN : row + kRows, last_j = kTurned ? row + kRows : column + kN;
  const bool whole =
      last_i <= p.t && last_j <= p.s && (!p.causal || last_j - 1 <= (kTurned ? column : row) + p.diagonal);
  if (whole && p.mask.kind == MaskKind::kNone) {
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int n = 0; n < kN / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) c[m][n][i] *= scale;
    return;
  }
  const int64_t mask_head = image * p.mask.image + head * p.mask.head;
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int n = 0; n < kN / 8; ++n)
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int64_t r = row + 16 * m + g + k / 2 * 8, col = column + 8 * n + 2 * t + k % 2, i = kTurned ? col : r,
                      j = kTurned ? r : col;
        float& s = c[m][n][k];
        s *= scale;
        if (i >= p.t || j >= p.s || (p.causal && j > i + p.diagonal)) {
          s = kNothing;
        } else if (p.mask.kind != MaskKind::kNone) {
          const int64_t at = mask_head + i * p.mask.row + j * p.mask.col;
          if (p.mask.kind == MaskKind::kBool)
            s = static_cast<const bool*>(p.mask.data)[at] ? s : kNothing;
          else
            s += (p.mask.kind == MaskKind::kFloat ? static_cast<const float*>(p.mask.data)[at]
                                                  : widen(static_cast<const T*>(p.mask.data)[at])) *
                kUnit<T>;
        }
      }
}

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

}  // namespace holon::kernels::cuda::attention
