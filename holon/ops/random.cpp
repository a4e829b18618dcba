// Random numbers. Element i of a draw is a function of (seed, the draw's number, i) with i the logical index, so that a
// split tensor holds exactly the slices of the whole one, on any number of ranks.
#include "holon/kernels/random.h"
#include "holon/internal_ops/random.h"

#include <cmath>

#include "holon/kernels/copy.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/cast.h"
#include "holon/ops/compare.h"
#include "holon/ops/create.h"
#include "holon/ops/elementwise.h"
#include "holon/ops/random.h"
#include "holon/ops/shape.h"

namespace holon::ops {
namespace {

kernels::RandomPart part(const KernelCall& c) {
  return {static_cast<uint64_t>(c.i("seed"_attr)), static_cast<uint64_t>(c.i("counter"_attr)), c.logical_out(),
          c.offset_out()};
}

void float_infer(Infer& c) {
  DType t = c.has("dtype"_attr) ? c.dtype("dtype"_attr) : float32;
  c.require_dtype(is_floating(t), "draws floating point numbers only", "Use randint() for integers.");
  Dims shape(c.ints("size"_attr));
  for (int64_t x : shape)
    if (x < 0) fail_value("{}: size {} has a negative entry. A size must be at least 0.", c.op().name(), shape);
  c.out(shape, t);
}

void randint_infer(Infer& c, int64_t low, int64_t high) {
  if (high <= low) fail_value("randint: high {} must be above low {}.", high, low);
  Dims size(c.ints("size"_attr));
  for (int64_t n : size)
    if (n < 0) fail_value("randint: size {} has a negative entry. A size must be at least 0.", size);
  c.out(size, c.has("dtype"_attr) ? c.dtype("dtype"_attr) : int64);
}

void no_rule(RuleCall&) {}

// What is drawn does not depend on what was there.
void no_slope(Grad& g) { g.dx(0, zeros_like(g.dy())); }

std::optional<int64_t> given(const AttrReader& c, AttrName name) {
  return c.has(name) ? std::optional<int64_t>(c.i(name)) : std::nullopt;
}

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
  o.seed = given(c, "seed"_attr);
  o.counter = given(c, "counter"_attr);
  return o;
}

// One more than the largest integer up to which the dtype holds all.
int64_t largest_integer(DType t) {
  switch (t) {
    case DType::kBool: return 2;
    case DType::kUInt8: return 256;
    case DType::kInt8: return 128;
    case DType::kInt32: return int64_t{1} << 31;
    case DType::kInt64: return INT64_MAX;
    case DType::kFloat16: return (1 << 11) + 1;
    case DType::kBFloat16: return (1 << 8) + 1;
    case DType::kFloat32: return (1 << 24) + 1;
    default: return (int64_t{1} << 53) + 1;
  }
}

// A draw of dropout for the first `channels` axes of x, the same along the others.
Tensor channel_mask(const Tensor& x, int channels, double p) {
  Dims shape = x.shape();
  for (int a = channels; a < shape.size(); ++a) shape[a] = 1;
  OnesOptions o{.dtype = x.dtype()};
  if (x.is_global()) {
    SmallVec<Sbp, 4> sbps;
    for (int a = 0; a < x.nd_sbp().size(); ++a) {
      Sbp s = x.nd_sbp()[a];
      sbps.push_back(s.is_split() && s.axis < channels ? s : sbp::broadcast());
    }
    o.placement = x.placement();
    o.sbp = NdSbp(std::span<const Sbp>(sbps));
  } else {
    o.device = x.device();
  }
  return dropout_mask(ones(shape, o), p);
}

// A mask over the leading `axes` axes of x, alike along the others: whole channels are kept or dropped.
Tensor drop_channels(const BodyCall& c, int axes, int least) {
  const Tensor& x = c.in(0);
  double p = c.f("p"_attr);
  if (!(p >= 0 && p <= 1)) fail_value("{}: p is {}; a probability must be from 0 to 1.", c.op().name(), p);
  if (x.ndim() < least || x.ndim() > least + 1)
    fail_value("{}: x has shape {}; it takes [n, c, ...] or [c, ...] with {} axes or {}.", c.op().name(), x.shape(),
               least, least + 1);
  if (!c.b("training"_attr) || p == 0) return x;
  return mul(x, channel_mask(x, x.ndim() == least ? axes - 1 : axes, p));
}

// SELU's value far below 0, which alpha_dropout puts in place of what it drops; scaled and moved so that the mean and
// variance of a standard normal x stay as they are (G. Klambauer et al., "Self-Normalizing Neural Networks", 2017).
Tensor drop_to_alpha(const BodyCall& c, int channels) {
  const Tensor& x = c.in(0);
  const double p = c.f("p"_attr);
  if (!(p >= 0 && p <= 1)) fail_value("{}: p is {}; a probability must be from 0 to 1.", c.op().name(), p);
  if (!is_floating(x.dtype()))
    fail_type("{}: x is {}; it takes floating point tensors only. Convert it first, e.g. x.to(float32).", c.op().name(),
              name(x.dtype()));
  if (!c.b("training"_attr) || p == 0) return x;
  if (p == 1) return mul(x, 0.0);
  constexpr double alpha = 1.7580993408473766;
  const double a = 1 / std::sqrt((alpha * alpha * p + 1) * (1 - p));
  Tensor kept = cast(ne(channel_mask(x, channels, p), 0.0), x.dtype());
  Tensor moved = add(mul(kept, alpha * a), alpha * a * (p - 1));
  return add(mul(mul(x, kept), a), moved);
}

// A partial sum has the draw on its first rank.
#define HOLON_DRAW(call)                 \
  [](KernelCall& c) {                    \
    if (c.counts_once())                 \
      kernels::call;                     \
    else                                 \
      kernels::fill(c.out(), Scalar(0)); \
  }

}  // namespace

