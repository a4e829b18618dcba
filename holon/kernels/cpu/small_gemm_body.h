// The body of the own products, compiled once per instruction set.
#include "holon/kernels/cpu/pack_turned.h"
#include "holon/kernels/cpu/small_gemm.h"
#include "holon/kernels/cpu/vectors.h"

namespace holon::kernels::HOLON_ISA {
namespace {

// Rows of a tile and vectors per row: 24 of 32 registers hold sums with AVX-512, 12 of 16 without.
constexpr int kRows = kVectorBytes == 64 ? 8 : 4;
constexpr int kVectors = 3;
// A block of a large product: kBlockK values of k for kBlockM rows of a and as many columns of b as fit into kPackB
// bytes. These stay in the second cache, and one panel of b in the first.
constexpr int64_t kBlockK = 400, kBlockM = 96;
constexpr size_t kPackB = 1 << 20;
static_assert(kPackB + kBlockK * kBlockM * sizeof(double) <= kPackBytes);

// How a is stored: its rows' values adjacent, its columns' values adjacent, or packed into tiles of kRows rows.
enum class Order { kRows, kColumns, kPacked };

// One call's constants.
template <class T>
struct Out {
  T alpha, beta;
  T* c;
  int64_t stride;
  const T* bias;
};

// c[kR, kN vectors] of a[kR, k] @ b[k, ...]: b's rows are adjacent values, each value of a is spread over a vector. as
// is the stride of a's rows, or else of its columns.
template <class T, int kR, int kN, bool kTail, Order kA>
void tile(int64_t k, const T* a, int64_t as, const T* b, int64_t bs, const Out<T>& out, int tail) {
  constexpr int kW = Simd<T>::kWidth;
  const Mask mask = make_mask(kTail ? tail : kW - 1, sizeof(T) / 4);
  Vec<T> acc[kR][kN];
  HOLON_UNROLL for (int i = 0; i < kR; ++i) HOLON_UNROLL for (int j = 0; j < kN; ++j) acc[i][j] = Vec<T>{};
  // Memory of c comes while the products are made.
  HOLON_UNROLL for (int i = 0; i < kR; ++i) HOLON_UNROLL for (int j = 0; j < kN; ++j)
      __builtin_prefetch(out.c + i * out.stride + j * kW, 1);
  const T* rows[kR];
  if constexpr (kA == Order::kRows) HOLON_UNROLL for (int i = 0; i < kR; ++i) rows[i] = a + i * as;
  _Pragma("GCC unroll 4") for (int64_t p = 0; p < k; ++p) {
    Vec<T> bv[kN];
    HOLON_UNROLL for (int j = 0; j < kN; ++j) bv[j] = kTail && j == kN - 1 ? load(b + j * kW, mask) : load(b + j * kW);
    HOLON_UNROLL for (int i = 0; i < kR; ++i) {
      const T value = kA == Order::kRows ? rows[i][p] : a[i];
      const Vec<T> av = value - Vec<T>{};
      HOLON_UNROLL for (int j = 0; j < kN; ++j) acc[i][j] += av * bv[j];
    }
    b += bs;
    if constexpr (kA == Order::kColumns) a += as;
    if constexpr (kA == Order::kPacked) a += kRows;
  }
  Vec<T> add[kN];
  HOLON_UNROLL for (int j = 0; j < kN; ++j) add[j] = !out.bias ? Vec<T>{}
      : kTail && j == kN - 1                                   ? load(out.bias + j * kW, mask)
                                                               : load(out.bias + j * kW);
  HOLON_UNROLL for (int i = 0; i < kR; ++i) {
    T* c = out.c + i * out.stride;
    HOLON_UNROLL for (int j = 0; j < kN; ++j) {
      const bool last = kTail && j == kN - 1;
      Vec<T> v = acc[i][j] * out.alpha + add[j];
      if (out.beta != 0) v += out.beta * (last ? load(c + j * kW, mask) : load(c + j * kW));
      if (last)
        store(c + j * kW, v, mask);
      else
        store(c + j * kW, v);
    }
  }
}

// All rows of one column panel of kN vectors.
template <class T, int kN, bool kTail, Order kA>
void panel(int64_t m, int64_t k, const T* a, int64_t as, const T* b, int64_t bs, Out<T> out, int tail) {
  auto run = [&]<int kR>() __attribute__((always_inline)) {
    tile<T, kR, kN, kTail, kA>(k, a, as, b, bs, out, tail);
    a += kA == Order::kRows ? kR * as : kA == Order::kPacked && kR == kRows ? kR * k : kR;
    out.c += kR * out.stride;
    m -= kR;
  };
  while (m >= kRows) run.template operator()<kRows>();
  if constexpr (kRows > 4) {
    if (m >= 4) run.template operator()<4>();
  }
  if (m & 2) run.template operator()<2>();
  if (m & 1) run.template operator()<1>();
}

template <class T, Order kA>
HOLON_INLINE void any_panel(int vectors, int tail, int64_t m, int64_t k, const T* a, int64_t as, const T* b, int64_t bs,
                            const Out<T>& out) {
  switch (vectors * 2 + (tail != 0)) {
    case 2: return panel<T, 1, false, kA>(m, k, a, as, b, bs, out, 0);
    case 3: return panel<T, 1, true, kA>(m, k, a, as, b, bs, out, tail);
    case 4: return panel<T, 2, false, kA>(m, k, a, as, b, bs, out, 0);
    case 5: return panel<T, 2, true, kA>(m, k, a, as, b, bs, out, tail);
    case 6: return panel<T, 3, false, kA>(m, k, a, as, b, bs, out, 0);
    default: return panel<T, 3, true, kA>(m, k, a, as, b, bs, out, tail);
  }
}

// The next panel's vectors: threes, but never a lonely one after them.
HOLON_INLINE int next_vectors(int64_t left) {
  return left == 4 ? 2 : left < kVectors ? static_cast<int>(left) : kVectors;
}

// Calls f(column, width, columns) for the panels of n columns.
template <class T, class F>
HOLON_INLINE void each_panel(int64_t n, F&& f) {
  constexpr int kW = Simd<T>::kWidth;
  for (int64_t j = 0; j < n;) {
    const int64_t left = n - j;
    const int width = next_vectors((left + kW - 1) / kW) * kW;
    const int columns = left < width ? static_cast<int>(left) : width;
    f(j, width, columns);
    j += columns;
  }
}

// All panels of b[k, n], one after the other.
template <class T>
void pack_panels(int64_t k, int64_t n, const T* b, int64_t brs, int64_t bcs, T* dst) {
  constexpr int kW = Simd<T>::kWidth;
  if (bcs != 1) {
    each_panel<T>(n, [&](int64_t j, int width, int columns) {
      pack_turned(k, columns, width, b + j * bcs, brs, bcs, dst);
      dst += k * width;
    });
    return;
  }
  // Some rows at a time: b is read in order, and written in runs.
  constexpr int64_t kAtOnce = 8;
  for (int64_t p0 = 0; p0 < k; p0 += kAtOnce, b += kAtOnce * brs) {
    const int64_t rows = k - p0 < kAtOnce ? k - p0 : kAtOnce;
    T* to = dst;
    each_panel<T>(
        n, [&](int64_t j, int width, int columns) __attribute__((always_inline)) {
          T* row = to + p0 * width;
          const T* from = b + j;
          for (int64_t p = 0; p < rows; ++p, row += width, from += brs) {
            if (columns == width)
              for (int v = 0; v < width; v += kW) store(row + v, load(from + v));
            else
              for (int i = 0; i < width; ++i) row[i] = i < columns ? from[i] : T{0};
          }
          to += k * width;
        });
  }
}

// dst: tiles of kRows rows of a[m, k], whose columns are contiguous; the last one is filled up with zeros. sums: the
// rows' own, unless it is nullptr.
template <class T>
void pack_rows(int64_t m, int64_t k, const T* a, int64_t acs, T* dst, T* sums) {
  const int64_t whole = m / kRows * kRows;
  if (sums)
    for (int64_t i = 0; i < m; ++i) sums[i] = 0;
  for (int64_t p = 0; p < k; p += 4, a += 4 * acs) {
    const int64_t count = k - p < 4 ? k - p : 4;
    for (int64_t i = 0; i < whole; i += kRows) {
      T* to = dst + i * k + p * kRows;
      typedef T Row __attribute__((vector_size(kRows * sizeof(T)), aligned(sizeof(T)), may_alias));
      if (count == 4) {
        const Row r0 = *reinterpret_cast<const Row*>(a + i), r1 = *reinterpret_cast<const Row*>(a + i + acs);
        const Row r2 = *reinterpret_cast<const Row*>(a + i + 2 * acs),
                  r3 = *reinterpret_cast<const Row*>(a + i + 3 * acs);
        *reinterpret_cast<Row*>(to) = r0, *reinterpret_cast<Row*>(to + kRows) = r1;
        *reinterpret_cast<Row*>(to + 2 * kRows) = r2, *reinterpret_cast<Row*>(to + 3 * kRows) = r3;
        if (sums) *reinterpret_cast<Row*>(sums + i) += (r0 + r1) + (r2 + r3);
      } else {
        for (int64_t q = 0; q < count; ++q) {
          const Row r = *reinterpret_cast<const Row*>(a + i + q * acs);
          *reinterpret_cast<Row*>(to + q * kRows) = r;
          if (sums) *reinterpret_cast<Row*>(sums + i) += r;
        }
      }
    }
    for (int64_t q = 0; whole < m && q < count; ++q)
      for (int64_t i = 0; i < kRows; ++i) {
        const T v = whole + i < m ? a[whole + i + q * acs] : T{0};
        dst[whole * k + (p + q) * kRows + i] = v;
        if (sums && whole + i < m) sums[whole + i] += v;
      }
  }
}

template <class T, Order kA>
HOLON_INLINE void panels(int64_t m, int64_t n, int64_t k, const T* a, int64_t as, const T* b, int64_t brs, bool packed,
                         const Out<T>& out) {
  constexpr int kW = Simd<T>::kWidth;
  each_panel<T>(
      n, [&](int64_t j, int width, int columns) __attribute__((always_inline)) {
        const int vectors = width / kW;
        const Out<T> here = {out.alpha, out.beta, out.c + j, out.stride, out.bias ? out.bias + j : nullptr};
        any_panel<T, kA>(vectors, columns < width ? columns - (vectors - 1) * kW : 0, m, k, a, as, packed ? b : b + j,
                         packed ? width : brs, here);
        if (packed) b += k * width;
      });
}

// b, and a where its columns are contiguous, are copied block by block into the order in which tiles read them.
template <class T>
void by_blocks(const GemmArgs<T>& g, bool row_a) {
  constexpr int64_t kPanel = Simd<T>::kWidth * kVectors;
  const int64_t parts = (g.k + kBlockK - 1) / kBlockK;
  const int64_t block_k = ((g.k + parts - 1) / parts + 15) / 16 * 16;
  const int64_t block_n = static_cast<int64_t>(kPackB / sizeof(T)) / block_k / kPanel * kPanel;
  T* packed_b = static_cast<T*>(g.pack());
  T* packed_a = packed_b + kPackB / sizeof(T);
  for (int64_t j0 = 0; j0 < g.n; j0 += block_n) {
    const int64_t n = g.n - j0 < block_n ? g.n - j0 : block_n;
    for (int64_t p0 = 0; p0 < g.k; p0 += block_k) {
      const int64_t k = g.k - p0 < block_k ? g.k - p0 : block_k;
      const bool first = p0 == 0, last = p0 + k == g.k;
      pack_panels(k, n, g.b + p0 * g.b_row_stride + j0 * g.b_col_stride, g.b_row_stride, g.b_col_stride, packed_b);
      for (int64_t i0 = 0; i0 < g.m; i0 += kBlockM) {
        const int64_t m = g.m - i0 < kBlockM ? g.m - i0 : kBlockM;
        const T* a = g.a + i0 * g.a_row_stride + p0 * g.a_col_stride;
        const Out<T> out = {g.alpha, first ? g.beta : T{1}, g.c + i0 * g.c_row_stride + j0, g.c_row_stride,
                            first && g.bias ? g.bias + j0 : nullptr};
        if (row_a) {
          panels<T, Order::kRows>(m, n, k, a, g.a_row_stride, packed_b, 0, true, out);
        } else {
          // Sums of blocks first, which loses fewer digits.
          T sums[kBlockM];
          const bool add_up = g.row_sums && j0 == 0;
          pack_rows(m, k, a, g.a_col_stride, packed_a, add_up ? sums : nullptr);
          for (int64_t i = 0; add_up && i < m; ++i) g.row_sums[i0 + i] = first ? sums[i] : g.row_sums[i0 + i] + sums[i];
          panels<T, Order::kPacked>(m, n, k, packed_a, 0, packed_b, 0, true, out);
        }
        if (last && g.done) g.done(g.state, g.row0 + i0, m, g.col0 + j0, n);
      }
    }
  }
}

// Sums of the lanes of four vectors.
HOLON_INLINE void sum4(const Vec<float>* v, float* out) {
#if HOLON_VECTOR_BYTES == 64
  __m512 t0 = _mm512_add_ps(_mm512_unpacklo_ps(v[0], v[1]), _mm512_unpackhi_ps(v[0], v[1]));
  __m512 t1 = _mm512_add_ps(_mm512_unpacklo_ps(v[2], v[3]), _mm512_unpackhi_ps(v[2], v[3]));
  __m512d lo = _mm512_unpacklo_pd(_mm512_castps_pd(t0), _mm512_castps_pd(t1));
  __m512d hi = _mm512_unpackhi_pd(_mm512_castps_pd(t0), _mm512_castps_pd(t1));
  __m512 u = _mm512_add_ps(_mm512_castpd_ps(lo), _mm512_castpd_ps(hi));
  __m256 w = _mm256_add_ps(_mm512_castps512_ps256(u), _mm512_extractf32x8_ps(u, 1));
  _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(w), _mm256_extractf128_ps(w, 1)));
#elif HOLON_VECTOR_BYTES == 32
  __m256 w = _mm256_hadd_ps(_mm256_hadd_ps(v[0], v[1]), _mm256_hadd_ps(v[2], v[3]));
  _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(w), _mm256_extractf128_ps(w, 1)));
