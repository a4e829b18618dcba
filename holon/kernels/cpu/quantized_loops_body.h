// The body of products with quantised weights, compiled once per instruction set.
#include "holon/kernels/cpu/quantized_loops.h"
#include "holon/kernels/cpu/vectors.h"

namespace holon::kernels::HOLON_ISA {
namespace {

typedef Vec<float> F;
typedef int32_t I __attribute__((vector_size(kVectorBytes)));
constexpr int kW = Simd<float>::kWidth;

// f<format>().
template <class Call>
HOLON_INLINE void with_format(QuantizedFormat format, Call&& f) {
  if (format == QuantizedFormat::kInt8) return f.template operator()<QuantizedFormat::kInt8>();
  if (format == QuantizedFormat::kInt4) return f.template operator()<QuantizedFormat::kInt4>();
  f.template operator()<QuantizedFormat::kMxfp4>();
}

constexpr bool has_4_bits(QuantizedFormat f) { return f != QuantizedFormat::kInt8; }

// A block's scale, behind its numbers.
HOLON_INLINE float scale_of(const uint8_t* end_of_integers, QuantizedFormat format) {
  if (format == QuantizedFormat::kMxfp4) {
    // 0 is 2^-127, which has no exponent of its own in float32; what it is for NaN nobody makes.
    const uint32_t power = end_of_integers[0] ? static_cast<uint32_t>(end_of_integers[0]) << 23 : 1u << 22;
    float scale;
    __builtin_memcpy(&scale, &power, sizeof scale);
    return scale;
  }
  const uint32_t bits = static_cast<uint32_t>(end_of_integers[0] | end_of_integers[1] << 8) << 16;
  float scale;
  __builtin_memcpy(&scale, &bits, sizeof scale);
  return scale;
}
// The same in each lane. The word that ends with it is loaded, which needs no shift. Pre: two integers at least.
template <QuantizedFormat kFormat>
HOLON_INLINE F scales_of(const uint8_t* end_of_integers) {
  if constexpr (kFormat == QuantizedFormat::kMxfp4) return same(scale_of(end_of_integers, kFormat));
#if HOLON_VECTOR_BYTES > 16
  int32_t bits;
  __builtin_memcpy(&bits, end_of_integers - 2, sizeof bits);
  return (F)((bits - I{}) & static_cast<int32_t>(0xffff0000));
#else
  return same(scale_of(end_of_integers, kFormat));
#endif
}

// The number that 4 bits are.
HOLON_INLINE float number_of(int code, QuantizedFormat format) {
  return format == QuantizedFormat::kMxfp4 ? from_float4(code) : static_cast<float>(code - 8);
}

// One block's numbers without their scale, of any size.
HOLON_INLINE void plain_numbers(const uint8_t* p, int64_t size, QuantizedFormat format, float* to) {
  if (!has_4_bits(format)) {
    for (int64_t i = 0; i < size; ++i) to[i] = static_cast<float>(static_cast<int8_t>(p[i]));
    return;
  }
  for (int64_t i = 0; i < size / 2; ++i) {
    to[i] = number_of(p[i] & 15, format);
    to[i + size / 2] = number_of(p[i] >> 4, format);
  }
}

// kW bytes as numbers; of 4 bits, those in the lower halves and in the upper ones.
struct Halves {
  F low, high;
};
#if HOLON_VECTOR_BYTES == 64
HOLON_INLINE F of_bytes(const uint8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
template <QuantizedFormat kFormat>
HOLON_INLINE Halves of_half_bytes(const uint8_t* p) {
  // The permutation looks at the lower four bits only.
  const __m512 numbers = kFormat == QuantizedFormat::kMxfp4
      ? _mm512_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6)
      : _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
  const __m512i v = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return {_mm512_permutexvar_ps(v, numbers), _mm512_permutexvar_ps(_mm512_srli_epi32(v, 4), numbers)};
}
#elif HOLON_VECTOR_BYTES == 32
HOLON_INLINE F of_bytes(const uint8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
template <QuantizedFormat kFormat>
HOLON_INLINE Halves of_half_bytes(const uint8_t* p) {
  if constexpr (kFormat == QuantizedFormat::kMxfp4) {
    // The permutation looks at the lower three bits only, the magnitude; the fourth is the sign.
    const __m256 magnitudes = _mm256_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6);
    const __m256i v = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
    const __m256i upper = _mm256_srli_epi32(v, 4), sign = _mm256_set1_epi32(8);
    auto signed_number = [&](__m256i code) __attribute__((always_inline)) {
      const __m256i bit = _mm256_slli_epi32(_mm256_and_si256(code, sign), 28);
      return _mm256_xor_ps(_mm256_permutevar8x32_ps(magnitudes, code), _mm256_castsi256_ps(bit));
    };
    return {signed_number(v), signed_number(upper)};
  }
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
template <QuantizedFormat kFormat>
HOLON_INLINE Halves of_half_bytes(const uint8_t* p) {
  Halves h;
  for (int i = 0; i < kW; ++i) {
    h.low[i] = number_of(p[i] & 15, kFormat);
    h.high[i] = number_of(p[i] >> 4, kFormat);
  }
  return h;
}
#endif

HOLON_INLINE float total(F v) {
  return fold_lanes<float>(
      v, [](auto p, auto q) __attribute__((always_inline)) { return p + q; });
}

// Whether groups of this size are whole vectors.
template <QuantizedFormat kFormat>
HOLON_INLINE bool fits_vectors(int64_t size) {
  return size % (has_4_bits(kFormat) ? 2 * kW : kW) == 0;
}

// kRows rows of x times kOut outputs, from output j on.
template <QuantizedFormat kFormat, int kRows, int kOut>
HOLON_INLINE void tile(const QuantizedWeight& w, const float* x, int64_t x_stride, int64_t j, float* y,
                       int64_t y_stride) {
  const int64_t integers = w.size * quantized_bits(kFormat) / 8, bytes = quantized_block_bytes(w.size, kFormat),
                row = w.groups * bytes;
  const uint8_t* p = w.blocks + j * row;
  F sums[kOut][kRows];
  HOLON_UNROLL for (int o = 0; o < kOut; ++o) HOLON_UNROLL for (int r = 0; r < kRows; ++r) sums[o][r] = F{};
  for (int64_t g = 0; g < w.groups; ++g, p += bytes, x += w.size) {
    HOLON_UNROLL for (int o = 0; o < kOut; ++o) {
      const uint8_t* q = p + o * row;
      F group[kRows];
      HOLON_UNROLL for (int r = 0; r < kRows; ++r) group[r] = F{};
      for (int64_t i = 0; i < integers; i += kW) {
        if constexpr (has_4_bits(kFormat)) {
          const Halves h = of_half_bytes<kFormat>(q + i);
          HOLON_UNROLL for (int r = 0; r < kRows; ++r) group[r] +=
              h.low * load(x + r * x_stride + i) + h.high * load(x + r * x_stride + i + integers);
        } else {
          const F v = of_bytes(q + i);
          HOLON_UNROLL for (int r = 0; r < kRows; ++r) group[r] += v * load(x + r * x_stride + i);
        }
      }
      const F scale = scales_of<kFormat>(q + integers);
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
  const int64_t integers = w.size * quantized_bits(w.format) / 8, bytes = quantized_block_bytes(w.size, w.format);
  const bool half = has_4_bits(w.format);
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
          plain_numbers(p + i, half ? 2 * n : n, w.format, v);
          for (int64_t c = 0; c < n; ++c) group += v[c] * from[i + c];
          if (half)
            for (int64_t c = 0; c < n; ++c) group += v[n + c] * from[integers + i + c];
        }
        sum += group * scale_of(p + integers, w.format);
      }
      y[r * y_stride + j] = sum;
    }
  }
}

template <QuantizedFormat kFormat, int kRows>
void some_rows(const QuantizedWeight& w, const float* x, int64_t x_stride, int64_t begin, int64_t end, float* y,
               int64_t y_stride) {
  // As many sums as there are registers for.
  constexpr int kOut = kVectorBytes == 64 ? (kRows == 1 ? 4 : kRows == 2 ? 4 : 2) : (kRows <= 2 ? 2 : 1);
  int64_t j = begin;
  for (; j + kOut <= end; j += kOut) tile<kFormat, kRows, kOut>(w, x, x_stride, j, y, y_stride);
  for (; j < end; ++j) tile<kFormat, kRows, 1>(w, x, x_stride, j, y, y_stride);
}

template <QuantizedFormat kFormat>
void vector_rows(const QuantizedWeight& w, const float* x, int64_t x_stride, int64_t rows, int64_t begin, int64_t end,
                 float* y, int64_t y_stride) {
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4)
    some_rows<kFormat, 4>(w, x + r * x_stride, x_stride, begin, end, y + r * y_stride, y_stride);
  const float* left = x + r * x_stride;
  float* to = y + r * y_stride;
  if (rows - r == 3) some_rows<kFormat, 3>(w, left, x_stride, begin, end, to, y_stride);
  if (rows - r == 2) some_rows<kFormat, 2>(w, left, x_stride, begin, end, to, y_stride);
  if (rows - r == 1) some_rows<kFormat, 1>(w, left, x_stride, begin, end, to, y_stride);
}

