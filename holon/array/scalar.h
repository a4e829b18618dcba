// A number that keeps its kind: Python's int, float and bool mean different result types.
#pragma once

#include <cstdint>
#include <string>

#include "holon/array/dtype.h"

namespace holon {

class Scalar {
 public:
  enum class Kind : uint8_t { kBool, kInt, kFloat };

  Scalar() : Scalar(int64_t{0}) {}
  Scalar(bool v) : kind_(Kind::kBool), i_(v) {}
  Scalar(int v) : Scalar(static_cast<int64_t>(v)) {}
  Scalar(int64_t v) : kind_(Kind::kInt), i_(v) {}
  Scalar(float v) : Scalar(static_cast<double>(v)) {}
  Scalar(double v) : kind_(Kind::kFloat), f_(v) {}

  // The number itself: what it was made of, and converted.
  Kind kind() const { return kind_; }
  bool is_float() const { return kind_ == Kind::kFloat; }
  double as_double() const { return is_float() ? f_ : static_cast<double>(i_); }
  int64_t as_int() const { return is_float() ? static_cast<int64_t>(f_) : i_; }
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
  Kind kind_;
  union {
    int64_t i_;
    double f_;
  };
};

}  // namespace holon