#else
  for (int i = 0; i < 4; ++i) out[i] = (v[i][0] + v[i][1]) + (v[i][2] + v[i][3]);
#endif
}
HOLON_INLINE void sum4(const Vec<double>* v, double* out) {
  for (int i = 0; i < 4; ++i) {
    double s = 0;
    for (int j = 0; j < Simd<double>::kWidth; ++j) s += v[i][j];
    out[i] = s;
  }
}

// c[kR, kN] of rows of a and columns of b that are both contiguous along k: products of vectors along k, then sums.
template <class T, int kR, int kN>
void dot_tile(int64_t k, const T* a, int64_t as, const T* b, int64_t bs, const Out<T>& out) {
  constexpr int kW = Simd<T>::kWidth;
  Vec<T> acc[kN][4];
  HOLON_UNROLL for (int j = 0; j < kN; ++j) HOLON_UNROLL for (int i = 0; i < 4; ++i) acc[j][i] = Vec<T>{};
  auto step = [&](auto get) __attribute__((always_inline)) {
    Vec<T> av[kR];
    HOLON_UNROLL for (int i = 0; i < kR; ++i) av[i] = get(a + i * as);
    HOLON_UNROLL for (int j = 0; j < kN; ++j) {
      const Vec<T> bv = get(b + j * bs);
      HOLON_UNROLL for (int i = 0; i < kR; ++i) acc[j][i] += av[i] * bv;
    }
  };
  int64_t p = 0;
  for (; p + kW <= k; p += kW, a += kW, b += kW)
    step([](const T* q) __attribute__((always_inline)) { return load(q); });
  if (p < k) {
    const Mask mask = make_mask(static_cast<int>(k - p), sizeof(T) / 4);
    step([&](const T* q) __attribute__((always_inline)) { return load(q, mask); });
  }
  HOLON_UNROLL for (int j = 0; j < kN; ++j) {
    T sums[4];
    sum4(acc[j], sums);
    for (int i = 0; i < kR; ++i) {
      T* c = out.c + i * out.stride + j;
      T v = out.alpha * sums[i];
      if (out.bias) v += out.bias[j];
      if (out.beta != 0) v += out.beta * *c;
      *c = v;
    }
  }
}

