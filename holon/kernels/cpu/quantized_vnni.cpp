#include "holon/kernels/cpu/quantized_vnni.h"

#include <immintrin.h>

namespace holon::kernels {

namespace {

constexpr int64_t kGroup = 32, kPacked = kGroup / 2;

// The scales of two blocks, each in its half of the lanes.
template <QuantizedFormat kFormat>
inline __m512 scales_of(const uint8_t* a, const uint8_t* b) {
  // Words that end with the scale: bfloat16 is the upper half of float32, and an exponent its bits from 23 on.
  const uint8_t *end_a = a + kPacked + quantized_scale_bytes(kFormat) - 4,
                *end_b = b + kPacked + quantized_scale_bytes(kFormat) - 4;
  int32_t word_a, word_b;
  __builtin_memcpy(&word_a, end_a, sizeof word_a);
  __builtin_memcpy(&word_b, end_b, sizeof word_b);
  __m512i words = _mm512_mask_set1_epi32(_mm512_set1_epi32(word_a), 0xff00, word_b);
  if constexpr (kFormat == QuantizedFormat::kMxfp4)
    words = _mm512_slli_epi32(_mm512_srli_epi32(words, 24), 23);  // 2^-127 counts as 0
  else
    words = _mm512_and_si512(words, _mm512_set1_epi32(static_cast<int32_t>(0xffff0000)));
  return _mm512_castsi512_ps(words);
}

// Two blocks' codes as unsigned bytes, each in its half: the 16 of the lower halves of bytes, then the others.
template <QuantizedFormat kFormat>
inline __m512i codes_of_blocks(const uint8_t* a, const uint8_t* b) {
  const __m128i first = _mm_loadu_si128(reinterpret_cast<const __m128i*>(a)),
                second = _mm_loadu_si128(reinterpret_cast<const __m128i*>(b));
  __m512i v = _mm512_mask_broadcast_i32x4(_mm512_broadcast_i32x4(first), 0xff00, second);
  v = _mm512_srlv_epi64(v, _mm512_setr_epi64(0, 0, 4, 4, 0, 0, 4, 4));
  v = _mm512_and_si512(v, _mm512_set1_epi8(15));
  if constexpr (kFormat == QuantizedFormat::kMxfp4) {
    const __m512i twice =
        _mm512_broadcast_i32x4(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
    v = _mm512_shuffle_epi8(twice, v);
  }
  return v;
}

// Memory is requested so many bytes before it is read: rows of a weight are too short for the processor to foresee it.
constexpr int64_t kAhead = 2048;

// Blocks are read one after the other, two at a time, so that memory is, too.
template <QuantizedFormat kFormat>
void products(const QuantizedWeight& w, const ByteRow& x, int64_t begin, int64_t end, float* y) {
  constexpr int64_t bytes = quantized_block_bytes(kGroup, kFormat);
  const uint8_t* p = w.blocks + begin * w.groups * bytes;
  for (int64_t j = begin; j < end; ++j) {
    __m512 sum = _mm512_setzero_ps();
    for (int64_t g = 0, i = 0; g < w.groups; g += 2, ++i) {
      // The last one of an odd number is multiplied by zeros, too.
      const uint8_t* next = g + 1 < w.groups ? p + bytes : p;
      _mm_prefetch(reinterpret_cast<const char*>(p + kAhead), _MM_HINT_T0);
      const __m512i numbers = _mm512_loadu_si512(x.integers + i * 2 * kGroup);
      const __m512i dot =
          _mm512_dpbusd_epi32(_mm512_loadu_si512(x.starts + i * 16), codes_of_blocks<kFormat>(p, next), numbers);
      const __m512 scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(dot), _mm512_loadu_ps(x.scales + i * 16));
      sum = _mm512_fmadd_ps(scaled, scales_of<kFormat>(p, next), sum);
      p = next + bytes;
    }
    y[j] = _mm512_reduce_add_ps(sum);
  }
}

}  // namespace

void byte_products(const QuantizedWeight& w, const ByteRow& x, int64_t begin, int64_t end, float* y) {
  if (w.format == QuantizedFormat::kMxfp4) return products<QuantizedFormat::kMxfp4>(w, x, begin, end, y);
  products<QuantizedFormat::kInt4>(w, x, begin, end, y);
}

}  // namespace holon::kernels
