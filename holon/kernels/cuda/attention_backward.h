// Attention's backward pass by tiles (attention_tiles.h). A block's own rows are keys and values, all queries that see
// them pass by, and of their scores everything is made while they are in registers, transposed: rows are keys. Five
// products, as in algorithm 2 of "FlashAttention-2" (Dao, 2023):
//   S^T = K Q^T,  dP^T = V dO^T,  dV += P^T dO,  dK += dS^T Q,  dQ += dS K
// dK and dV stay in registers until the last query. dQ is a sum over all tiles of keys, in float32 and in memory. It is
// the same in each run, and no block waits for another: a block takes several tiles of keys, one after the other, and
// adds to sums of its own, of which each of its threads reads and writes the same elements. A second kernel adds up the
// sums of all blocks of a head (splits) in their order. What is read and written does not depend on their number, only
// how much memory they take: where that would be too much, queries are cut into several launches, between which dK and
// dV are kept in float32.
#pragma once

#include <algorithm>
#include <cstdint>

#include "holon/kernels/cuda/attention_tiles.h"

namespace holon::kernels::cuda::attention {

// What a launch adds to, tiles of the threads' registers: dq of [splits, b, h, end - first, gridDim.y] tiles, and,
// where there are several launches, dk and dv of [b, h / share, tiles of keys, gridDim.y, 2]. Its queries are the tiles
// [first, end) of kCols.
struct Sums {
  float *dq = nullptr, *dkdv = nullptr;
  int splits = 1, first = 0, end = 0;
};

// The sums for queries take at most the device's memory divided by this, or what one split needs if that is more.
constexpr size_t kShareOfMemory = 128;

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
  static constexpr int kStep = kStride<T, kWidth>;
  int warp = threadIdx.x / kWarp;
  T* own[2];
  T* passing[2];
  T* scores;              // [kRows, kCols], kScoreStride apart; this warp's are its own until they are needed by all
  uint64_t* kept;         // [kStages, kWords, kCols]
  float *bases, *deltas;  // [kStages, kCols]

  __device__ __forceinline__ BackwardTiles() {
    own[0] = dynamic_shared<T>(), own[1] = own[0] + S::kOwn;
    passing[0] = own[1] + S::kOwn, passing[1] = passing[0] + S::kStages * S::kPassing;
    scores = passing[1] + S::kStages * S::kPassing;
    kept = reinterpret_cast<uint64_t*>(scores + S::kWarps * S::kStaged);
    bases = reinterpret_cast<float*>(kept + S::kStages * S::kWords * S::kCols), deltas = bases + S::kStages * S::kCols;
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
  __device__ __forceinline__ T* own_scores() const { return scores + warp * S::kStaged; }
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
    __syncthreads();  // own rows and scores are written over
  }
};

// A thread's numbers [16, 8 kN] of a tile, 16 bytes for each part of 8 columns; neighbours are neighbouring threads'.
template <int kThreads, int kN>
__device__ __forceinline__ void load_registers(float (&x)[kN][4], const float* from, int width) {
#pragma unroll
  for (int n = 0; n < kN; ++n) {
    if (n / 2 * 16 >= width) continue;
    const auto v = reinterpret_cast<const Pack<float, 4>*>(from)[n * kThreads + threadIdx.x];
#pragma unroll
    for (int i = 0; i < 4; ++i) x[n][i] = v.v[i];
  }
}
template <int kThreads, int kN>
__device__ __forceinline__ void store_registers(const float (&x)[kN][4], float* to, int width) {
#pragma unroll
  for (int n = 0; n < kN; ++n) {
    if (n / 2 * 16 >= width) continue;
    reinterpret_cast<Pack<float, 4>*>(to)[n * kThreads + threadIdx.x] = {x[n][0], x[n][1], x[n][2], x[n][3]};
  }
}

// A warp's part of a tile of dq, kCols rows of kOut columns: 16 rows and kColumns columns from these on.
template <class S>
struct QueryPart {
  static constexpr int kGroups = S::kQueries / 16;
  int row, column;
  __device__ __forceinline__ QueryPart()
      : row(static_cast<int>(threadIdx.x) / kWarp % kGroups * 16),
        column(static_cast<int>(threadIdx.x) / kWarp / kGroups * S::kColumns) {}
};
// Where the sums of a split for a tile of queries of a head are.
template <class S>
__device__ __forceinline__ float* sums_of(const Numbers& p, const Sums& sums, int split, int image, int head,
                                          int tile) {
  const int64_t of_head = (split * p.b + image) * p.h + head;
  return sums.dq +
      ((of_head * (sums.end - sums.first) + tile - sums.first) * gridDim.y + blockIdx.y) * (S::kQueries * S::kOut);
}

