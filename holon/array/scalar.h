// A number that keeps its kind: Python's int, float and bool mean different result types.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

#include "holon/array/dtype.h"
#include "holon/base/integer.h"
#include "holon/base/print.h"

namespace holon {

class Scalar {
 public:
  enum class Kind : uint8_t { kBool, kInt, kFloat };

  Scalar() : Scalar(int64_t{0}) {}
  // bool itself, to which pointers do not convert: x + "abc" does not compile.
  template <std::same_as<bool> T>
  Scalar(T v) : kind_(Kind::kBool), i_(v) {}
  // Errors (ValueError): a value beyond int64.
  template <Integer T>
  Scalar(T v) : kind_(Kind::kInt), i_(static_cast<int64_t>(v)) {
    if (!std::in_range<int64_t>(v)) [[unlikely]]
      beyond(static_cast<uint64_t>(v));
  }
  template <std::floating_point T>
  Scalar(T v) : kind_(Kind::kFloat), f_(static_cast<double>(v)) {}
  Scalar(BFloat16 v) : Scalar(static_cast<float>(v)) {}
  Scalar(Float16 v) : Scalar(static_cast<float>(v)) {}

  // The number itself: what it was made of, and converted.
  Kind kind() const { return kind_; }
  bool is_float() const { return kind_ == Kind::kFloat; }
  double as_double() const { return is_float() ? f_ : static_cast<double>(i_); }
  int64_t as_int() const { return is_float() ? static_cast<int64_t>(f_) : i_; }
  // As a number of C++: towards 0 for an integer; bool is whether it is not 0. Errors (ValueError): T does not hold it.
  template <class T>
  requires std::is_arithmetic_v<T> T to()
  const {
    if constexpr (std::same_as<T, bool>) {
      return as_double() != 0;
    } else if constexpr (std::floating_point<T>) {
      return static_cast<T>(as_double());
    } else {
      // 2^63 and beyond, and NaN, do not fit into int64.
      if (is_float() && !(f_ >= -0x1p63 && f_ < 0x1p63)) does_not_fit(sizeof(T), std::is_signed_v<T>);
      const int64_t i = as_int();
      if (!std::in_range<T>(i)) does_not_fit(sizeof(T), std::is_signed_v<T>);
      return static_cast<T>(i);
    }
  }
  // The element type that a tensor made from this number has.
  DType dtype() const { return is_float() ? float32 : kind_ == Kind::kInt ? int64 : boolean; }
  // The result type of an op between a tensor of type t and this number: the number only lifts the category.
  DType promote_with(DType t) const {
    if (is_float()) return is_floating(t) ? t : float32;
    if (kind_ == Kind::kInt) return t == boolean ? int64 : t;
    return t;
  }
  std::string str() const { return is_float() ? std::to_string(f_) : std::to_string(i_); }

  bool operator==(const Scalar& o) const { return kind_ == o.kind_ && (is_float() ? f_ == o.f_ : i_ == o.i_); }

 private:
  [[noreturn]] static void beyond(uint64_t value);
  [[noreturn]] void does_not_fit(size_t bytes, bool is_signed) const;
  Kind kind_;
  union {
    int64_t i_;
    double f_;
  };
};

}  // namespace holon
