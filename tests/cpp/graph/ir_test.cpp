#include <functional>

#include "holon/base/error.h"
#include "holon/ops/activation.h"
#include "holon/ops/matmul.h"
#include "holon/ops/random.h"
#include "holon/ops/reduce.h"
#include "tests/cpp/graph/small_graphs.h"

namespace holon::graph {
namespace {

using namespace testing;

// What verify() says, or "".
std::string fault(const Graph& g) {
  try {
    verify(g, "the test");
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kInternal);
    return e.what();
  }
  return "";
}

NodeId find_kind(const Graph& g, NodeKind kind) {
  for (size_t i = 0; i < g.nodes.size(); ++i)
    if (g.nodes[i].kind == kind) return static_cast<NodeId>(i);
  return -1;
}
NodeId find_op_node(const Graph& g, std::string_view op) {
  for (size_t i = 0; i < g.nodes.size(); ++i)
    if (g.nodes[i].kind == NodeKind::kOp && op == g.nodes[i].op->name()) return static_cast<NodeId>(i);
  return -1;
}
Node& node(Graph& g, NodeId n) { return g.nodes[static_cast<size_t>(n)]; }

TEST(Verify, TakesWhatCaptureMakes) {
  EXPECT_EQ(fault(mlp(local()).g), "");
  comm::run_ranks(2, [](int) {
    EXPECT_EQ(fault(mlp(data_parallel()).g), "");
    EXPECT_EQ(fault(mlp(tensor_parallel(), {.dropout = 0.5}).g), "");
  });
  comm::run_ranks(4, [](int) { EXPECT_EQ(fault(mlp(grid(), {.micro_batches = 2}).g), ""); });
}

TEST(Verify, NamesWhatIsBroken) {
  const Graph whole = mlp(local()).g;
  auto broken = [&](const std::function<void(Graph&)>& change, std::string_view expected) {
    Graph g = whole;
    change(g);
    EXPECT_NE(fault(g).find(expected), std::string::npos) << fault(g);
  };
  broken([](Graph& g) { std::swap(g.nodes[0], g.nodes[1]); }, "before it is computed");
  broken([](Graph& g) { node(g, find_op_node(g, "tanh")).out = node(g, find_op_node(g, "matmul")).out; },
         "computed twice");
  broken([](Graph& g) { g.value(node(g, find_op_node(g, "tanh")).out[0]).shape = {3}; }, "infers");
  broken([](Graph& g) { g.value(node(g, find_op_node(g, "tanh")).out[0]).dtype = float64; }, "infers");
  broken([](Graph& g) { node(g, find_op_node(g, "tanh")).in.push_back(0); }, "takes 1");
  broken([](Graph& g) { node(g, find_op_node(g, "tanh")).section = Section::kOnceAfter; }, "reads");
  broken([](Graph& g) { node(g, find_op_node(g, "tanh")).in[0] = 100000; }, "which does not exist");
  broken([](Graph& g) { g.only().outputs.push_back(100000); }, "output %100000");
  broken([](Graph& g) { g.externals[0].value = 0; }, "external 0");
  broken([](Graph& g) { g.updates[0].externals.pop_back(); }, "slots");
  broken([](Graph& g) { node(g, find_kind(g, NodeKind::kUpdate)).in[0] = g.externals[1].value; }, "a gradient");
}

TEST(Verify, ALayoutMustBeASignature) {
  comm::run_ranks(2, [](int) {
    Graph g = mlp(data_parallel()).g;
    ASSERT_EQ(fault(g), "");
    Graph other = g;
    Value& v = other.value(node(other, find_op_node(other, "tanh")).out[0]);
    v.spec = intern_spec(v.spec->placement, sbp::broadcast());
    EXPECT_NE(fault(other).find("no signature of these layouts"), std::string::npos) << fault(other);
    other = g;
    Node& boxing = node(other, find_kind(other, NodeKind::kBoxing));
    other.value(boxing.out[0]).spec = nullptr;
    EXPECT_NE(fault(other).find("local value is redistributed"), std::string::npos) << fault(other);
  });
}

TEST(Text, ShowsNodesWithTheirLayoutAndModule) {
  comm::run_ranks(2, [](int rank) {
    Graph g = mlp(data_parallel()).g;
    if (rank != 0) return;
    std::string line = str(g, node(g, find_op_node(g, "tanh")));
    EXPECT_NE(line.find("tanh(%"), std::string::npos) << line;
    EXPECT_NE(line.find("float32 [8, 8] S(0) @cpu:[0, 1]"), std::string::npos) << line;
    EXPECT_NE(line.find("forward  model.block0"), std::string::npos) << line;
    std::string all = str(g);
    EXPECT_NE(all.find("model.block1.down: float32 [8, 6] B @cpu:[0, 1]  parameter"), std::string::npos) << all;
    EXPECT_NE(all.find("from P"), std::string::npos) << all;
    EXPECT_NE(all.find("update 0 [model.block0.up, "), std::string::npos) << all;
  });
}

TEST(Hash, IsAlikeOnAllRanksAndOfAllThatMatters) {
  std::vector<uint64_t> hashes(2);
  comm::run_ranks(2, [&](int rank) { hashes[static_cast<size_t>(rank)] = hash(mlp(data_parallel()).g); });
  EXPECT_EQ(hashes[0], hashes[1]);
  const Graph g = mlp(local()).g;
  EXPECT_EQ(hash(g), hash(mlp(local()).g));
  EXPECT_NE(hash(g), hash(mlp(local(), {.blocks = 3}).g));
  Graph other = g;
  other.micro_batches = 2;
  EXPECT_NE(hash(g), hash(other));
  other = g;
  std::swap(other.nodes[0], other.nodes[1]);
  EXPECT_NE(hash(g), hash(other));
  comm::run_ranks(2, [&](int) {
    EXPECT_NE(hash(mlp(data_parallel({0, 1})).g), hash(mlp(data_parallel({1, 0})).g));
    EXPECT_NE(hash(mlp(data_parallel()).g), hash(mlp(tensor_parallel()).g));
  });
}

// The same in eager: losses and parameters.
Course eager(const Layout& l, const MlpOptions& o, int steps = 3) {
  Captured c = mlp(l, o);  // its parameters and inputs
  Course course;
  manual_seed(3);
  optim::Rule rule;
  rule.kind = optim::RuleKind::kAdam;
  rule.lr = 0.05;
  std::vector<optim::Slot> slots(c.parameters.size());
  for (int s = 0; s < steps; ++s) {
    Tensor x = c.inputs[0];
    for (size_t b = 0; b < c.parameters.size(); b += 3) {
      Tensor h = tanh(matmul(x, c.parameters[b]) + c.parameters[b + 1]);
      if (o.dropout > 0) h = dropout(h, o.dropout);
      x = x + matmul(h, c.parameters[b + 2]);
    }
    Tensor d = x - c.inputs[1], loss = mean(d * d);
    for (auto& p : c.parameters) p.set_grad({});
    loss.backward();
    for (size_t i = 0; i < slots.size(); ++i) {
      slots[i].param = c.parameters[i].detach();
      slots[i].grad = c.parameters[i].grad();
    }
    optim::update(rule, slots);
    course.losses.push_back(loss.detach());
    course.others.push_back(x.detach());
  }
  course.parameters = c.parameters;
  return course;
}

TEST(Interpret, EqualsEager) {
  auto same = [](const Layout& l) {
    MlpOptions o{.dropout = 0.3};
    Captured c = mlp(l, o);
    expect_equal(eager(l, o), run(c), 1e-6);
  };
  same(local());
  comm::run_ranks(2, [&](int) {
    same(data_parallel());
    same(tensor_parallel());
  });
  comm::run_ranks(4, [&](int) { same(grid()); });
}

TEST(Interpret, RefusesOtherInputs) {
  Captured c = mlp(local());
  c.inputs[0] = c.inputs[0].to(float64);
  EXPECT_THROW(interpret(c.g, c.inputs), Error);
  c.inputs.pop_back();
  EXPECT_THROW(interpret(c.g, c.inputs), Error);
}

}  // namespace
}  // namespace holon::graph
