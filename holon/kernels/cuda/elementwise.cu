// The element-wise functions: checks, layouts, and which instance runs; selection by a condition.
#include "holon/kernels/cuda/elementwise.h"

#include "holon/kernels/cpu/elementwise.h"
#include "holon/kernels/cpu/loops.h"
#include "holon/kernels/device.h"

namespace holon::kernels::cuda {

void fill_ternary(Forms& t) {
#define HOLON_FILL(name, kinds, result, value)                                    \
  fill_form<ops::name, float, 3>(t.ternary[static_cast<int>(TernaryOp::name)]);   \
  fill_form<ops::name, double, 3>(t.ternary[static_cast<int>(TernaryOp::name)]);  \
  fill_form<ops::name, int32_t, 3>(t.ternary[static_cast<int>(TernaryOp::name)]); \
  fill_form<ops::name, int64_t, 3>(t.ternary[static_cast<int>(TernaryOp::name)]);
  HOLON_TERNARY_OPS(HOLON_FILL)
#undef HOLON_FILL
}

namespace {

const Forms& forms() {
  static const Forms t = [] {
    Forms made{};
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
void run(RunFn<kInputs> form, const Array* const (&in)[kInputs], const Array& out, const Params& params,
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
  form(c);
}

void unary(UnaryOp op, const Array& a, Array& out, const Params& params) {
  op = checked(op, a, out);
  run<1>(forms().unary[static_cast<int>(op)][compute_row(a.dtype)], {&a}, out, params);
}

void binary(BinaryOp op, const Array& a, const Array& b, Array& out, const Params& params) {
  check(op, a, b.dtype, out);
  run<2>(forms().binary[static_cast<int>(op)][compute_row(a.dtype)], {&a, &b}, out, params);
}

void binary_scalar(BinaryOp op, const Array& a, Scalar scalar, Array& out, bool scalar_on_left, const Params& params) {
  if (op == BinaryOp::Pow && !scalar_on_left)
    if (auto cheaper = power_op(a, scalar)) return kernels::unary(*cheaper, a, out);
  check(op, a, a.dtype, out);
  const Number number = number_of(scalar);
  if (!scalar_on_left && divides(op) && !is_floating(a.dtype) && out.numel() > 0) {
    const bool zero =
        compute_type(a.dtype) == holon::kernels::Compute::kI32 ? number.to<int32_t>() == 0 : number.i == 0;
    if (zero) fail_division_by_zero();
  }
  const RunFn<2> form = forms().binary[static_cast<int>(op)][compute_row(a.dtype)];
  if (scalar_on_left)
    run<2>(form, {nullptr, &a}, out, params, number);
  else
    run<2>(form, {&a, nullptr}, out, params, number);
}

void ternary(TernaryOp op, const Array& a, const Array& b, const Array& c, Array& out, const Params& params) {
  check(op, a, b, c, out);
  run<3>(forms().ternary[static_cast<int>(op)][compute_row(a.dtype)], {&a, &b, &c}, out, params);
}

// out = condition ? a : b for elements of a size; a is null for one value.
template <class S>
__global__ void __launch_bounds__(kElementwiseThreads)
    select(const uint8_t* condition, const S* a, S value, const S* b, S* out, const Layout<4> layout) {
  constexpr int wide = kPack<S>;
  const int64_t first = blockIdx.x * int64_t{kElementwiseThreads} + threadIdx.x,
                step = int64_t{kElementwiseThreads} * gridDim.x;
  for (int64_t u = first; u < layout.packs; u += step) {
    const auto at = layout.at_pack(u, wide);
    Pack<uint8_t, wide> c;
    Pack<S, wide> x, y;
    if (layout.repeated[1])
      c.v[0] = condition[at.v[1]];
    else
      c = *reinterpret_cast<const Pack<uint8_t, wide>*>(condition + at.v[1]);
    if (!a)
      x.v[0] = value;
    else if (layout.repeated[2])
      x.v[0] = a[at.v[2]];
    else
      x = *reinterpret_cast<const Pack<S, wide>*>(a + at.v[2]);
    if (layout.repeated[3])
      y.v[0] = b[at.v[3]];
    else
      y = *reinterpret_cast<const Pack<S, wide>*>(b + at.v[3]);
#pragma unroll
    for (int w = 0; w < wide; ++w) {
      const S left = !a || layout.repeated[2] ? x.v[0] : x.v[w], right = layout.repeated[3] ? y.v[0] : y.v[w];
      const uint8_t taken = layout.repeated[1] ? c.v[0] : c.v[w];
      y.v[w] = taken != 0 ? left : right;
    }
    *reinterpret_cast<Pack<S, wide>*>(out + at.v[0]) = y;
  }
  for (int64_t e = layout.rest + first; e < layout.count; e += step) {
    const auto at = layout.index.at(e);
    const S left = a ? a[at.v[2]] : value;
    out[at.v[0]] = condition[at.v[1]] != 0 ? left : b[at.v[3]];
  }
}

template <class S>
void run_select(const Array& condition, const Array* a, uint64_t bits, const Array& b, Array& out) {
  use_device_of(out);
  const Part parts[] = {{out.bytes(), out.strides, sizeof(S)},
                        part_of(condition, out.shape),
                        a ? part_of(*a, out.shape) : Part{nullptr, Dims::filled(out.ndim(), 0), 1},
                        part_of(b, out.shape)};
  const Layout<4> layout(out.shape, parts, kPack<S>);
  const unsigned blocks = std::max(blocks_for(layout.packs, kElementwiseThreads),
                                   blocks_for(layout.count - layout.rest, kElementwiseThreads));
  launch(select<S>, blocks, kElementwiseThreads, 0, reinterpret_cast<const uint8_t*>(condition.bytes()),
         a ? a->data<S>() : nullptr, static_cast<S>(bits), b.data<S>(), out.data<S>(), layout);
}

void select_any(const Array& condition, const Array* a, uint64_t bits, const Array& b, Array& out) {
  check_where(condition, a ? a->dtype : out.dtype, b.dtype, out);
  if (out.numel() == 0) return;
  switch (size_bytes(out.dtype)) {
    case 1: return run_select<uint8_t>(condition, a, bits, b, out);
    case 2: return run_select<uint16_t>(condition, a, bits, b, out);
    case 4: return run_select<uint32_t>(condition, a, bits, b, out);
    default: return run_select<uint64_t>(condition, a, bits, b, out);
  }
}

void where(const Array& condition, const Array& a, const Array& b, Array& out) { select_any(condition, &a, 0, b, out); }
void masked_fill(const Array& a, const Array& mask, Scalar value, Array& out) {
  select_any(mask, nullptr, element_bits(value, out.dtype), a, out);
}

HOLON_DEVICE_KERNEL(unary, unary);
HOLON_DEVICE_KERNEL(binary, binary);
HOLON_DEVICE_KERNEL(binary_scalar, binary_scalar);
HOLON_DEVICE_KERNEL(ternary, ternary);
HOLON_DEVICE_KERNEL(where, where);
HOLON_DEVICE_KERNEL(masked_fill, masked_fill);

}  // namespace
}  // namespace holon::kernels::cuda
