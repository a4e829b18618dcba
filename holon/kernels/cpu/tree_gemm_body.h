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

// Where the terms of a row are.
struct StridedTerms {
  int64_t step, at = 0;
  StridedTerms from(int64_t term) const { return {step, at + term * step}; }
  HOLON_INLINE int64_t next() {
    const int64_t now = at;
    at += step;
    return now;
  }
};
struct TabledTerms {
  const int64_t* at;
  TabledTerms from(int64_t term) const { return {at + term}; }
  HOLON_INLINE int64_t next() { return *at++; }
};

// The sum of `leaf` terms. kLeaf: their number where it is known, else 0.
template <int kLeaf, class Terms>
HOLON_INLINE void add_leaf(int64_t leaf, const float* const* rows, Terms& terms, const float*& b, int64_t bs,
                           Tile& acc) {
  HOLON_UNROLL for (int i = 0; i < kRows; ++i) HOLON_UNROLL for (int j = 0; j < kVectors; ++j) acc[i][j] = Vec<float>{};
  auto term = [&]() __attribute__((always_inline)) {
    Vec<float> bv[kVectors];
    HOLON_UNROLL for (int j = 0; j < kVectors; ++j) bv[j] = load(b + j * kWidth);
    const int64_t at = terms.next();
    HOLON_UNROLL for (int i = 0; i < kRows; ++i) {
      const Vec<float> av = same(rows[i][at]);
      HOLON_UNROLL for (int j = 0; j < kVectors; ++j) acc[i][j] = fused(av, bv[j], acc[i][j]);
    }
    b += bs;
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
template <int kLeaf, class Terms>
HOLON_INLINE void products(int64_t leaves, int64_t leaf, const float* const* rows, Terms terms, const float* b,
                           int64_t bs, Tile& sum) {
  if (leaves == 1) return add_leaf<kLeaf>(leaf, rows, terms, b, bs, sum);
  Tile pending[kLevels];
  const int64_t pairs = leaves / 2;
  for (int64_t pair = 0; pair < pairs; ++pair) {
    Tile second;
    add_leaf<kLeaf>(leaf, rows, terms, b, bs, sum);
    add_leaf<kLeaf>(leaf, rows, terms, b, bs, second);
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
template <int kLeaf, bool kRuns, class Terms>
void tile(const TreeGemmArgs& g, const float* const* rows, Terms terms, const float* b, int64_t bs, float* c, int m,
          int n) {
  Tile sum;
  const int64_t leaves = g.k / g.runs / g.leaf;
  if constexpr (!kRuns) {
    products<kLeaf>(leaves, g.leaf, rows, terms, b, bs, sum);
  } else {
    Tile total{};
    for (int64_t i = 0; i < g.runs; ++i) {
      const int64_t begin = i * leaves * g.leaf;
      products<kLeaf>(leaves, g.leaf, rows, terms.from(begin), b + begin * bs, bs, sum);
      add_to(total, sum);
    }
    HOLON_UNROLL for (int i = 0; i < kRows; ++i) HOLON_UNROLL for (int j = 0; j < kVectors; ++j) sum[i][j] =
        total[i][j];
  }
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

void pack_tabled(int64_t k, int n, const TreeOperand& b, float* to) {
  // Which vectors are adjacent elements; columns increase.
  bool whole[kVectors];
  for (int v = 0, j = 0; v < kVectors; ++v, j += kWidth)
    whole[v] = j + kWidth <= n && b.columns[j + kWidth - 1] - b.columns[j] == kWidth - 1;
  for (int64_t p = 0; p < k; ++p, to += kColumns) {
    const float* row = b.data + b.rows[p];
    for (int v = 0, j = 0; v < kVectors; ++v, j += kWidth) {
      if (whole[v])
        store(to + j, load(row + b.columns[j]));
      else
        for (int i = j; i < j + kWidth; ++i) to[i] = i < n ? row[b.columns[i]] : 0;
    }
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

// The tiles of one panel.
template <int kLeaf, bool kRuns, class Terms>
void column(const TreeGemmArgs& g, Terms terms, const float* b, int64_t bs, float* c, int n) {
  for (int64_t i = 0; i < g.m; i += kRows, c += kRows * g.c_row_stride) {
    const int m = static_cast<int>(g.m - i < kRows ? g.m - i : kRows);
    const float* rows[kRows];
    for (int r = 0; r < kRows; ++r) {
      const int64_t row = i + (r < m ? r : 0);
      rows[r] = g.packed ? g.packed + i * g.k + r
          : g.a.tabled() ? g.a.data + g.a.rows[row]
                         : g.a.data + row * g.a.row_stride;
    }
    tile<kLeaf, kRuns>(g, rows, terms, b, bs, c, m, n);
  }
}

void run(const TreeGemmArgs& g) {
  if (g.packed) pack_rows(g.m, g.k, g.a.data, g.a.row_stride, g.a.col_stride, g.packed);
  // A panel of b that few tiles read is read as it is.
  const bool few = g.m <= 2 * kRows;
  for (int64_t j = 0; j < g.n; j += kColumns) {
    const int n = static_cast<int>(g.n - j < kColumns ? g.n - j : kColumns);
    const TreeOperand columns = g.b.from(0, j);
    const bool direct = few && n == kColumns && g.b.col_stride == 1;
    if (g.b.tabled())
      pack_tabled(g.k, n, columns, g.panel);
    else if (!direct)
      pack_columns(g.k, n, columns.data, g.b.row_stride, g.b.col_stride, g.panel);
    const float* b = direct ? columns.data : g.panel;
    const int64_t bs = direct ? g.b.row_stride : kColumns;
    auto run_column = [&](auto terms) {
      constexpr int kSmall = static_cast<int>(kSumLeaf);
      float* c = g.c + j;
      if (g.runs > 1)
        g.leaf == kSumLeaf ? column<kSmall, true>(g, terms, b, bs, c, n) : column<0, true>(g, terms, b, bs, c, n);
      else
        g.leaf == kSumLeaf ? column<kSmall, false>(g, terms, b, bs, c, n) : column<0, false>(g, terms, b, bs, c, n);
    };
    if (g.a.tabled())
      run_column(TabledTerms{g.a.columns});
    else
      run_column(StridedTerms{g.packed ? kRows : 1});
  }
}

}  // namespace

TreeGemm tree_gemm() { return {run, kRows, kColumns, kVectorBytes > 16}; }

}  // namespace holon::kernels::HOLON_ISA