template <class T, int kN>
void dot_rows(int64_t m, int64_t k, const T* a, int64_t as, const T* b, int64_t bs, Out<T> out) {
  for (; m >= 4; m -= 4, a += 4 * as, out.c += 4 * out.stride) dot_tile<T, 4, kN>(k, a, as, b, bs, out);
  for (; m > 0; --m, a += as, out.c += out.stride) dot_tile<T, 1, kN>(k, a, as, b, bs, out);
}

template <class T>
void by_dots(const GemmArgs<T>& g) {
  constexpr int kN = kVectorBytes == 64 ? 5 : 3;
  // The rows of b of one tile, kN * k, must stay in the first cache while all rows of a pass.
  const int64_t block_k = g.m <= 4 ? g.k : 512;
  for (int64_t p0 = 0; p0 < g.k; p0 += block_k) {
    const int64_t k = g.k - p0 < block_k ? g.k - p0 : block_k;
    const bool first = p0 == 0;
    const int64_t block_m = 64;
    for (int64_t i0 = 0; i0 < g.m; i0 += block_m) {
      const int64_t m = g.m - i0 < block_m ? g.m - i0 : block_m;
      const T* a = g.a + p0 + i0 * g.a_row_stride;
      for (int64_t j = 0; j < g.n;) {
        const T* b = g.b + p0 + j * g.b_col_stride;
        Out<T> out = {g.alpha, first ? g.beta : T{1}, g.c + i0 * g.c_row_stride + j, g.c_row_stride,
                      first && g.bias ? g.bias + j : nullptr};
        const int64_t left = g.n - j;
        if (left >= kN) {
          dot_rows<T, kN>(m, k, a, g.a_row_stride, b, g.b_col_stride, out);
          j += kN;
        } else if (left >= 2) {
          dot_rows<T, 2>(m, k, a, g.a_row_stride, b, g.b_col_stride, out);
          j += 2;
        } else {
          dot_rows<T, 1>(m, k, a, g.a_row_stride, b, g.b_col_stride, out);
          j += 1;
        }
      }
    }
  }
}

