// Philox4x32-10 and the maps from its bits to distributions. Compiled without contraction to fused multiply-adds, on
// every device: the same bits everywhere.
//
// A tensor's elements have their bits in groups of 16 blocks of four words: word w of block b of a group is element 16
// w + b of 64; of numbers of 64 bits, element b and 16 + b of 32 are words 0, 1 and words 2, 3 of block b.
#pragma once

#include "holon/kernels/functors.h"

namespace holon::kernels::HOLON_ISA::random {

using f::bits;
using f::from_bits64;
using f::polynomial;

// Numbers of 32 bits in lanes of 64, whose upper halves are of no account: the products need the room.
template <class Lanes>
struct Block {
  Lanes a, b, c, d;
};
// P::product(lanes, by): of the lower halves.
template <class P, int rounds>
HOLON_FN Block<typename P::Lanes> philox(Block<typename P::Lanes> x, uint32_t k0, uint32_t k1) {
  const typename P::Lanes p = P::product(x.a, 0xD2511F53u), q = P::product(x.c, 0xCD9E8D57u);
  const Block<typename P::Lanes> y = {(q >> 32) ^ x.b ^ k0, q, (p >> 32) ^ x.d ^ k1, p};
  if constexpr (rounds == 1)
    return y;
  else
    return philox<P, rounds - 1>(y, k0 + 0x9E3779B9u, k1 + 0xBB67AE85u);
}

struct OneLane {
  using Lanes = uint64_t;
  HOLON_FN static uint64_t product(uint64_t x, uint32_t by) { return (x & 0xffffffffu) * by; }
};
// Block `number` (16 times its group and on) of the call `counter`.
HOLON_FN Block<uint64_t> block(uint64_t seed, uint64_t counter, uint64_t number) {
  return philox<OneLane, 10>({number & 0xffffffffu, number >> 32, counter & 0xffffffffu, counter >> 32},
                             static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
}

constexpr float kTwoToMinus31 = 4.656612873077392578125e-10f;
constexpr double kTwoToMinus53 = 1.1102230246251565e-16;
constexpr uint64_t kOne = 0x3ff0000000000000ull, kMantissa = 0x000fffffffffffffull;

// [0, 1)
HOLON_FN float uniform(uint32_t r) { return static_cast<float>(static_cast<int32_t>(r >> 8)) * 5.9604644775390625e-8f; }
HOLON_FN double uniform(uint64_t r) { return from_bits64(r >> 12 | kOne) - 1.0; }

// Coefficients, from the constant on.
inline constexpr double kLogD[] = {2.0,
                                   0.66666666666666658,
                                   0.40000000000007601,
                                   0.28571428568787007,
                                   0.22222222681604919,
                                   0.18181773371066692,
                                   0.1538717678484889,
                                   0.13248408049481396,
                                   0.13265318096770012};
inline constexpr float kCentre[] = {2.1233134802227699f,     0.87200506916637981f,    -0.036923285371706443f,
                                    -0.027681603956068934f,  0.012062213412348396f,   -0.00068672493775760964f,
                                    -0.0011959997425165306f, 0.00040407574547843223f, 5.0357118681738352e-5f,
                                    -4.8185923939635635e-5f};
inline constexpr float kEnd[] = {4.7071637820732624f,     1.7906337551538135f,    0.0074709024556575707f,
                                 -0.0058222135369808585f, 0.0036299217784408128f, -0.0033643517182603429f,
                                 0.0031861658152318835f,  -0.0012989566572522618f};
inline constexpr double kCentreD[] = {2.3386207100265933,      1.0613592459410652,     -0.083329093528003617,
                                      -0.031967516159149399,   0.025184826807273888,   -0.0058510460905668392,
                                      -0.0017984444581684793,  0.0017429976416333573,  -0.00037390905234381191,
                                      -0.00016530468409320773, 0.00013204103820313913, -2.125686073026498e-5,
                                      -1.5918658632979031e-5,  1.0095098412621609e-5,  -9.7107718060774062e-7,
                                      -1.5181004759071745e-6,  7.6996374050029796e-7,  7.9217877256127655e-9,
                                      -1.4744888419106265e-7,  3.9718830631875707e-8,  1.2302778182445716e-8,
                                      -5.8525764680008397e-9,  -2.5737320943503756e-11};
inline constexpr double kMiddleD[] = {4.3612728551653304,     1.0662381493574374,     0.0042725363647466153,
                                      -0.0022380510590564423, 0.0011148356543802098,  -0.00056658461534504734,
                                      0.00023994257911987964, -6.7021042512027971e-5, 3.4023783102365833e-6,
                                      7.2473323417046456e-6,  -3.7684754678038727e-6, 7.5183855908726787e-7,
                                      1.3110464204798896e-7,  -1.4205410545111397e-7, 3.7723201264798875e-8,
                                      4.4507210050488001e-9,  -3.822433303259423e-9};
inline constexpr double kEndD[] = {7.3945544527072182,     1.96422238618821,       -0.00087079307588922295,
                                   -0.0004578815063569001, 0.00023795694097603619, -8.2601696508532873e-5,
                                   2.4902581978621159e-5,  -6.9404811348495816e-6, 1.8658116763760784e-6,
                                   -5.9018911964529612e-7, 1.8846852283419138e-7,  2.8550299762031399e-8,
                                   9.6488067136069014e-9,  -9.505621796349722e-8,  4.5604216504739828e-8};

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

// One element of a distribution, with the numbers of RandomNumbers.
template <class T, class Bits>
HOLON_FN T uniform_between(Bits r, T low, T span, T last) {
  T v = low + span * uniform(r);
  return v > last ? last : v;
}
struct Truncation {
  double mean, deviation, low, high;
  double first, last;  // the probabilities of the two ends, in the lower half as far as possible
  double sign;         // -1: mirrored
};
template <class T, class Bits>
HOLON_FN T truncated_normal(Bits r, const Truncation& t) {
  const double q = t.first + (t.last - t.first) * static_cast<double>(uniform(r));
  const bool lower = q < 0.5;
  const double tail = lower ? 2.0 * q : 2.0 * (1.0 - q);
  double z = normal_quantile(1.0 - tail, tail < 1e-300 ? 1e-300 : tail);
  z = lower ? -z : z;
  double v = t.mean + t.deviation * (t.sign * z);
  v = v < t.low ? t.low : v;
  return static_cast<T>(v > t.high ? t.high : v);
}

}  // namespace holon::kernels::HOLON_ISA::random
