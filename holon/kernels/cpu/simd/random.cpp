// Philox4x32-10 and the maps from its bits to distributions. Compiled for each instruction set, without contraction to
// fused multiply-adds and without the C library: every set gives the same bits.
#ifdef __SSE2__
#include <immintrin.h>
#endif

#include "holon/kernels/cpu/simd/vec.h"
#include "holon/kernels/cpu/table.h"

namespace holon::kernels::HOLON_ISA {

namespace {

using f::bits;
using f::from_bits64;
using f::polynomial;

// Numbers of 32 bits in lanes of 64, whose upper halves are of no account: the products of Philox need the room.
using Lanes = Vec<uint64_t>;

HOLON_FN Lanes product(Lanes x, uint32_t by) {
#if defined(__AVX512F__)
  // (The plain form makes GCC 12 warn of its own uninitialised value.)
  return reinterpret_cast<Lanes>(_mm512_maskz_mul_epu32(static_cast<__mmask8>(-1), reinterpret_cast<__m512i>(x), _mm512_set1_epi64(by)));
#elif defined(__AVX2__)
  return reinterpret_cast<Lanes>(_mm256_mul_epu32(reinterpret_cast<__m256i>(x), _mm256_set1_epi64x(by)));
#elif defined(__SSE2__)
  return reinterpret_cast<Lanes>(_mm_mul_epu32(reinterpret_cast<__m128i>(x), _mm_set1_epi64x(by)));
#else
  return (x & 0xffffffffu) * by;
#endif
}

struct Block {
  Lanes a, b, c, d;
};
template <int rounds>
HOLON_FN Block philox(Block x, uint32_t k0, uint32_t k1) {
  const Lanes p = product(x.a, 0xD2511F53u), q = product(x.c, 0xCD9E8D57u);
  const Block y = {(q >> 32) ^ x.b ^ k0, q, (p >> 32) ^ x.d ^ k1, p};
  if constexpr (rounds == 1)
    return y;
  else
    return philox<rounds - 1>(y, k0 + 0x9E3779B9u, k1 + 0xBB67AE85u);
}

// A group is 16 blocks: word w of block b is element 16 w + b, so that vectors are stored as they are.
HOLON_FN void group_of_bits(uint64_t seed, uint64_t counter, uint64_t group, uint32_t* out) {
  constexpr uint32_t width = VecOf<uint64_t>::width;
  typedef uint32_t Narrow __attribute__((vector_size(kVecBytes / 2)));
  const uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  const Lanes zero{};
  Lanes index = zero;
  for (uint32_t i = 0; i < width; ++i) index[i] = i;
  for (uint32_t b = 0; b < 16; b += width) {
    // The sixteen counters of a group do not carry into the upper word.
    const Block start = {index + (static_cast<uint32_t>(group * 16) + b), zero + ((group * 16) >> 32),
                         zero + static_cast<uint32_t>(counter), zero + (counter >> 32)};
    const Block y = philox<10>(start, k0, k1);
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

constexpr float kTwoToMinus31 = 4.656612873077392578125e-10f;
constexpr double kTwoToMinus53 = 1.1102230246251565e-16;
constexpr uint64_t kOne = 0x3ff0000000000000ull, kMantissa = 0x000fffffffffffffull;

// [0, 1)
HOLON_FN float uniform(uint32_t r) { return static_cast<float>(static_cast<int32_t>(r >> 8)) * 5.9604644775390625e-8f; }
HOLON_FN double uniform(uint64_t r) { return from_bits64(r >> 12 | kOne) - 1.0; }

// Coefficients, from the constant on.
inline constexpr double kLogD[] = {2.0, 0.66666666666666658, 0.40000000000007601, 0.28571428568787007,
    0.22222222681604919, 0.18181773371066692, 0.1538717678484889, 0.13248408049481396, 0.13265318096770012};
inline constexpr float kCentre[] = {2.1233134802227699f, 0.87200506916637981f, -0.036923285371706443f,
    -0.027681603956068934f, 0.012062213412348396f, -0.00068672493775760964f, -0.0011959997425165306f,
    0.00040407574547843223f, 5.0357118681738352e-5f, -4.8185923939635635e-5f};
inline constexpr float kEnd[] = {4.7071637820732624f, 1.7906337551538135f, 0.0074709024556575707f,
    -0.0058222135369808585f, 0.0036299217784408128f, -0.0033643517182603429f, 0.0031861658152318835f,
    -0.0012989566572522618f};
inline constexpr double kCentreD[] = {2.3386207100265933, 1.0613592459410652, -0.083329093528003617,
    -0.031967516159149399, 0.025184826807273888, -0.0058510460905668392, -0.0017984444581684793, 0.0017429976416333573,
    -0.00037390905234381191, -0.00016530468409320773, 0.00013204103820313913, -2.125686073026498e-5,
    -1.5918658632979031e-5, 1.0095098412621609e-5, -9.7107718060774062e-7, -1.5181004759071745e-6,
    7.6996374050029796e-7, 7.9217877256127655e-9, -1.4744888419106265e-7, 3.9718830631875707e-8, 1.2302778182445716e-8,
    -5.8525764680008397e-9, -2.5737320943503756e-11};
inline constexpr double kMiddleD[] = {4.3612728551653304, 1.0662381493574374, 0.0042725363647466153,
    -0.0022380510590564423, 0.0011148356543802098, -0.00056658461534504734, 0.00023994257911987964,
    -6.7021042512027971e-5, 3.4023783102365833e-6, 7.2473323417046456e-6, -3.7684754678038727e-6, 7.5183855908726787e-7,
    1.3110464204798896e-7, -1.4205410545111397e-7, 3.7723201264798875e-8, 4.4507210050488001e-9, -3.822433303259423e-9};
inline constexpr double kEndD[] = {7.3945544527072182, 1.96422238618821, -0.00087079307588922295,
    -0.0004578815063569001, 0.00023795694097603619, -8.2601696508532873e-5, 2.4902581978621159e-5,
    -6.9404811348495816e-6, 1.8658116763760784e-6, -5.9018911964529612e-7, 1.8846852283419138e-7, 2.8550299762031399e-8,
    9.6488067136069014e-9, -9.505621796349722e-8, 4.5604216504739828e-8};

// The natural logarithm of a positive normal number.
HOLON_FN double log_plain(double x) {
  const uint64_t b = bits(x) - 0x3fe6a09e667f3bcdull;
  const double e = static_cast<double>(static_cast<int>(b >> 32) >> 20);
  const double m = from_bits64((b & kMantissa) + 0x3fe6a09e667f3bcdull);
  const double s = (m - 1.0) / (m + 1.0), t = s * s;
  const double p = polynomial<kLogD>(t);
  return e * 0.69314718036912381649 + (s * p + e * 1.90821492927058770002e-10);
}

// The quantile of the normal distribution at (1 + y) / 2, where tail = 1 - y is given apart: y times a function of
// -log(1 - y^2), fitted to the inverse error function.
HOLON_FN float normal_quantile(float y, float tail) {
  const float w = -f::log_positive(tail * (1.f + y));
  const float u = (w - 2.5f) * 0.4f;
  const float c = polynomial<kCentre>(u);
  // s in [sqrt(5), 4.75]
  const float v = (f::sqrt(w) - 3.493033988749895f) * 0.795566460f;
  const float t = polynomial<kEnd>(v);
  return y * (w < 5.f ? c : t);
}
HOLON_FN double normal_quantile(double y, double tail) {
  const double w = -log_plain(tail * (1.0 + y)), s = f::sqrt(w);
  const double u = (w - 3.125) * 0.32;
  const double c = polynomial<kCentreD>(u);
  const double v = (s - 3.25) * 1.3333333333333333;
  const double d = polynomial<kMiddleD>(v);
  const double z = (s - 5.375) * 0.72727272727272727;
  const double t = polynomial<kEndD>(z);
  const double far = s < 4.0 ? d : t;
  return y * (w < 6.25 ? c : far);
}

HOLON_FN float normal(uint32_t r) {
  const int32_t m = static_cast<int32_t>(r & 0x7fffffffu);
  const float tail = (static_cast<float>(m) + 0.5f) * kTwoToMinus31;
  const float y = (static_cast<float>(0x7fffffff - m) + 0.5f) * kTwoToMinus31;
  const float z = normal_quantile(y, tail);
  return r >> 31 != 0 ? -z : z;
}
HOLON_FN double normal(uint64_t r) {
  // (m + 1/2) / 2^52 is exact.
  const double tail = from_bits64((r & kMantissa) | kOne) - (1.0 - kTwoToMinus53);
  const double y = from_bits64((~r & kMantissa) | kOne) - (1.0 - kTwoToMinus53);
  const double z = normal_quantile(y, tail);
  return r >> 63 != 0 ? -z : z;
}

template <class Bits, class T>
void uniform_row(const void* r, const void*, void* out, int64_t n, const RandomNumbers& p) {
  const T low = static_cast<T>(p.a), span = static_cast<T>(p.b) - low, last = static_cast<T>(p.c);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    T v = low + span * uniform(static_cast<const Bits*>(r)[i]);
    static_cast<T*>(out)[i] = v > last ? last : v;
  }
}
template <class Bits, class T>
void normal_row(const void* r, const void*, void* out, int64_t n, const RandomNumbers& p) {
  const T mean = static_cast<T>(p.a), deviation = static_cast<T>(p.b);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) static_cast<T*>(out)[i] = mean + deviation * normal(static_cast<const Bits*>(r)[i]);
}
// p.c and p.d: the probabilities of the two ends, in the lower half as far as possible; p.threshold: mirrored.
template <class Bits, class T>
void truncated_row(const void* r, const void*, void* out, int64_t n, const RandomNumbers& p) {
  const double sign = p.threshold != 0 ? -1.0 : 1.0;
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const double q = p.c + (p.d - p.c) * static_cast<double>(uniform(static_cast<const Bits*>(r)[i]));
    const bool lower = q < 0.5;
    const double tail = lower ? 2.0 * q : 2.0 * (1.0 - q);
    double z = normal_quantile(1.0 - tail, tail < 1e-300 ? 1e-300 : tail);
    z = lower ? -z : z;
    double v = p.a + p.b * (sign * z);
    v = v < p.low ? p.low : v;
    static_cast<T*>(out)[i] = static_cast<T>(v > p.high ? p.high : v);
  }
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
    static_cast<uint8_t*>(out)[i] = uniform(static_cast<const uint32_t*>(r)[i]) < static_cast<const float*>(x)[i];
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