void product_rows(const QuantizedWeight& w, const float* x, int64_t x_stride, int64_t rows, int64_t begin, int64_t end,
                  float* y, int64_t y_stride) {
  with_format(w.format, [&]<QuantizedFormat kFormat>() {
    if (fits_vectors<kFormat>(w.size))
      vector_rows<kFormat>(w, x, x_stride, rows, begin, end, y, y_stride);
    else
      plain_rows(w, x, x_stride, rows, begin, end, y, y_stride);
  });
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

template <QuantizedFormat kFormat, class T>
void numbers_of(const uint8_t* p, int64_t n, int64_t size, T* to) {
  const int64_t integers = size * quantized_bits(kFormat) / 8, bytes = quantized_block_bytes(size, kFormat);
  for (int64_t b = 0; b < n; ++b, p += bytes, to += size) {
    const float scale = scale_of(p + integers, kFormat);
    if (!fits_vectors<kFormat>(size)) {
      for (int64_t i = 0; i < integers; ++i) {
        float v[2];
        plain_numbers(p + i, has_4_bits(kFormat) ? 2 : 1, kFormat, v);
        put_one(to + i, v[0] * scale);
        if (has_4_bits(kFormat)) put_one(to + i + integers, v[1] * scale);
      }
    } else if constexpr (has_4_bits(kFormat)) {
      for (int64_t i = 0; i < integers; i += kW) {
        const Halves h = of_half_bytes<kFormat>(p + i);
        put(to + i, h.low * scale);
        put(to + i + integers, h.high * scale);
      }
    } else {
      for (int64_t i = 0; i < integers; i += kW) put(to + i, of_bytes(p + i) * scale);
    }
  }
}

template <class T>
void numbers(const uint8_t* p, int64_t n, int64_t size, QuantizedFormat format, T* to) {
  with_format(format, [&]<QuantizedFormat kFormat>() { numbers_of<kFormat>(p, n, size, to); });
}

}  // namespace

QuantizedLoops quantized_loops() { return {product_rows, numbers<float>, numbers<uint16_t>}; }

}  // namespace holon::kernels::HOLON_ISA