// The tile of keys that a split takes in a round: forwards and backwards, since with a causal mask the first ones have
// most to do.
__device__ __forceinline__ int key_tile_of(int round, int split, int splits) {
  return round * splits + (round % 2 == 0 ? split : splits - 1 - split);
}
// The first tile of queries that sees key j.
template <class S>
__device__ __forceinline__ int first_tile(const Numbers& p, int j) {
  return static_cast<int>(first_seeing(p, j) / S::kCols);
}

// blockIdx.x: a split of a head of keys; blockIdx.y: 128 columns of the results. With more than 128 columns the scores
// are computed for each, since more results would not fit in registers.
template <class T, int kWidth, bool kSmall>
__global__ void __launch_bounds__(Shape<T, kWidth, Pass::kBackward, kSmall>::kThreads) backward(Numbers p, Sums sums) {
  using Tiles = BackwardTiles<T, kWidth, kSmall>;
  using S = typename Tiles::S;
  constexpr int kN = S::kCols, kStep = Tiles::kStep, kDrawn = kN / S::kWarps;
  const Tiles tile;
  const QueryPart<S> part;
  const int thread = threadIdx.x, lane = thread % kWarp, g = lane / 4, t = lane % 4;
  const int rows = static_cast<int>(p.t), keys = static_cast<int>(p.s);
  const int key_tiles = (keys + S::kRows - 1) / S::kRows, query_tiles = (rows + kN - 1) / kN;
  const Place at = place_of(blockIdx.x, sums.splits, p.h / p.share);
  const int column = static_cast<int>(blockIdx.y) * S::kOut;
  const bool last = sums.end >= query_tiles;

#pragma unroll 1
  for (int round = 0;; ++round) {
    const int key_tile = key_tile_of(round, at.tile, sums.splits);
    if (key_tile >= key_tiles) break;
    const int j0 = key_tile * S::kRows, own = j0 + tile.warp * 16, seeing = first_tile<S>(p, j0);
    // All tiles of queries of all heads that share this one.
    const int first = seeing > sums.first ? seeing : sums.first, of_head = sums.end > first ? sums.end - first : 0;
    if (of_head == 0 && !last) break;
    auto head_at = [&](int n) { return at.head * p.share + n / of_head; };
    auto tile_at = [&](int n) { return first + n % of_head; };
    tile.fetch_own(p, p.k, head_of<T>(p.k, at.image, at.head), p.v, head_of<T>(p.v, at.image, at.head), j0, keys);

    float dk[1][S::kOut / 8][4] = {}, dv[1][S::kOut / 8][4] = {};
    float* const kept_dk = sums.dkdv +
        (((at.image * (p.h / p.share) + at.head) * key_tiles + key_tile) * gridDim.y + blockIdx.y) *
            (2 * S::kRows * S::kOut);
    float* const kept_dv = kept_dk + S::kRows * S::kOut;
    if (seeing < sums.first) {
      load_registers<S::kThreads>(dk[0], kept_dk, p.d - column);
      load_registers<S::kThreads>(dv[0], kept_dv, p.e - column);
    }
    float next_base = 0, next_delta = 0;  // on their way, as the tiles are
    static_assert(kN <= S::kThreads);
    tile.each(
        of_head * p.share,
        [&](int n, int stage) {
          const int head = head_at(n), i0 = tile_at(n) * kN;
          tile.fetch_passing(p, stage, p.q, head_of<T>(p.q, at.image, head), p.dout, head_of<T>(p.dout, at.image, head),
                             i0, rows);
          if (thread >= kN) return;
          next_base = row_base<T>(p, at.image, head, i0 + thread);
          next_delta = row_delta(p, at.image, head, i0 + thread);
        },
        [&](int n, int stage) {
          if (thread < kN) tile.bases[stage * kN + thread] = next_base, tile.deltas[stage * kN + thread] = next_delta;
          if (!p.dropout) return;
          const int drawn = tile.warp * kDrawn;
#pragma unroll
          for (int word = 0; word < S::kWords; ++word)
            draw_kept(tile.kept + (stage * S::kWords + word) * kN + drawn, p, at.image, head_at(n),
                      tile_at(n) * kN + drawn, kDrawn, j0 + word * 64, S::kRows < 64 ? S::kRows : 64);
        },
        [&](int number, int stage) {
          const T *q = tile.passing_rows(0, stage), *dout = tile.passing_rows(1, stage);
          const float *bases = tile.bases + stage * kN + 2 * t, *deltas = tile.deltas + stage * kN + 2 * t;
          const uint64_t* kept = tile.kept + (stage * S::kWords + tile.warp / 4) * kN + 2 * t;
          const int head = head_at(number), i0 = tile_at(number) * kN;
          float* const staged = reinterpret_cast<float*>(tile.own_scores());  // float32's
          float c[1][kN / 8][4], dp[1][kN / 8][4];
          scores_of<T, kN, kStep>(c, tile.own_rows(0), q, p.d);
          const float unit = finish_scores<T, true, kN>(c, p, Place{at.image, head, 0}, own, i0);
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
                const bool keep = kept[8 * n + i % 2] >> (tile.warp % 4 * 16 + g + i / 2 * 8) & 1;
                seen[0][n][i] = keep ? c[0][n][i] : 0.f;
                dp[0][n][i] = keep ? dp[0][n][i] * p.factor : 0.f;
              }
            add_rows<T, kN, S::kOut, kStep>(dv, seen, dout + column, p.e - column, staged);
          } else {
            add_rows<T, kN, S::kOut, kStep>(dv, c, dout + column, p.e - column, staged);
          }
#pragma unroll
          for (int n = 0; n < kN / 8; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) c[0][n][i] *= dp[0][n][i] - deltas[8 * n + i % 2];

          // The sums so far are on their way while dk is computed. A split's first keys are seen by all queries that
          // see any of its others.
          const int width = p.d - column - part.column;
          float* const sums_here = sums_of<S>(p, sums, at.tile, at.image, head, tile_at(number));
          float dq[S::kColumns / 8][4] = {};
          if (round > 0) load_registers<S::kThreads>(dq, sums_here, width);
          if constexpr (S::kHalf) put_scores<T, kN>(tile.own_scores(), c[0]);
          add_rows<T, kN, S::kOut, kStep>(dk, c, q + column, p.d - column, staged);
          __syncthreads();  // all warps' scores are there
          add_turned<T, S::kRows, kN, S::kColumns, S::kScoreStride, kStep>(dq, tile.scores + part.row,
                                                                           tile.own[0] + column + part.column, width);
          store_registers<S::kThreads>(dq, sums_here, width);
        });
    if (!last) {
      store_registers<S::kThreads>(dk[0], kept_dk, p.d - column);
      store_registers<S::kThreads>(dv[0], kept_dv, p.e - column);
      continue;
    }
    const float of_k[2] = {static_cast<float>(p.scale), static_cast<float>(p.scale)}, of_v[2] = {p.factor, p.factor};
    store_rows<T, S::kOut, kStep>(p.dk, head_of<T>(p.dk, at.image, at.head), dk[0], of_k, tile.own_rows(0), own, keys,
                                  column, p.d);
    store_rows<T, S::kOut, kStep>(p.dv, head_of<T>(p.dv, at.image, at.head), dv[0], of_v, tile.own_rows(1), own, keys,
                                  column, p.e);
    __syncthreads();  // the next keys are written over what was stored from
  }
}

