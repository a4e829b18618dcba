// Random numbers. Element i of a draw is a function of (seed, the draw's number, i) with i the logical index, so that a split
// tensor holds exactly the slices of the whole one, on any number of ranks.
#include "holon/kernels/cpu/random.h"

#include "holon/kernels/cpu/copy.h"
#include "holon/ops/elementwise.h"

namespace holon::ops {
namespace {

kernels::RandomPart part(const KernelCall& c) {
  return {static_cast<uint64_t>(c.i("seed")), static_cast<uint64_t>(c.i("counter")), c.logical_out(), c.offset_out()};
}

void float_infer(Infer& c) {
  DType t = c.has("dtype") ? c.dtype("dtype") : float32;
  c.require_dtype(is_floating(t), "draws floating point numbers only", "Use randint() for integers.");
  Dims shape(c.ints("size"));
  for (int64_t x : shape)
    if (x < 0) fail_value("{}: size {} has a negative entry. Sizes count from 0.", c.op().name(), shape);
  c.out(shape, t);
}

void no_rule(RuleCall&) {}

// A partial sum has the draw on its first rank.
#define HOLON_DRAW(call)                                                   \
  [](KernelCall& c) {                                                      \
    if (c.counts_once()) kernels::call;                                    \
    else kernels::fill(c.out(), Scalar(0));                                \
  }

}  // namespace

HOLON_OP(rand, "rand(int... size, *, dtype? dtype=None, device? device=None, placement? placement=None, sbp? sbp=None, bool requires_grad=False, int? seed=None, int? counter=None) -> Tensor")
    .doc("Uniform numbers from 0 to 1 (1 excluded).", "rand(2, 3).shape")
    .function_only().random().infer(float_infer).rule(no_rule).kernel(HOLON_DRAW(uniform(part(c), 0, 1, c.out())));
HOLON_OP(randn, "randn(int... size, *, dtype? dtype=None, device? device=None, placement? placement=None, sbp? sbp=None, bool requires_grad=False, int? seed=None, int? counter=None) -> Tensor")
    .doc("Normal numbers with mean 0 and deviation 1.", "randn(2, 3).shape")
    .function_only().random().infer(float_infer).rule(no_rule).kernel(HOLON_DRAW(normal(part(c), 0, 1, c.out())));
HOLON_OP(randint, "randint(int low, int high, int[] size, *, dtype? dtype=None, device? device=None, placement? placement=None, sbp? sbp=None, bool requires_grad=False, int? seed=None, int? counter=None) -> Tensor")
    .doc("Integers from low to high (high excluded), int64 unless dtype says other.", "randint(0, 5, [2, 3]).shape")
    .function_only().random()
    .infer([](Infer& c) {
      if (c.i("high") <= c.i("low")) fail_value("randint: high {} must be above low {}.", c.i("high"), c.i("low"));
      c.out(Dims(c.ints("size")), c.has("dtype") ? c.dtype("dtype") : int64);
    })
    .rule(no_rule).kernel(HOLON_DRAW(randint(part(c), c.i("low"), c.i("high"), c.out())));
HOLON_OP(randperm, "randperm(int n, *, dtype? dtype=None, device? device=None, placement? placement=None, sbp? sbp=None, bool requires_grad=False, int? seed=None, int? counter=None) -> Tensor")
    .doc("The numbers 0 to n - 1 in random order.", "randperm(4).shape")
    .function_only().random()
    .infer([](Infer& c) {
      if (c.i("n") < 0) fail_value("randperm: n is {}; it must not be negative.", c.i("n"));
      c.out({c.i("n")}, c.has("dtype") ? c.dtype("dtype") : int64);
    })
    .rule(no_rule).kernel(HOLON_DRAW(randperm(part(c), c.out())));

HOLON_OP(normal, "normal(Tensor x, float mean=0.0, float std=1.0, *, int? seed=None, int? counter=None) -> Tensor")
    .doc("Normal numbers like x; normal_() writes them into x.", "normal(ones(2)).shape")
    .random().in_place()
    .infer([](Infer& c) { c.require_floating(0); c.out(c.shape(0), c.dtype_of(0)); }).rule_elementwise().linear()
    .kernel(HOLON_DRAW(normal(part(c), c.f("mean"), c.f("std"), c.out())));
HOLON_OP(uniform, "uniform(Tensor x, float low=0.0, float high=1.0, *, int? seed=None, int? counter=None) -> Tensor")
    .doc("Uniform numbers from low to high like x; uniform_() writes them into x.", "uniform(ones(2)).shape")
    .random().in_place()
    .infer([](Infer& c) { c.require_floating(0); c.out(c.shape(0), c.dtype_of(0)); }).rule_elementwise().linear()
    .kernel(HOLON_DRAW(uniform(part(c), c.f("low"), c.f("high"), c.out())));
HOLON_OP(trunc_normal, "trunc_normal(Tensor x, float mean=0.0, float std=1.0, float low=-2.0, float high=2.0, *, int? seed=None, int? counter=None) -> Tensor")
    .doc("Normal numbers within low and high like x; trunc_normal_() writes them into x.", "trunc_normal(ones(2)).shape")
    .random().in_place()
    .infer([](Infer& c) { c.require_floating(0); c.out(c.shape(0), c.dtype_of(0)); }).rule_elementwise().linear()
    .kernel(HOLON_DRAW(truncated_normal(part(c), c.f("mean"), c.f("std"), c.f("low"), c.f("high"), c.out())));
HOLON_OP(bernoulli, "bernoulli(Tensor x, float p=0.5, *, int? seed=None, int? counter=None) -> Tensor")
    .doc("1 with probability p, else 0, like x.", "bernoulli(ones(2)).shape")
    .random().in_place().infer_like().rule_elementwise().linear()
    .kernel(HOLON_DRAW(bernoulli(part(c), c.f("p"), c.out())));
HOLON_OP(randn_like, "randn_like(Tensor x) -> Tensor")
    .doc("Normal numbers with the shape, dtype and distribution of x.", "randn_like(ones(2)).shape")
    .body([](BodyCall& c) { c.out.push_back(normal(c.in(0).detach())); });
HOLON_OP(rand_like, "rand_like(Tensor x) -> Tensor")
    .doc("Uniform numbers with the shape, dtype and distribution of x.", "rand_like(ones(2)).shape")
    .body([](BodyCall& c) { c.out.push_back(uniform(c.in(0).detach())); });

HOLON_OP(dropout, "dropout(Tensor x, float p=0.5, bool training=True) -> Tensor")
    .doc("Zero with probability p, else x / (1 - p); x itself if not training or p is 0.", "dropout(ones(2), 0.0)")
    .function_only()
    .body([](BodyCall& c) {
      double p = c.f("p");
      if (!(p >= 0 && p <= 1)) fail_value("dropout: p is {}; a probability lies from 0 to 1.", p);
      if (!c.b("training") || p == 0) {
        c.out.push_back(c.in(0));
        return;
      }
      c.out.push_back(dropout_mask(c.in(0), p));
    });
// The mask is not kept: backward draws the same one again.
HOLON_OP(dropout_mask, "dropout_mask(Tensor x, float p, *, int? seed=None, int? counter=None) -> Tensor")
    .doc("dropout by the given draw; also its gradient.")
    .hidden().random().infer([](Infer& c) { c.require_floating(0); c.out(c.shape(0), c.dtype_of(0)); }).rule_elementwise().linear()
    .kernel([](KernelCall& c) { kernels::dropout(part(c), c.in(0), c.f("p"), c.out()); })
    .grad([](Grad& g) { g.dx(0, dropout_mask(g.dy(), g.f("p"), {.seed = g.i("seed"), .counter = g.i("counter")})); });

}  // namespace holon::ops