// m == 1, b's rows contiguous: rows of b are added up, eight at a time, so that b is read once in long runs.
template <class T>
void by_row_sums(const GemmArgs<T>& g) {
  constexpr int kW = Simd<T>::kWidth;
  const int64_t as = g.a_col_stride;
  const int64_t block_n = 2048;
  for (int64_t j0 = 0; j0 < g.n; j0 += block_n) {
    const int64_t n = g.n - j0 < block_n ? g.n - j0 : block_n;
    T* c = g.c + j0;
    for (int64_t j = 0; j < n; ++j) {
      T v = g.bias ? g.bias[j0 + j] : T{0};
      c[j] = g.beta != 0 ? v + g.beta * c[j] : v;
    }
    int64_t p = 0;
    for (; p + 8 <= g.k; p += 8) {
      T x[8];
      HOLON_UNROLL for (int q = 0; q < 8; ++q) x[q] = g.alpha * g.a[(p + q) * as];
      const T* b = g.b + p * g.b_row_stride + j0;
      int64_t j = 0;
      for (; j + kW <= n; j += kW) {
        Vec<T> s = load(c + j), t = x[0] * load(b + j);
        HOLON_UNROLL for (int q = 1; q < 8; q += 2) s += x[q] * load(b + q * g.b_row_stride + j);
        HOLON_UNROLL for (int q = 2; q < 8; q += 2) t += x[q] * load(b + q * g.b_row_stride + j);
        store(c + j, s + t);
      }
      for (; j < n; ++j) {
        T s = c[j];
        for (int q = 0; q < 8; ++q) s += x[q] * b[q * g.b_row_stride + j];
        c[j] = s;
      }
    }
    for (; p < g.k; ++p) {
      const T x = g.alpha * g.a[p * as];
      const T* b = g.b + p * g.b_row_stride + j0;
      for (int64_t j = 0; j < n; ++j) c[j] += x * b[j];
    }
  }
}