// dq = scale * the sum of what the splits have of it. A block for each tile of queries of a head.
template <class T, int kWidth, bool kSmall>
__global__ void __launch_bounds__(Shape<T, kWidth, Pass::kBackward, kSmall>::kThreads)
    add_splits(Numbers p, Sums sums) {
  using S = Shape<T, kWidth, Pass::kBackward, kSmall>;
  const QueryPart<S> part;
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
  const Place at = place_of(blockIdx.x, sums.end - sums.first, p.h);
  const int tile = sums.first + at.tile, i0 = tile * S::kCols, column = static_cast<int>(blockIdx.y) * S::kOut;
  // Those whose first keys are seen from here.
  const int seen = static_cast<int>((keys_seen(p, i0 + S::kCols) + S::kRows - 1) / S::kRows),
            splits = seen < sums.splits ? seen : sums.splits, width = p.d - column - part.column;
  float dq[S::kColumns / 8][4] = {};
#pragma unroll 1
  for (int split = 0; split < splits; ++split) {
    float more[S::kColumns / 8][4] = {};
    load_registers<S::kThreads>(more, sums_of<S>(p, sums, split, at.image, at.head, tile), width);
#pragma unroll
    for (int n = 0; n < S::kColumns / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) dq[n][i] += more[n][i];
  }
  const float scale = static_cast<float>(p.scale);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = part.row + g + 8 * r;
    if (row >= S::kCols || i0 + row >= p.t) continue;
    T* const to = head_of<T>(p.dq, at.image, at.head) + (i0 + row) * p.dq.row;
#pragma unroll
    for (int n = 0; n < S::kColumns / 8; ++n) {
      const int c = column + part.column + out_column<T>(n, 2 * r, t);
      const T pair[2] = {narrow<T>(dq[n][2 * r] * scale), narrow<T>(dq[n][2 * r + 1] * scale)};
      if (p.dq.packs && c < p.d) {
        *reinterpret_cast<Pack<T, 2>*>(to + c) = {pair[0], pair[1]};
      } else {
        if (c < p.d) to[c] = pair[0];
        if (c + 1 < p.d) to[c + 1] = pair[1];
      }
    }
  }
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

