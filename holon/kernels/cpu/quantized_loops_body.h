// The body of products with quantised weights, compiled once per instruction set.
#include "holon/kernels/cpu/quantized_loops.h"
#include "holon/kernels/cpu/vectors.h"

namespace holon::kernels::HOLON_ISA {
namespace {

typedef Vec<float> F;
typedef int32_t I __attribute__((vector_size(kVectorBytes)));
constexpr int kW = Simd<float>::kWidth;

// A block's scale, behind its integers.
HOLON_INLINE float scale_of(const uint8_t* end_of_integers) {
  const uint32_t bits = static_cast<uint32_t>(end_of_integers[0] | end_of_integers[1] << 8) << 16;
  float scale;
  __builtin_memcpy(&scale, &bits, sizeof scale);
  return scale;
}
// The same in each lane. The word that ends with it is loaded, which needs no shift. Pre: two integers at least.
HOLON_INLINE F scales_of(const uint8_t* end_of_integers) {
#if HOLON_VECTOR_BYTES > 16
  int32_t bits;
  __builtin_memcpy(&bits, end_of_integers - 2, sizeof bits);
  return (F)((bits - I{}) & static_cast<int32_t>(0xffff0000));
#else
  return same(scale_of(end_of_integers));
#endif
}

// One block's numbers without their scale, of any size.
HOLON_INLINE void plain_integers(const uint8_t* p, int64_t size, int bits, float* to) {
  if (bits == 8) {
    for (int64_t i = 0; i < size; ++i) to[i] = static_cast<float>(static_cast<int8_t>(p[i]));
    return;
  }
  for (int64_t i = 0; i < size / 2; ++i) {
    to[i] = static_cast<float>((p[i] & 15) - 8);
    to[i + size / 2] = static_cast<float>((p[i] >> 4) - 8);
  }
}

// kW bytes as integers, and the vectors of float32 that they are.
#if HOLON_VECTOR_BYTES == 64
HOLON_INLINE F of_bytes(const uint8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
struct Halves {
  F low, high;
};
HOLON_INLINE Halves of_half_bytes(const uint8_t* p) {
  // The permutation looks at the lower four bits only.
  const __m512 numbers = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
  const __m512i v = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return {_mm512_permutexvar_ps(v, numbers), _mm512_permutexvar_ps(_mm512_srli_epi32(v, 4), numbers)};
}
#elif HOLON_VECTOR_BYTES == 32
HOLON_INLINE F of_bytes(const uint8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
struct Halves {
  F low, high;
};
HOLON_INLINE Halves of_half_bytes(const uint8_t* p) {
  const __m256i v = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  const __m256i low = _mm256_and_si256(v, _mm256_set1_epi32(15)), high = _mm256_srli_epi32(v, 4);
  const __m256i middle = _mm256_set1_epi32(8);
  return {_mm256_cvtepi32_ps(_mm256_sub_epi32(low, middle)), _mm256_cvtepi32_ps(_mm256_sub_epi32(high, middle))};
}
#else
HOLON_INLINE F of_bytes(const uint8_t* p) {
  F v;
  for (int i = 0; i < kW; ++i) v[i] = static_cast<float>(static_cast<int8_t>(p[i]));
  return v;
}
struct Halves {
  F low, high;
};
HOLON_INLINE Halves of_half_bytes(const uint8_t* p) {
  Halves h;
  for (int i = 0; i < kW; ++i) {
    h.low[i] = static_cast<float>((p[i] & 15) - 8);
    h.high[i] = static_cast<float>((p[i] >> 4) - 8);
  }
  return h;
}
#endif

HOLON_INLINE float total(F v) {
  return fold_lanes<float>(
      v, [](auto p, auto q) __attribute__((always_inline)) { return p + q; });
}

// Whether groups of this size are whole vectors.
template <int kBits>
HOLON_INLINE bool fits_vectors(int64_t size) {
  return size % (kBits == 4 ? 2 * kW : kW) == 0;
}

// kRows rows of x times kOut outputs, from output j on.
template <int kBits, int kRows, int kOut>
HOLON_INLINE void tile(const QuantizedWeight& w, const float* x, int64_t x_stride, int64_t j, float* y,
                       int64_t y_stride) {
  const int64_t integers = w.size * kBits / 8, bytes = integers + 2, row = w.groups * bytes;
  const uint8_t* p = w.blocks + j * row;
  F sums[kOut][kRows];
  HOLON_UNROLL for (int o = 0; o < kOut; ++o) HOLON_UNROLL for (int r = 0; r < kRows; ++r) sums[o][r] = F{};
  for (int64_t g = 0; g < w.groups; ++g, p += bytes, x += w.size) {
    HOLON_UNROLL for (int o = 0; o < kOut; ++o) {
      const uint8_t* q = p + o * row;
      F group[kRows];
      HOLON_UNROLL for (int r = 0; r < kRows; ++r) group[r] = F{};
      for (int64_t i = 0; i < integers; i += kW) {
        if constexpr (kBits == 4) {
          const Halves h = of_half_bytes(q + i);
          HOLON_UNROLL for (int r = 0; r < kRows; ++r) group[r] +=
              h.low * load(x + r * x_stride + i) + h.high * load(x + r * x_stride + i + integers);
        } else {
          const F v = of_bytes(q + i);
          HOLON_UNROLL for (int r = 0; r < kRows; ++r) group[r] += v * load(x + r * x_stride + i);
        }
      }
      const F scale = scales_of(q + integers);
      HOLON_UNROLL for (int r = 0; r < kRows; ++r) sums[o][r] += group[r] * scale;
    }
  }
  HOLON_UNROLL for (int o = 0; o < kOut; ++o) HOLON_UNROLL for (int r = 0; r < kRows; ++r) y[r * y_stride + j + o] =
      total(sums[o][r]);
}

// Groups of any size: a block's integers become numbers in memory first.
void plain_rows(const QuantizedWeight& w, const float* x, int64_t x_stride, int64_t rows, int64_t begin, int64_t end,
                float* y, int64_t y_stride) {
  constexpr int64_t kPart = 64;
  const int64_t integers = w.size * w.bits / 8, bytes = integers + 2;
  for (int64_t j = begin; j < end; ++j) {
    for (int64_t r = 0; r < rows; ++r) {
      const uint8_t* p = w.blocks + j * w.groups * bytes;
      const float* from = x + r * x_stride;
      float sum = 0;
      for (int64_t g = 0; g < w.groups; ++g, p += bytes, from += w.size) {
        float group = 0;
        for (int64_t i = 0; i < integers; i += kPart) {
          const int64_t n = integers - i < kPart ? integers - i : kPart;
          float v[2 * kPart];
          plain_integers(p + i, w.bits == 4 ? 2 * n : n, w.bits, v);
          for (int64_t c = 0; c < n; ++c) group += v[c] * from[i + c];
          if (w.bits == 4)
            for (int64_t c = 0; c < n; ++c) group += v[n + c] * from[integers + i + c];
        }
        sum += group * scale_of(p + integers);
      }
      y[r * y_stride + j] = sum;
    }
  }
}

template <int kBits, int kRows>
void some_rows(const QuantizedWeight& w, const float* x, int64_t x_stride, int64_t begin, int64_t end, float* y,
               int64_t y_stride) {
  // As many sums as there are registers for.
  constexpr int kOut = kVectorBytes == 64 ? (kRows == 1 ? 4 : kRows == 2 ? 4 : 2) : (kRows <= 2 ? 2 : 1);
  int64_t j = begin;
  for (; j + kOut <= end; j += kOut) tile<kBits, kRows, kOut>(w, x, x_stride, j, y, y_stride);
  for (; j < end; ++j) tile<kBits, kRows, 1>(w, x, x_stride, j, y, y_stride);
}

template <int kBits>
void vector_rows(const QuantizedWeight& w, const float* x, int64_t x_stride, int64_t rows, int64_t begin, int64_t end,
                 float* y, int64_t y_stride) {
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4)
    some_rows<kBits, 4>(w, x + r * x_stride, x_stride, begin, end, y + r * y_stride, y_stride);
  const float* left = x + r * x_stride;
  float* to = y + r * y_stride;
  if (rows - r == 3) some_rows<kBits, 3>(w, left, x_stride, begin, end, to, y_stride);
  if (rows - r == 2) some_rows<kBits, 2>(w, left, x_stride, begin, end, to, y_stride);
  if (rows - r == 1) some_rows<kBits, 1>(w, left, x_stride, begin, end, to, y_stride);
}

void product_rows(const QuantizedWeight& w, const float* x, int64_t x_stride, int64_t rows, int64_t begin, int64_t end,
                  float* y, int64_t y_stride) {
  if (w.bits == 4 && fits_vectors<4>(w.size))
    vector_rows<4>(w, x, x_stride, rows, begin, end, y, y_stride);
  else if (w.bits == 8 && fits_vectors<8>(w.size))
    vector_rows<8>(w, x, x_stride, rows, begin, end, y, y_stride);
  else
    plain_rows(w, x, x_stride, rows, begin, end, y, y_stride);
}

// How numbers are stored; all are finite.
HOLON_INLINE void put(float* to, F v) { store(to, v); }
HOLON_INLINE void put(uint16_t* to, F v) {
  typedef uint32_t U __attribute__((vector_size(kVectorBytes)));
  typedef uint16_t H __attribute__((vector_size(kVectorBytes / 2)));
  const U u = (U)v;
  const H h = __builtin_convertvector((u + 0x7fff + (u >> 16 & 1)) >> 16, H);
  __builtin_memcpy(to, &h, sizeof h);
}
HOLON_INLINE void put_one(float* to, float x) { *to = x; }
HOLON_INLINE void put_one(uint16_t* to, float x) {
  uint32_t u;
  __builtin_memcpy(&u, &x, sizeof u);
  *to = static_cast<uint16_t>((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

template <class T>
void numbers(const uint8_t* p, int64_t n, int64_t size, int bits, T* to) {
  const int64_t integers = size * bits / 8;
  for (int64_t b = 0; b < n; ++b, p += integers + 2, to += size) {
    const float scale = scale_of(p + integers);
    if (bits == 4 && fits_vectors<4>(size)) {
      for (int64_t i = 0; i < integers; i += kW) {
        const Halves h = of_half_bytes(p + i);
        put(to + i, h.low * scale);
        put(to + i + integers, h.high * scale);
      }
    } else if (bits == 8 && fits_vectors<8>(size)) {
      for (int64_t i = 0; i < integers; i += kW) put(to + i, of_bytes(p + i) * scale);
    } else {
      for (int64_t i = 0; i < integers; ++i) {
        float v[2];
        plain_integers(p + i, bits == 4 ? 2 : 1, bits, v);
        put_one(to + i, v[0] * scale);
        if (bits == 4) put_one(to + i + integers, v[1] * scale);
      }
    }
  }
}

}  // namespace

QuantizedLoops quantized_loops() { return {product_rows, numbers<float>, numbers<uint16_t>}; }

}  // namespace holon::kernels::HOLON_ISA
