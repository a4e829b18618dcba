// Numbers of the float8 dtypes in tensors of wider ones, as products in float8 see them.
#include <algorithm>
#include <cmath>
#include <vector>

#include "holon/base/index.h"
#include "holon/base/parallel.h"
#include "holon/internal_ops/float8.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/float8.h"
#include "holon/kernels/half.h"
#include "holon/ops/cast.h"
#include "holon/ops/elementwise.h"
#include "holon/ops/float8.h"
#include "holon/ops/flops.h"
#include "holon/ops/reduce.h"
#include "holon/ops/unary.h"
#include "holon/registry/op_def.h"

namespace holon::ops {
namespace {

void check_rounded(Infer& c) {
  c.require_floating(0);
  const DType to = c.dtype("dtype"_attr);
  c.require_dtype(to == float8_e4m3fn || to == float8_e5m2, "the dtype is neither float8_e4m3fn nor float8_e5m2",
                  "Choose one of them.");
}

void check_block(Infer& c) {
  check_rounded(c);
  c.require(c.i("rows"_attr) >= 0 && c.i("columns"_attr) >= 0 && (c.i("rows"_attr) > 0) == (c.i("columns"_attr) > 0),
            "rows and columns are not both positive or both 0", "Both 0 are one scale for all of x.");
  c.require(c.i("rows"_attr) == 0 || c.ndim(0) >= 1, "x without axes has no blocks", "Leave out rows and columns.");
}

// [] of x [...]. Along an axis that is split, all ranks' parts would be gathered: it is left to the last, when little
// is left.
Tensor largest_of(const Tensor& given) {
  NoGradGuard guard;
  Tensor x = abs(given.detach());
  auto is_split = [&](int axis) {
    if (!x.is_global()) return false;
    const NdSbp& sbp = x.nd_sbp();
    return std::any_of(sbp.begin(), sbp.end(), [&](Sbp s) { return s.is_split(axis); });
  };
  Dims whole;
  for (int a = 0; a < x.ndim(); ++a)
    if (!is_split(a)) whole.push_back(a);
  if (!whole.empty() && whole.size() < x.ndim()) x = amax(x, whole, true);
  return amax(x);
}

// In float32, row-major.
Array floats_of(const Array& x) { return kernels::converted(x, float32); }

// Elements of a block, rows apart by stride, rounded.
void round_block(float* x, int64_t rows, int64_t columns, int64_t stride, DType dtype) {
  float largest = 0;
  bool finite = true;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c) {
      finite &= std::isfinite(x[r * stride + c]);
      largest = std::max(largest, std::abs(x[r * stride + c]));
    }
  const float scale = kernels::float8_scale(finite ? largest : 0, dtype);
  Array wide = Array::empty({rows * columns}, float32), narrow = Array::empty({rows * columns}, dtype);
  float* w = wide.data<float>();
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c) w[r * columns + c] = x[r * stride + c] * scale;
  kernels::copy(wide, narrow);
  kernels::copy(narrow, wide);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c) x[r * stride + c] = w[r * columns + c] / scale;
}

// Of x, a scale and amax.
void infer_delayed(Infer& c, DType result) {
  check_rounded(c);
  c.require(c.ndim(1) == 0 && c.ndim(2) == 1, "scale has axes, or amax not one", "amax has a number for each rank.");
  c.require_dtype(c.dtype_of(1) == float32 && c.dtype_of(2) == float32, "scale or amax is not float32",
                  "Convert them by to(float32).");
  c.out(c.shape(0), result);
  c.out(c.shape(2), float32);
}

// However x is divided, the largest of all elements of amax is that of x and of those before: which of them a rank has
// raised does not matter.
void delayed_rule(RuleCall& r) {
  auto add = [&](Sbp x) {
    Signature s;
    for (Sbp in : {x, sbp::broadcast(), sbp::split(0)}) s.in.push_back(in);
    for (Sbp out : {x, sbp::split(0)}) s.out.push_back(out);
    r.rule.add(s);
  };
  for (int a = 0; a < r.in[0].shape.size(); ++a) add(sbp::split(a));
  add(sbp::broadcast());
}

void round_delayed(KernelCall& c) {
  kernels::round_float8(c.in(0), c.in(1), c.in(2), c.dtype("dtype"_attr), c.out(0), c.out(1));
}

}  // namespace

HOLON_OP(round_float8, "round_float8(Tensor x, dtype dtype, int rows=0, int columns=0) -> Tensor")
    .doc("x [...] with the numbers that float8_e4m3fn or float8_e5m2 has, times a power of two: one for all of x, or, "
         "with "
         "rows and columns, one for each block of so many of the last two axes. It is the largest power with which no "
         "element is above the dtype's largest number. Rounds to nearest even; the gradient passes as it is.",
         "round_float8(rand(2, 3), float8_e4m3fn)")
    .function_only()
    .body([](BodyCall& c) {
      const Tensor& x = c.in(0);
      const int64_t rows = c.i("rows"_attr), columns = c.i("columns"_attr);
      if (rows || columns || x.numel() == 0)
        c.out.push_back(round_float8_blocks(x, c.dtype("dtype"_attr), rows, columns));
      else
        c.out.push_back(round_float8_by(x, largest_of(x), c.dtype("dtype"_attr)));
    });