HOLON_OP(rand,
         "rand(int... size, *, dtype? dtype=None, device? device=None, placement? placement=None, sbp? sbp=None, bool "
         "requires_grad=False, bool pin_memory=False, int? seed=None, int? counter=None) -> Tensor")
    .doc("Uniform numbers of shape size from 0 to 1 (1 excluded).", "rand(2, 3).shape")
    .function_only()
    .random()
    .infer(float_infer)
    .rule(no_rule)
    .kernel(HOLON_DRAW(uniform(part(c), 0, 1, c.out())));
HOLON_OP(randn,
         "randn(int... size, *, dtype? dtype=None, device? device=None, placement? placement=None, sbp? sbp=None, bool "
         "requires_grad=False, bool pin_memory=False, int? seed=None, int? counter=None) -> Tensor")
    .doc("Normal numbers of shape size with mean 0 and deviation 1.", "randn(2, 3).shape")
    .function_only()
    .random()
    .infer(float_infer)
    .rule(no_rule)
    .kernel(HOLON_DRAW(normal(part(c), 0, 1, c.out())));
HOLON_OP(randint,
         "randint(int low, int high, int[] size, *, dtype? dtype=None, device? device=None, placement? placement=None, "
         "sbp? sbp=None, bool requires_grad=False, bool pin_memory=False, int? seed=None, int? counter=None) -> Tensor")
    .doc("Integers of shape size from low to high (high excluded), int64 unless dtype is given.",
         "randint(0, 5, [2, 3]).shape")
    .function_only()
    .random()
    .infer([](Infer& c) { randint_infer(c, c.i("low"_attr), c.i("high"_attr)); })
    .rule(no_rule)
    .kernel(HOLON_DRAW(randint(part(c), c.i("low"_attr), c.i("high"_attr), c.out())));
HOLON_OP(randint_below,
         "randint_below(int high, int[] size, *, dtype? dtype=None, device? device=None, placement? placement=None, "
         "sbp? sbp=None, bool requires_grad=False, bool pin_memory=False, int? seed=None, int? counter=None) -> Tensor")
    .doc("Integers of shape size from 0 to high (high excluded).", "randint(5, [2, 3]).shape")
    .overload_of("randint")
    .python_only()
    .function_only()
    .random()
    .infer([](Infer& c) { randint_infer(c, 0, c.i("high"_attr)); })
    .rule(no_rule)
    .kernel(HOLON_DRAW(randint(part(c), 0, c.i("high"_attr), c.out())));
HOLON_OP(randperm,
         "randperm(int n, *, dtype? dtype=None, device? device=None, placement? placement=None, sbp? sbp=None, bool "
         "requires_grad=False, bool pin_memory=False, int? seed=None, int? counter=None) -> Tensor")
    .doc("[n]: the numbers 0 to n - 1 in random order.", "randperm(4).shape")
    .function_only()
    .random()
    .infer([](Infer& c) {
      if (c.i("n"_attr) < 0) fail_value("randperm: n is {}; it must not be negative.", c.i("n"_attr));
      const DType dtype = c.has("dtype"_attr) ? c.dtype("dtype"_attr) : int64;
      if (c.i("n"_attr) > largest_integer(dtype))
        fail_value("randperm: n is {}; {} represents integers exactly up to {} only. Choose another dtype.",
                   c.i("n"_attr), name(dtype), largest_integer(dtype) - 1);
      c.out({c.i("n"_attr)}, dtype);
    })
    .rule(no_rule)
    .kernel(HOLON_DRAW(randperm(part(c), c.out())));

