// Matrix products on devices, and what follows them.
#include "holon/kernels/gemm.h"

#include <algorithm>

#include "holon/kernels/copy.h"
#include "holon/kernels/cuda/gemm.h"
#include "holon/kernels/cuda/stream.h"
#include "holon/kernels/elementwise.h"
#include "holon/kernels/epilogue.h"
#include "holon/kernels/half.h"
#include "holon/kernels/tf32.h"
#include "holon/kernels/variants.h"

namespace holon::kernels::cuda {
namespace {

// Batches of more are cut; so are rows.
constexpr int64_t kMostBatch = 65535, kMostRows = int64_t{1} << 30;
// More products than these, one after the other, are worth packing the operands into one batch.
constexpr int64_t kMostCalls = 16;

// How a library can read rows x cols elements with these strides, if it can.
bool operand(int64_t rows, int64_t cols, int64_t rs, int64_t cs, Operand* o) {
  if (const int64_t ld = rows == 1 ? cols : rs; (cols == 1 || cs == 1) && ld >= cols) {
    o->ld = ld, o->transposed = false;
    return true;
  }
  if (const int64_t ld = cols == 1 ? rows : cs; (rows == 1 || rs == 1) && ld >= rows) {
    o->ld = ld, o->transposed = true;
    return true;
  }
  return false;
}

// The matrices one after the other, row by row; those that are repeated once. Strides become the copy's.
Array packed(const Array& x, Dims lead, int64_t rows, int64_t cols, Dims& strides, int64_t& rs, int64_t& cs) {
  Dims from = strides;
  for (int i = 0; i < lead.size(); ++i)
    if (strides[i] == 0) lead[i] = 1;
  lead.push_back(rows), from.push_back(rs);
  lead.push_back(cols), from.push_back(cs);
  const Array y = contiguous(x.view(lead, from));
  for (int i = 0; i < strides.size(); ++i) strides[i] = lead[i] == 1 ? 0 : y.strides[i];
  rs = cols, cs = 1;
  return y;
}

// Joins leading axes that are in all three like one.
void merge(MatmulPlan& g) {
  for (int i = g.shape.size() - 2; i >= 0; --i) {
    const int j = i + 1;
    if (g.a[i] != g.a[j] * g.shape[j] || g.b[i] != g.b[j] * g.shape[j] || g.c[i] != g.c[j] * g.shape[j]) continue;
    g.shape[j] *= g.shape[i];
    for (Dims* d : {&g.shape, &g.a, &g.b, &g.c}) d->erase(i);
  }
}

// One call for each item of the leading axes but the largest, which is the batch.
struct Calls {
  int axis = -1;
  int64_t batch = 1, count = 1;
  explicit Calls(const MatmulPlan& g) {
    for (int i = 0; i < g.shape.size(); ++i)
      if (g.shape[i] > batch) axis = i, batch = g.shape[i];
    count = g.shape.numel() / batch;
  }
};

// False, with nothing done: the library cannot.
bool by_library(const MatmulPlan& g, Product p, const Array& a, const Array& b, const Array& c, const Array& out,
                const Array* bias, const Array* sums = nullptr) {
  const Calls calls(g);
  const auto item = static_cast<int64_t>(size_bytes(a.dtype)), item_out = static_cast<int64_t>(size_bytes(out.dtype));
  auto batch_stride = [&](const Dims& strides) { return calls.axis < 0 ? 0 : strides[calls.axis]; };
  p.dtype = a.dtype, p.result = out.dtype;
  p.n = g.n, p.k = g.k;
  p.a.batch_stride = batch_stride(g.a), p.b.batch_stride = batch_stride(g.b), p.d.batch_stride = batch_stride(g.c);
  bool begun = false;
  for (int64_t call = 0; call < calls.count; ++call) {
    int64_t oa = 0, ob = 0, oc = 0, at = call;
    for (int i = g.shape.size() - 1; i >= 0; --i) {
      if (i == calls.axis) continue;
      const int64_t index = at % g.shape[i];
      at /= g.shape[i];
      oa += index * g.a[i], ob += index * g.b[i], oc += index * g.c[i];
    }
    for (int64_t first = 0; first < calls.batch; first += p.batch) {
      p.batch = std::min(kMostBatch, calls.batch - first);
      for (int64_t row = 0; row < g.m; row += p.m) {
        p.m = std::min(kMostRows, g.m - row);
        const int64_t to = (oc + first * p.d.batch_stride + row * g.crs) * item_out;
        if (product(p, a.bytes() + (oa + first * p.a.batch_stride + row * g.ars) * item,
                    b.bytes() + (ob + first * p.b.batch_stride) * item, c.bytes() + to, out.bytes() + to,
                    bias ? bias->bytes() : nullptr, sums ? sums->bytes() : nullptr)) {
          begun = true;
          continue;
        }
        if (begun) fail("cuBLAS multiplies a part of a batch only");
        return false;
      }
    }
  }
  return true;
}

Array expanded(const Array& vector, const Dims& shape) {
  Dims strides = Dims::filled(shape.size(), 0);
  strides.back() = vector.strides[0];
  return vector.view(shape, strides);
}

Array transposed(const Array& x) { return x.view({x.shape[1], x.shape[0]}, {x.strides[1], x.strides[0]}); }

// The leading axes as one, copied if the strides do not allow a view.
Array as_matrix(const Array& x) {
  if (x.ndim() == 1) return x.view({1, x.shape[0]}, {x.shape[0], x.strides[0]});
  if (x.ndim() == 2) return x;
  const int last = x.ndim() - 1;
  const Dims shape{rows_in_all(x), x.shape[last]};
  Dims strides;
  if (view_strides(x.shape, x.strides, shape, &strides)) return x.view(shape, strides);
  return contiguous(x).view(shape, {shape[1], 1});
}

// The product and options.sums in one call. False, with nothing done: the library cannot.
bool with_sums(const MatmulPlan& g, Product p, bool turned, const Array& a, const Array& b, Array& out,
               const ProductOptions& options) {
  // Sums of what was rounded to TF32 would be less exact than those of the elements.
  if (p.tf32 || g.m > kMostRows || (options.beta != 0 && options.beta != 1)) return false;
  p.summed = turned ? Summed::kB : Summed::kA;
  Array sums = *options.sums;
  const bool apart = options.beta != 0 || !sums.is_contiguous();
  if (apart) sums = Array::empty(sums.shape, sums.dtype, sums.device);
  if (!by_library(g, p, a, b, out, out, nullptr, &sums)) return false;
  if (options.beta == 0 && apart) copy(sums, *options.sums);
  if (options.beta != 0) binary(BinaryOp::Add, *options.sums, sums, *options.sums);
  return true;
}

bool tf32_for(const Array& out) { return out.dtype == DType::kFloat32 && tf32_allowed(Tf32::kProducts); }

}  // namespace

bool multiply(const Array& a, const Array& b, Array& out, const ProductOptions& options) {
  Array typed = out;
  typed.dtype = a.dtype;  // a plan is of one dtype
  MatmulPlan g = plan_matmul(a, b, typed);
  HOLON_CHECK(!options.sums ||
                  (a.ndim() == 2 && b.ndim() == 2 && options.sums->shape == Dims{a.shape[0]} &&
                   options.sums->dtype == out.dtype && a.dtype == out.dtype && options.alpha == 1),
              "a product of {} and {} with sums {}", a.shape, b.shape, options.sums ? options.sums->shape : Dims{});
  auto sum_alone = [&] {
    if (options.sums) column_sums(transposed(a), *options.sums, options.beta);
  };
  if (out.numel() == 0) {
    sum_alone();
    return true;
  }
  use_device_of(out);
  const Array bias = options.bias ? contiguous(*options.bias) : Array();
  const Array* other = options.other;
  const bool in_place = other && other->bytes() == out.bytes() && other->strides == out.strides;
  bool added = false;  // bias and other are in out
  auto add_before = [&](bool with_bias) {
    if (with_bias && other)
      binary(BinaryOp::Add, *other, expanded(bias, out.shape), out);
    else if (with_bias)
      copy(expanded(bias, out.shape), out);
    else if (other && !in_place)
      copy(*other, out);
    added = with_bias || other;
  };
  if (!is_floating(a.dtype) || g.k == 0) {
    sum_alone();
    add_before(options.bias != nullptr);
    plain_product(g, a, b, out, options.alpha, added ? 1 : options.beta);
    return options.act == Act::kNone;
  }

  Product p;
  p.alpha = options.alpha, p.beta = options.beta;
  p.tf32 = options.tf32;
  p.act = options.act;
  if (!operand(g.m, g.n, g.crs, g.ccs, &p.d)) {
    Array rows = Array::empty(out.shape, out.dtype, out.device);
    if (options.beta != 0) copy(out, rows);
    const bool done = multiply(a, b, rows, options);
    copy(rows, out);
    return done;
  }
  Array left = a, right = b;
  const bool turned = p.d.transposed;
  if (turned) {  // the transpose of out, of b's and a's
    std::swap(left, right);
    std::swap(g.m, g.n);
    std::swap(g.ars, g.bcs);
    std::swap(g.acs, g.brs);
    std::swap(g.crs, g.ccs);
    std::swap(g.a, g.b);
    p.d.transposed = false;
  }
  const bool many = Calls(g).count > kMostCalls;
  if (!operand(g.m, g.k, g.ars, g.acs, &p.a) || many) {
    left = packed(left, g.shape, g.m, g.k, g.a, g.ars, g.acs);
    operand(g.m, g.k, g.ars, g.acs, &p.a);
  }
  if (!operand(g.k, g.n, g.brs, g.bcs, &p.b) || many) {
    right = packed(right, g.shape, g.k, g.n, g.b, g.brs, g.bcs);
    operand(g.k, g.n, g.brs, g.bcs, &p.b);
  }
  if (many) merge(g);

  if (options.sums && with_sums(g, p, turned, left, right, out, options)) return true;
  sum_alone();
  const bool bias_after = options.bias && !turned;
  Array source = out;
  if (options.bias && turned)
    add_before(true);
  else if (other && other->strides == out.strides)
    source = *other;
  else
    add_before(false);
  if (added || other) p.beta = 1;
  if (by_library(g, p, left, right, source, out, bias_after ? &bias : nullptr)) return true;
  if (added && bias_after)
    binary(BinaryOp::Add, out, expanded(bias, out.shape), out);
  else if (!added)
    add_before(bias_after);
  if (added) p.beta = 1;
  p.act = Act::kNone;
  if ((bias_after || other || options.act != Act::kNone) && by_library(g, p, left, right, out, out, nullptr))
    return options.act == Act::kNone;
  plain_product(g, left, right, out, p.alpha, p.beta);
  return options.act == Act::kNone;
}

namespace {

void matmul(const Array& a, const Array& b, Array& out, double alpha, double beta) {
  ProductOptions o;
  o.alpha = alpha, o.beta = beta, o.tf32 = tf32_for(out);
  multiply(a, b, out, o);
}

void linear_with(const Array& x, const Array& w, Array& out, ProductOptions o, bool* act_done = nullptr) {
  HOLON_CHECK(w.ndim() == 2 && x.ndim() >= 1 && out.ndim() == x.ndim(), "linear: {} and weight {} do not give {}.",
              x.shape, w.shape, out.shape);
  HOLON_CHECK(!o.bias || (o.bias->ndim() == 1 && o.bias->shape[0] == w.shape[0] && o.bias->dtype == out.dtype),
              "linear: a bias of shape {} does not fit the weight {}.", o.bias ? o.bias->shape : Dims{}, w.shape);
  o.tf32 = tf32_for(out);
  const Array rows = x.ndim() == 1 ? as_matrix(x) : x;
  Array to = out.ndim() == 1 ? as_matrix(out) : out, other;
  if (o.other && o.other->ndim() == 1) o.other = &(other = as_matrix(*o.other));
  const bool done = multiply(rows, transposed(w), to, o);
  if (act_done) *act_done = done;
}

void linear(const Array& x, const Array& w, const Array* bias, Array& out, const Finish& finish) {
  HOLON_CHECK(!finish.run, "a product on a device has no finish on the host");
  ProductOptions o;
  o.bias = bias;
  linear_with(x, w, out, o);
}

void linear_weight_grad(const Array& dy, const Array& x, Array& dw, Array* dbias, double beta) {
  HOLON_CHECK(dy.ndim() >= 1 && x.ndim() == dy.ndim(), "linear_weight_grad: {} and {} differ in axes.", dy.shape,
              x.shape);
  use_device_of(dw);
  ProductOptions o;
  o.beta = beta, o.sums = dbias, o.tf32 = tf32_for(dw);
  multiply(transposed(as_matrix(dy)), as_matrix(x), dw, o);
}

bool reads_other(Then then) { return then == Then::kAdd || then == Then::kMul || then == Then::kReluBackward; }

// product(to, options, act_done), and what follows: by the library where it does it as exactly.
template <class F>
void with_epilogue(Then then, const Array* other, Array& out, F&& product) {
  HOLON_CHECK(reads_other(then) == (other != nullptr) &&
                  (!other || (other->shape == out.shape && other->dtype == out.dtype)),
              "a product into {} {} is followed by an operation with {}", name(out.dtype), out.shape,
              other ? other->shape : Dims{});
  use_device_of(out);
  ProductOptions o;
  if (then == Then::kAdd) {
    o.other = other;
    product(out, o);
    return;
  }
  if (other) {
    const bool in_place = other->storage.get() == out.storage.get();
    Array before = in_place ? Array::empty(out.shape, out.dtype, out.device) : out;
    product(before, o);
    return binary(then == Then::kMul ? BinaryOp::Mul : BinaryOp::ReluBackward, before, *other, out);
  }
  // The library's tanh is good for two-byte floats, not for float32.
  if (then == Then::kRelu) o.act = Act::kRelu;
  if (then == Then::kGeluTanh && is_half(out.dtype)) o.act = Act::kGeluTanh;
  const bool act = o.act != Act::kNone;
  if (product(out, o) && act) return;
  unary(then == Then::kRelu ? UnaryOp::Relu : then == Then::kGelu ? UnaryOp::Gelu : UnaryOp::GeluTanh, out, out);
}

void linear_then(const Array& x, const Array& w, const Array* bias, Then then, const Array* other, Array& out) {
  with_epilogue(then, other, out, [&](Array& to, ProductOptions o) {
    o.bias = bias;
    bool done = false;
    linear_with(x, w, to, o, &done);
    return done;
  });
}

void matmul_then(const Array& a, const Array& b, Then then, const Array* other, Array& out) {
  with_epilogue(then, other, out, [&](Array& to, ProductOptions o) {
    o.tf32 = tf32_for(to);
    return multiply(a, b, to, o);
  });
}

void linear_gelu(const Array& x, const Array& w, const Array* bias, bool by_tanh, Array& y, Array& slope) {
  HOLON_CHECK(y.shape == slope.shape && y.dtype == slope.dtype && is_floating(y.dtype),
              "linear_gelu: {} {} and slopes {}", name(y.dtype), y.shape, slope.shape);
  linear(x, w, bias, y, {});
  if (y.numel() == 0) return;
  use_device_of(y);
  gelu_and_slope(y, slope, by_tanh);
}

using Matmul = void (*)(const Array&, const Array&, Array&, double, double);
HOLON_DEVICE_KERNEL_AS(matmul, Matmul, matmul);
HOLON_DEVICE_KERNEL(linear, linear);
HOLON_DEVICE_KERNEL(linear_weight_grad, linear_weight_grad);
HOLON_DEVICE_KERNEL(linear_then, linear_then);
HOLON_DEVICE_KERNEL(matmul_then, matmul_then);
HOLON_DEVICE_KERNEL(linear_gelu, linear_gelu);

}  // namespace
}  // namespace holon::kernels::cuda