HOLON_OP(round_float8_by, "round_float8_by(Tensor x, Tensor largest, dtype dtype) -> Tensor")
    .doc("round_float8() by the largest of x's magnitudes.")
    .hidden()
    .infer([](Infer& c) {
      check_rounded(c);
      c.require(c.ndim(1) == 0, "largest has axes", "It is one number.");
      c.out(c.shape(0), c.dtype_of(0));
    })
    .rule([](RuleCall& r) {
      for (int a = 0; a < r.in[0].shape.size(); ++a) {
        const int f = r.rule.factor();
        r.rule.in(0, a, f), r.rule.out(0, a, f);
      }
    })
    .kernel([](KernelCall& c) {
      const DType dtype = c.dtype("dtype"_attr);
      Array scale = Array::empty({}, float32, c.out().device), none = Array::empty({0}, float32, c.out().device);
      kernels::float8_scale_of(c.in(1), dtype, scale);
      kernels::round_float8(c.in(0), scale, none, dtype, c.out(), none);
    })
    .grad([](Grad& g) {
      if (g.needs(0)) g.dx(0, g.dy());
    });

HOLON_OP(round_float8_blocks, "round_float8_blocks(Tensor x, dtype dtype, int rows, int columns) -> Tensor")
    .doc("round_float8() with a scale for each block.")
    .hidden()
    .on_host()
    .infer([](Infer& c) {
      check_block(c);
      c.out(c.shape(0), c.dtype_of(0));
    })
    .rule([](RuleCall& r) {
      const Dims& shape = r.in[0].shape;
      const int64_t sides[] = {r.i("rows"_attr), r.i("columns"_attr)};
      for (int a = 0; a < shape.size(); ++a) {
        const int from_last_two = a - (shape.size() - 2);
        const int64_t side = from_last_two < 0 ? 1 : std::max<int64_t>(sides[from_last_two], 1);
        // No block is cut.
        if (side > 1 && shape[a] % side != 0) continue;
        const int f = r.rule.factor(false, side > 1 ? shape[a] / side : 0);
        r.rule.in(0, a, f), r.rule.out(0, a, f);
      }
    })
    .layout(Layout::kLikeInput)
    .kernel([](KernelCall& c) {
      const DType dtype = c.dtype("dtype"_attr);
      Array x = floats_of(c.in(0));
      if (x.numel() > 0) {
        const int64_t columns = x.shape.back(), rows = x.ndim() > 1 ? x.shape[x.ndim() - 2] : 1;
        const int64_t height = std::min(c.i("rows"_attr), rows), width = std::min(c.i("columns"_attr), columns);
        const int64_t strips = (rows + height - 1) / height, all = x.numel() / columns / rows * strips;
        parallel_for(all, 1, [&](int64_t begin, int64_t end) {
          for (int64_t s = begin; s < end; ++s) {
            const int64_t first = s % strips * height;
            float* strip = x.data<float>() + (s / strips * rows + first) * columns;
            for (int64_t at = 0; at < columns; at += width)
              round_block(strip + at, std::min(height, rows - first), std::min(width, columns - at), columns, dtype);
          }
        });
      }
      kernels::copy(x, c.out());
    })
    .grad([](Grad& g) { g.dx(0, g.dy()); });

HOLON_OP(round_float8_delayed,
         "round_float8_delayed(Tensor x, Tensor scale, Tensor amax, dtype dtype) -> (Tensor values, Tensor amax)")
    .doc("round_float8() by a scale [] from before, beyond whose range values saturate; and amax [ranks], or [1] of a "
         "local x, in which the largest magnitude of each rank's part of x has been taken in.")
    .hidden()
    .infer([](Infer& c) { infer_delayed(c, c.dtype_of(0)); })
    .rule(delayed_rule)
    .kernel(round_delayed)
    .grad([](Grad& g) {
      if (g.needs(0)) g.dx(0, g.dy());
    });

HOLON_OP(quantize_float8_delayed,
         "quantize_float8_delayed(Tensor x, Tensor scale, Tensor amax, dtype dtype) -> (Tensor values, Tensor amax)")
    .doc("quantize_float8(), and amax as round_float8_delayed's.")
    .hidden()
    .takes_float8()
    .infer([](Infer& c) { infer_delayed(c, c.dtype("dtype"_attr)); })
    .rule(delayed_rule)
    .kernel(round_delayed);

HOLON_OP(float8_scale, "float8_scale(Tensor x, dtype dtype) -> Tensor")
    .doc("The power of two [] (float32) that brings the largest magnitude in x closest to the largest number of "
         "float8_e4m3fn or float8_e5m2, and not above it; 1 where nothing or infinity is the largest.",
         "float8_scale(rand(2, 3), float8_e4m3fn)")
    .function_only()
    .body([](BodyCall& c) {
      const Tensor& x = c.in(0);
      NoGradGuard guard;
      c.out.push_back(float8_scale_of(x.numel() ? largest_of(x) : sum(x.detach()), c.dtype("dtype"_attr)));
    });