// Draws over a tensor that is there: the in-place forms that users know, and what the others are made of.
HOLON_OP(normal_fill,
         "normal_fill(Tensor x, float mean=0.0, float std=1.0, *, int? seed=None, int? counter=None) -> Tensor")
    .doc("Normal numbers like x; normal_() writes them into x.")
    .hidden()
    .random()
    .in_place("normal_")
    .infer([](Infer& c) {
      if (!(c.f("std"_attr) >= 0)) fail_value("normal: std is {}; it must not be negative.", c.f("std"_attr));
      c.require_floating(0);
      c.out(c.shape(0), c.dtype_of(0));
    })
    .rule_elementwise()
    .linear()
    .kernel(HOLON_DRAW(normal(part(c), c.f("mean"_attr), c.f("std"_attr), c.out())))
    .grad(no_slope);
HOLON_OP(uniform_fill,
         "uniform_fill(Tensor x, float low=0.0, float high=1.0, *, int? seed=None, int? counter=None) -> Tensor")
    .doc("Uniform numbers from low to high like x; uniform_() writes them into x.")
    .hidden()
    .random()
    .in_place("uniform_")
    .infer([](Infer& c) {
      c.require_floating(0);
      c.out(c.shape(0), c.dtype_of(0));
    })
    .rule_elementwise()
    .linear()
    .kernel(HOLON_DRAW(uniform(part(c), c.f("low"_attr), c.f("high"_attr), c.out())))
    .grad(no_slope);
HOLON_OP(trunc_normal_fill,
         "trunc_normal_fill(Tensor x, float mean=0.0, float std=1.0, float low=-2.0, float high=2.0, *, int? "
         "seed=None, int? counter=None) -> Tensor")
    .doc("Normal numbers within low and high like x; trunc_normal_() writes them into x.")
    .hidden()
    .random()
    .in_place("trunc_normal_")
    .infer([](Infer& c) {
      c.require_floating(0);
      c.out(c.shape(0), c.dtype_of(0));
    })
    .rule_elementwise()
    .linear()
    .kernel(HOLON_DRAW(truncated_normal(part(c), c.f("mean"_attr), c.f("std"_attr), c.f("low"_attr), c.f("high"_attr),
                                        c.out())))
    .grad(no_slope);
HOLON_OP(bernoulli_fill, "bernoulli_fill(Tensor x, float p=0.5, *, int? seed=None, int? counter=None) -> Tensor")
    .doc("1 with probability p, else 0, like x; bernoulli_() writes them into x.")
    .hidden()
    .random()
    .in_place("bernoulli_")
    .infer_like()
    .rule_elementwise()
    .linear()
    .kernel(HOLON_DRAW(bernoulli(part(c), c.f("p"_attr), c.out())))
    .grad(no_slope);
HOLON_OP(random_fill,
         "random_fill(Tensor x, int low=0, int? high=None, *, int? seed=None, int? counter=None) -> Tensor")
    .doc("Integers from low to high (excluded; the largest that the dtype holds if left out) like x; random_() writes "
         "them into x.")
    .hidden()
    .random()
    .in_place("random_")
    .infer_like()
    .rule_elementwise()
    .linear()
    .kernel(HOLON_DRAW(randint(part(c), c.i("low"_attr),
                               c.has("high"_attr) ? c.i("high"_attr) : largest_integer(c.out().dtype), c.out())))
    .grad(no_slope);
HOLON_OP(bernoulli_of, "bernoulli_of(Tensor p, *, int? seed=None, int? counter=None) -> Tensor")
    .doc("1 with probability p, else 0, element by element.")
    .hidden()
    .random()
    .infer([](Infer& c) {
      c.require_floating(0);
      c.out(c.shape(0), c.dtype_of(0));
    })
    .rule_elementwise()
    .kernel([](KernelCall& c) { kernels::bernoulli(part(c), c.in(0), c.out()); })
    .grad(no_slope);

HOLON_OP(bernoulli, "bernoulli(Tensor input, float? p=None, *, int? seed=None, int? counter=None) -> Tensor")
    .doc("1 with probability p, else 0, with the shape of input; without p input holds the probabilities.",
         "bernoulli(full([2], 0.5)).shape")
    .body([](BodyCall& c) {
      Tensor x = c.in(0).detach();
      if (c.has("p"_attr)) {
        c.out.push_back(
            bernoulli_fill(x, c.f("p"_attr), {.seed = given(c, "seed"_attr), .counter = given(c, "counter"_attr)}));
        return;
      }
      if (!is_floating(x.dtype()))
        fail_type("bernoulli: input is {} {}; probabilities are floating point. Give p, or convert input.", x.shape(),
                  name(x.dtype()));
      c.out.push_back(bernoulli_of(x, {.seed = given(c, "seed"_attr), .counter = given(c, "counter"_attr)}));
    });

