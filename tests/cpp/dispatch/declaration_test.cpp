// What declarations of ops say beside shapes and values.
#include <gtest/gtest.h>

#include "holon/holon.h"
#include "holon/registry/op_def.h"

namespace holon {
namespace {

double flops(const OpDef& op, const Attrs& attrs, std::vector<Dims> in, std::vector<Dims> out) {
  std::vector<Meta> ins, outs;
  for (auto& s : in) ins.push_back({s, float32});
  for (auto& s : out) outs.push_back({s, float32});
  return op.flops(CallShapes(op, attrs, ins, outs));
}

Attrs attention(bool causal) {
  Attrs a;
  a.push_bool(causal);
  a.push_float(1);  // scale
  return a;
}

TEST(Declaration, ProductsHaveFlops) {
  for (auto* op : all_ops()) {
    if (op->kernel && op->autocast == Autocast::kLower) {
      EXPECT_TRUE(op->flops) << op->name();
    }
  }
}

TEST(Declaration, FlopsOfAttention) {
  const Dims q{2, 4, 5, 8}, k{2, 4, 7, 8}, v{2, 4, 7, 6}, y{2, 4, 5, 6}, sums{2, 4, 5};
  const OpDef &forward = find_op("attention_flash"), &backward = find_op("attention_backward");
  const double scores = 2 * 4 * 5 * 7;
  EXPECT_EQ(flops(forward, attention(false), {q, k, v, {}}, {y, sums}), 2 * scores * (8 + 6));
  EXPECT_EQ(flops(forward, attention(true), {q, k, v, {}}, {y, sums}), scores * (8 + 6));
  EXPECT_EQ(flops(backward, attention(false), {y, q, k, v, y, sums, {}}, {q, k, v}), 2 * scores * (3 * 8 + 2 * 6));
}

TEST(Declaration, FlopsOfAGradientAreThoseOfTheProduct) {
  const OpDef &linear = find_op("linear"), &grad = find_op("linear_weight_grad");
  EXPECT_EQ(flops(linear, {}, {{4, 3, 5}, {7, 5}, {7}}, {{4, 3, 7}}), 2 * 12 * 5 * 7);
  EXPECT_EQ(flops(grad, {}, {{4, 3, 7}, {4, 3, 5}}, {{7, 5}}), 2 * 12 * 5 * 7);
}

TEST(Declaration, NamesThatTheSchemaHasNotRaise) {
  auto op = [n = 0]() mutable {
    return define_op("declaration_test_" + std::to_string(n++) + "(Tensor x, Scalar value, int dim) -> Tensor");
  };
  EXPECT_THROW(op().promotes_with({"valeu"}), Error);
  EXPECT_THROW(op().promotes_with({"dim"}), Error);
  EXPECT_THROW(op().mask("mask"), Error);
  EXPECT_THROW(op().mask("value"), Error);
  EXPECT_THROW(op().fuses_along("axis"), Error);
  EXPECT_NO_THROW(op().promotes_with({"value"}).mask("x").fuses_along("dim"));
}

}  // namespace
}  // namespace holon
