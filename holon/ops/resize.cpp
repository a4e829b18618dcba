// Padding, interpolation, and rearrangements of images. All are linear. Interpolation and padding by an image's own
// elements go axis by axis: each is a matrix with few elements in a row. The axes that change are whole, all others
// split.
#include "holon/kernels/resize.h"
#include "holon/internal_ops/resize.h"
#include "holon/ops/create.h"

#include <algorithm>
#include <cmath>

#include "holon/base/index.h"
#include "holon/kernels/conv.h"
#include "holon/ops/elementwise.h"
#include "holon/ops/pool.h"
#include "holon/ops/resize.h"
#include "holon/ops/rules.h"
#include "holon/ops/shape.h"
#include "holon/ops/windows.h"

namespace holon::ops {
namespace {

kernels::Taps taps_of(std::string_view mode, int64_t n, int64_t m, double scale, int64_t before) {
  kernels::Taps t;
  auto last = n - 1;
  t.taps = mode.starts_with("linear") ? 2 : mode.starts_with("cubic") ? 4 : 1;
  bool corners = mode.ends_with("corners");
  for (int64_t o = 0; o < m; ++o) {
    if (mode == "reflect") {
      int64_t at = std::abs(o - before);
      t.index.push_back(at > last ? 2 * last - at : at);
    } else if (mode == "replicate") {
      t.index.push_back(std::clamp<int64_t>(o - before, 0, last));
    } else if (mode == "circular") {
      t.index.push_back(((o - before) % n + n) % n);
    } else if (mode == "nearest" || mode == "nearest-exact") {
      double at = (static_cast<double>(o) + (mode == "nearest" ? 0 : 0.5)) * scale;
      t.index.push_back(std::clamp<int64_t>(static_cast<int64_t>(std::floor(at)), 0, last));
    } else {
      double at = corners ? static_cast<double>(o) * scale : (static_cast<double>(o) + 0.5) * scale - 0.5;
      if (t.taps == 2) {
        at = std::max(at, 0.0);
        int64_t i = std::min(static_cast<int64_t>(at), last);
        double part = std::min(at - static_cast<double>(i), 1.0);
        t.index.insert(t.index.end(), {i, std::min(i + 1, last)});
        t.weight.insert(t.weight.end(), {1 - part, part});
      } else {  // Keys' cubic convolution with a = -0.75
        constexpr double a = -0.75;
        double base = std::floor(at), s = at - base;
        auto near = [&](double x) { return ((a + 2) * x - (a + 3)) * x * x + 1; };
        auto far = [&](double x) { return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a; };
        t.weight.insert(t.weight.end(), {far(s + 1), near(s), near(1 - s), far(2 - s)});
        for (int64_t k = -1; k <= 2; ++k)
          t.index.push_back(std::clamp<int64_t>(static_cast<int64_t>(base) + k, 0, last));
      }
    }
  }
  return t;
}

kernels::Taps taps_of(const KernelCall& c, int64_t n, int64_t m) {
  return taps_of(c.text("mode"_attr), n, m, c.f("scale"_attr), c.i("before"_attr));
}

void other_axes(RuleCall& r, int whole) {
  for (int a = 0; a < r.in[0].shape.size(); ++a) {
    if (a == whole) continue;
    int f = r.rule.factor();
    r.rule.in(0, a, f);
    r.rule.out(0, a, f);
  }
}

// One axis, `dim`, gets another size.
void resample_infer(Infer& c) {
  Dims s = c.shape(0);
  s[static_cast<int>(c.i("dim"_attr))] = c.i("size"_attr);
  c.out(s, c.dtype_of(0));
}

void resample_rule(RuleCall& r) { other_axes(r, static_cast<int>(r.i("dim"_attr))); }

kernels::Window2d window_of(const AttrReader& c) {
  kernels::Window2d w;
  for (size_t i = 0; i < 2; ++i)
    w.kernel[i] = c.ints("kernel_size"_attr)[i], w.stride[i] = c.ints("stride"_attr)[i],
    w.padding[i] = c.ints("padding"_attr)[i], w.dilation[i] = c.ints("dilation"_attr)[i];
  return w;
}

// The windows of unfold and fold. Errors: attributes that are none; none fits into an image of h x w.
struct ImageWindows {
  Dims kernel, dilation, padding, stride;
  int64_t count = 1;
  ImageWindows(const BodyCall& c, int64_t h, int64_t w)
      : kernel(per_axis(c, "kernel_size"_attr, 2, 1)),
        dilation(per_axis(c, "dilation"_attr, 2, 1)),
        padding(per_axis(c, "padding"_attr, 2, 0)),
        stride(per_axis(c, "stride"_attr, 2, 1)) {
    for (int i = 0; i < 2; ++i) {
      int64_t k = kernels::conv_out_size(i ? w : h, kernel[i], stride[i], padding[i], padding[i], dilation[i]);
      if (k < 1)
        fail_value("{}: the kernel {} is larger than the padded image {} x {}. Use a smaller one.", c.op().name(),
                   kernel, h, w);
      if (__builtin_mul_overflow(count, k, &count))
        fail_value("{}: an image of {} x {} with padding {} has too many windows. Use less.", c.op().name(), h, w,
                   padding);
    }
  }
};

// The channels split evenly, with their rows of columns.
void columns_rule(RuleCall& r, int64_t channels) {
  int n = r.rule.factor(), k = r.rule.factor(false, channels);
  r.rule.in(0, 0, n);
  r.rule.out(0, 0, n);
  r.rule.in(0, 1, k);
  r.rule.out(0, 1, k);
}

struct Mode {
  const char* name;
  const char* axis;  // what goes along each axis
  int axes;          // 0: any number
};
constexpr Mode kModes[] = {{"nearest", "nearest", 0},
                           {"nearest-exact", "nearest-exact", 0},
                           {"linear", "linear", 1},
                           {"bilinear", "linear", 2},
                           {"bicubic", "cubic", 2},
                           {"trilinear", "linear", 3},
                           {"area", "", 0}};

}  // namespace

HOLON_OP(pad, "pad(Tensor x, int[] pad, str mode='constant', Scalar? value=None) -> Tensor")
    .doc("x with elements added before and after its last axes: pad is (before, after) of the last axis, then of the "
         "one before it, and so on; negative numbers crop. mode: 'constant' (value, or 0), 'reflect' (without the "
         "edge), 'replicate' (the edge) or 'circular'.",
         "pad(ones(2, 3), [1, 1])")
    .function_only()
    .body([](BodyCall& c) {
      Tensor x = c.in(0);
      Dims given(c.ints("pad"_attr));
      auto mode = c.text("mode"_attr);
      int n = x.ndim(), axes = given.size() / 2;
      if (given.size() % 2 || axes > n)
        fail_value("pad: pad {} has {} numbers; x {} takes two for each axis, at most {}.", given, given.size(),
                   x.shape(), 2 * n);
      Dims before = Dims::filled(n, 0), after = before;
      constexpr int64_t kFarthest = int64_t{1} << 40;
      for (int64_t p : given)
        if (p > kFarthest || p < -kFarthest)
          fail_value("pad: x {} padded by {} does not fit in memory.", given, x.shape());
      for (int a = 0; a < axes; ++a) before[n - 1 - a] = given[2 * a], after[n - 1 - a] = given[2 * a + 1];
      for (int a = 0; a < n; ++a)
        if (x.shape()[a] + before[a] + after[a] < 0 ||
            x.shape()[a] + std::min<int64_t>(before[a], 0) + std::min<int64_t>(after[a], 0) < 0)
          fail_value("pad: pad {} crops more of axis {} of x {} than there is.", given, a, x.shape());
      if (mode == "constant") {
        c.out.push_back(
            pad_constant(x, before, after, c.has("value"_attr) ? c.scalar("value"_attr) : Scalar(int64_t{0})));
        return;
      }
      if (mode != "reflect" && mode != "replicate" && mode != "circular")
        fail_value("pad: mode is '{}'; it must be 'constant', 'reflect', 'replicate' or 'circular'.", mode);
      if (c.has("value"_attr) && c.scalar("value"_attr).as_double() != 0)
        fail_value("pad: value is for mode 'constant', not '{}'.", mode);
      for (int a = 0; a < n; ++a) {
        if (before[a] == 0 && after[a] == 0) continue;
        int64_t size = x.shape()[a], most = std::max(before[a], after[a]),
                room = mode == "reflect" ? size - 1
            : mode == "circular"         ? size
            : size                       ? most
                                         : 0;
        if (most > room)
          fail_value("pad: {} elements by mode '{}' next to axis {} of x {}: only {} are available.", most, mode, a,
                     x.shape(), room);
        x = resample(x, a, size + before[a] + after[a], mode, 1, before[a]);
      }
      c.out.push_back(x);
    });
HOLON_OP(pad_constant, "pad_constant(Tensor x, int[] before, int[] after, Scalar value) -> Tensor")
    .doc("x surrounded by a value, or cropped.")
    .hidden()
    .infer([](Infer& c) {
      Dims s = c.shape(0);
      for (int a = 0; a < s.size(); ++a) s[a] += at_index(c.ints("before"_attr), a) + at_index(c.ints("after"_attr), a);
      c.out(s, c.dtype_of(0));
    })
    .rule([](RuleCall& r) {
      bool cuts_only = true;
      for (int a = 0; a < r.in[0].shape.size(); ++a) {
        int64_t b = at_index(r.ints("before"_attr), a), e = at_index(r.ints("after"_attr), a);
        cuts_only &= b <= 0 && e <= 0;
        if (b || e) continue;
        int f = r.rule.factor();
        r.rule.in(0, a, f);
        r.rule.out(0, a, f);
      }
      if (cuts_only || r.scalar("value"_attr).as_double() == 0) pass_partial(r, {0}, {0});
    })
    .kernel([](KernelCall& c) {
      kernels::pad_constant(c.in(0), Dims(c.ints("before"_attr)), c.scalar("value"_attr), c.out());
    })
    .grad([](Grad& g) {
      Dims before(g.ints("before"_attr)), after(g.ints("after"_attr));
      for (auto& v : before) v = -v;
      for (auto& v : after) v = -v;
      g.dx(0, pad_constant(g.dy(), before, after, Scalar(int64_t{0})));
    });

HOLON_OP(interpolate,
         "interpolate(Tensor x, int[]? size=None, float? scale_factor=None, str mode='nearest', bool? "
         "align_corners=None, bool? recompute_scale_factor=None) -> Tensor")
    .doc("x [n, c, ...] with its last axes resized to size (or by scale_factor) by mode: 'nearest', 'nearest-exact', "
         "'linear' (one axis), 'bilinear', 'bicubic' (two), 'trilinear' (three) or 'area'.",
         "interpolate(ones(1, 1, 2, 2), scale_factor=2.0).shape")
    .function_only()
    .body([](BodyCall& c) {
      Tensor x = c.in(0);
      int n = x.ndim() - 2;
      if (n < 1 || n > 3)
        fail_value("interpolate: x is {}; it takes [n, c, l], [n, c, h, w] or [n, c, d, h, w].", x.shape());
      if (!is_floating(x.dtype()))
        fail_type("interpolate: x is {}; it takes floating point tensors only. Convert it first, e.g. x.to(float32).",
                  name(x.dtype()));
      const Mode* mode = nullptr;
      for (auto& m : kModes)
        if (c.text("mode"_attr) == m.name) mode = &m;
      if (!mode || (mode->axes && mode->axes != n))
        fail_value("interpolate: mode '{}' does not apply to x {}. Choose 'nearest', 'nearest-exact', 'area', or {}.",
                   c.text("mode"_attr), x.shape(),
                   n == 1       ? "'linear'"
                       : n == 2 ? "'bilinear' or 'bicubic'"
                                : "'trilinear'");
      if (c.has("align_corners"_attr) && mode->axes == 0)
        fail_value("interpolate: align_corners applies to 'linear', 'bilinear', 'bicubic' and 'trilinear', not '{}'.",
                   mode->name);
      if (c.has("size"_attr) == c.has("scale_factor"_attr))
        fail_value("interpolate: give either size or scale_factor.");
      double factor = c.has("scale_factor"_attr) ? c.f("scale_factor"_attr) : 0;
      Dims size;
      if (c.has("size"_attr)) {
        size = Dims(c.ints("size"_attr));
        if (size.size() == 1 && n > 1) size = Dims::filled(n, size[0]);
        if (size.size() != n)
          fail_value("interpolate: size {} does not fit x {}: give one number or {}.", Dims(c.ints("size"_attr)),
                     x.shape(), n);
      } else {
        if (!(factor > 0)) fail_value("interpolate: scale_factor is {}; it must be positive.", factor);
        for (int i = 0; i < n; ++i)
          size.push_back(static_cast<int64_t>(std::floor(static_cast<double>(x.shape()[2 + i]) * factor)));
      }
      for (int i = 0; i < n; ++i)
        if (size[i] < 1 || x.shape()[2 + i] < 1)
          fail_value("interpolate: from x {} to the size {}: sizes must be at least 1.", x.shape(), size);
      if (mode->axis[0] == 0) {
        c.out.push_back(n == 1       ? adaptive_avg_pool1d(x, size)
                            : n == 2 ? adaptive_avg_pool2d(x, size)
                                     : adaptive_avg_pool3d(x, size));
        return;
      }
      bool corners = c.has("align_corners"_attr) && c.b("align_corners"_attr);
      bool by_factor = factor > 0 && !(c.has("recompute_scale_factor"_attr) && c.b("recompute_scale_factor"_attr));
      std::string axis_mode = std::string(mode->axis) + (corners ? "-corners" : "");
      for (int i = 0; i < n; ++i) {
        int64_t from = x.shape()[2 + i], to = size[i];
        double scale = corners ? to > 1 ? static_cast<double>(from - 1) / static_cast<double>(to - 1) : 0
            : by_factor        ? 1 / factor
                               : static_cast<double>(from) / static_cast<double>(to);
        if (from != to || (by_factor && factor != 1)) x = resample(x, 2 + i, to, axis_mode, scale, 0);
      }
      c.out.push_back(x);
    });
HOLON_ALIAS(upsample, interpolate);
HOLON_OP(resample, "resample(Tensor x, int dim, int size, str mode, float scale, int before) -> Tensor")
    .doc("The elements of an axis that a padding or an interpolation reads.")
    .hidden()
    .infer(resample_infer)
    .rule(resample_rule)
    .linear()
    .kernel([](KernelCall& c) {
      int d = static_cast<int>(c.i("dim"_attr));
      kernels::resample(c.in(0), d, taps_of(c, c.in(0).shape[d], c.i("size"_attr)), c.out());
    })
    .grad([](Grad& g) {
      g.dx(0,
           resample_backward(g.dy(), g.i("dim"_attr), g.in_shape()[static_cast<int>(g.i("dim"_attr))],
                             g.text("mode"_attr), g.f("scale"_attr), g.i("before"_attr)));
    });
HOLON_OP(resample_backward,
         "resample_backward(Tensor dy, int dim, int size, str mode, float scale, int before) -> Tensor")
    .doc("Gradient of resample.")
    .hidden()
    .infer(resample_infer)
    .rule(resample_rule)
    .linear()
    .kernel([](KernelCall& c) {
      int d = static_cast<int>(c.i("dim"_attr));
      kernels::resample_backward(c.in(0), d, taps_of(c, c.i("size"_attr), c.in(0).shape[d]), c.out());
    })
    .grad([](Grad& g) {
      g.dx(0,
           resample(g.dy(), g.i("dim"_attr), g.in_shape()[static_cast<int>(g.i("dim"_attr))], g.text("mode"_attr),
                    g.f("scale"_attr), g.i("before"_attr)));
    });

HOLON_OP(pixel_shuffle, "pixel_shuffle(Tensor x, int upscale_factor) -> Tensor")
    .doc("[..., c r r, h, w] -> [..., c, h r, w r]: moves channels into pixels.",
         "pixel_shuffle(ones(1, 4, 2, 2), 2).shape")
    .function_only()
    .body([](BodyCall& c) {
      const Tensor& x = c.in(0);
      int64_t r = c.i("upscale_factor"_attr);
      int n = x.ndim() - 3;
      if (n < 0 || r < 1 || r > 65536 || x.shape()[n] % (r * r))
        fail_value("pixel_shuffle: x is {}, upscale_factor {}; it takes [..., c r r, h, w].", x.shape(), r);
      Dims split, order, shape;
      for (int a = 0; a < n; ++a) split.push_back(x.shape()[a]), order.push_back(a);
      shape = split;
      int64_t channels = x.shape()[n] / (r * r), h = x.shape()[n + 1], w = x.shape()[n + 2];
      for (int64_t v : {channels, r, r, h, w}) split.push_back(v);
      for (int a : {0, 3, 1, 4, 2}) order.push_back(n + a);
      for (int64_t v : {channels, h * r, w * r}) shape.push_back(v);
      c.out.push_back(reshape(permute(reshape(x, split), order), shape));
    });
HOLON_OP(pixel_unshuffle, "pixel_unshuffle(Tensor x, int downscale_factor) -> Tensor")
    .doc("[..., c, h r, w r] -> [..., c r r, h, w]: moves pixels into channels.",
         "pixel_unshuffle(ones(1, 1, 4, 4), 2).shape")
    .function_only()
    .body([](BodyCall& c) {
      const Tensor& x = c.in(0);
      int64_t r = c.i("downscale_factor"_attr);
      int n = x.ndim() - 3;
      if (n < 0 || r < 1 || r > 65536 || x.shape()[n + 1] % r || x.shape()[n + 2] % r)
        fail_value("pixel_unshuffle: x is {}, downscale_factor {}; it takes [..., c, h r, w r].", x.shape(), r);
      Dims split, order, shape;
      for (int a = 0; a < n; ++a) split.push_back(x.shape()[a]), order.push_back(a);
      shape = split;
      int64_t channels = x.shape()[n], h = x.shape()[n + 1] / r, w = x.shape()[n + 2] / r;
      for (int64_t v : {channels, h, r, w, r}) split.push_back(v);
      for (int a : {0, 2, 4, 1, 3}) order.push_back(n + a);
      for (int64_t v : {channels * r * r, h, w}) shape.push_back(v);
      c.out.push_back(reshape(permute(reshape(x, split), order), shape));
    });
HOLON_OP(channel_shuffle, "channel_shuffle(Tensor x, int groups) -> Tensor")
    .doc("The channels (axis 1) of the groups interleaved.", "channel_shuffle(ones(1, 4, 2), 2).shape")
    .function_only()
    .body([](BodyCall& c) {
      const Tensor& x = c.in(0);
      int64_t groups = c.i("groups"_attr);
      if (x.ndim() < 3 || groups < 1 || x.shape()[1] % groups)
        fail_value(
            "channel_shuffle: x is {}, groups {}; it takes [n, channels, ...] with groups that divide the channels.",
            x.shape(), groups);
      Dims split = x.shape();
      split[1] = groups;
      split.insert(2, x.shape()[1] / groups);
      c.out.push_back(reshape(transpose(reshape(x, split), 1, 2), x.shape()));
    });

HOLON_OP(unfold, "unfold(Tensor x, int[2] kernel_size, int[2] dilation=1, int[2] padding=0, int[2] stride=1) -> Tensor")
    .doc("The windows of x [n, c, h, w] as columns: [n, c kh kw, windows].", "unfold(ones(1, 2, 3, 3), 2).shape")
    .function_only()
    .body([](BodyCall& c) {
      Tensor x = c.in(0);
      if (x.ndim() != 4 && x.ndim() != 3)
        fail_value("unfold: x is {}; it takes [n, c, h, w], or [c, h, w].", x.shape());
      bool batched = x.ndim() == 4;
      if (!batched) x = unsqueeze(x, 0);
      ImageWindows w(c, x.shape()[2], x.shape()[3]);
      Tensor y = im2col(x, w.kernel, w.dilation, w.padding, w.stride);
      c.out.push_back(batched ? y : squeeze(y, Dims{0}));
    });
HOLON_OP(fold,
         "fold(Tensor x, int[2] output_size, int[2] kernel_size, int[2] dilation=1, int[2] padding=0, int[2] stride=1) "
         "-> Tensor")
    .doc("Columns [n, c kh kw, windows] added up into images [n, c, h, w] of output_size.",
         "fold(ones(1, 8, 4), 3, 2).shape")
    .function_only()
    .body([](BodyCall& c) {
      Tensor x = c.in(0);
      Dims size = per_axis(c, "output_size"_attr, 2, 0);
      if (x.ndim() != 3 && x.ndim() != 2)
        fail_value("fold: x is {}; it takes [n, c kh kw, windows], or without n.", x.shape());
      if (!is_floating(x.dtype()))
        fail_type("fold: x is {}; it takes floating point tensors only. Convert it first, e.g. x.to(float32).",
                  name(x.dtype()));
      bool batched = x.ndim() == 3;
      if (!batched) x = unsqueeze(x, 0);
      ImageWindows w(c, size[0], size[1]);
      int64_t per = w.kernel[0] * w.kernel[1];
      if (x.shape()[2] != w.count || x.shape()[1] % per)
        fail_value("fold: x is {}; an image of {} has {} windows of {} elements for each channel.", x.shape(), size,
                   w.count, per);
      Tensor y =
          col2im(x, {x.shape()[0], x.shape()[1] / per, size[0], size[1]}, w.kernel, w.dilation, w.padding, w.stride);
      c.out.push_back(batched ? y : squeeze(y, Dims{0}));
    });
HOLON_OP(im2col, "im2col(Tensor x, int[2] kernel_size, int[2] dilation, int[2] padding, int[2] stride) -> Tensor")
    .doc("unfold of [n, c, h, w].")
    .hidden()
    .infer([](Infer& c) {
      kernels::Window2d w = window_of(c);
      int64_t places = 1;
      for (int i = 0; i < 2; ++i)
        places *= kernels::conv_out_size(c.shape(0)[2 + i], w.kernel[i], w.stride[i], w.padding[i], w.padding[i],
                                         w.dilation[i]);
      c.out({c.shape(0)[0], c.shape(0)[1] * w.kernel[0] * w.kernel[1], places}, c.dtype_of(0));
    })
    .rule([](RuleCall& r) { columns_rule(r, r.in[0].shape[1]); })
    .linear()
    .kernel([](KernelCall& c) { kernels::im2col(c.in(0), window_of(c), c.out()); })
    .grad([](Grad& g) {
      g.dx(0,
           col2im(g.dy(), g.in_shape(), Dims(g.ints("kernel_size"_attr)), Dims(g.ints("dilation"_attr)),
                  Dims(g.ints("padding"_attr)), Dims(g.ints("stride"_attr))));
    });
HOLON_OP(col2im,
         "col2im(Tensor x, int[] shape, int[2] kernel_size, int[2] dilation, int[2] padding, int[2] stride) -> Tensor")
    .doc("fold into [n, c, h, w].")
    .hidden()
    .infer([](Infer& c) { c.out(Dims(c.ints("shape"_attr)), c.dtype_of(0)); })
    .rule([](RuleCall& r) { columns_rule(r, r.out[0].shape[1]); })
    .linear()
    .kernel([](KernelCall& c) { kernels::col2im(c.in(0), window_of(c), c.out()); })
    .grad([](Grad& g) {
      g.dx(0,
           im2col(g.dy(), Dims(g.ints("kernel_size"_attr)), Dims(g.ints("dilation"_attr)), Dims(g.ints("padding"_attr)),
                  Dims(g.ints("stride"_attr))));
    });

}  // namespace holon::ops