// Rows of a and columns of b that are contiguous, and too few of one of them for tiles.
template <class T>
bool takes_dots(const GemmArgs<T>& g, bool row_a) {
  constexpr int kW = Simd<T>::kWidth;
  return row_a && g.b_row_stride == 1 && g.b_col_stride != 1 &&
      ((g.n == 1 && g.k >= kW) || (g.k >= 8 * kW && (g.m <= 16 || g.n <= kW)));
}

template <class T>
void by_panels(const GemmArgs<T>& g, bool row_a, bool dots) {
  if (dots) return by_dots(g);
  if (g.m == 1 && g.b_col_stride == 1 && g.n * g.k >= 4096) return by_row_sums(g);
  const Out<T> out = {g.alpha, g.beta, g.c, g.c_row_stride, g.bias};
  if (row_a)
    panels<T, Order::kRows>(g.m, g.n, g.k, g.a, g.a_row_stride, g.b, g.b_row_stride, false, out);
  else
    panels<T, Order::kColumns>(g.m, g.n, g.k, g.a, g.a_col_stride, g.b, g.b_row_stride, false, out);
}

// The terms of a row are added one after the other, whatever the layout.
template <class T>
void sum_rows(const GemmArgs<T>& g) {
  constexpr int kW = Simd<T>::kWidth;
  int64_t i = 0;
  if (g.a_row_stride == 1)
    for (; i + kW <= g.m; i += kW) {
      Vec<T> sum{};
      for (int64_t p = 0; p < g.k; ++p) sum += load(g.a + i + p * g.a_col_stride);
      store(g.row_sums + i, sum);
    }
  for (; i < g.m; ++i) {
    T sum{};
    for (int64_t p = 0; p < g.k; ++p) sum += g.a[i * g.a_row_stride + p * g.a_col_stride];
    g.row_sums[i] = sum;
  }
}