HOLON_OP(normal, "normal(Tensor mean, Tensor? std=None, *, int? seed=None, int? counter=None) -> Tensor")
    .doc("Normal numbers with a mean and a deviation (1 if left out) for each element; one of them may be a number.",
         "normal(zeros(2), 0.5).shape")
    .function_only()
    .wraps_numbers()
    .body([](BodyCall& c) {
      Tensor mean = c.in(0), std = c.in(1);
      if (!is_floating(mean.dtype())) mean = cast(mean, float32);
      Dims shape = std.defined() ? broadcast_shapes(mean.shape(), std.shape(), "normal") : mean.shape();
      Tensor like = mean.shape() == shape                       ? mean
          : std.shape() == shape && std.dtype() == mean.dtype() ? std
                                                                : expand(mean, shape);
      Tensor y =
          normal_fill(like.detach(), 0.0, 1.0, {.seed = given(c, "seed"_attr), .counter = given(c, "counter"_attr)});
      c.out.push_back(add(std.defined() ? mul(y, std) : y, mean));
    });
HOLON_OP(normal_of_size,
         "normal_of_size(float mean, float std, int[] size, *, dtype? dtype=None, device? device=None, placement? "
         "placement=None, sbp? sbp=None, bool requires_grad=False, bool pin_memory=False, int? seed=None, int? "
         "counter=None) -> Tensor")
    .doc("Normal numbers of shape size with one mean and deviation.", "normal(0.0, 1.0, [2, 3]).shape")
    .overload_of("normal")
    .python_only()
    .function_only()
    .random()
    .infer([](Infer& c) {
      if (!(c.f("std"_attr) >= 0)) fail_value("normal: std is {}; it must not be negative.", c.f("std"_attr));
      float_infer(c);
    })
    .rule(no_rule)
    .kernel(HOLON_DRAW(normal(part(c), c.f("mean"_attr), c.f("std"_attr), c.out())));

HOLON_OP(randn_like,
         "randn_like(Tensor x, *, dtype? dtype=None, bool requires_grad=False, bool pin_memory=False, int? seed=None, "
         "int? counter=None) -> Tensor")
    .doc("Normal numbers with the shape, dtype, placement and sbp (or device) of x.", "randn_like(ones(2)).shape")
    .body([](BodyCall& c) { c.out.push_back(randn(c.in(0).shape(), like<RandnOptions>(c))); });
HOLON_OP(rand_like,
         "rand_like(Tensor x, *, dtype? dtype=None, bool requires_grad=False, bool pin_memory=False, int? seed=None, "
         "int? counter=None) -> Tensor")
    .doc("Uniform numbers with the shape, dtype, placement and sbp (or device) of x.", "rand_like(ones(2)).shape")
    .body([](BodyCall& c) { c.out.push_back(rand(c.in(0).shape(), like<RandOptions>(c))); });
HOLON_OP(randint_like,
         "randint_like(Tensor x, int low, int? high=None, *, dtype? dtype=None, bool requires_grad=False, bool "
         "pin_memory=False, int? seed=None, int? counter=None) -> Tensor")
    .doc("Integers from low to high (high excluded), or from 0 to low, with the shape, dtype, placement and sbp (or "
         "device) of x.",
         "randint_like(ones(2), 0, 5).shape")
    .body([](BodyCall& c) {
      int64_t low = c.has("high"_attr) ? c.i("low"_attr) : 0,
              high = c.has("high"_attr) ? c.i("high"_attr) : c.i("low"_attr);
      c.out.push_back(randint(low, high, c.in(0).shape(), like<RandintOptions>(c)));
    });

