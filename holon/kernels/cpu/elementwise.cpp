#include "holon/kernels/elementwise.h"

#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/base/parallel.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/cpu/loops.h"
#include "holon/kernels/device.h"

namespace holon::kernels {

namespace {

constexpr bool kSame = false, kBool = true;
constexpr int kFloats = 1, kInts = 2, kAll = 3, kDivides = 7;
#define HOLON_NAME(name, types, result, value) #name,
#define HOLON_RESULT(name, types, result, value) result,
#define HOLON_TYPES(name, types, result, value) types,
constexpr const char* kUnaryNames[] = {HOLON_UNARY_OPS(HOLON_NAME)};
constexpr const char* kBinaryNames[] = {HOLON_BINARY_OPS(HOLON_NAME)};
constexpr const char* kTernaryNames[] = {HOLON_TERNARY_OPS(HOLON_NAME)};
constexpr bool kUnaryGivesBool[] = {HOLON_UNARY_OPS(HOLON_RESULT)};
constexpr bool kBinaryGivesBool[] = {HOLON_BINARY_OPS(HOLON_RESULT)};
constexpr int kUnaryTypes[] = {HOLON_UNARY_OPS(HOLON_TYPES)};
constexpr int kBinaryTypes[] = {HOLON_BINARY_OPS(HOLON_TYPES)};
constexpr int kTernaryTypes[] = {HOLON_TERNARY_OPS(HOLON_TYPES)};

[[noreturn]] void fail_dtype(const char* op, DType dtype) {
  fail_type("{} is not defined for {}. Convert the input to {} first.", op, holon::name(dtype),
            is_floating(dtype) ? "an integer type" : "a floating-point type");
}

bool is_compute_type(DType dtype) { return dtype_of(compute_type(dtype)) == dtype; }

// The dtype that the row function writes.
DType out_compute(DType in, bool gives_bool) { return gives_bool ? DType::kBool : dtype_of(compute_type(in)); }

void check_types(const char* op, int types, DType dtype) {
  if ((types & (is_floating(dtype) ? kFloats : kInts)) == 0) fail_dtype(op, dtype);
}

void check_out(const char* op, DType in, const Array& out, bool gives_bool) {
  HOLON_CHECK(out.dtype == (gives_bool ? DType::kBool : in), "{}: the output is {}, the inputs are {}", op,
              holon::name(out.dtype), holon::name(in));
}

// Same shape and one block each: the operands can be seen as flat rows.
bool same_layout(const Array& a, const Array& out) {
  return a.shape == out.shape && (a.strides == out.strides || a.is_contiguous());
}

constexpr Number kNoNumbers[3] = {};

class Numbers {
 public:
  explicit Numbers(const Params& params) : p(kNoNumbers) {
    if (params.count == 0) return;
    for (int i = 0; i < 3; ++i) own_[i] = number_of(params.p[i]);
    p = own_;
  }
  Numbers(const Numbers&) = delete;
  Numbers& operator=(const Numbers&) = delete;
  const Number* p;

