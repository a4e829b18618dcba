// Element-wise loops of two and three inputs. Compiled for each instruction set.
#include "holon/kernels/cpu/table.h"
#include "holon/kernels/elementwise_functors.h"

namespace holon::kernels::HOLON_ISA {

namespace {

using ops::kFloats, ops::kInts;

template <class T>
void check_divisors(const T* y, int64_t n) {
  int zeros = 0;
#pragma omp simd reduction(+ : zeros)
  for (int64_t i = 0; i < n; ++i) zeros += y[i] == 0;
  if (zeros != 0) fail_division_by_zero();
}

template <class Op, class T, Variant variant>
void binary_row(const void* const* in, void* out, int64_t n, const Number* p) {
  const T* x = static_cast<const T*>(in[0]);
  const T* y = static_cast<const T*>(in[1]);
  auto* z = static_cast<typename Op::template Out<T>*>(out);
  const T p0 = p[0].to<T>(), p1 = p[1].to<T>();
  if constexpr ((Op::types & 4) != 0 && !f::IsFloat<T>::value)
    check_divisors(y, variant == Variant::kVectorScalar ? (n > 0) : n);
  if constexpr (variant == Variant::kVectorVector) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) z[i] = Op::template apply<T>(x[i], y[i], p0, p1);
  } else if constexpr (variant == Variant::kVectorScalar) {
    const T s = *y;
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) z[i] = Op::template apply<T>(x[i], s, p0, p1);
  } else {
    const T s = *x;
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) z[i] = Op::template apply<T>(s, y[i], p0, p1);
  }
}

template <class Op, class T>
void ternary_row(const void* const* in, void* out, int64_t n, const Number* p) {
  const T* x = static_cast<const T*>(in[0]);
  const T* y = static_cast<const T*>(in[1]);
  const T* z = static_cast<const T*>(in[2]);
  T* w = static_cast<T*>(out);
  const T p0 = p[0].to<T>();
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) w[i] = Op::template apply<T>(x[i], y[i], z[i], p0);
}

template <class T>
void select_row(const void* const* in, void* out, int64_t n, const Number*) {
  const uint8_t* c = static_cast<const uint8_t*>(in[0]);
  const T* x = static_cast<const T*>(in[1]);
  const T* y = static_cast<const T*>(in[2]);
  T* z = static_cast<T*>(out);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    T a = x[i], b = y[i];
    z[i] = c[i] != 0 ? a : b;
  }
}

template <class Op>
void fill(RowFn (*row)[kVariantCount]) {
  if constexpr ((Op::types & kFloats) != 0) {
    row[0][0] = binary_row<Op, float, Variant::kVectorVector>;
    row[0][1] = binary_row<Op, float, Variant::kVectorScalar>;
    row[0][2] = binary_row<Op, float, Variant::kScalarVector>;
    row[1][0] = binary_row<Op, double, Variant::kVectorVector>;
  }
  if constexpr ((Op::types & kInts) != 0) {
    row[2][0] = binary_row<Op, int32_t, Variant::kVectorVector>;
    row[3][0] = binary_row<Op, int64_t, Variant::kVectorVector>;
  }
}
template <class Op>
void fill(RowFn* row) {
  if constexpr ((Op::types & kFloats) != 0) {
    row[0] = ternary_row<Op, float>;
    row[1] = ternary_row<Op, double>;
  }
  if constexpr ((Op::types & kInts) != 0) {
    row[2] = ternary_row<Op, int32_t>;
    row[3] = ternary_row<Op, int64_t>;
  }
}

}  // namespace

void fill_binary(Table& t) {
#define HOLON_FILL(name, kinds, result, value) fill<ops::name>(t.binary[static_cast<int>(BinaryOp::name)]);
  HOLON_BINARY_OPS(HOLON_FILL)
#undef HOLON_FILL
#define HOLON_FILL(name, kinds, result, value) fill<ops::name>(t.ternary[static_cast<int>(TernaryOp::name)]);
  HOLON_TERNARY_OPS(HOLON_FILL)
#undef HOLON_FILL
  t.select[0] = select_row<uint8_t>;
  t.select[1] = select_row<uint16_t>;
  t.select[2] = select_row<uint32_t>;
  t.select[3] = select_row<uint64_t>;
}

}  // namespace holon::kernels::HOLON_ISA
