// Images read at places between their pixels. What depends on the grid are small element-wise ops; the pixels are read
// by sample_taps and its two derivatives, which are derivatives of each other, so there are gradients of any order.
// Samples, channels and places of the grid split; so do the pixels, each rank then having an addend.
#include <array>
#include <string_view>

#include "holon/base/index.h"
#include "holon/internal_ops/grid.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/sample_taps.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/cast.h"
#include "holon/ops/compare.h"
#include "holon/ops/create.h"
#include "holon/ops/elementwise.h"
#include "holon/ops/grid.h"
#include "holon/ops/rules.h"
#include "holon/ops/shape.h"
#include "holon/ops/unary.h"
#include "holon/ops/whole.h"

namespace holon::ops {
namespace {

enum class Padding { kZeros, kBorder, kReflection };

// [-1, 1] as pixels: the corners' centres are the ends if align_corners, else their outer edges.
Tensor as_pixels(const Tensor& at, double size, bool align) {
  return align ? mul(add(at, 1.0), (size - 1) / 2) : sub(mul(add(at, 1.0), size / 2), 0.5);
}

// Reflected at the ends as often as needed; the ends are pixels, or their outer edges.
Tensor reflected(const Tensor& at, double size, bool align) {
  const double low = align ? 0 : -0.5, span = align ? size - 1 : size;
  if (span <= 0) return mul(at, 0.0);
  Tensor away = abs(sub(at, low)), rest = fmod(away, span);
  Tensor back = ne(fmod(floor(div(away, span)), 2.0), 0.0);
  return where(back, sub(rest, low + span, {.reverse = true}), add(rest, low));
}

Tensor padded(const Tensor& at, double size, bool align, Padding padding) {
  if (padding == Padding::kZeros) return at;
  Tensor inside = padding == Padding::kReflection ? reflected(at, size, align) : at;
  return clamp(inside, Scalar(0.0), Scalar(size - 1));
}

// The pixels along one axis that a place is made of, each [n, q, taps]: weights, positions as int64, and which exist.
struct AxisTaps {
  Tensor weight, index, inside;
};

AxisTaps taps_at(const Tensor& position, const Tensor& weight, double size) {
  // NaN is in no image.
  Tensor inside = logical_and(ge(position, 0.0), le(position, size - 1));
  return {weight, cast(where(inside, position, zeros_like(position)).detach(), int64), inside};
}

AxisTaps axis_taps(const Tensor& coordinate, int64_t pixels, std::string_view mode, Padding padding, bool align) {
  const double size = static_cast<double>(pixels);
  Tensor at = as_pixels(coordinate, size, align);
  if (mode == "nearest") {
    Tensor nearest = unsqueeze(round(padded(at, size, align, padding)), -1);
    return taps_at(nearest, add(sub(nearest, nearest), 1.0), size);  // its derivative is 0, not absent
  }
  if (mode == "bilinear") {
    at = padded(at, size, align, padding);
    Tensor base = floor(at.detach()), part = sub(at, base);
    return taps_at(stack({base, add(base, 1.0)}, -1), stack({sub(part, 1.0, {.reverse = true}), part}, -1), size);
  }
  // Keys' cubic convolution with a = -0.75, of pixels that are padded one by one.
  constexpr double a = -0.75;
  Tensor base = floor(at.detach()), s = sub(at, base);
  auto near = [&](const Tensor& x) { return add(mul(mul(sub(mul(x, a + 2), a + 3), x), x), 1.0); };
  auto far = [&](const Tensor& x) { return sub(mul(add(mul(sub(mul(x, a), 5 * a), x), 8 * a), x), 4 * a); };
  Tensor weight =
      stack({far(add(s, 1.0)), near(s), near(sub(s, 1.0, {.reverse = true})), far(sub(s, 2.0, {.reverse = true}))}, -1);
  Tensor pixel = stack({sub(base, 1.0), base, add(base, 1.0), add(base, 2.0)}, -1);
  return taps_at(padded(pixel, size, align, padding), weight, size);
}

// Of several axes, all combinations: [n, q, taps of the first x ... x taps of the last].
AxisTaps combined(const AxisTaps& outer, const AxisTaps& inner, int64_t inner_pixels) {
  auto left = [](const Tensor& t) { return unsqueeze(t, -1); };
  auto right = [](const Tensor& t) { return unsqueeze(t, -2); };
  auto merged = [](const Tensor& t) {
    const Dims& s = t.shape();
    return reshape(t, {s[0], s[1], s[2] * s[3]});
  };
  return {merged(mul(left(outer.weight), right(inner.weight))),
          merged(add(mul(left(outer.index), inner_pixels), right(inner.index))),
          merged(logical_and(left(outer.inside), right(inner.inside)))};
}

struct Taps {
  int x, weight, index, dy;  // which input is which; -1: none, the output
};

// Factors of [n, c, places], [n, q, k], [n, q, k] and [n, c, q], of which three are inputs and one is the output; those
// that the output lacks are summed over.
void taps_rule(RuleCall& r, const Taps& at, bool out_places, bool out_taps) {
  const int n = r.rule.factor(), c = r.rule.factor(out_taps), q = r.rule.factor(out_places),
            k = r.rule.factor(!out_taps), p = r.rule.factor(!out_places);
  auto put = [&](int input, std::array<int, 3> factors) {
    for (int a = 0; a < 3; ++a)
      if (input < 0)
        r.rule.out(0, a, at_index(factors, a));
      else
        r.rule.in(to_size(input), a, at_index(factors, a));
  };
  put(at.x, {n, c, p});
  put(at.dy, {n, c, q});
  put(at.weight, {n, q, k});
  put(at.index, {n, q, k});
}

void check_taps(Infer& c, size_t index) {
  c.require_floating(0);
  c.require_dtype(c.dtype_of(0) == float32 || c.dtype_of(0) == float64, "only float32 and float64",
                  "Call grid_sample.");
  c.require_dtype(c.dtype_of(0) == c.dtype_of(1), "the tensors have different dtypes", "Convert one by to().");
  c.require_dtype(c.dtype_of(index) == int64, "indices must be int64", "Convert them by to(int64).");
  for (int i = 0; i < 3; ++i) c.require(c.ndim(to_size(i)) == 3, "each tensor has three axes", "Call grid_sample.");
}

Array in_order(const KernelCall& c, size_t i) { return kernels::contiguous(c.in(i)); }

// What a base grid is at: the centres of n pixels in [-1, 1], or of their outer edges' range.
Tensor centres(const Tensor& beside_of, int64_t n, bool align) {
  Array a = Array::empty({n}, float64);
  for (int64_t i = 0; i < n; ++i) {
    const double at = n > 1 ? -1 + 2 * static_cast<double>(i) / static_cast<double>(n - 1) : 0;
    a.data<double>()[i] = align ? at : at * static_cast<double>(n - 1) / static_cast<double>(n);
  }
  return cast(beside(beside_of, a), beside_of.dtype());
}

}  // namespace

HOLON_OP(grid_sample,
         "grid_sample(Tensor input, Tensor grid, str mode='bilinear', str padding_mode='zeros', bool "
         "align_corners=False) -> Tensor")
    .doc("input [n, c, h, w] (or [n, c, d, h, w]) at the places grid [n, oh, ow, 2] ([n, od, oh, ow, 3]): (x, y) or "
         "(x, y, z), -1 and 1 being the centres of the outer pixels if align_corners, else their outer edges. mode: "
         "'bilinear', 'nearest' or 'bicubic' (images only). padding_mode, beyond the edges: 'zeros', 'border' (the "
         "edge) or 'reflection'. A place that is NaN reads 0.",
         "grid_sample(ones(1, 1, 3, 3), zeros(1, 2, 2, 2)).shape")
    .autocast(Autocast::kFloat32)
    .function_only()
    .body([](BodyCall& c) {
      Tensor x = c.in(0), grid = c.in(1);
      const int axes = x.ndim() - 2;
      if (!is_floating(x.dtype()) || x.dtype() != grid.dtype())
        fail_type("grid_sample: input is {}, grid {}; they must have the same floating point dtype. Convert one by "
                  "to().",
                  name(x.dtype()), name(grid.dtype()));
      if ((axes != 2 && axes != 3) || grid.ndim() != x.ndim() || grid.shape().back() != axes ||
          grid.shape()[0] != x.shape()[0])
        fail_value(
            "grid_sample: input is {}, grid {}; it takes [n, c, h, w] and [n, oh, ow, 2], or [n, c, d, h, w] and "
            "[n, od, oh, ow, 3].",
            x.shape(), grid.shape());
      for (int a = 2; a < x.ndim(); ++a)
        if (x.shape()[a] == 0) fail_value("grid_sample: input {} has no pixels. Check the shape first.", x.shape());
      const std::string_view mode = c.text("mode"_attr), pad = c.text("padding_mode"_attr);
      if (mode != "bilinear" && mode != "nearest" && mode != "bicubic")
        fail_value("grid_sample: mode is '{}'; it must be 'bilinear', 'nearest' or 'bicubic'.", mode);
      if (mode == "bicubic" && axes != 2)
        fail_value("grid_sample: mode 'bicubic' is for images [n, c, h, w]; input is {}. Use 'bilinear'.", x.shape());
      if (pad != "zeros" && pad != "border" && pad != "reflection")
        fail_value("grid_sample: padding_mode is '{}'; it must be 'zeros', 'border' or 'reflection'.", pad);
      const Padding padding = pad == "zeros" ? Padding::kZeros
          : pad == "border"                  ? Padding::kBorder
                                             : Padding::kReflection;
      const DType given = x.dtype();
      if (given != float32 && given != float64) x = cast(x, float32), grid = cast(grid, float32);
      Dims shape{x.shape()[0], x.shape()[1]};
      int64_t places = 1, pixels = 1;
      for (int a = 0; a < axes; ++a) {
        shape.push_back(grid.shape()[1 + a]);
        places *= grid.shape()[1 + a];
        pixels *= x.shape()[2 + a];
      }
      // The grid's last axis has the last axis of the image first.
      grid = reshape(grid, {grid.shape()[0], places, axes});
      AxisTaps taps;
      for (int a = 0; a < axes; ++a) {
        const int64_t n = x.shape()[2 + a];
        AxisTaps along = axis_taps(select(grid, 2, axes - 1 - a), n, mode, padding, c.b("align_corners"_attr));
        taps = a == 0 ? along : combined(taps, along, n);
      }
      Tensor index = masked_fill(taps.index, logical_not(taps.inside), -1);
      Tensor weight = masked_fill(taps.weight, logical_not(taps.inside), 0.0);
      Tensor y = sample_taps(reshape(x, {shape[0], shape[1], pixels}), weight, index);
      y = reshape(y, shape);
      c.out.push_back(y.dtype() == given ? y : cast(y, given));
    });

HOLON_OP(sample_taps, "sample_taps(Tensor x, Tensor weight, Tensor index) -> Tensor")
    .doc("x [n, c, places] at the places index [n, q, k], times weight [n, q, k], added up over k: [n, c, q]. A "
         "negative "
         "index counts nothing.")
    .hidden()
    .infer([](Infer& c) {
      check_taps(c, 2);
      c.require(c.shape(1) == c.shape(2) && c.shape(0)[0] == c.shape(1)[0], "the shapes do not match",
                "Call grid_sample.");
      c.out({c.shape(0)[0], c.shape(0)[1], c.shape(1)[1]}, c.dtype_of(0));
    })
    .rule([](RuleCall& r) { taps_rule(r, {.x = 0, .weight = 1, .index = 2, .dy = -1}, false, false); })
    .linear_in({0, 1})
    .kernel([](KernelCall& c) {
      kernels::sample_taps(in_order(c, 0), in_order(c, 1), in_order(c, 2), {c.offset_in(0)[2], c.logical_in(0)[2]},
                           c.out());
    })
    .saves({0, 1, 2})
    .grad([](Grad& g) {
      if (g.needs(0)) g.dx(0, sample_taps_input(g.dy(), g.x(1), g.x(2), g.in_shape(0)[2]));
      if (g.needs(1)) g.dx(1, sample_taps_weight(g.dy(), g.x(0), g.x(2)));
    });
HOLON_OP(sample_taps_input, "sample_taps_input(Tensor dy, Tensor weight, Tensor index, int places) -> Tensor")
    .doc("Gradient of sample_taps in x.")
    .hidden()
    .infer([](Infer& c) {
      check_taps(c, 2);
      c.require(c.shape(1) == c.shape(2) && c.shape(0)[0] == c.shape(1)[0] && c.shape(0)[2] == c.shape(1)[1],
                "the shapes do not match", "Call grid_sample.");
      c.out({c.shape(0)[0], c.shape(0)[1], c.i("places"_attr)}, c.dtype_of(0));
    })
    .rule([](RuleCall& r) { taps_rule(r, {.x = -1, .weight = 1, .index = 2, .dy = 0}, true, false); })
    .linear_in({0, 1})
    .kernel([](KernelCall& c) {
      kernels::sample_taps_input(in_order(c, 0), in_order(c, 1), in_order(c, 2),
                                 {c.offset_out()[2], c.logical_out()[2]}, c.out());
    })
    .saves({0, 1, 2})
    .grad([](Grad& g) {
      if (g.needs(0)) g.dx(0, sample_taps(g.dy(), g.x(1), g.x(2)));
      if (g.needs(1)) g.dx(1, sample_taps_weight(g.x(0), g.dy(), g.x(2)));
    });
HOLON_OP(sample_taps_weight, "sample_taps_weight(Tensor dy, Tensor x, Tensor index) -> Tensor")
    .doc("Gradient of sample_taps in weight.")
    .hidden()
    .infer([](Infer& c) {
      check_taps(c, 2);
      c.require(c.shape(0)[0] == c.shape(2)[0] && c.shape(0)[2] == c.shape(2)[1] && c.shape(0)[0] == c.shape(1)[0] &&
                    c.shape(0)[1] == c.shape(1)[1],
                "the shapes do not match", "Call grid_sample.");
      c.out(c.shape(2), c.dtype_of(0));
    })
    .rule([](RuleCall& r) { taps_rule(r, {.x = 1, .weight = -1, .index = 2, .dy = 0}, false, true); })
    .linear_in({0, 1})
    .kernel([](KernelCall& c) {
      kernels::sample_taps_weight(in_order(c, 0), in_order(c, 1), in_order(c, 2),
                                  {c.offset_in(1)[2], c.logical_in(1)[2]}, c.out());
    })
    .saves({0, 1, 2})
    .grad([](Grad& g) {
      if (g.needs(0)) g.dx(0, sample_taps(g.x(1), g.dy(), g.x(2)));
      if (g.needs(1)) g.dx(1, sample_taps_input(g.x(0), g.dy(), g.x(2), g.in_shape(1)[2]));
    });

HOLON_OP(affine_grid, "affine_grid(Tensor theta, int[] size, bool align_corners=False) -> Tensor")
    .doc("The grid for grid_sample that shows an image of size [n, c, h, w] (or [n, c, d, h, w]) transformed by theta "
         "[n, 2, 3] ([n, 3, 4]): [n, h, w, 2] ([n, d, h, w, 3]).",
         "affine_grid(ones(1, 2, 3), [1, 1, 2, 2]).shape")
    .autocast(Autocast::kFloat32)
    .function_only()
    .body([](BodyCall& c) {
      const Tensor& theta = c.in(0);
      const Dims size(c.ints("size"_attr));
      const int axes = size.size() - 2;
      if (!is_floating(theta.dtype()))
        fail_type("affine_grid: theta is {}; it must be floating point. Convert it first, e.g. x.to(float32).",
                  name(theta.dtype()));
      for (int64_t s : size)
        if (s < 1) fail_value("affine_grid: size is {}; each must be at least 1.", size);
      if ((axes != 2 && axes != 3) || theta.shape() != Dims{size[0], axes, axes + 1})
        fail_value(
            "affine_grid: theta is {}, size {}; it takes [n, 2, 3] with [n, c, h, w], or [n, 3, 4] with [n, c, d, "
            "h, w].",
            theta.shape(), size);
      // Column j of theta, [n, 1, ..., axes], times the places along the axis that it belongs to; the last is added.
      Dims column{size[0]};
      for (int a = 0; a < axes; ++a) column.push_back(1);
      column.push_back(axes);
      Tensor grid = reshape(select(theta, 2, axes), column);
      for (int j = 0; j < axes; ++j) {
        const int axis = axes - 1 - j;  // of the image: x is the last
        Dims along = Dims::filled(axes + 2, 1);
        along[1 + axis] = size[2 + axis];
        Tensor places = reshape(centres(theta, size[2 + axis], c.b("align_corners"_attr)), along);
        grid = add(grid, mul(reshape(select(theta, 2, j), column), places));
      }
      c.out.push_back(grid);
    });

}  // namespace holon::ops
