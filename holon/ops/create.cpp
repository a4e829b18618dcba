// Tensors from nothing. With placement and sbp each rank makes its part only: no communication.
// As a partial sum the value is on the first rank, and zeros on the others.
#include <algorithm>
#include <cmath>

#include "holon/internal_ops/create.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/index.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/cast.h"
#include "holon/ops/create.h"
#include "holon/ops/elementwise.h"
#include "holon/ops/shape.h"

namespace holon::ops {
namespace {

void fill_kernel(KernelCall& c, Scalar value) { kernels::fill(c.out(), c.counts_once() ? value : Scalar(0)); }

void shape_infer(Infer& c) {
  Dims shape(c.ints("size"_attr));
  for (int64_t x : shape)
    if (x < 0) fail_value("{}: size {} has a negative entry. A size must be at least 0.", c.op().name(), shape);
  c.out(shape, c.has("dtype"_attr) ? c.dtype("dtype"_attr) : float32);
}

void no_rule(RuleCall&) {}

// As x in everything that is not given.
template <class Options>
Options like(const BodyCall& c) {
  const Tensor& x = c.in(0);
  Options o;
  o.dtype = c.has("dtype"_attr) ? c.dtype("dtype"_attr) : x.dtype();
  if (x.is_global()) {
    o.placement = x.placement();
    o.sbp = x.nd_sbp();
  } else {
    o.device = x.device();
  }
  o.requires_grad = c.b("requires_grad"_attr);
  o.pin_memory = c.b("pin_memory"_attr);
  return o;
}

void steps_infer(Infer& c) {
  if (c.i("steps"_attr) < 0) fail_value("{}: steps is {}; it must not be negative.", c.op().name(), c.i("steps"_attr));
  c.out({c.i("steps"_attr)}, c.has("dtype"_attr) ? c.dtype("dtype"_attr) : float32);
}

// The elements of a row x col matrix on and below (above) a diagonal; an offset beyond the matrix is at its edge.
struct Triangle {
  int64_t rows, cols, offset;
  bool lower;
  Triangle(const AttrReader& c, bool lower_) : rows(c.i("row"_attr)), cols(c.i("col"_attr)), offset(0), lower(lower_) {
    if (rows < 0 || cols < 0) fail_value("{}: sizes {} and {} must not be negative.", c.op().name(), rows, cols);
    offset = std::clamp(c.i("offset"_attr), -rows, cols);
  }
  // The columns of row r: [first, second).
  std::pair<int64_t, int64_t> columns(int64_t r) const {
    int64_t diagonal = std::clamp<int64_t>(r + offset + (lower ? 1 : 0), 0, cols);
    return lower ? std::pair<int64_t, int64_t>{0, diagonal} : std::pair<int64_t, int64_t>{diagonal, cols};
  }
  // The rows that have any.
  int64_t first_row() const { return lower ? std::clamp<int64_t>(-offset, 0, rows) : 0; }
  int64_t last_row() const {
    return cols == 0 ? first_row() : lower ? rows : std::clamp<int64_t>(cols - offset, 0, rows);
  }
  int64_t size(const char* op) const {
    // Those on and below a diagonal; the ones above it are the rest.
    __int128 o = lower ? offset : offset - 1, from = std::clamp<__int128>(-o, 0, rows),
             full = std::clamp<__int128>(cols - o, from, rows);
    __int128 n = full - from, below = n * (from + o + 1) + n * (n - 1) / 2 + (rows - full) * cols;
    __int128 count = lower ? below : __int128{rows} * cols - below;
    if (count > INT64_MAX / 32)
      fail_value("{}: the triangle has more elements than fit in memory. Choose smaller sizes.", op);
    return static_cast<int64_t>(count);
  }
};
template <bool kLower>
void triangle_infer(Infer& c) {
  DType t = c.has("dtype"_attr) ? c.dtype("dtype"_attr) : int64;
  c.require_dtype(t == int64 || t == int32, "indices are int64 or int32", "Choose one of them as dtype.");
  c.out({2, Triangle(c, kLower).size(c.op().name())}, t);
}
template <bool kLower>
void triangle_kernel(KernelCall& c) {
  if (!c.counts_once()) return kernels::fill(c.out(), Scalar(0));
  const Triangle triangle(c, kLower);
  // This part's columns of the [2, n] are elements first ... first + count of the triangle.
  int64_t first = c.offset_out()[1], count = c.out().shape[1], at = 0;
  Array both = Array::empty({2, count}, int64);
  for (int64_t r = triangle.first_row(); r < triangle.last_row(); ++r) {
    auto [begin, end] = triangle.columns(r);
    for (int64_t k = begin; k < end; ++k, ++at)
      if (at >= first && at < first + count) {
        both.data<int64_t>()[at - first] = r;
        both.data<int64_t>()[count + at - first] = k;
      }
  }
  kernels::copy(both.view(c.out().shape, both.strides, c.offset_out()[0] * count), c.out());
}

int64_t arange_count(const AttrReader& c) {
  double start = c.scalar("start"_attr).as_double(), end = c.scalar("end"_attr).as_double(),
         step = c.scalar("step"_attr).as_double();
  if (step == 0 || (end - start) / step < 0)
    fail_value("arange: from {} to {} by {} never ends. The step must have the direction from start to end.", start,
               end, step);
  const double count = std::ceil((end - start) / step);
  if (!(count < 0x1p62))
    fail_value("arange: from {} to {} by {} has more elements than fit in memory.", start, end, step);
  return static_cast<int64_t>(count);
}

// The diagonal; beyond the corners all are the same.
int64_t diagonal_in(const KernelCall& c) {
  const Dims& shape = c.logical_out();
  const int n = shape.size();
  return std::clamp(c.i("diagonal"_attr), -shape[n - 2], shape[n - 1]);
}

}  // namespace

HOLON_OP(empty,
         "empty(int... size, *, dtype? dtype=None, device? device=None, placement? placement=None, sbp? sbp=None, bool "
         "requires_grad=False, bool pin_memory=False) -> Tensor")
    .doc("A tensor of shape size with uninitialised values.", "empty(2, 3).shape")
    .function_only()
    .takes_float8()
    .infer(shape_infer)
    .rule(no_rule)
    .kernel([](KernelCall&) {});
HOLON_OP(zeros,
         "zeros(int... size, *, dtype? dtype=None, device? device=None, placement? placement=None, sbp? sbp=None, bool "
         "requires_grad=False, bool pin_memory=False) -> Tensor")
    .doc("A tensor of shape size of zeros.", "zeros(2, 3)")
    .function_only()
    .takes_float8()
    .infer(shape_infer)
    .rule(no_rule)
    .kernel([](KernelCall& c) { fill_kernel(c, Scalar(0)); });
HOLON_OP(ones,
         "ones(int... size, *, dtype? dtype=None, device? device=None, placement? placement=None, sbp? sbp=None, bool "
         "requires_grad=False, bool pin_memory=False) -> Tensor")
    .doc("A tensor of shape size of ones.", "ones(2, 3)")
    .function_only()
    .takes_float8()
    .infer(shape_infer)
    .rule(no_rule)
    .kernel([](KernelCall& c) { fill_kernel(c, Scalar(1)); });
HOLON_OP(full,
         "full(int[] size, Scalar fill_value, *, dtype? dtype=None, device? device=None, placement? placement=None, "
         "sbp? sbp=None, bool requires_grad=False, bool pin_memory=False) -> Tensor")
    .doc("A tensor of shape size filled with one value; its dtype is the value's unless dtype is given.",
         "full([2, 3], 0.5)")
    .function_only()
    .takes_float8()
    .infer([](Infer& c) {
      Dims shape(c.ints("size"_attr));
      for (int64_t x : shape)
        if (x < 0) fail_value("full: size {} has a negative entry. A size must be at least 0.", shape);
      c.out(shape, c.has("dtype"_attr) ? c.dtype("dtype"_attr) : c.scalar("fill_value"_attr).dtype());
    })
    .rule(no_rule)
    .kernel([](KernelCall& c) { fill_kernel(c, c.scalar("fill_value"_attr)); });

HOLON_OP(arange,
         "arange(Scalar start, Scalar? end=None, Scalar step=1, *, dtype? dtype=None, device? device=None, placement? "
         "placement=None, sbp? sbp=None, bool requires_grad=False, bool pin_memory=False) -> Tensor")
    .doc("[n]: start, start + step, ... before end; with one argument, from 0 up to it. int64 for integers, else "
         "float32.",
         "arange(4)")
    .function_only()
    .body([](BodyCall& c) {
      Scalar start = c.scalar("start"_attr), end = c.has("end"_attr) ? c.scalar("end"_attr) : start;
      if (!c.has("end"_attr)) start = end.is_float() ? Scalar(0.0) : Scalar(0);
      ArangeStepsOptions o;
      if (c.has("dtype"_attr)) o.dtype = c.dtype("dtype"_attr);
      if (c.has("device"_attr)) o.device = c.attrs().as_device(c.op().device_attr);
      if (c.has("placement"_attr)) o.placement = c.attrs().as_placement(c.op().placement_attr);
      if (c.has("sbp"_attr)) o.sbp = c.attrs().as_nd_sbp(c.op().sbp_attr);
      o.requires_grad = c.b("requires_grad"_attr);
      o.pin_memory = c.b("pin_memory"_attr);
      c.out.push_back(arange_steps(start, end, c.scalar("step"_attr), o));
    });
HOLON_OP(arange_steps,
         "arange_steps(Scalar start, Scalar end, Scalar step, *, dtype? dtype=None, device? device=None, placement? "
         "placement=None, sbp? sbp=None, bool requires_grad=False, bool pin_memory=False) -> Tensor")
    .doc("arange with all numbers given.")
    .hidden()
    .infer([](Infer& c) {
      bool floating =
          c.scalar("start"_attr).is_float() || c.scalar("end"_attr).is_float() || c.scalar("step"_attr).is_float();
      c.out({arange_count(c)}, c.has("dtype"_attr) ? c.dtype("dtype"_attr) : floating ? float32 : int64);
    })
    .rule(no_rule)
    .kernel([](KernelCall& c) {
      if (!c.counts_once()) return kernels::fill(c.out(), Scalar(0));
      kernels::arange(c.scalar("start"_attr), c.scalar("step"_attr), c.offset_out()[0], c.out());
    });

HOLON_OP(eye,
         "eye(int n, int? m=None, *, dtype? dtype=None, device? device=None, placement? placement=None, sbp? sbp=None, "
         "bool requires_grad=False, bool pin_memory=False) -> Tensor")
    .doc("An n x m matrix (m defaults to n) with ones on the diagonal.", "eye(3)")
    .function_only()
    .infer([](Infer& c) {
      int64_t n = c.i("n"_attr), m = c.has("m"_attr) ? c.i("m"_attr) : n;
      if (n < 0 || m < 0) fail_value("eye: sizes {} and {} must not be negative.", n, m);
      c.out({n, m}, c.has("dtype"_attr) ? c.dtype("dtype"_attr) : float32);
    })
    .rule(no_rule)
    .kernel([](KernelCall& c) {
      if (!c.counts_once()) return kernels::fill(c.out(), Scalar(0));
      kernels::eye(c.offset_out()[0], c.offset_out()[1], c.out());
    });

HOLON_OP(linspace,
         "linspace(float start, float end, int steps, *, dtype? dtype=None, device? device=None, placement? "
         "placement=None, sbp? sbp=None, bool requires_grad=False, bool pin_memory=False) -> Tensor")
    .doc("[steps]: evenly spaced numbers from start to end, both of them included.", "linspace(0, 1, 5)")
    .function_only()
    .infer(steps_infer)
    .rule(no_rule)
    .kernel([](KernelCall& c) {
      if (!c.counts_once()) return kernels::fill(c.out(), Scalar(0));
      kernels::linspace(c.f("start"_attr), c.f("end"_attr), c.logical_out()[0], c.offset_out()[0], c.out());
    });
HOLON_OP(logspace,
         "logspace(float start, float end, int steps, float base=10.0, *, dtype? dtype=None, device? device=None, "
         "placement? placement=None, sbp? sbp=None, bool requires_grad=False, bool pin_memory=False) -> Tensor")
    .doc("[steps]: base to the powers linspace(start, end, steps).", "logspace(0, 1, 5)")
    .function_only()
    .infer(steps_infer)
    .rule(no_rule)
    .kernel([](KernelCall& c) {
      if (!c.counts_once()) return kernels::fill(c.out(), Scalar(0));
      Array exponents = Array::empty(c.out().shape, float64), powers = Array::empty(c.out().shape, float64);
      kernels::linspace(c.f("start"_attr), c.f("end"_attr), c.logical_out()[0], c.offset_out()[0], exponents);
      kernels::binary_scalar(BinaryOp::Pow, exponents, c.f("base"_attr), powers, true);
      kernels::copy(powers, c.out());
    });
HOLON_OP(hann_window,
         "hann_window(int window_length, bool periodic=True, *, dtype? dtype=None, device? device=None, placement? "
         "placement=None, sbp? sbp=None, bool requires_grad=False, bool pin_memory=False) -> Tensor")
    .doc("[window_length]: sin^2(pi i / n) for i = 0 ... window_length - 1, with n = window_length if periodic, else "
         "window_length - 1.",
         "hann_window(5)")
    .function_only()
    .infer([](Infer& c) {
      DType t = c.has("dtype"_attr) ? c.dtype("dtype"_attr) : float32;
      if (c.i("window_length"_attr) < 0)
        fail_value("hann_window: window_length is {}; it must not be negative.", c.i("window_length"_attr));
      c.require_dtype(is_floating(t), "the window holds fractions", "Give a floating point dtype.");
      c.out({c.i("window_length"_attr)}, t);
    })
    .rule(no_rule)
    .kernel([](KernelCall& c) {
      if (!c.counts_once()) return kernels::fill(c.out(), Scalar(0));
      int64_t length = c.i("window_length"_attr), n = std::max<int64_t>(c.b("periodic"_attr) ? length : length - 1, 1);
      Array window = Array::empty(c.out().shape, float64);
      for (int64_t i = 0; i < window.numel(); ++i) {
        double s =
            std::sin(3.14159265358979323846 * static_cast<double>(c.offset_out()[0] + i) / static_cast<double>(n));
        window.data<double>()[i] = length == 1 ? 1 : s * s;
      }
      kernels::copy(window, c.out());
    });
HOLON_OP(tril_indices,
         "tril_indices(int row, int col, int offset=0, *, dtype? dtype=None, device? device=None, placement? "
         "placement=None, sbp? sbp=None, bool requires_grad=False, bool pin_memory=False) -> Tensor")
    .doc("[2, n]: the rows and columns of the elements of a row x col matrix on and below a diagonal, row by row.",
         "tril_indices(3, 3)")
    .function_only()
    .infer(triangle_infer<true>)
    .rule(no_rule)
    .kernel(triangle_kernel<true>);
HOLON_OP(triu_indices,
         "triu_indices(int row, int col, int offset=0, *, dtype? dtype=None, device? device=None, placement? "
         "placement=None, sbp? sbp=None, bool requires_grad=False, bool pin_memory=False) -> Tensor")
    .doc("[2, n]: the rows and columns of the elements of a row x col matrix on and above a diagonal, row by row.",
         "triu_indices(3, 3)")
    .function_only()
    .infer(triangle_infer<false>)
    .rule(no_rule)
    .kernel(triangle_kernel<false>);

HOLON_OP(zeros_like,
         "zeros_like(Tensor x, *, dtype? dtype=None, bool requires_grad=False, bool pin_memory=False) -> Tensor")
    .doc("Zeros with the shape, dtype, placement and sbp (or device) of x.", "zeros_like(ones(2))")
    .body([](BodyCall& c) { c.out.push_back(zeros(c.in(0).shape(), like<ZerosOptions>(c))); });
HOLON_OP(ones_like,
         "ones_like(Tensor x, *, dtype? dtype=None, bool requires_grad=False, bool pin_memory=False) -> Tensor")
    .doc("Ones with the shape, dtype, placement and sbp (or device) of x.", "ones_like(ones(2))")
    .body([](BodyCall& c) { c.out.push_back(ones(c.in(0).shape(), like<OnesOptions>(c))); });
HOLON_OP(empty_like,
         "empty_like(Tensor x, *, dtype? dtype=None, bool requires_grad=False, bool pin_memory=False) -> Tensor")
    .doc("Uninitialised values with the shape, dtype, placement and sbp (or device) of x.", "empty_like(ones(2)).shape")
    .body([](BodyCall& c) { c.out.push_back(empty(c.in(0).shape(), like<EmptyOptions>(c))); });
HOLON_OP(full_like,
         "full_like(Tensor x, Scalar fill_value, *, dtype? dtype=None, bool requires_grad=False, bool "
         "pin_memory=False) -> Tensor")
    .doc("A tensor filled with one value, with the shape, dtype, placement and sbp (or device) of x.",
         "full_like(ones(2), 0.5)")
    .body([](BodyCall& c) {
      c.out.push_back(full(c.in(0).shape(), c.scalar("fill_value"_attr), like<FullOptions>(c)));
    });

HOLON_OP(fill, "fill(Tensor x, Scalar value) -> Tensor")
    .doc("One value with the shape and dtype of x; fill_() writes it into x.", "fill(ones(2), 0.5)")
    .takes_float8()
    .infer_like()
    .elementwise()
    // Of a partial sum one addend gets the number and the others 0, which a window does not know.
    .fuses(Fuses::kNo)
    .linear()
    .in_place()
    .kernel([](KernelCall& c) { fill_kernel(c, c.scalar("value"_attr)); })
    .grad([](Grad& g) { g.dx(0, zeros_like(g.dy())); });
HOLON_OP(fill_tensor, "fill_tensor(Tensor x, Tensor value) -> Tensor")
    .doc("fill with a value that is a tensor without axes, whose gradient is the sum.", "fill(ones(2), full([], 0.5))")
    .overload_of("fill")
    .python_only()
    .in_place()
    .body([](BodyCall& c) {
      const Tensor &x = c.in(0), &value = c.in(1);
      if (value.ndim() != 0)
        fail_value("fill: value has shape {}; it must be a number, or a tensor without axes.", value.shape());
      const bool number = value.is_local() && !value.is_symbolic() && !(value.requires_grad() && grad_enabled());
      if (number) return c.out.push_back(fill(x, value.item()));
      // -0 is what leaves every value as it is when it is added.
      c.out.push_back(add(fill(x, -0.0), value.dtype() == x.dtype() ? value : cast(value, x.dtype())));
    });
HOLON_OP(zero, "zero(Tensor x) -> Tensor")
    .doc("Zeros like x; zero_() writes them into x.", "zero(ones(2))")
    .infer_like()
    .elementwise()
    // Of a partial sum one addend gets the number and the others 0, which a window does not know.
    .fuses(Fuses::kNo)
    .linear()
    .in_place()
    .kernel([](KernelCall& c) { fill_kernel(c, Scalar(0)); })
    .grad([](Grad& g) { g.dx(0, zeros_like(g.dy())); });

HOLON_OP(tril, "tril(Tensor x, int diagonal=0) -> Tensor")
    .doc("The lower triangle of the last two axes, up to a diagonal; zeros above.", "tril(ones(3, 3))")
    .infer([](Infer& c) {
      c.require(c.ndim(0) >= 2, "x needs two axes", "Add one by unsqueeze().");
      c.out(c.shape(0), c.dtype_of(0));
    })
    .rule_elementwise()
    .linear()
    .kernel([](KernelCall& c) {
      int n = c.out().ndim();
      Dims at = c.offset_out();
      kernels::tril(c.in(0), diagonal_in(c), at[n - 2], at[n - 1], c.out());
    })
    .grad([](Grad& g) { g.dx(0, tril(g.dy(), g.i("diagonal"_attr))); });
HOLON_OP(triu, "triu(Tensor x, int diagonal=0) -> Tensor")
    .doc("The upper triangle of the last two axes, from a diagonal on; zeros below.", "triu(ones(3, 3))")
    .infer([](Infer& c) {
      c.require(c.ndim(0) >= 2, "x needs two axes", "Add one by unsqueeze().");
      c.out(c.shape(0), c.dtype_of(0));
    })
    .rule_elementwise()
    .linear()
    .kernel([](KernelCall& c) {
      int n = c.out().ndim();
      Dims at = c.offset_out();
      kernels::triu(c.in(0), diagonal_in(c), at[n - 2], at[n - 1], c.out());
    })
    .grad([](Grad& g) { g.dx(0, triu(g.dy(), g.i("diagonal"_attr))); });

}  // namespace holon::ops
