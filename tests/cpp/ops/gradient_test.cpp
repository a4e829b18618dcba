// Gradients of every differentiable sample against central differences in float64.
#include <gtest/gtest.h>

#include "cases.h"
#include "holon/autograd/engine.h"
#include "holon/autograd/function.h"
#include "holon/base/fmt.h"
#include "holon/conformance/gradients.h"
#include "holon/dispatch/dispatch.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/cast.h"
#include "holon/ops/create.h"
#include "holon/ops/shape.h"

namespace holon::testing {
namespace {

TEST(Gradients, FollowFiniteDifferences) {
  int checked = 0;
  for (auto& c : cases()) {
    if (!c.differences) continue;
    bool compared = false;
    std::string wrong;
    ASSERT_NO_THROW(wrong = gradient_error(Subject(c), &compared)) << c.name();
    EXPECT_EQ(wrong, "") << c.name();
    checked += compared;
  }
  EXPECT_GT(checked, 150);
}

// A call with one input of another dtype than the others, where the op takes that: each gradient is of its tensor's
// dtype. The inputs are results themselves, as nothing but the engine brings a leaf's gradient to the leaf's dtype.
TEST(Gradients, HaveTheirTensorsDtype) {
  int mixed = 0;
  for (auto& c : cases()) {
    const OpDef& op = find_op(c.op);
    if (!has_gradient(op)) continue;
    for (size_t other = 0; other < c.in.size(); ++other)
      for (DType dtype : {float64, float16}) {
        if (c.in[other].fill == Input::Fill::kAbsent || !is_floating(c.in[other].dtype)) continue;
        SCOPED_TRACE(fmt::format("{}, input {} is {}", c.name(), other, name(dtype)));
        TensorVec in;
        std::vector<Tensor> asked;
        for (size_t i = 0; i < c.in.size(); ++i) {
          in.emplace_back();
          if (c.in[i].fill == Input::Fill::kAbsent) continue;
          Tensor t = Tensor::local(array_of(input_values(c, i), c.in[i].shape, i == other ? dtype : c.in[i].dtype));
          if (is_floating(t.dtype())) {
            t.set_requires_grad();
            t = clone(t);
            asked.push_back(t);
          }
          in[i] = t;
        }
        std::vector<Tensor> roots, seeds, got;
        try {
          for (auto& y : dispatch(op, in, make_attrs(c)))
            if (y.requires_grad()) roots.push_back(y), seeds.push_back(ones_like(y));
        } catch (const Error& e) {
          // What only other ops call may take for granted that they have checked.
          EXPECT_TRUE(!op.function || e.kind() == ErrorKind::kType || e.kind() == ErrorKind::kValue) << e.what();
          continue;
        }
        if (roots.empty()) continue;
        try {
          got = autograd::grad(roots, asked, seeds, false, false, true);
          ++mixed;
        } catch (const Error& e) {
          EXPECT_FALSE(op.function) << e.what();
        }
        for (size_t i = 0; i < got.size(); ++i) {
          if (!got[i].defined()) continue;
          EXPECT_EQ(got[i].dtype(), asked[i].dtype());
          EXPECT_EQ(got[i].shape(), asked[i].shape());
        }
      }
  }
  EXPECT_GT(mixed, 300);
}

// Gradients that are given, returned by functions and replaced by hooks.
TEST(Gradients, OfAnotherDtypeAreConverted) {
  Tensor leaf = ones({3});
  leaf.set_requires_grad();
  Tensor x = mul(leaf, leaf), y = mul(x, x);
  auto widened = [](const Tensor& g) { return cast(g, float64); };
  auto all_float32 = [&](std::vector<Tensor> gradients) {
    for (auto& g : gradients) EXPECT_EQ(g.dtype(), float32);
  };
  const Tensor seed = ones({3}), wide = widened(seed);
  all_float32(autograd::grad(std::vector{y}, std::vector{y, x, leaf}, std::vector{wide}, true, false, false));
  autograd::FunctionCall twice{"twice",
                               "",
                               false,
                               [](std::span<const Tensor> in) { return TensorVec{in[0] * 2.0}; },
                               [&](std::span<const Tensor> grads) { return TensorVec{widened(grads[0] * 2.0)}; },
                               {}};
  Tensor z = autograd::apply_function(twice, {x})[0];
  all_float32(autograd::grad(std::vector{z}, std::vector{x}, std::vector{seed}, true, false, false));
  x.register_hook(widened);
  leaf.register_hook(widened);
  all_float32(autograd::grad(std::vector{y}, std::vector{x, leaf}, std::vector{seed}, true, false, false));
  autograd::backward(std::vector{y}, std::vector{seed}, false, false);
  EXPECT_EQ(leaf.grad().dtype(), float32);
}

}  // namespace
}  // namespace holon::testing