template <class T>
void run(const GemmArgs<T>& g) {
  const bool row_a = g.a_col_stride == 1 || g.k == 1;
  const bool dots = takes_dots(g, row_a);
  // A panel of b whose rows are far apart collides in the first cache; a copy pays once several tiles use it.
  const bool blocks =
      !dots && (g.b_col_stride != 1 || (g.m > 2 * kRows && g.n * g.k * static_cast<int64_t>(sizeof(T)) > (64 << 10)));
  if (g.row_sums && (row_a || !blocks)) sum_rows(g);
  if (blocks) return by_blocks(g, row_a);
  by_panels(g, row_a, dots);
  if (g.done) g.done(g.state, g.row0, g.m, g.col0, g.n);
}

template <int kR>
HOLON_INLINE void tiny_rows(const float* a, int64_t as, const float* b, int64_t bs, float* c, int64_t cs, int64_t k,
                            Mask mask) {
  Vec<float> acc[kR];
  HOLON_UNROLL for (int i = 0; i < kR; ++i) acc[i] = Vec<float>{};
  for (int64_t p = 0; p < k; ++p, ++a, b += bs) {
    const Vec<float> bv = load(b, mask);
    HOLON_UNROLL for (int i = 0; i < kR; ++i) acc[i] += a[i * as] * bv;
  }
  HOLON_UNROLL for (int i = 0; i < kR; ++i) store(c + i * cs, acc[i], mask);
}

void tiny_f32(const float* a, int64_t as, const float* b, int64_t bs, float* c, int64_t cs, int64_t m, int64_t n,
              int64_t k) {
  const Mask mask = make_mask(static_cast<int>(n), 1);
  for (; m >= 4; m -= 4, a += 4 * as, c += 4 * cs) tiny_rows<4>(a, as, b, bs, c, cs, k, mask);
  for (; m > 0; --m, a += as, c += cs) tiny_rows<1>(a, as, b, bs, c, cs, k, mask);
}

void run_f32(const GemmArgs<float>& g) { run(g); }
void run_f64(const GemmArgs<double>& g) { run(g); }

#if HOLON_VECTOR_BYTES > 16
void half_to_float(const uint16_t* x, float* y, int64_t n) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8)
    _mm256_storeu_ps(y + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x + i))));
  for (; i < n; ++i) y[i] = _cvtsh_ss(x[i]);
}
void float_to_half(const float* x, uint16_t* y, int64_t n) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(y + i),
                     _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
  for (; i < n; ++i) y[i] = static_cast<uint16_t>(_cvtss_sh(x[i], _MM_FROUND_TO_NEAREST_INT));
}
#endif

}  // namespace

SmallGemm small_gemm() {
#if HOLON_VECTOR_BYTES > 16
  return {tiny_f32, run_f32, run_f64, half_to_float, float_to_half, kVectorBytes};
#else
  return {tiny_f32, run_f32, run_f64, nullptr, nullptr, kVectorBytes};
#endif
}

}  // namespace holon::kernels::HOLON_ISA