 private:
  Number own_[3];
};

struct Flat {
  const std::byte* a;
  const std::byte* b;
  size_t a_step, b_step;  // bytes per element; 0 for a scalar
  std::byte* out;
  size_t out_step;
};

void run_flat(RowFn rows, const Flat& x, int64_t n, const Number* params) {
  if (n <= kGrain) {
    const void* in[] = {x.a, x.b};
    rows(in, x.out, n, params);
    return;
  }
  parallel_for(n, kGrain, [&](int64_t begin, int64_t end) {
    const size_t at = to_size(begin);
    const void* in[] = {x.a + at * x.a_step, x.b + at * x.b_step};
    rows(in, x.out + at * x.out_step, end - begin, params);
  });
}

}  // namespace

const char* name(UnaryOp op) { return kUnaryNames[static_cast<int>(op)]; }
const char* name(BinaryOp op) { return kBinaryNames[static_cast<int>(op)]; }
const char* name(TernaryOp op) { return kTernaryNames[static_cast<int>(op)]; }
bool gives_bool(UnaryOp op) { return kUnaryGivesBool[static_cast<int>(op)]; }
bool gives_bool(BinaryOp op) { return kBinaryGivesBool[static_cast<int>(op)]; }
bool divides(BinaryOp op) { return kBinaryTypes[static_cast<int>(op)] == kDivides; }

namespace {

// Before any device's variant. Gives the operation that is computed.
UnaryOp checked(UnaryOp op, const Array& a, const Array& out) {
  if (op == UnaryOp::BitNot && a.dtype == DType::kBool) op = UnaryOp::LogicalNot;
  check_types(name(op), kUnaryTypes[static_cast<int>(op)], a.dtype);
  check_out(name(op), a.dtype, out, gives_bool(op));
  return op;
}
void check(BinaryOp op, const Array& a, DType b, const Array& out) {
  check_types(name(op), kBinaryTypes[static_cast<int>(op)], a.dtype);
  HOLON_CHECK(a.dtype == b, "{}: the inputs are {} and {}", name(op), holon::name(a.dtype), holon::name(b));
  check_out(name(op), a.dtype, out, gives_bool(op));
}
void check(TernaryOp op, const Array& a, const Array& b, const Array& c, const Array& out) {
  check_types(name(op), kTernaryTypes[static_cast<int>(op)], a.dtype);
  HOLON_CHECK(a.dtype == b.dtype && a.dtype == c.dtype, "{}: the inputs are {}, {} and {}", name(op),
              holon::name(a.dtype), holon::name(b.dtype), holon::name(c.dtype));
  check_out(name(op), a.dtype, out, false);
}
void check_where(const Array& condition, DType a, DType b, const Array& out) {
  HOLON_CHECK(size_bytes(condition.dtype) == 1, "where: the condition is {}", holon::name(condition.dtype));
  HOLON_CHECK(a == out.dtype && b == out.dtype, "where: {} and {} into {}", holon::name(a), holon::name(b),
              holon::name(out.dtype));
}

}  // namespace

void unary(UnaryOp op, const Array& a, Array& out, const Params& params) {
  op = checked(op, a, out);
  HOLON_ON_DEVICE(out, unary, op, a, out, params);
  const Numbers p(params);
  RowFn rows = table().unary[static_cast<int>(op)][static_cast<int>(compute_type(a.dtype))];
  if (is_compute_type(a.dtype) && same_layout(a, out) && out.is_contiguous()) {
    const size_t size = size_bytes(a.dtype);
    run_flat(rows, {a.bytes(), a.bytes(), size, size, out.bytes(), size_bytes(out.dtype)}, out.numel(), p.p);
    return;
  }
  Loop loop;
  loop.rows = rows;
  loop.inputs = 1;
  loop.in[0] = LoopInput(a, dtype_of(compute_type(a.dtype)));
  loop.out = &out;
  loop.out_compute = out_compute(a.dtype, gives_bool(op));
  loop.params = p.p;
  run_loop(loop);
}

void binary(BinaryOp op, const Array& a, const Array& b, Array& out, const Params& params) {
  check(op, a, b.dtype, out);
  HOLON_ON_DEVICE(out, binary, op, a, b, out, params);
  const Numbers p(params);
  const Compute compute = compute_type(a.dtype);
  RowFn const* variants = table().binary[static_cast<int>(op)][static_cast<int>(compute)];
  if (is_compute_type(a.dtype) && same_layout(a, out) && same_layout(b, out) && out.is_contiguous()) {
    const size_t size = size_bytes(a.dtype);
    run_flat(variants[0], {a.bytes(), b.bytes(), size, size, out.bytes(), size_bytes(out.dtype)}, out.numel(), p.p);
    return;
  }
  Loop loop;
  loop.rows = variants[0];
  loop.vector_scalar = variants[1];
  loop.scalar_vector = variants[2];
  loop.inputs = 2;
  loop.in[0] = LoopInput(a, dtype_of(compute));
  loop.in[1] = LoopInput(b, dtype_of(compute));
  loop.out = &out;
  loop.out_compute = out_compute(a.dtype, gives_bool(op));
  loop.params = p.p;
  run_loop(loop);
}

namespace {

// Powers by a constant that have a cheaper operation.
std::optional<UnaryOp> power_op(const Array& a, Scalar exponent) {
  if (exponent.as_double() == 2) return UnaryOp::Square;
  if (exponent.as_double() == 3) return UnaryOp::Cube;
  if (!is_floating(a.dtype)) return std::nullopt;
  if (exponent.as_double() == -1) return UnaryOp::Reciprocal;
  if (exponent.as_double() == 0.5) return UnaryOp::Sqrt;
  if (exponent.as_double() == -0.5) return UnaryOp::Rsqrt;
  return std::nullopt;
}

}  // namespace

void binary_scalar(BinaryOp op, const Array& a, Scalar scalar, Array& out, bool scalar_on_left, const Params& params) {
  if (op == BinaryOp::Pow && !scalar_on_left)
    if (auto cheaper = power_op(a, scalar)) return unary(*cheaper, a, out);
  check(op, a, a.dtype, out);
  HOLON_ON_DEVICE(out, binary_scalar, op, a, scalar, out, scalar_on_left, params);
  const Numbers p(params);
  const Number number = number_of(scalar);
  const Compute compute = compute_type(a.dtype);
  RowFn const* variants = table().binary[static_cast<int>(op)][static_cast<int>(compute)];
  alignas(8) std::byte value[8];
  switch (compute) {
    case Compute::kF32: *reinterpret_cast<float*>(value) = number.to<float>(); break;
    case Compute::kF64: *reinterpret_cast<double*>(value) = number.to<double>(); break;
    case Compute::kI32: *reinterpret_cast<int32_t*>(value) = number.to<int32_t>(); break;
    case Compute::kI64: *reinterpret_cast<int64_t*>(value) = number.to<int64_t>(); break;
  }
  if (variants[1] && is_compute_type(a.dtype) && same_layout(a, out) && out.is_contiguous()) {
    const size_t size = size_bytes(a.dtype);
    Flat x{a.bytes(), value, size, 0, out.bytes(), size_bytes(out.dtype)};
    if (scalar_on_left) x = {value, a.bytes(), 0, size, out.bytes(), size_bytes(out.dtype)};
    run_flat(variants[scalar_on_left ? 2 : 1], x, out.numel(), p.p);
    return;
  }
  const Dims none{};
  LoopInput constant;
  constant.data = value;
  constant.shape = constant.strides = &none;
  constant.dtype = constant.compute = dtype_of(compute);
  Loop loop;
  loop.rows = variants[0];
  loop.vector_scalar = variants[1];
  loop.scalar_vector = variants[2];
  loop.inputs = 2;
  loop.in[scalar_on_left ? 1 : 0] = LoopInput(a, dtype_of(compute));
  loop.in[scalar_on_left ? 0 : 1] = constant;
  loop.out = &out;
  loop.out_compute = out_compute(a.dtype, gives_bool(op));
  loop.params = p.p;
  run_loop(loop);
}

void ternary(TernaryOp op, const Array& a, const Array& b, const Array& c, Array& out, const Params& params) {
  check(op, a, b, c, out);
  HOLON_ON_DEVICE(out, ternary, op, a, b, c, out, params);
  const Numbers p(params);
  const Compute compute = compute_type(a.dtype);
  RowFn rows = table().ternary[static_cast<int>(op)][static_cast<int>(compute)];
  Loop loop;
  loop.rows = rows;
  loop.inputs = 3;
  const Array* in[] = {&a, &b, &c};
  for (int k = 0; k < 3; ++k) loop.in[k] = LoopInput(*in[k], dtype_of(compute));
  loop.out = &out;
  loop.out_compute = dtype_of(compute);
  loop.params = p.p;
  run_loop(loop);
}

namespace {

void select(const Array& condition, const LoopInput& a, const Array& b, Array& out) {
  const size_t size = size_bytes(out.dtype);
  Loop loop;
  loop.rows = table().select[size == 1 ? 0 : size == 2 ? 1 : size == 4 ? 2 : 3];
  loop.inputs = 3;
  loop.in[0] = LoopInput(condition, condition.dtype);
  loop.in[1] = a;
  loop.in[2] = LoopInput(b, b.dtype);
  loop.out = &out;
  loop.out_compute = out.dtype;
  run_loop(loop);
}

}  // namespace

void where(const Array& condition, const Array& a, const Array& b, Array& out) {
  check_where(condition, a.dtype, b.dtype, out);
  HOLON_ON_DEVICE(out, where, condition, a, b, out);
  select(condition, LoopInput(a, a.dtype), b, out);
}

uint64_t element_bits(Scalar value, DType dtype) {
  uint64_t bits = 0;
  const Number v = number_of(value);
  const void* from = value.is_float() ? static_cast<const void*>(&v.d) : &v.i;
  load_elements(static_cast<const std::byte*>(from), 8, value.is_float() ? DType::kFloat64 : DType::kInt64, dtype,
                &bits, 1, nullptr);
  return bits;
}

void masked_fill(const Array& a, const Array& mask, Scalar value, Array& out) {
  check_where(mask, a.dtype, a.dtype, out);
  HOLON_ON_DEVICE(out, masked_fill, a, mask, value, out);
  const uint64_t bits = element_bits(value, out.dtype);
  const Dims none{};
  LoopInput number;
  number.data = reinterpret_cast<const std::byte*>(&bits);
  number.shape = number.strides = &none;
  number.dtype = number.compute = out.dtype;
  select(mask, number, a, out);
}

void clamp(const Array& a, std::optional<Scalar> low, std::optional<Scalar> high, Array& out) {
  if (low && high)
    unary(UnaryOp::Clamp, a, out, {*low, *high});
  else if (low)
    unary(UnaryOp::ClampMin, a, out, {*low});
  else if (high)
    unary(UnaryOp::ClampMax, a, out, {*high});
  else
    copy(a, out);
}

}  // namespace holon::kernels