// How many blocks share the tiles of keys of each of `heads` heads, where so many blocks run at once: as few as let all
// finish in nearly the least time.
inline int splits_of(int64_t heads, int64_t key_tiles, int64_t at_once) {
  const int64_t most = std::min(key_tiles, 2 * at_once);
  int64_t splits = 1, least = std::numeric_limits<int64_t>::max();
  for (int64_t n = 1; n <= most; ++n) {
    const int64_t time = (heads * n + at_once - 1) / at_once * ((key_tiles + n - 1) / n);
    if (time + time / 16 < least) splits = n, least = time;
  }
  return static_cast<int>(splits);
}

template <class T, int kWidth, bool kSmall>
void start_backward(const Numbers& p) {
  using S = Shape<T, kWidth, Pass::kBackward, kSmall>;
  const int64_t parts = (std::max(p.d, p.e) + S::kOut - 1) / S::kOut, heads = p.b * (p.h / p.share),
                key_tiles = (p.s + S::kRows - 1) / S::kRows, query_tiles = (p.t + S::kCols - 1) / S::kCols;
  // By their registers, of which a thread may take all that there are, and by shared memory.
  const size_t of_multiprocessor = std::min<size_t>(256 / S::kThreads, shared_bytes_of_block() / S::kBackwardBytes);
  const int64_t at_once = int64_t{multiprocessors()} * std::max<int64_t>(1, static_cast<int64_t>(of_multiprocessor));
  Sums sums;
  sums.splits = splits_of(heads * parts, key_tiles, at_once);
  const size_t of_tile = static_cast<size_t>(p.b * p.h * parts) * S::kQueries * S::kOut * sizeof(float),
               of_split = of_tile * static_cast<size_t>(query_tiles),
               room = std::max(memory_of_device() / kShareOfMemory, of_split);
  const int64_t fit = std::max<int64_t>(1, static_cast<int64_t>(room / (of_tile * static_cast<size_t>(sums.splits)))),
                launches = (query_tiles + fit - 1) / fit, tiles = (query_tiles + launches - 1) / launches;
  const Scratch dq(of_tile * static_cast<size_t>(tiles * sums.splits)),
      dkdv(tiles < query_tiles ? static_cast<size_t>(heads * key_tiles * parts) * 2 * S::kRows * S::kOut * sizeof(float)
                               : 0);
  sums.dq = dq.data<float>(), sums.dkdv = dkdv.data<float>();
  for (int64_t first = 0; first < query_tiles; first += tiles) {
    sums.first = static_cast<int>(first), sums.end = static_cast<int>(std::min(first + tiles, query_tiles));
    const auto y = static_cast<unsigned>(parts);
    launch(backward<T, kWidth, kSmall>, dim3(grid_of(heads, sums.splits, 1), y), S::kThreads, S::kBackwardBytes, p,
           sums);
    launch(add_splits<T, kWidth, kSmall>, dim3(grid_of(p.b * p.h, sums.end - first, 1), y), S::kThreads, 0, p, sums);
  }
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
