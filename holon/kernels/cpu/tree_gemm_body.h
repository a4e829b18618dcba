// The body of products in trees, compiled once per instruction set.
#include "holon/kernels/cpu/pack_turned.h"
#include "holon/kernels/cpu/tree_gemm.h"
#include "holon/kernels/cpu/vectors.h"
#include "holon/kernels/sum_tree.h"

namespace holon::kernels::HOLON_ISA {
namespace {

// A tile's sums are in registers twice, for two neighbouring leaves: 24 of 32 with AVX-512, 12 of 16 without.
constexpr int kRows = kVectorBytes == 64 ? 6 : 3;
constexpr int kVectors = 2;
constexpr int kWidth = Simd<float>::kWidth, kColumns = kVectors * kWidth;
constexpr int kLevels = 64;  // of a sum of 2^64 leaves

HOLON_INLINE Vec<float> fused(Vec<float> a, Vec<float> b, Vec<float> c) {
#if HOLON_VECTOR_BYTES == 64
  return _mm512_fmadd_ps(a, b, c);
#elif HOLON_VECTOR_BYTES == 32
  return _mm256_fmadd_ps(a, b, c);
#else
  return a * b + c;
#endif
}

typedef Vec<float> Tile[kRows][kVectors];

// The sum of `leaf` terms. kLeaf: their number where it is known, else 0.
template <int kLeaf>
HOLON_INLINE void add_leaf(int64_t leaf, const float* const* rows, int64_t acs, int64_t& at, const float*& b,
                           int64_t bs, Tile& acc) {
  HOLON_UNROLL for (int i = 0; i < kRows; ++i) HOLON_UNROLL for (int j = 0; j < kVectors; ++j) acc[i][j] = Vec<float>{};
  auto term = [&]() __attribute__((always_inline)) {
    Vec<float> bv[kVectors];
    HOLON_UNROLL for (int j = 0; j < kVectors; ++j) bv[j] = load(b + j * kWidth);
    HOLON_UNROLL for (int i = 0; i < kRows; ++i) {
      const Vec<float> av = same(rows[i][at]);
      HOLON_UNROLL for (int j = 0; j < kVectors; ++j) acc[i][j] = fused(av, bv[j], acc[i][j]);
    }
    b += bs;
    at += acs;
  };
  if constexpr (kLeaf > 0)
    HOLON_UNROLL for (int p = 0; p < kLeaf; ++p) term();
  else
    for (int64_t p = 0; p < leaf; ++p) term();
}

HOLON_INLINE void add_to(Tile& sum, const Tile& more) {
  HOLON_UNROLL for (int i = 0; i < kRows; ++i) HOLON_UNROLL for (int j = 0; j < kVectors; ++j) sum[i][j] += more[i][j];
}

// sum = the tile's products, of k = leaves * leaf terms; leaves is a power of two.
template <int kLeaf>
HOLON_INLINE void products(int64_t leaves, int64_t leaf, const float* const* rows, int64_t acs, const float* b,
                           int64_t bs, Tile& sum) {
  int64_t at = 0;
  if (leaves == 1) return add_leaf<kLeaf>(leaf, rows, acs, at, b, bs, sum);
  Tile pending[kLevels];
  const int64_t pairs = leaves / 2;
  for (int64_t pair = 0; pair < pairs; ++pair) {
    Tile second;
    add_leaf<kLeaf>(leaf, rows, acs, at, b, bs, sum);
    add_leaf<kLeaf>(leaf, rows, acs, at, b, bs, second);
    add_to(sum, second);
    push_leaf(
        static_cast<uint64_t>(pair), [&](int l) __attribute__((always_inline)) { add_to(sum, pending[l]); },
        [&](int l) __attribute__((always_inline)) {
          if (pair + 1 == pairs) return;
          HOLON_UNROLL for (int i = 0; i < kRows; ++i) HOLON_UNROLL for (int j = 0; j < kVectors; ++j)
              pending[l][i][j] = sum[i][j];
        });
  }
}

// One tile of c: rows [0, m) and columns [0, n) of it.
template <int kLeaf>
void tile(const TreeGemmArgs& g, int64_t leaf, const float* const* rows, int64_t acs, const float* b, int64_t bs,
          float* c, int m, int n) {
  Tile sum;
  products<kLeaf>(g.k / leaf, leaf, rows, acs, b, bs, sum);
  if (g.alpha != 1)
    HOLON_UNROLL for (int i = 0; i < kRows; ++i) HOLON_UNROLL for (int j = 0; j < kVectors; ++j) sum[i][j] *= g.alpha;
  if (n == kColumns && g.beta == 0) {
    HOLON_UNROLL for (int i = 0; i < kRows; ++i) {
      if (i >= m) break;
      HOLON_UNROLL for (int j = 0; j < kVectors; ++j) store(c + i * g.c_row_stride + j * kWidth, sum[i][j]);
    }
    return;
  }
  float out[kRows][kColumns];
  HOLON_UNROLL for (int i = 0; i < kRows; ++i) HOLON_UNROLL for (int j = 0; j < kVectors; ++j)
      store(out[i] + j * kWidth, sum[i][j]);
  for (int i = 0; i < m; ++i)
    for (int j = 0; j < n; ++j) {
      float& to = c[i * g.c_row_stride + j];
      if (g.beta == 0) {
        to = out[i][j];
      } else {
        const float before = g.beta == 1 ? to : g.beta * to;
        to = before + out[i][j];
      }
    }
}

// Tiles of kRows rows of a, term after term; the last one is filled up with zeros.
void pack_rows(int64_t m, int64_t k, const float* a, int64_t ars, int64_t acs, float* to) {
  constexpr int64_t kAtOnce = 16;
  for (int64_t p0 = 0; p0 < k; p0 += kAtOnce)
    for (int64_t i0 = 0; i0 < m; i0 += kRows)
      for (int64_t p = p0; p < k && p < p0 + kAtOnce; ++p) {
        float* dst = to + i0 * k + p * kRows;
        const float* src = a + i0 * ars + p * acs;
        if (i0 + kRows <= m && ars == 1)
          for (int i = 0; i < kRows; ++i) dst[i] = src[i];
        else
          for (int i = 0; i < kRows; ++i) dst[i] = i0 + i < m ? src[i * ars] : 0;
      }
}

void pack_columns(int64_t k, int n, const float* b, int64_t brs, int64_t bcs, float* to) {
  if (bcs != 1) return pack_turned(k, n, kColumns, b, brs, bcs, to);
  const int whole = n / kWidth * kWidth, rest = n - whole;
  const Mask mask = make_mask(rest, 1);
  for (int64_t p = 0; p < k; ++p, b += brs, to += kColumns) {
    int j = 0;
    for (; j < whole; j += kWidth) store(to + j, load(b + j));
    if (rest) store(to + j, load(b + j, mask)), j += kWidth;
    for (; j < kColumns; j += kWidth) store(to + j, Vec<float>{});
  }
}

void run(const TreeGemmArgs& g) {
  const int64_t leaf = g.leaf;
  if (g.packed) pack_rows(g.m, g.k, g.a, g.a_row_stride, g.a_col_stride, g.packed);
  // A panel of b that few tiles read is read as it is.
  const bool few = g.m <= 2 * kRows;
  for (int64_t j = 0; j < g.n; j += kColumns) {
    const int n = static_cast<int>(g.n - j < kColumns ? g.n - j : kColumns);
    const bool direct = few && n == kColumns && g.b_col_stride == 1;
    const float* b = direct ? g.b + j : g.panel;
    if (!direct) pack_columns(g.k, n, g.b + j * g.b_col_stride, g.b_row_stride, g.b_col_stride, g.panel);
    const int64_t bs = direct ? g.b_row_stride : kColumns;
    for (int64_t i = 0; i < g.m; i += kRows) {
      const int m = static_cast<int>(g.m - i < kRows ? g.m - i : kRows);
      const float* rows[kRows];
      for (int r = 0; r < kRows; ++r)
        rows[r] = g.packed ? g.packed + i * g.k + r : g.a + (i + (r < m ? r : 0)) * g.a_row_stride;
      float* c = g.c + i * g.c_row_stride + j;
      const int64_t acs = g.packed ? kRows : 1;
      if (leaf == kSumLeaf)
        tile<static_cast<int>(kSumLeaf)>(g, leaf, rows, acs, b, bs, c, m, n);
      else
        tile<0>(g, leaf, rows, acs, b, bs, c, m, n);
    }
  }
}

}  // namespace

TreeGemm tree_gemm() { return {run, kRows, kColumns, kVectorBytes > 16}; }

}  // namespace holon::kernels::HOLON_ISA
