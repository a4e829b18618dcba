// A number given as an argument: exact as int64 if it was an integer, and as double.
#pragma once

#include <concepts>
#include <cstdint>
#include <type_traits>

namespace holon::kernels {

struct Scalar {
  double d = 0;
  int64_t i = 0;
  bool integral = true;

  constexpr Scalar() = default;
  template <std::integral T>
  constexpr Scalar(T v) : d(static_cast<double>(v)), i(static_cast<int64_t>(v)), integral(true) {}
  template <std::floating_point T>
  constexpr Scalar(T v) : d(v), i(clipped(v)), integral(false) {}

  // From the tensors' Scalar (array/scalar.h), which the vector loops do not include.
  template <class S>
    requires requires(const S& s) { s.is_float(); s.as_double(); s.as_int(); }
  Scalar(const S& s) : Scalar() {
    if (s.is_float()) *this = Scalar(s.as_double());
    else *this = Scalar(s.as_int());
  }

  template <class T>
  [[gnu::always_inline]] constexpr T to() const {
    if constexpr (std::is_same_v<T, bool>)
      return integral ? i != 0 : d != 0;
    else if constexpr (std::is_floating_point_v<T>)
      return static_cast<T>(d);
    else
      return static_cast<T>(i);
  }

 private:
  // Truncation, at the ends of int64 for values beyond them; 0 for NaN.
  static constexpr int64_t clipped(double v) {
    if (v != v) return 0;
    if (v >= 9223372036854775807.0) return INT64_MAX;
    if (v <= -9223372036854775808.0) return INT64_MIN;
    return static_cast<int64_t>(v);
  }
};

}  // namespace holon::kernels
