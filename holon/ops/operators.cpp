// The operators of Tensor (holon/tensor/tensor.h, holon/ops/operators.h), each one of the ops.
#include "holon/ops/operators.h"

#include "holon/ops/arithmetic.h"
#include "holon/ops/compare.h"
#include "holon/ops/indexing.h"
#include "holon/ops/unary.h"

namespace holon {

Tensor Tensor::operator+(const Tensor& o) const { return add(*this, o); }
Tensor Tensor::operator-(const Tensor& o) const { return sub(*this, o); }
Tensor Tensor::operator*(const Tensor& o) const { return mul(*this, o); }
Tensor Tensor::operator/(const Tensor& o) const { return div(*this, o); }
Tensor Tensor::operator+(Scalar s) const { return add(*this, s); }
Tensor Tensor::operator-(Scalar s) const { return sub(*this, s); }
Tensor Tensor::operator*(Scalar s) const { return mul(*this, s); }
Tensor Tensor::operator/(Scalar s) const { return div(*this, s); }
Tensor Tensor::operator-() const { return neg(*this); }

Tensor& Tensor::operator+=(const Tensor& o) { return *this = add_(*this, o); }
Tensor& Tensor::operator-=(const Tensor& o) { return *this = sub_(*this, o); }
Tensor& Tensor::operator*=(const Tensor& o) { return *this = mul_(*this, o); }
Tensor& Tensor::operator/=(const Tensor& o) { return *this = div_(*this, o); }
Tensor& Tensor::operator+=(Scalar s) { return *this = add_(*this, s); }
Tensor& Tensor::operator-=(Scalar s) { return *this = sub_(*this, s); }
Tensor& Tensor::operator*=(Scalar s) { return *this = mul_(*this, s); }
Tensor& Tensor::operator/=(Scalar s) { return *this = div_(*this, s); }

Tensor Tensor::operator==(const Tensor& o) const { return eq(*this, o); }
Tensor Tensor::operator!=(const Tensor& o) const { return ne(*this, o); }
Tensor Tensor::operator<(const Tensor& o) const { return lt(*this, o); }
Tensor Tensor::operator<=(const Tensor& o) const { return le(*this, o); }
Tensor Tensor::operator>(const Tensor& o) const { return gt(*this, o); }
Tensor Tensor::operator>=(const Tensor& o) const { return ge(*this, o); }
Tensor Tensor::operator==(Scalar s) const { return eq(*this, s); }
Tensor Tensor::operator!=(Scalar s) const { return ne(*this, s); }
Tensor Tensor::operator<(Scalar s) const { return lt(*this, s); }
Tensor Tensor::operator<=(Scalar s) const { return le(*this, s); }
Tensor Tensor::operator>(Scalar s) const { return gt(*this, s); }
Tensor Tensor::operator>=(Scalar s) const { return ge(*this, s); }

Tensor operator+(Scalar s, const Tensor& x) { return x + s; }
Tensor operator-(Scalar s, const Tensor& x) { return sub(x, s, {.reverse = true}); }
Tensor operator*(Scalar s, const Tensor& x) { return x * s; }
Tensor operator/(Scalar s, const Tensor& x) { return div(x, s, {.reverse = true}); }
Tensor operator==(Scalar s, const Tensor& x) { return eq(x, s); }
Tensor operator!=(Scalar s, const Tensor& x) { return ne(x, s); }
Tensor operator<(Scalar s, const Tensor& x) { return gt(x, s); }
Tensor operator<=(Scalar s, const Tensor& x) { return ge(x, s); }
Tensor operator>(Scalar s, const Tensor& x) { return lt(x, s); }
Tensor operator>=(Scalar s, const Tensor& x) { return le(x, s); }

Tensor Tensor::operator[](const indexing::Index& key) const { return index(*this, {key}); }
Tensor Tensor::operator[](std::initializer_list<indexing::Index> key) const { return index(*this, key); }

}  // namespace holon