HOLON_OP(float8_scale_of, "float8_scale_of(Tensor largest, dtype dtype) -> Tensor")
    .doc("float8_scale() by the largest of x's magnitudes.")
    .hidden()
    .infer([](Infer& c) {
      check_rounded(c);
      c.require(c.ndim(0) == 0, "largest has axes", "It is one number.");
      c.out({}, float32);
    })
    .only_whole("there is nothing to divide")
    .kernel([](KernelCall& c) { kernels::float8_scale_of(c.in(0), c.dtype("dtype"_attr), c.out()); });

HOLON_OP(quantize_float8, "quantize_float8(Tensor x, Tensor scale, dtype dtype) -> Tensor")
    .doc("x [...] times scale [] (float32, a power of two), rounded to nearest even to float8_e4m3fn or float8_e5m2; "
         "what is beyond the largest number becomes it. There is no gradient.",
         "quantize_float8(rand(2, 3), tensor(256.0), float8_e4m3fn)")
    .function_only()
    .takes_float8()
    .infer([](Infer& c) {
      check_rounded(c);
      c.require(c.ndim(1) == 0, "scale has axes", "It is one number.");
      c.require_dtype(c.dtype_of(1) == float32, "scale is not float32", "Convert it by to(float32).");
      c.out(c.shape(0), c.dtype("dtype"_attr));
    })
    .rule([](RuleCall& r) {
      for (int a = 0; a < r.in[0].shape.size(); ++a) {
        const int f = r.rule.factor();
        r.rule.in(0, a, f), r.rule.out(0, a, f);
      }
    })
    .kernel([](KernelCall& c) { kernels::quantize_float8(c.in(0), c.in(1), c.out()); });

HOLON_OP(scaled_mm, "scaled_mm(Tensor mat_a, Tensor mat_b, Tensor scale_a, Tensor scale_b, dtype out_dtype) -> Tensor")
    .doc("The product of mat_a [m, k] and mat_b [k, n], of float8_e4m3fn or float8_e5m2, times the numbers scale_a and "
         "scale_b "
         "(float32), with sums in float32, as out_dtype: float32, bfloat16 or float16. Devices of compute capability "
         "8.9 and more have such products where sizes are multiples of 16 and one factor is float8_e4m3fn; elsewhere "
         "it is computed in a wider dtype, which has all of these numbers. There is no gradient.",
         "scaled_mm(ones(2, 3).to(float8_e4m3fn), ones(3, 4).to(float8_e4m3fn), tensor(1.0), tensor(1.0), float32)")
    .function_only()
    .takes_float8()
    .flops(product_flops)
    .infer([](Infer& c) {
      auto is_number = [](DType t) { return t == float8_e4m3fn || t == float8_e5m2; };
      c.require_dtype(is_number(c.dtype_of(0)) && is_number(c.dtype_of(1)),
                      "mat_a and mat_b are not float8_e4m3fn or float8_e5m2", "Convert them by quantize_float8().");
      c.require_dtype(c.dtype_of(2) == float32 && c.dtype_of(3) == float32, "scales are not float32",
                      "Convert them by to(float32).");
      const DType to = c.dtype("out_dtype"_attr);
      c.require_dtype(to == float32 || kernels::is_half(to), "out_dtype is not float32, bfloat16 or float16",
                      "Choose one of them.");
      c.require(c.ndim(2) == 0 && c.ndim(3) == 0, "scales have axes", "Each is one number.");
      c.require(c.ndim(0) == 2 && c.ndim(1) == 2 && c.shape(0)[1] == c.shape(1)[0],
                "mat_a and mat_b are not matrices with one inner size", "mat_a is [m, k], mat_b is [k, n].");
      c.out({c.shape(0)[0], c.shape(1)[1]}, to);
    })
    .rule("m k, k n, , -> m n")
    .linear_in({2, 3})
    .kernel([](KernelCall& c) { kernels::scaled_matmul(c.in(0), c.in(1), c.in(2), c.in(3), c.out()); });

HOLON_OP(round_gradient, "round_gradient(Tensor x, dtype dtype, int rows=0, int columns=0) -> Tensor")
    .doc("x [...] as it is, whose gradient round_float8() rounds.", "round_gradient(ones(2), float8_e5m2)")
    .function_only()
    .infer([](Infer& c) {
      check_block(c);
      c.out(c.shape(0), c.dtype_of(0));
    })
    .rule_elementwise()
    .linear()
    .view([](ViewCall&, Array&) {})
    .grad([](Grad& g) { g.dx(0, round_float8(g.dy(), g.dtype("dtype"_attr), g.i("rows"_attr), g.i("columns"_attr))); });

}  // namespace holon::ops
