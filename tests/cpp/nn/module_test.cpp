#include "holon/nn/module.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/comm/run_ranks.h"
#include "holon/dispatch/dispatch.h"
#include "holon/nn/layers.h"
#include "holon/ops/activation.h"
#include "holon/ops/create.h"
#include "holon/ops/random.h"
#include "holon/ops/reduce.h"
#include "holon/ops/shape.h"

namespace holon::nn {
namespace {

std::vector<std::string> names(const StateDict& list) {
  std::vector<std::string> out;
  for (auto& [name, t] : list) out.push_back(name);
  return out;
}

struct Net : Layer<Net> {
  Linear up{4, 16}, down{16, 2, {.bias = false}};
  Tensor scale, count;
  Net() {
    scale = register_parameter("scale", ones({2}));
    count = register_buffer("count", zeros({1}));
    register_module("up", up);
    register_module("down", down);
  }
  Tensor operator()(const Tensor& x) const { return down(relu(up(x))) * scale; }
};

bool same(const Tensor& a, const Tensor& b) { return equal(a.full(), b.full()).item().as_int() != 0; }

TEST(Module, NamesComeInTheOrderOfRegistration) {
  Net net;
  EXPECT_EQ(names(net.named_parameters()), (std::vector<std::string>{"scale", "up.weight", "up.bias", "down.weight"}));
  EXPECT_EQ(names(net.named_buffers()), std::vector<std::string>{"count"});
  EXPECT_EQ(names(net.state_dict()),
            (std::vector<std::string>{"scale", "up.weight", "up.bias", "down.weight", "count"}));
  EXPECT_EQ(net.parameter_count(), 2 + 64 + 16 + 32);
  EXPECT_EQ(net.named_modules().size(), 2u);
  EXPECT_TRUE(net.up.weight.requires_grad() && net.scale.requires_grad());
  EXPECT_FALSE(net.count.requires_grad());
}

TEST(Module, CopiesShare) {
  Net net;
  Net copy = net;
  EXPECT_TRUE(copy.up.weight.is_same(net.up.weight));
  EXPECT_TRUE(copy.named_parameters()[1].second.is_same(net.up.weight));
  copy.eval();
  EXPECT_FALSE(net.is_training() || net.up.is_training());
  net.train();
  EXPECT_TRUE(copy.is_training());
}

TEST(Module, RefusesNamesThatAreNone) {
  Module m, child;
  m.register_parameter("a", zeros({1}));
  EXPECT_THROW(m.register_parameter("a", zeros({1})), Error);
  EXPECT_THROW(m.register_buffer("a", zeros({1})), Error);
  EXPECT_THROW(m.register_module("a", child), Error);
  EXPECT_THROW(m.register_module("b.c", child), Error);
  EXPECT_THROW(m.register_buffer("", zeros({1})), Error);
  EXPECT_THROW(m.register_parameter("none", Tensor()), Error);
  EXPECT_THROW(m.register_module("self", m), Error);
  m.register_module("child", child);
  EXPECT_THROW(child.register_module("parent", m), Error);
  EXPECT_EQ(m.state_dict().size(), 1u);
}

TEST(Module, ATensorRegisteredTwiceIsListedOnce) {
  Linear a(3, 3), tied(3, 3);
  Module m;
  m.register_module("a", a);
  m.register_parameter("again", a.weight);
  EXPECT_EQ(names(m.named_parameters()), (std::vector<std::string>{"again", "a.bias"}));
}

TEST(Module, GradientsReachParametersAndGoAgain) {
  Net net;
  net(randn({3, 4})).sum().backward();
  for (auto& p : net.parameters()) EXPECT_TRUE(p.grad().defined());
  net.zero_grad();
  for (auto& p : net.parameters()) EXPECT_FALSE(p.grad().defined());
}

TEST(Module, StateIsLoadedByName) {
  Net from, to;
  EXPECT_FALSE(same(from.up.weight, to.up.weight));
  StateDict state = from.state_dict();
  std::reverse(state.begin(), state.end());
  Tensor handle = to.up.weight;
  to.load_state_dict(state);
  EXPECT_TRUE(same(handle, from.up.weight));
  EXPECT_FALSE(handle.array().storage == from.up.weight.array().storage);

  state.pop_back();
  EXPECT_THROW(to.load_state_dict(state), Error);
  to.load_state_dict(state, false);
  state.emplace_back("unknown", zeros({1}));
  EXPECT_THROW(to.load_state_dict(state), Error);
  StateDict wrong{{"up.bias", ones({16})}, {"down.weight", zeros({3, 3})}};
  EXPECT_THROW(to.load_state_dict(wrong, false), Error);
  EXPECT_TRUE(same(to.up.bias, from.up.bias));  // nothing was changed before the refusal
}

TEST(Module, AStateThatDoesNotFitIsToldInAFewWords) {
  struct Many : Module {
    Many() {
      for (int i = 0; i < 300; ++i) register_parameter(fmt::format("p{}", i), ones({2}));
    }
  } many;
  auto message = [&](const StateDict& state) -> std::string {
    try {
      many.load_state_dict(state);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  StateDict prefixed, wrong;
  for (auto& [name, t] : many.state_dict())
    prefixed.emplace_back("module." + name, t), wrong.emplace_back(name, ones({3}));
  EXPECT_EQ(message(prefixed),
            "load_state_dict: missing: p0, p1, p2, p3, p4 and 295 more; unexpected: module.p0, module.p1, module.p2, "
            "module.p3, module.p4 and 295 more; the names in the state dict begin with 'module.': remove that prefix "
            "first. (strict = false allows names to differ.)");
  EXPECT_NE(message(wrong).find("p4 is [3], the module's is [2] and 295 more"), std::string::npos) << message(wrong);
}

TEST(Module, ToGlobalKeepsHandlesAndValues) {
  comm::run_ranks(2, [](int) {
    manual_seed(2);
    Net net;
    Tensor handle = net.up.weight, before = clone(handle.detach());
    auto p = Placement("cpu", {0, 1});
    net.to_global(p, sbp::broadcast());
    EXPECT_TRUE(handle.is_global() && handle.requires_grad() && handle.is_leaf());
    EXPECT_TRUE(same(handle, before));
    net.to_global(p, [](const std::string& name, const Tensor&) {
      return name == "up.weight"  ? NdSbp(sbp::split(0))
          : name == "up.bias"     ? NdSbp(sbp::split(0))
          : name == "down.weight" ? NdSbp(sbp::split(1))
                                  : NdSbp();
    });
    EXPECT_EQ(handle.nd_sbp(), NdSbp(sbp::split(0)));
    EXPECT_EQ(handle.to_local().shape(), (Dims{8, 4}));
    EXPECT_EQ(net.scale.nd_sbp(), NdSbp(sbp::broadcast()));
    EXPECT_TRUE(same(handle, before));
    net(randn({3, 4}, {.placement = p, .sbp = sbp::broadcast()})).sum().backward();
    EXPECT_EQ(handle.grad().spec(), handle.spec());
    // A state in one layout loads into another.
    Net whole;
    whole.to_global(p, sbp::broadcast());
    whole.load_state_dict(net.state_dict());
    EXPECT_EQ(whole.up.weight.nd_sbp(), NdSbp(sbp::broadcast()));
    EXPECT_TRUE(same(whole.up.weight, before));
    EXPECT_THROW(Net().load_state_dict(net.state_dict()), Error);
  });
}

TEST(Module, StateListsAllThatDoesNotFit) {
  Net to;
  Tensor before = clone(to.up.weight.detach());
  StateDict wrong{{"up.weight", ones({3, 3})}, {"up.bias", ones({16})}, {"unknown", zeros({1})}, {"scale", Tensor()}};
  try {
    to.load_state_dict(wrong);
    FAIL();
  } catch (const Error& e) {
    std::string text = e.what();
    for (const char* part : {"missing: down.weight, count", "unexpected: unknown",
                             "up.weight is [3, 3], the module's is [16, 4]", "scale is undefined"})
      EXPECT_NE(text.find(part), std::string::npos) << part << " in " << text;
  }
  EXPECT_TRUE(same(to.up.weight, before));
  auto result = to.load_state_dict({{"up.bias", ones({16})}, {"more", zeros({1})}}, false);
  EXPECT_EQ(result.unexpected, std::vector<std::string>{"more"});
  EXPECT_EQ(result.missing.size(), 4u);
}

TEST(Module, TiedTensorsAreListedOnceAndSavedUnderAllNames) {
  struct Tied : Module {
    Linear a{3, 3, {.bias = false}};
    Tied() {
      register_module("a", a);
      register_parameter("again", a.weight);
      register_buffer("scratch", zeros({1}), false);
    }
  } tied, other;
  EXPECT_EQ(names(tied.named_parameters()), std::vector<std::string>{"again"});
  EXPECT_EQ(names(tied.state_dict()), (std::vector<std::string>{"again", "a.weight"}));
  other.load_state_dict(tied.state_dict());
  EXPECT_TRUE(same(other.a.weight, tied.a.weight));
  tied.to(float64);
  EXPECT_EQ(tied.a.weight.dtype(), float64);
  EXPECT_TRUE(tied.get_parameter("again").is_same(tied.get_parameter("a.weight")));
}

TEST(Module, PathsChildrenAndApply) {
  Net inner;
  Sequential net(inner, ReLU());
  EXPECT_TRUE(net.get_parameter("0.up.bias").is_same(inner.up.bias));
  EXPECT_TRUE(net.get_buffer("0.count").is_same(inner.count));
  EXPECT_TRUE(net.get_submodule("0.down").get_parameter("weight").is_same(inner.down.weight));
  EXPECT_EQ(net.named_children().size(), 2u);
  EXPECT_THROW(net.get_parameter("0.up.nothing"), Error);
  EXPECT_THROW(net.get_submodule("up"), Error);
  int visits = 0;
  net.apply([&](Module& m) { visits += m.parameter_count() >= 0; });
  EXPECT_EQ(visits, 5);
  net.requires_grad_(false);
  EXPECT_FALSE(inner.scale.requires_grad());
}

TEST(Module, ToConvertsFloatingTensorsInPlace) {
  Net net;
  net.register_buffer("steps", zeros({1}, {.dtype = int64}));
  Tensor handle = net.up.weight;
  net.to(float64);
  EXPECT_TRUE(handle.dtype() == float64 && handle.requires_grad() && net.count.dtype() == float64);
  EXPECT_EQ(net.get_buffer("steps").dtype(), int64);
  net.to(Device());
  EXPECT_EQ(net(ones({1, 4}, {.dtype = float64})).dtype(), float64);
  EXPECT_THROW(net.to(int32), Error);
}

TEST(Module, HooksSeeAndReplace) {
  Identity layer;
  std::vector<double> seen;
  auto before = layer.register_forward_pre_hook([](const Tensor& x) { return x + Scalar(1.0); });
  auto watch = layer.register_forward_hook([&](const Tensor& x, const Tensor& y) {
    seen.push_back(x.item().as_double() + y.item().as_double());
    return Tensor();
  });
  auto after = layer.register_forward_hook([](const Tensor&, const Tensor& y) { return y * Scalar(10.0); });
  EXPECT_EQ(layer(full({}, 2.0)).item().as_double(), 30);
  EXPECT_EQ(Sequential(layer)(full({}, 2.0)).item().as_double(), 30);  // copies share their hooks
  EXPECT_EQ(seen, (std::vector<double>{6, 6}));
  for (auto& handle : {before, watch, after}) handle.remove();
  EXPECT_EQ(layer(full({}, 2.0)).item().as_double(), 2);
}

TEST(Module, LayoutsByPattern) {
  comm::run_ranks(2, [](int) {
    Placement p("cpu", {0, 1});
    Net net;
    net.to_global(p, sbp::broadcast());
    net.to_global(
        p, layout_by_patterns({{"up.*", sbp::split(0)}, {"d?wn.weight", sbp::split(1)}, {"*", sbp::broadcast()}}));
    EXPECT_EQ(net.up.bias.nd_sbp(), NdSbp(sbp::split(0)));
    EXPECT_EQ(net.down.weight.nd_sbp(), NdSbp(sbp::split(1)));
    EXPECT_EQ(net.count.nd_sbp(), NdSbp(sbp::broadcast()));
    EXPECT_THROW(net.to_global(p, layout_by_patterns({{"up.*", sbp::broadcast()}})), Error);
  });
}

// Two ranks with half of the rows each: as a local tensor is a part in Tensor::to_global.
TEST(Module, ToGlobalPutsLocalPartsTogether) {
  comm::run_ranks(2, [](int) {
    Linear layer(4, 3, {.bias = false});
    layer.to_global(Placement("cpu", {0, 1}), sbp::split(0));
    EXPECT_EQ(layer.weight.shape(), (Dims{6, 4}));
  });
}

}  // namespace
}  // namespace holon::nn
