// Attention by tiles (after Dao, "FlashAttention-2: faster attention with better parallelism and work partitioning",
// 2023). A block keeps a tile of rows, a warp 16 of them, and tiles of the other side pass by in shared memory. Of the
// scores every warp holds its rows' in registers, in the layout of the tensor cores' results (mma.h: g, t) for all
// types, so that what is done to scores is written once; the kernels that do it are in attention_forward.h and
// attention_backward.h. Products: float16 and bfloat16 in tensor cores with sums in float32, float32 by fused
// multiply-adds.
#pragma once

#include <limits>

#include "holon/base/error.h"
#include "holon/kernels/cuda/attention.h"
#include "holon/kernels/cuda/mma.h"

namespace holon::kernels::cuda::attention {

constexpr float kNothing = -INFINITY;

// How many warps of 16 rows make a block, how many rows the tiles have that pass by, and how many of those are under
// way.
struct Cut {
  int warps, cols, stages;
};
enum class Pass : uint8_t { kForward, kBackward };
// A block may have 227 KiB of shared memory on devices of compute capability 9.0, 163 on 8.0, and 99 on 8.6, 8.9 and
// 12.0. The forward pass fits everywhere, the backward pass with heads wider than 64 by smaller tiles. Its blocks have
// eight warps where they fit: the more keys a block has, the less often the sums for queries are read and written.
constexpr size_t kSmallRoom = 99 * 1024, kLargeRoom = 163 * 1024;
template <class T>
constexpr Cut cut_of(Pass pass, int width, bool small) {
  if (sizeof(T) == 2) {
    if (pass == Pass::kForward) return {4, width == 256 ? 32 : 64, 1};
    return width == 64 ? Cut{8, 64, 2}
        : width == 128 ? (small ? Cut{4, 32, 2} : Cut{8, 64, 2})
        : small        ? Cut{4, 16, 1}
                       : Cut{4, 32, 2};
  }
  if (pass == Pass::kForward) return {width == 256 ? 2 : 4, width == 64 ? 64 : width == 128 ? 32 : 16, 1};
  return width == 64 ? Cut{4, 64, 1} : width == 128 ? Cut{4, small ? 16 : 32, 1} : Cut{2, small ? 8 : 32, 1};
}
template <class T>
constexpr bool has_small_tiles(int width) {
  return cut_of<T>(Pass::kBackward, width, true).cols != cut_of<T>(Pass::kBackward, width, false).cols;
}

// Of rows in shared memory: eight neighbours begin in banks that are all 4 apart, so that no access meets a bank twice.
template <class T, int kWidth>
inline constexpr int kStride = kWidth + 16 / static_cast<int>(sizeof(T));

// The kernels' numbers for type T and widths up to kWidth.
template <class T, int kWidth, Pass kPass, bool kSmall = false>
struct Shape {
  static constexpr bool kHalf = sizeof(T) == 2;
  static constexpr Cut kCut = cut_of<T>(kPass, kWidth, kSmall);
  static constexpr int kWarps = kCut.warps, kThreads = kWarps * kWarp, kCols = kCut.cols, kStages = kCut.stages;
  static constexpr int kRows = kWarps * 16;                 // of the block's own tile
  static constexpr int kOut = kWidth < 128 ? kWidth : 128;  // columns of dq, dk, dv that a block makes
  static constexpr int kOwn = kRows * kStride<T, kWidth>, kPassing = kCols * kStride<T, kWidth>;  // elements of tiles
  // What a warp's rows of scores are passed through, in elements: float32's in add_rows, and in the backward pass all
  // types' on their way to the other warps. Eight neighbours begin in banks that are 4 apart, as in tiles.
  static constexpr int kScoreStride = kCols + (kHalf ? 8 : 4);
  static constexpr int kStaged = kHalf && kPass == Pass::kForward ? 0 : 16 * kScoreStride;
  static constexpr int kStagedBytes = kWarps * kStaged * static_cast<int>(sizeof(T));
  static constexpr int kWords = (kRows + 63) / 64;  // of 64 bits, for the keys that a query keeps
  // The words for each stage (draw_kept), and two numbers for each of the passing rows.
  static constexpr size_t kBackwardBytes = static_cast<size_t>(2 * kOwn + 2 * kStages * kPassing) * sizeof(T) +
      kStagedBytes + kStages * kCols * (kWords * 8 + 8);
  // The block's tile of dq: so many groups of 16 rows, and of warps that share a group's columns.
  static constexpr int kQueries = kCols < 16 ? 16 : kCols, kColumnGroups = kWarps / (kQueries / 16),
                       kColumns = kOut / kColumnGroups;
  static_assert(kPass == Pass::kForward || (kWarps % (kQueries / 16) == 0 && kColumns % 16 == 0));
  // With kM times as many rows of queries for each warp.
  template <int kM>
  static constexpr size_t kForwardBytes = static_cast<size_t>(kM* kOwn + 2 * kPassing) * sizeof(T) + kStagedBytes
      + kM* kRows * 8;
  static_assert(kPass == Pass::kForward || kBackwardBytes <= (kSmall ? kSmallRoom : kLargeRoom));
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

// Where a block works: an image and a head, and which of its tiles.
struct Place {
  int image, head, tile;
};
__device__ __forceinline__ Place place_of(unsigned block, int tiles, int64_t heads) {
  const unsigned n = static_cast<unsigned>(tiles), h = static_cast<unsigned>(heads), rest = block / n, image = rest / h;
  return {static_cast<int>(image), static_cast<int>(rest - image * h), static_cast<int>(block - rest * n)};
}

template <class T>
__device__ __forceinline__ T* head_of(const Rows& x, int image, int head) {
  return static_cast<T*>(x.data) + image * x.image + head * x.head;
}

// to[kRows, kWidth] = rows [first, first + kRows) of x, zeros beyond `count` rows and `width` columns. By all threads;
// the copies are under way until copies_wait.
template <class T, int kWidth, int kRows, int kThreads>
__device__ __forceinline__ void fetch_tile(T* to, const Rows& x, const T* from, int first, int count, int width) {
  constexpr int kN = kPack<T>, kPacks = kWidth / kN, kStep = kThreads / kPacks;
  static_assert(kThreads % kPacks == 0 && kRows % kStep == 0);
  const int r = static_cast<int>(threadIdx.x) / kPacks, c = static_cast<int>(threadIdx.x) % kPacks * kN;
  const T* source = from + (first + r) * x.row + c;
  T* target = to + r * kStride<T, kWidth> + c;
  const int rows = count - first - r;
  if (x.packs) {
#pragma unroll
    for (int n = 0; n < kRows; n += kStep, source += kStep * x.row, target += kStep * kStride<T, kWidth>) {
      const bool there = n < rows && c < width;
      copy_async(target, there ? source : from, there);
    }
  } else {
#pragma unroll 1
    for (int n = 0; n < kRows; n += kStep, source += kStep * x.row, target += kStep * kStride<T, kWidth>) {
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
template <class T, int kN, int kStep, int kM>
__device__ __forceinline__ void scores_of(float (&c)[kM][kN / 8][4], const T* a, const T* b, int width) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int n = 0; n < kN / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) c[m][n][i] = 0;
  if constexpr (sizeof(T) == 2) {
    const T* row_a = a + lane % 16 * kStep + lane / 16 * 8;
    const T* row_b = b + (lane % 8 + lane / 16 * 8) * kStep + lane / 8 % 2 * 8;
#pragma unroll(kM == 1 ? 4 : 2)
    for (int k = 0; k < width; k += 16) {
      uint32_t fa[kM][4];
#pragma unroll
      for (int m = 0; m < kM; ++m) load_matrices(fa[m], row_a + m * 16 * kStep + k);
#pragma unroll
      for (int n = 0; n < kN / 16; ++n) {
        uint32_t fb[4];
        load_matrices(fb, row_b + n * 16 * kStep + k);
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
      const P low = *reinterpret_cast<const P*>(a + g * kStep + k),
              high = *reinterpret_cast<const P*>(a + (g + 8) * kStep + k);
#pragma unroll
      for (int n = 0; n < kN / 8; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const P y = *reinterpret_cast<const P*>(b + (8 * n + 2 * t + i) * kStep + k);
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
// 4], the warp's own, and leaves it there.
template <class T, int kK, int kOut, int kStep, int kM>
__device__ __forceinline__ void add_rows(float (&out)[kM][kOut / 8][4], const float (&c)[kM][kK / 8][4], const T* b,
                                         int width, float* staged) {
  const int lane = threadIdx.x % kWarp;
  if constexpr (sizeof(T) == 2) {
    const T* row_b = b + lane % 16 * kStep + lane / 16 * 8;
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
        load_matrices_transposed(fb, row_b + k * 16 * kStep + n * 16);
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
          const P y = *reinterpret_cast<const P*>(b + (k + u) * kStep + n * 16 + 4 * t);
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

// Scores of a two-byte type as add_rows rounds them, row by row, kN + 8 apart.
template <class T, int kN>
__device__ __forceinline__ void put_scores(T* to, const float (&c)[kN / 8][4]) {
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int n = 0; n < kN / 8; ++n)
#pragma unroll
    for (int r = 0; r < 2; ++r)
      *reinterpret_cast<uint32_t*>(to + (g + 8 * r) * (kN + 8) + 8 * n + 2 * t) =
          pack_halves<T>(c[n][2 * r], c[n][2 * r + 1]);
}

// out[16, kOut] += a[kK, 16]^T b[kK, width], a and b in shared memory; a has kA columns at least.
template <class T, int kK, int kA, int kOut, int kStepA, int kStep>
__device__ __forceinline__ void add_turned(float (&out)[kOut / 8][4], const T* a, const T* b, int width) {
  const int lane = threadIdx.x % kWarp;
  if constexpr (sizeof(T) == 2) {
    const T* row_a = a + (lane % 8 + lane / 16 * 8) * kStepA + lane / 8 % 2 * 8;
    const T* row_b = b + lane % 16 * kStep + lane / 16 * 8;
#pragma unroll
    for (int k = 0; k < kK / 16; ++k) {
      uint32_t fa[4];
      load_matrices_transposed(fa, row_a + k * 16 * kStepA);
#pragma unroll
      for (int n = 0; n < kOut / 16; ++n) {
        if (16 * n >= width) continue;
        uint32_t fb[4];
        load_matrices_transposed(fb, row_b + k * 16 * kStep + n * 16);
        mma<T>(out[2 * n], fa, fb[0], fb[1]);
        mma<T>(out[2 * n + 1], fa, fb[2], fb[3]);
      }
    }
  } else {
    using P = Pack<T, 4>;
    const int g = lane / 4, t = lane % 4;
#pragma unroll 4
    for (int k = 0; k < kK; ++k) {
      const T low = a[k * kStepA + g], high = kA < 16 ? T{} : a[k * kStepA + g + 8];
#pragma unroll
      for (int n = 0; n < kOut / 16; ++n) {
        if (16 * n >= width) continue;
        const P y = *reinterpret_cast<const P*>(b + k * kStep + n * 16 + 4 * t);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          out[2 * n + i / 2][i % 2] += low * y.v[i];
          out[2 * n + i / 2][2 + i % 2] += high * y.v[i];
        }
      }
    }
  }
}

// Rows [first, first + 16) of x = out * factors (of rows g and g + 8), by way of the warp's 16 rows of `tile`, which
// nobody else uses.
template <class T, int kOut, int kStep>
__device__ __forceinline__ void store_rows(const Rows& x, T* to, const float (&out)[kOut / 8][4],
                                           const float (&factor)[2], T* tile, int first, int count, int column,
                                           int width) {
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
  __syncwarp();
#pragma unroll
  for (int n = 0; n < kOut / 8; ++n)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      T* pair = tile + (g + 8 * r) * kStep + out_column<T>(n, 2 * r, t);
      const float low = out[n][2 * r] * factor[r], high = out[n][2 * r + 1] * factor[r];
      if constexpr (sizeof(T) == 2)
        *reinterpret_cast<uint32_t*>(pair) = pack_halves<T>(low, high);
      else
        pair[0] = low, pair[1] = high;
    }
  __syncwarp();
  constexpr int kN = kPack<T>, kPacks = kOut / kN;
  for (int i = lane; i < 16 * kPacks; i += kWarp) {
    const int r = i / kPacks, c = i % kPacks * kN;
    if (first + r >= count || column + c >= width) continue;
    const T* source = tile + r * kStep + c;
    T* target = to + (first + r) * x.row + column + c;
    if (x.packs)
      *reinterpret_cast<Pack<T, kN>*>(target) = *reinterpret_cast<const Pack<T, kN>*>(source);
    else
      for (int k = 0; k < kN && column + c + k < width; ++k) target[k] = source[k];
  }
}

// The mask's elements join the scores that are not -inf yet; see finish_scores.
template <class T, bool kTurned, int kN, int kM, class E>
__device__ __forceinline__ void add_mask(float (&c)[kM][kN / 8][4], const Numbers& p, const Place& at, int row,
                                         int column, float scale) {
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
  const E* const mask = static_cast<const E*>(p.mask.data) + at.image * p.mask.image + at.head * p.mask.head;
  const int64_t along = kTurned ? p.mask.row : p.mask.col, across = kTurned ? p.mask.col : p.mask.row;
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int i = row + 16 * m + 8 * r + g, j = column + 2 * t;
      const int rest = i < (kTurned ? p.s : p.t) ? static_cast<int>(kTurned ? p.t : p.s) - j : 0;  // of the row of c
      const E* from = mask + i * across + j * along;
#pragma unroll
      for (int n = 0; n < kN / 8; ++n, from += 8 * along)
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          float& s = c[m][n][2 * r + k];
          if (8 * n + k >= rest) continue;
          const E v = from[k == 0 ? 0 : along];
          if constexpr (std::is_same_v<E, bool>)
            s = v ? s : kNothing;
          else
            s = s * scale + widen(v) * kUnit<T>;
        }
    }
}

// Products become scores: the mask is added, and what is not seen is -inf. Rows are queries and columns keys, or, with
// kTurned, the other way round; c[0][0] is that of row + g and column + 2 t. Returns what is still to be multiplied to
// them for units of kUnit: it is positive, and joins the subtraction before the exponential.
// Of queries from t on nothing is used, and nothing is done.
template <class T, bool kTurned, int kN, int kM>
__device__ __forceinline__ float finish_scores(float (&c)[kM][kN / 8][4], const Numbers& p, const Place& at, int row,
                                               int column) {
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
  const int diagonal = static_cast<int>(p.diagonal);
  const float scale = static_cast<float>(p.scale) * kUnit<T>;
  const bool whole = kTurned ? row + 16 * kM <= p.s && (!p.causal || row + 16 * kM - 1 <= column + diagonal)
                             : column + kN <= p.s && (!p.causal || column + kN - 1 <= row + diagonal);
  const bool adds = p.mask.kind == MaskKind::kFloat || p.mask.kind == MaskKind::kSame, late = scale > 0 && !adds;
  if (!late && !adds) {
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int n = 0; n < kN / 8; ++n)
#pragma unroll
        for (int k = 0; k < 4; ++k) c[m][n][k] *= scale;
  }
  if (p.mask.kind == MaskKind::kBool)
    add_mask<T, kTurned, kN, kM, bool>(c, p, at, row, column, scale);
  else if (p.mask.kind == MaskKind::kFloat)
    add_mask<T, kTurned, kN, kM, float>(c, p, at, row, column, scale);
  else if (p.mask.kind == MaskKind::kSame)
    add_mask<T, kTurned, kN, kM, T>(c, p, at, row, column, scale);
  if (!whole) {
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        // Of the places 8 n + k of this thread's row those from `first` to `end` are seen.
        const int own = row + 16 * m + 8 * r + g, from = column + 2 * t, s = static_cast<int>(p.s);
        const int first = !kTurned ? 0 : own >= s ? kN : p.causal ? own - diagonal - from : 0;
        const int end = kTurned ? kN : (p.causal && own + diagonal + 1 < s ? own + diagonal + 1 : s) - from;
#pragma unroll
        for (int n = 0; n < kN / 8; ++n)
#pragma unroll
          for (int k = 0; k < 2; ++k)
            if (kTurned ? 8 * n + k < first : 8 * n + k >= end) c[m][n][2 * r + k] = kNothing;
      }
  }
  return late ? scale : 1.f;
}

// kept[r] = which of the keys [j, j + keys) query i + r keeps, for n queries; bit by bit, keys <= 64. By one warp.
__device__ __forceinline__ void draw_kept(uint64_t* kept, const Numbers& p, int64_t image, int64_t head, int64_t i,
                                          int n, int64_t j, int keys) {
  const int lane = threadIdx.x % kWarp, block = lane % 16, half = lane / 16;
  const int64_t key = p.first_key + j, group = key / 64;
  const int shift = static_cast<int>(key % 64);
  const uint64_t row = draw_row(p, image, head, i);
  const uint64_t seed = draw_seed(p), counter = draw_counter(p);
  // A half of the warp draws a group of 64: of a row each, where keys are in one group, else of two neighbours.
  const bool one = shift + keys <= 64;
  for (int r = 0; r < n; r += one ? 2 : 1) {
    const uint64_t of = (row + static_cast<uint64_t>(one ? r + half : r)) * static_cast<uint64_t>(p.groups) +
        static_cast<uint64_t>(group + (one ? 0 : half));
    uint32_t words[4];
    draw_words(seed, counter, of, static_cast<uint32_t>(block), words);
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

}  // namespace holon::kernels::cuda::attention
