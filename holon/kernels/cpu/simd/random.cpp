// Random bits and distributions along rows. Compiled for each instruction set, without contraction to fused
// multiply-adds and without the C library: every set gives the same bits.
#define HOLON_UNFUSED
#ifdef __SSE2__
#include <immintrin.h>
#endif

#include "holon/kernels/cpu/table.h"
#include "holon/kernels/cpu/vectors.h"
#include "holon/kernels/random_functors.h"

namespace holon::kernels::HOLON_ISA {

namespace {

using Lanes = Vec<uint64_t>;

HOLON_FN Lanes low_product(Lanes x, uint32_t by) {
#if defined(__AVX512F__)
  // (The plain variant makes GCC 12 warn of its own uninitialised value.)
  return reinterpret_cast<Lanes>(
      _mm512_maskz_mul_epu32(static_cast<__mmask8>(-1), reinterpret_cast<__m512i>(x), _mm512_set1_epi64(by)));
#elif defined(__AVX2__)
  return reinterpret_cast<Lanes>(_mm256_mul_epu32(reinterpret_cast<__m256i>(x), _mm256_set1_epi64x(by)));
#elif defined(__SSE2__)
  return reinterpret_cast<Lanes>(_mm_mul_epu32(reinterpret_cast<__m128i>(x), _mm_set1_epi64x(by)));
#else
  return (x & 0xffffffffu) * by;
#endif
}

struct Vector {
  using Lanes = holon::kernels::HOLON_ISA::Lanes;
  HOLON_FN static Lanes product(Lanes x, uint32_t by) { return low_product(x, by); }
};

// Word w of block b is element 16 w + b, so that vectors are stored as they are.
HOLON_FN void group_of_bits(uint64_t seed, uint64_t counter, uint64_t group, uint32_t* out) {
  constexpr uint32_t width = Simd<uint64_t>::kWidth;
  typedef uint32_t Narrow __attribute__((vector_size(kVectorBytes / 2)));
  const uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  const Lanes zero{};
  Lanes index = zero;
  for (uint32_t i = 0; i < width; ++i) index[i] = i;
  for (uint32_t b = 0; b < 16; b += width) {
    // The sixteen counters of a group do not carry into the upper word.
    const random::Block<Lanes> start = {index + (static_cast<uint32_t>(group * 16) + b), zero + ((group * 16) >> 32),
                                        zero + static_cast<uint32_t>(counter), zero + (counter >> 32)};
    const auto y = random::philox<Vector, 10>(start, k0, k1);
    const Lanes words[] = {y.a, y.b, y.c, y.d};
    for (int w = 0; w < 4; ++w) {
      const Narrow v = __builtin_convertvector(words[w], Narrow);
      __builtin_memcpy(out + 16 * w + b, &v, sizeof v);
    }
  }
}

void random_bits32(uint64_t seed, uint64_t counter, uint64_t first, int64_t groups, void* out) {
  for (int64_t g = 0; g < groups; ++g)
    group_of_bits(seed, counter, first + static_cast<uint64_t>(g), static_cast<uint32_t*>(out) + 64 * g);
}
// Element b and 16 + b of a group of 32 are words 0, 1 and words 2, 3 of block b.
void random_bits64(uint64_t seed, uint64_t counter, uint64_t first, int64_t groups, void* out) {
  uint32_t words[64];
  uint64_t* y = static_cast<uint64_t*>(out);
  for (int64_t g = 0; g < groups; ++g) {
    group_of_bits(seed, counter, first + static_cast<uint64_t>(g), words);
    for (int64_t b = 0; b < 16; ++b) {
      y[32 * g + b] = words[b] | static_cast<uint64_t>(words[16 + b]) << 32;
      y[32 * g + 16 + b] = words[32 + b] | static_cast<uint64_t>(words[48 + b]) << 32;
    }
  }
}

template <class Bits, class T>
void uniform_row(const void* r, const void*, void* out, int64_t n, const RandomNumbers& p) {
  const T low = static_cast<T>(p.a), span = static_cast<T>(p.b) - low, last = static_cast<T>(p.c);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i)
    static_cast<T*>(out)[i] = random::uniform_between<T>(static_cast<const Bits*>(r)[i], low, span, last);
}
template <class Bits, class T>
void normal_row(const void* r, const void*, void* out, int64_t n, const RandomNumbers& p) {
  const T mean = static_cast<T>(p.a), deviation = static_cast<T>(p.b);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i)
    static_cast<T*>(out)[i] = mean + deviation * random::normal(static_cast<const Bits*>(r)[i]);
}
// p.c and p.d: the probabilities of the two ends, in the lower half as far as possible; p.threshold: mirrored.
template <class Bits, class T>
void truncated_row(const void* r, const void*, void* out, int64_t n, const RandomNumbers& p) {
  const random::Truncation t = {p.a, p.b, p.low, p.high, p.c, p.d, p.threshold != 0 ? -1.0 : 1.0};
#pragma omp simd
  for (int64_t i = 0; i < n; ++i)
    static_cast<T*>(out)[i] = random::truncated_normal<T>(static_cast<const Bits*>(r)[i], t);
}
// Bytes: 1 where r < threshold (of 2^32).
void bernoulli_row(const void* r, const void*, void* out, int64_t n, const RandomNumbers& p) {
  const uint32_t last = static_cast<uint32_t>(p.threshold - 1), any = p.threshold != 0;
#pragma omp simd
  for (int64_t i = 0; i < n; ++i)
    static_cast<uint8_t*>(out)[i] = static_cast<uint8_t>((static_cast<const uint32_t*>(r)[i] <= last) & any);
}
// Bytes: 1 with the probability x[i] (float32).
void bernoulli_of_row(const void* r, const void* x, void* out, int64_t n, const RandomNumbers&) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i)
    static_cast<uint8_t*>(out)[i] =
        random::uniform(static_cast<const uint32_t*>(r)[i]) < static_cast<const float*>(x)[i];
}
template <class T>
void dropout_row(const void* r, const void* x, void* out, int64_t n, const RandomNumbers& p) {
  const uint32_t last = static_cast<uint32_t>(p.threshold - 1), any = p.threshold != 0;
  const T scale = static_cast<T>(p.a);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const T v = static_cast<const T*>(x)[i] * scale;
    static_cast<T*>(out)[i] = ((static_cast<const uint32_t*>(r)[i] <= last) & any) != 0 ? T(0) : v;
  }
}

}  // namespace

void fill_random(Table& t) {
  t.random_bits[0] = random_bits32;
  t.random_bits[1] = random_bits64;
  t.uniform[0] = uniform_row<uint32_t, float>;
  t.uniform[1] = uniform_row<uint64_t, double>;
  t.normal[0] = normal_row<uint32_t, float>;
  t.normal[1] = normal_row<uint64_t, double>;
  t.truncated_normal[0] = truncated_row<uint32_t, float>;
  t.truncated_normal[1] = truncated_row<uint64_t, double>;
  t.bernoulli = bernoulli_row;
  t.bernoulli_of = bernoulli_of_row;
  t.dropout[0] = dropout_row<float>;
  t.dropout[1] = dropout_row<double>;
}

}  // namespace holon::kernels::HOLON_ISA
