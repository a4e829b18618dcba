// Part of functors.h: the functions of float64 that others are built on, branch-free as well; within 3 units in the
// last place. Results below the normal range are 0, as in float32.
#pragma once

namespace holon::kernels::HOLON_ISA::f {

// 1 / n! from n = 2 on: (e^r - 1 - r) / r^2 for |r| <= ln(2)/2 to 1e-18.
inline constexpr double kExp64[] = {1.0 / 2,       1.0 / 6,        1.0 / 24,        1.0 / 120,
                                    1.0 / 720,     1.0 / 5040,     1.0 / 40320,     1.0 / 362880,
                                    1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800};

// x = n ln 2 + r; t holds n in its low bits. ln 2 in two parts, the first with 21 zero bits at its end.
struct Reduced64 {
  double r, t;
};
HOLON_FN Reduced64 reduce_by_ln2(double x) {
  double t = fma(x, 1.4426950408889634, kRoundD);
  double k = t - kRoundD;
  return {fma(-k, 1.9082149292705877e-10, fma(-k, 0.69314718036912381649, x)), t};
}
HOLON_FN double exp(double x) {
  auto [r, t] = reduce_by_ln2(x);
  double v = from_bits64(bits(1.0 + fma(polynomial<kExp64>(r), r * r, r)) + (bits(t) << 52));
  v = x <= 709.78271289338397 ? v : x * __builtin_inf();  // infinity, or NaN for NaN
  return x < -708.39641853226408 ? 0.0 : v;
}
HOLON_FN double expm1(double x) {
  auto [r, t] = reduce_by_ln2(clamp(x, -50.0, 710.0));
  double tail = fma(polynomial<kExp64>(r), r * r, r);
  // 2^n (1 + tail) - 1, with 2^n halved so that n = 1024 does not overflow; tail stays apart where n is 0.
  double half = from_bits64((bits(t) - bits(kRoundD) + 1022) << 52);
  return 2.0 * fma(half, tail, half - 0.5);
}
HOLON_FN double tanh(double x) {
  double e = expm1(clamp(x + x, -50.0, 50.0));
  return e / (e + 2.0);
}

// log(1 + v) by s = v / (2 + v): 2 s + s R(s^2), where R's coefficients are those of Sun's fdlibm (e_log.c).
inline constexpr double kLog64[] = {6.666666666666735130e-01, 3.999999999940941908e-01, 2.857142874366239149e-01,
                                    2.222219843214978396e-01, 1.818357216161805012e-01, 1.531383769920937332e-01,
                                    1.479819860511658591e-01};
HOLON_FN double log(double x) {
  bool tiny = x < 2.2250738585072014e-308;
  double y = tiny ? x * 18014398509481984.0 : x;
  uint64_t b = bits(y) - 0x3fe6a09e667f3bcdull;  // sqrt(1/2)
  double e = static_cast<double>(static_cast<int>(b >> 32) >> 20) - (tiny ? 54.0 : 0.0);
  double v = from_bits64((b & 0x000fffffffffffffull) + 0x3fe6a09e667f3bcdull) - 1.0;
  double s = v / (2.0 + v), z = s * s, half = 0.5 * v * v;
  double r = fma(e, 6.93147180369123816490e-01,
                 v - (half - fma(s, fma(z, polynomial<kLog64>(z), half), e * 1.90821492927058770002e-10)));
  r = x == __builtin_inf() ? x : r;
  r = x == 0.0 ? -__builtin_inf() : r;
  return (x < 0.0) | (x != x) ? __builtin_nan("") : r;
}
HOLON_FN double log1p(double x) {
  double u = 1.0 + x;
  double v = log(u) + (x - (u - 1.0)) / u;
  v = f::abs(x) < 1e-9 ? x - 0.5 * x * x : v;
  return (x == __builtin_inf()) | (u == 0.0) ? log(u) : v;
}

}  // namespace holon::kernels::HOLON_ISA::f
