// Numbers of the float8 dtypes in tensors of wider ones, as products in float8 see them.
#include <algorithm>
#include <cmath>
#include <vector>

#include "holon/base/index.h"
#include "holon/base/parallel.h"
#include "holon/internal_ops/float8.h"
#include "holon/kernels/copy.h"
#include "holon/ops/cast.h"
#include "holon/ops/elementwise.h"
#include "holon/ops/float8.h"
#include "holon/ops/reduce.h"
#include "holon/ops/unary.h"
#include "holon/registry/op_def.h"

namespace holon::ops {
namespace {

// The power of two that brings largest closest to dtype's largest number, and not above it: E4M3's is 448, E5M2's
// 57344. 1 where there is nothing to scale.
float scale_for(float largest, DType dtype) {
  if (!std::isfinite(largest) || largest == 0) return 1;
  const float limit = dtype == float8_e4m3fn ? 448.0f : 57344.0f;
  // Powers that float32 has, with their inverses.
  const int power = std::clamp(std::ilogb(limit) - std::ilogb(largest), -126, 126);
  const float scale = std::ldexp(1.0f, power);
  return largest * scale > limit ? scale / 2 : scale;
}

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

constexpr int64_t kGroup = 32;  // numbers with one scale, of OCP Microscaling Formats 1.0

// Axes of x, or of values, in groups: each factor is one of the scales', too, whose last axis has the groups.
void groups_rule(RuleCall& r, size_t scales_in, size_t scales_out) {
  const Dims& shape = r.in[0].shape;
  for (int a = 0; a < shape.size(); ++a) {
    const int f = r.rule.factor(false, a + 1 == shape.size() ? shape[a] / kGroup : 0);
    r.rule.in(0, a, f), r.rule.out(0, a, f);
    if (scales_in) r.rule.in(scales_in, a, f);
    if (scales_out) r.rule.out(scales_out, a, f);
  }
}

// Section 6.3: the exponent of the largest number, less that of the dtype's largest.
int shared_exponent(float largest, DType dtype) {
  if (largest == 0) return -127;
  return std::clamp(std::ilogb(largest) - (dtype == float8_e4m3fn ? 8 : 15), -127, 127);
}

// Elements of a block, rows apart by stride, rounded.
void round_block(float* x, int64_t rows, int64_t columns, int64_t stride, DType dtype) {
  float largest = 0;
  bool finite = true;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c) {
      finite &= std::isfinite(x[r * stride + c]);
      largest = std::max(largest, std::abs(x[r * stride + c]));
    }
  const float scale = scale_for(finite ? largest : 0, dtype);
  Array wide = Array::empty({rows * columns}, float32), narrow = Array::empty({rows * columns}, dtype);
  float* w = wide.data<float>();
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c) w[r * columns + c] = x[r * stride + c] * scale;
  kernels::copy(wide, narrow);
  kernels::copy(narrow, wide);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c) x[r * stride + c] = w[r * columns + c] / scale;
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
    .on_host()
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
    .layout(Layout::kLikeInput)
    .kernel([](KernelCall& c) {
      const float scale = scale_for(floats_of(c.in(1)).data<float>()[0], c.dtype("dtype"_attr));
      Array x = floats_of(c.in(0));
      float* p = x.data<float>();
      for (int64_t i = 0; i < x.numel(); ++i) p[i] *= scale;
      x = kernels::converted(kernels::converted(x, c.dtype("dtype"_attr)), float32);
      p = x.data<float>();
      for (int64_t i = 0; i < x.numel(); ++i) p[i] /= scale;
      kernels::copy(x, c.out());
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

HOLON_OP(quantize_mx, "quantize_mx(Tensor x, dtype dtype) -> (Tensor values, Tensor scales)")
    .doc("x [..., n] in the microscaling formats MXFP8 (OCP Microscaling Formats 1.0): values [..., n] of "
         "float8_e4m3fn or "
         "float8_e5m2, and scales [..., n / 32] of float8_e8m0fnu, by which 32 neighbours are multiplied. Values are "
         "rounded to nearest even, and beyond the largest number to it. There is no gradient.",
         "quantize_mx(rand(2, 32), float8_e4m3fn)")
    .function_only()
    .takes_float8()
    .on_host()
    .infer([](Infer& c) {
      check_rounded(c);
      c.require(c.ndim(0) >= 1 && c.shape(0).back() % kGroup == 0, "the last axis is not a multiple of 32",
                "Pad x with zeros.");
      Dims groups = c.shape(0);
      groups.back() /= kGroup;
      c.out(c.shape(0), c.dtype("dtype"_attr));
      c.out(groups, float8_e8m0fnu);
    })
    .rule([](RuleCall& r) { groups_rule(r, 0, 1); })
    .kernel([](KernelCall& c) {
      const DType dtype = c.dtype("dtype"_attr);
      const float limit = dtype == float8_e4m3fn ? 448.0f : 57344.0f;
      Array x = floats_of(c.in(0)), scales = Array::empty(c.out(1).shape, float8_e8m0fnu);
      parallel_for(x.numel() / kGroup, 256, [&](int64_t begin, int64_t end) {
        for (int64_t g = begin; g < end; ++g) {
          float* p = x.data<float>() + g * kGroup;
          float largest = 0;
          bool finite = true;
          for (int64_t i = 0; i < kGroup; ++i) {
            finite &= std::isfinite(p[i]);
            largest = std::max(largest, std::abs(p[i]));
          }
          const int e = finite ? shared_exponent(largest, dtype) : 0;
          scales.data<uint8_t>()[g] = static_cast<uint8_t>(finite ? e + 127 : 255);
          for (int64_t i = 0; i < kGroup; ++i) p[i] = std::clamp(std::ldexp(p[i], -e), -limit, limit);
        }
      });
      kernels::copy(x, c.out(0));
      kernels::copy(scales, c.out(1));
    });

HOLON_OP(dequantize_mx, "dequantize_mx(Tensor values, Tensor scales, dtype dtype) -> Tensor")
    .doc("values [..., n] and scales [..., n / 32] of quantize_mx() as numbers [..., n] of a wider dtype.",
         "dequantize_mx(zeros(2, 32, dtype=float8_e5m2), ones(2, 1, dtype=float8_e8m0fnu), float32)")
    .function_only()
    .takes_float8()
    .on_host()
    .infer([](Infer& c) {
      const DType from = c.dtype_of(0), to = c.dtype("dtype"_attr);
      c.require_dtype((from == float8_e4m3fn || from == float8_e5m2) && c.dtype_of(1) == float8_e8m0fnu,
                      "values are not float8_e4m3fn or float8_e5m2, or scales not float8_e8m0fnu",
                      "Pass the two tensors of quantize_mx().");
      c.require_dtype(is_floating(to) && !is_float8(to), "the requested dtype is not a wider floating point one",
                      "Choose float32, bfloat16, float16 or float64.");
      Dims groups = c.shape(0);
      const bool fits = groups.size() >= 1 && groups.back() % kGroup == 0;
      if (fits) groups.back() /= kGroup;
      c.require(fits && c.shape(1) == groups, "scales are not one for each 32 values along the last axis",
                "Pass the two tensors of quantize_mx().");
      c.out(c.shape(0), to);
    })
    .rule([](RuleCall& r) { groups_rule(r, 1, 0); })
    .kernel([](KernelCall& c) {
      Array x = floats_of(c.in(0));
      const Array scales = floats_of(c.in(1));
      parallel_for(x.numel() / kGroup, 256, [&](int64_t begin, int64_t end) {
        for (int64_t g = begin; g < end; ++g)
          for (int64_t i = 0; i < kGroup; ++i) x.data<float>()[g * kGroup + i] *= scales.data<float>()[g];
      });
      kernels::copy(x, c.out());
    });

}  // namespace holon::ops