HOLON_OP(multinomial,
         "multinomial(Tensor input, int num_samples, bool replacement=False, *, int? seed=None, int? counter=None) -> "
         "Tensor")
    .doc("num_samples indices drawn from each row of input [n, c] or [c] with probabilities proportional to it; "
         "without repetition unless replacement. int64.",
         "multinomial(ones(3), 2).shape")
    .random()
    .infer([](Infer& c) {
      c.require_floating(0);
      c.require(c.ndim(0) == 1 || c.ndim(0) == 2, "input has neither one axis nor two",
                "Merge the leading axes by flatten().");
      int64_t n = c.i("num_samples"_attr), classes = c.shape(0).back();
      if (n < 1) fail_value("multinomial: num_samples is {}; draw at least one.", n);
      c.require(classes > 0, "there is nothing to draw from", "The last axis must not be empty.");
      if (!c.b("replacement"_attr) && n > classes)
        fail_value("multinomial: {} of {} cannot be drawn without replacement. Pass replacement=True, or draw fewer.",
                   n, classes);
      Dims out = c.shape(0);
      out.back() = n;
      c.out(out, int64);
    })
    .rule("... C -> ... N")
    .kernel([](KernelCall& c) {
      bool rows = c.in(0).ndim() == 2;
      kernels::multinomial(static_cast<uint64_t>(c.i("seed"_attr)), static_cast<uint64_t>(c.i("counter"_attr)), c.in(0),
                           rows ? c.offset_out()[0] : 0, rows ? c.logical_out()[0] : 1, c.b("replacement"_attr),
                           c.out());
    });

HOLON_OP(dropout, "dropout(Tensor x, float p=0.5, bool training=True) -> Tensor")
    .doc("Like x [...]: zero with probability p, else x / (1 - p); x itself if not training or p is 0.",
         "dropout(ones(2), 0.0)")
    .function_only()
    .body([](BodyCall& c) {
      double p = c.f("p"_attr);
      if (!(p >= 0 && p <= 1)) fail_value("dropout: p is {}; a probability must be from 0 to 1.", p);
      if (!c.b("training"_attr) || p == 0) {
        c.out.push_back(c.in(0));
        return;
      }
      c.out.push_back(dropout_mask(c.in(0), p));
    });
HOLON_OP(dropout1d, "dropout1d(Tensor x, float p=0.5, bool training=True) -> Tensor")
    .doc("dropout of whole channels of [n, c, l] or [c, l].", "dropout1d(ones(2, 3, 4), 0.0)")
    .function_only()
    .body([](BodyCall& c) { c.out.push_back(drop_channels(c, 2, 2)); });
HOLON_OP(dropout2d, "dropout2d(Tensor x, float p=0.5, bool training=True) -> Tensor")
    .doc("dropout of whole channels of [n, c, h, w] or [c, h, w].", "dropout2d(ones(2, 3, 4, 4), 0.0)")
    .function_only()
    .body([](BodyCall& c) { c.out.push_back(drop_channels(c, 2, 3)); });
HOLON_OP(dropout3d, "dropout3d(Tensor x, float p=0.5, bool training=True) -> Tensor")
    .doc("dropout of whole channels of [n, c, d, h, w] or [c, d, h, w].", "dropout3d(ones(2, 3, 4, 4, 4), 0.0)")
    .function_only()
    .body([](BodyCall& c) { c.out.push_back(drop_channels(c, 2, 4)); });
HOLON_OP(alpha_dropout, "alpha_dropout(Tensor x, float p=0.5, bool training=False) -> Tensor")
    .doc(
        "dropout for selu: with probability p the value of selu far below 0 in place of x [...], the result scaled and "
        "moved so that mean 0 and variance 1 stay.",
        "alpha_dropout(ones(2), 0.5, False)")
    .function_only()
    .body([](BodyCall& c) { c.out.push_back(drop_to_alpha(c, c.in(0).ndim())); });
HOLON_OP(feature_alpha_dropout, "feature_alpha_dropout(Tensor x, float p=0.5, bool training=False) -> Tensor")
    .doc("alpha_dropout of whole channels of [n, c, ...].", "feature_alpha_dropout(ones(2, 3, 4), 0.5, False)")
    .function_only()
    .body([](BodyCall& c) {
      if (c.in(0).ndim() < 2)
        fail_value("feature_alpha_dropout: x has shape {}; it takes [n, c, ...] with 2 axes or more.", c.in(0).shape());
      c.out.push_back(drop_to_alpha(c, 2));
    });
// The mask is not kept: backward draws the same one again.
HOLON_OP(dropout_mask, "dropout_mask(Tensor x, float p, *, int? seed=None, int? counter=None) -> Tensor")
    .doc("dropout by the given draw; also its gradient.")
    .hidden()
    .random()
    .infer([](Infer& c) {
      c.require_floating(0);
      c.out(c.shape(0), c.dtype_of(0));
    })
    .rule_elementwise()
    .linear()
    .kernel([](KernelCall& c) { kernels::dropout(part(c), c.in(0), c.f("p"_attr), c.out()); })
    .grad([](Grad& g) {
      g.dx(0, dropout_mask(g.dy(), g.f("p"_attr), {.seed = g.i("seed"_attr), .counter = g.i("counter"_attr)}));
    });

}  // namespace holon::ops
