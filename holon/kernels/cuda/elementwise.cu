// The element-wise functions (checked by the CPU's): layouts, and which instance runs.
#include "holon/kernels/cuda/elementwise.h"

#include "holon/base/error.h"
#include "holon/kernels/compute_type.h"
#include "holon/kernels/elementwise.h"
#include "holon/kernels/variants.h"

namespace holon::kernels::cuda {

void fill_ternary(Variants& t) {
#define HOLON_FILL(name, kinds, result, value)                                    \
  fill_form<ops::name, float, 3>(t.ternary[static_cast<int>(TernaryOp::name)]);   \
  fill_form<ops::name, double, 3>(t.ternary[static_cast<int>(TernaryOp::name)]);  \
  fill_form<ops::name, int32_t, 3>(t.ternary[static_cast<int>(TernaryOp::name)]); \
  fill_form<ops::name, int64_t, 3>(t.ternary[static_cast<int>(TernaryOp::name)]);
  HOLON_TERNARY_OPS(HOLON_FILL)
#undef HOLON_FILL
}

namespace {

const Variants& variants() {
  static const Variants t = [] {
    Variants made{};
    fill_unary_f32(made);
    fill_unary_f64(made);
    fill_unary_int(made);
    fill_binary_f32(made);
    fill_binary_f64(made);
    fill_binary_int(made);
    fill_ternary(made);
    return made;
  }();
  return t;
}

int compute_row(DType dtype) { return static_cast<int>(compute_type(dtype)); }

// The call for inputs that are arrays, or null for the constant.
template <int kInputs>
void run(RunFn<kInputs> variant, const Array* const (&in)[kInputs], const Array& out, const Params& params,
         Number constant = {}) {
  if (out.numel() == 0) return;
  use_device_of(out);
  Call<kInputs> c;
  Part parts[kInputs + 1];
  parts[0] = {out.bytes(), out.strides, size_bytes(out.dtype)};
  for (int k = 0; k < kInputs; ++k) {
    parts[k + 1] = in[k] ? part_of(*in[k], out.shape) : Part{nullptr, Dims::filled(out.ndim(), 0), 1};
    c.in[k] = in[k] ? in[k]->bytes() : nullptr;
    if (in[k]) c.stored = in[k]->dtype;
  }
  const int wide = compute_row(c.stored) % 2 == 0 ? kWide<float> : kWide<double>;
  c.layout = Layout<kInputs + 1>(out.shape, parts, wide);
  c.out = out.bytes();
  c.constant = constant;
  for (int i = 0; i < 3; ++i) c.p[i] = i < params.count ? number_of(params.p[i]) : Number{};
  c.faults = fault_report();
  c.op = current_op();
  variant(c);
}

void unary(UnaryOp op, const Array& a, Array& out, const Params& params) {
  run<1>(variants().unary[static_cast<int>(op)][compute_row(a.dtype)], {&a}, out, params);
}

void binary(BinaryOp op, const Array& a, const Array& b, Array& out, const Params& params) {
  run<2>(variants().binary[static_cast<int>(op)][compute_row(a.dtype)], {&a, &b}, out, params);
}

void binary_scalar(BinaryOp op, const Array& a, Scalar scalar, Array& out, bool scalar_on_left, const Params& params) {
  const Number number = number_of(scalar);
  if (!scalar_on_left && divides(op) && !is_floating(a.dtype) && out.numel() > 0) {
    const bool zero =
        compute_type(a.dtype) == holon::kernels::Compute::kI32 ? number.to<int32_t>() == 0 : number.i == 0;
    if (zero) fail_value("integer division or remainder by zero.");
  }
  const RunFn<2> variant = variants().binary[static_cast<int>(op)][compute_row(a.dtype)];
  if (scalar_on_left)
    run<2>(variant, {nullptr, &a}, out, params, number);
  else
    run<2>(variant, {&a, nullptr}, out, params, number);
}

void ternary(TernaryOp op, const Array& a, const Array& b, const Array& c, Array& out, const Params& params) {
  run<3>(variants().ternary[static_cast<int>(op)][compute_row(a.dtype)], {&a, &b, &c}, out, params);
}

HOLON_DEVICE_KERNEL(unary, unary);
HOLON_DEVICE_KERNEL(binary, binary);
HOLON_DEVICE_KERNEL(binary_scalar, binary_scalar);
HOLON_DEVICE_KERNEL(ternary, ternary);

}  // namespace
}  // namespace holon::kernels::cuda
