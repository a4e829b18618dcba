// What declarations of ops say beside shapes and values.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "holon/dispatch/dispatch.h"
#include "holon/registry/describe.h"
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

// No function of a declaration reads an attribute by a name that is misspelt. That each op has those that its own
// functions read is what the samples show.
TEST(Declaration, EveryNameThatIsReadIsAnAttributes) {
  std::set<std::string> declared;
  for (auto* op : all_ops())
    for (auto& a : op->schema.args)
      if (a.attr >= 0) declared.insert(a.name);
  const auto read = AttrName::all_read();
  EXPECT_GT(read.size(), 100u);
  for (auto& name : read) EXPECT_TRUE(declared.contains(name)) << name;
}

TEST(Declaration, AnAttributeIsFoundByItsName) {
  const OpDef& op = find_op("layer_norm");
  for (auto& a : op.schema.args) {
    if (a.attr < 0) continue;
    EXPECT_EQ(op.attr(AttrName::of(a.name)), a.attr) << a.name;
  }
  try {
    op.attr(AttrName::of("groups"));
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("layer_norm has no attribute groups"), std::string::npos) << e.what();
  }
  EXPECT_THROW(op.attr(AttrName::of("a name that no schema has")), Error);
}

TEST(Declaration, KindsOfViewsHold) {
  Array x = Array::empty({2, 3, 4}, float32);
  for (auto* op : all_ops()) {
    if (!op->view || op->view_kind == ViewKind::kOther) continue;
    SCOPED_TRACE(op->name());
    const bool permutes = op->view_kind == ViewKind::kPermute;
    Attrs attrs;
    if (op->schema.name == "permute")
      attrs.push_ints(Dims{2, 0, 1});
    else if (op->schema.name == "transpose")
      attrs.push_int(0), attrs.push_int(1);
    else
      attrs.push_ints(Dims{6, 4});
    const Array y = dispatch_one(*op, {Tensor::local(x)}, attrs).array();
    EXPECT_EQ(y.storage, x.storage);
    EXPECT_EQ(y.numel(), x.numel());
    Dims from = x.strides, to = y.strides;
    std::sort(from.begin(), from.end());
    std::sort(to.begin(), to.end());
    EXPECT_EQ(permutes, from == to && y.ndim() == x.ndim());
    EXPECT_EQ(!permutes, y.is_contiguous());
  }
}

TEST(Declaration, AllOfItIsData) {
  const auto table = nlohmann::json::parse(describe_ops());
  EXPECT_EQ(table.size(), all_ops().size());
  std::map<std::string, nlohmann::json> rows;
  for (auto& row : table) rows[row["name"]] = row;
  const auto& matmul = rows["matmul"];
  EXPECT_EQ(matmul["autocast"], "lower");
  EXPECT_EQ(matmul["flops"], true);
  EXPECT_EQ(matmul["composed"], false);
  EXPECT_EQ(rows["transpose"]["view"], "permute");
  EXPECT_EQ(rows["where"]["masks"], nlohmann::json::array({"condition"})) << rows["where"];
  EXPECT_EQ(rows["add_scalar"]["promoted"], (nlohmann::json::array({"x", "value"})));
  EXPECT_EQ(rows["sum"]["args"][2]["default"], "False");
  EXPECT_EQ(rows["dropout"]["args"][0]["default"], nullptr);
}

}  // namespace
}  // namespace holon
