// Handles of one module agree on everything, whichever of them is changed; and what is no handle of it is not touched.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <thread>

#include "holon/base/error.h"
#include "holon/comm/run_ranks.h"
#include "holon/dispatch/dispatch.h"
#include "holon/nn/layers.h"
#include "holon/ops/activation.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/compare.h"
#include "holon/ops/create.h"
#include "holon/ops/linalg.h"
#include "holon/ops/random.h"
#include "holon/ops/reduce.h"
#include "holon/ops/shape.h"
#include "tests/cpp/error_of.h"

namespace holon::nn {
namespace {

std::vector<std::string> names(const StateDict& list) {
  std::vector<std::string> out;
  for (auto& [name, t] : list) out.push_back(name);
  return out;
}

#define EXPECT_ERROR(statement, part) \
  EXPECT_NE(error_of([&] { statement; }).find(part), std::string::npos) << error_of([&] { statement; })

bool same(const Tensor& a, const Tensor& b) { return equal(a, b).item().as_int() != 0; }

// Registered as variables, and by what register_module() returns.
struct Net : Layer<Net> {
  Linear up{4, 8};
  Linear down;
  Parameter scale;
  Buffer shift;
  Net() : down(register_module("down", Linear(8, 2))) {
    register_module("up", up);
    scale = register_parameter("scale", ones({2}));
    shift = register_buffer("shift", zeros({2}));
  }
  Tensor forward(const Tensor& x) const { return down(relu(up(x))) * scale + shift; }
};

// The tree and the variables of a handle have the same, and what is called is what is registered.
void check(const Net& net) {
  EXPECT_EQ(net.get_submodule("up").identity(), net.up.identity());
  EXPECT_EQ(net.get_submodule("down").identity(), net.down.identity());
  EXPECT_TRUE(net.get_parameter("up.weight").is_same(net.up.weight) &&
              net.get_parameter("up.bias").is_same(net.up.bias));
  EXPECT_TRUE(net.get_parameter("down.weight").is_same(net.down.weight));
  EXPECT_TRUE(net.get_parameter("scale").is_same(net.scale));
  EXPECT_TRUE(net.get_buffer("shift").is_same(net.shift));
  for (auto& [name, module] : net.named_modules()) EXPECT_EQ(module.is_training(), net.is_training()) << name;
  Net(net).zero_grad();
  net(ones({1, 4})).sum().backward();
  for (const Tensor& p : {net.up.weight, net.up.bias, net.down.weight, net.down.bias, net.scale})
    EXPECT_TRUE(p.grad().defined());
}

TEST(Handles, AListGrowsForAll) {
  Sequential a{Linear(4, 8)};
  Sequential b = a;
  a.push_back(Linear(8, 2));
  EXPECT_EQ(b.size(), 2u);
  EXPECT_EQ(b.parameters().size(), 4u);
  EXPECT_EQ(b(ones({1, 4})).shape(), (Dims{1, 2}));
  EXPECT_TRUE(same(a(ones({1, 4})), b(ones({1, 4}))));

  ModuleList<Linear> list, other = list;
  other.push_back(Linear(2, 3));
  EXPECT_EQ(list.size(), 1u);
  EXPECT_EQ(list.parameters().size(), 2u);
  EXPECT_TRUE(list[0].weight.is_same(other[0].weight));

  ModuleDict<Linear> dict, same_dict = dict;
  same_dict.insert("a", Linear(2, 3));
  EXPECT_TRUE(dict.contains("a") && dict["a"].weight.is_same(same_dict["a"].weight));
  EXPECT_THROW(dict.insert("a", Linear(2, 3)), Error);
  EXPECT_EQ(dict.size(), 1u);
}

TEST(Handles, ModeAndHooksAreThoseOfAll) {
  Net net, copy = net;
  copy.eval();
  EXPECT_FALSE(net.up.is_training() || net.is_training());
  int calls = 0;
  auto hook = copy.register_forward_hook([&](const Tensor&, const Tensor&) { return ++calls, Tensor(); });
  net(ones({1, 4}));
  EXPECT_EQ(calls, 1);
  hook.remove();
  copy.register_buffer("more", zeros({1}));
  EXPECT_TRUE(net.get_buffer("more").defined());
}

TEST(Handles, AnAssignmentToAMemberIsOneToTheModule) {
  Net net, copy = net;
  const Linear up(4, 8), down(8, 2);
  net.up = up;
  check(net), check(copy);
  EXPECT_TRUE(copy.up.weight.is_same(up.weight));
  copy.down = down;  // a member that took what register_module() returned, through the other handle
  check(net), check(copy);
  EXPECT_TRUE(net.down.weight.is_same(down.weight));
  EXPECT_TRUE(same(net(ones({1, 4})), copy(ones({1, 4}))));
  net.up = Linear(4, 8);  // moved
  check(net), check(copy);
  net.up = net.up;  // NOLINT(clang-diagnostic-self-assign-overloaded)
  check(net);
  EXPECT_EQ(names(net.named_parameters()),
            (std::vector<std::string>{"scale", "down.weight", "down.bias", "up.weight", "up.bias"}));
}

TEST(Handles, AHandleMadeLaterHasTheSameMembers) {
  Net net;
  net.up = Linear(4, 8);
  Net copy = net, moved = std::move(copy);
  moved.up = Linear(4, 8);
  check(net), check(moved);
  std::vector<Net> many(3, net);
  many.push_back(net);  // grows: handles move in memory
  many[1].down = Linear(8, 2);
  for (auto& n : many) check(n);
  check(net);
  std::optional<Net> perhaps = net;
  perhaps->up = Linear(4, 8);
  perhaps.reset();
  net.up = Linear(4, 8);
  check(net), check(many[3]);
}

TEST(Handles, AReplacedModuleIsInAll) {
  Net net, copy = net;
  net.replace_module("up", Linear(4, 8));
  check(net), check(copy);
  struct Outer : Layer<Outer> {
    Net net;
    Outer() { register_module("net", net); }
  } outer, other = outer;
  const Linear up(4, 8);
  outer.replace_module("net.up", up);
  check(other.net);
  EXPECT_TRUE(other.net.up.weight.is_same(up.weight));
  const Net inner;
  other.net = inner;
  EXPECT_EQ(outer.get_submodule("net").identity(), inner.identity());
  EXPECT_EQ(outer.net.identity(), inner.identity());
  check(outer.net);
  outer.net.up = Linear(4, 8);  // a member of a member
  check(outer.net), check(other.net), check(inner);
}

TEST(Handles, WholeHandlesAreAssigned) {
  Net a, b, copy = a;
  const void *first = a.identity(), *second = b.identity();
  a = b;
  EXPECT_EQ(a.identity(), second);
  check(a), check(b), check(copy);
  a.up = Linear(4, 8);
  check(a), check(b);
  EXPECT_EQ(copy.identity(), first);
  copy.up = Linear(4, 8);
  check(copy), check(a);
  std::swap(a, copy);
  EXPECT_EQ(a.identity(), first);
  a.down = Linear(8, 2);
  check(a), check(b), check(copy);
}

TEST(Handles, MembersAreSwappedAsInPython) {
  struct Pair : Layer<Pair> {
    Linear a{2, 2}, b{2, 2};
    Pair() { register_module("a", a), register_module("b", b); }
  } pair, copy = pair;
  const Tensor first = pair.a.weight;
  std::swap(pair.a, pair.b);
  EXPECT_TRUE(pair.get_parameter("b.weight").is_same(first) && pair.b.weight.is_same(first) &&
              copy.b.weight.is_same(first));
  EXPECT_TRUE(pair.get_parameter("a.weight").is_same(copy.a.weight));
}

TEST(Handles, VariablesOutsideAreOrdinary) {
  Net net;
  Linear best = net.up;
  const Tensor before = net.up.weight;
  best = Linear(3, 3);  // what was copied out of the net changes nothing in it
  EXPECT_TRUE(net.up.weight.is_same(before));
  check(net);
  // One variable for several modules.
  Module tree;
  Sequential list;
  Linear layer(1, 1);
  for (int i = 0; i < 3; ++i) {
    layer = Linear(i + 1, 2);
    tree.register_module(std::to_string(i), layer);
    list.push_back(layer);
  }
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(tree.get_parameter(std::to_string(i) + ".weight").shape(), (Dims{2, i + 1}));
    EXPECT_EQ(list.get_parameter(std::to_string(i) + ".weight").shape(), (Dims{2, i + 1}));
  }
  layer = net.register_module("extra", Linear(5, 5));  // the same, of what it returns
  layer = Linear(6, 6);
  EXPECT_EQ(net.get_parameter("extra.weight").shape(), (Dims{5, 5}));
}

TEST(Handles, HandlesInContainersAreSorted) {
  Net net;
  auto modules = net.named_modules();
  const auto before = net.named_modules();
  std::sort(modules.begin(), modules.end(), [](auto& a, auto& b) { return a.first > b.first; });
  EXPECT_EQ(modules[0].first, "up");
  EXPECT_EQ(modules[0].second.identity(), net.up.identity());
  std::vector<Linear> layers{net.down, net.up};
  std::swap(layers[0], layers[1]);
  layers.erase(layers.begin());
  EXPECT_EQ(layers[0].identity(), net.down.identity());
  for (size_t i = 0; i < before.size(); ++i)
    EXPECT_EQ(net.named_modules()[i].second.identity(), before[i].second.identity());
  check(net);
}

TEST(Handles, ElementsAreReplaced) {
  Sequential a{Linear(4, 8), ReLU()}, b = a;
  a.replace(1, Linear(8, 2));  // of another type
  EXPECT_EQ(b(ones({1, 4})).shape(), (Dims{1, 2}));
  EXPECT_EQ(b.parameters().size(), 4u);
  const Linear first(4, 8);
  b.replace_module("0", first);
  b.replace_module("1", Linear(8, 3));
  EXPECT_EQ(a(ones({1, 4})).shape(), (Dims{1, 3}));
  EXPECT_TRUE(a.get_parameter("0.weight").is_same(first.weight));
  EXPECT_TRUE(
      same(a(ones({1, 4})), linear(first(ones({1, 4})), a.get_parameter("1.weight"), a.get_parameter("1.bias"))));
  EXPECT_ERROR(a.replace(2, ReLU()), "index 2 is out of range");
  EXPECT_ERROR(a.replace_module("0", ReLU()), "'0' is held by a member that this module cannot be assigned to");

  ModuleList<Linear> list({Linear(2, 2), Linear(2, 2)}), other = list;
  list.replace(1, Linear(2, 5));
  EXPECT_EQ(other[1].weight.shape(), (Dims{5, 2}));
  EXPECT_TRUE(other.get_parameter("1.weight").is_same(other[1].weight));
  EXPECT_THROW(list.replace(2, Linear(2, 2)), Error);
  ModuleDict<Linear> dict{{"a", Linear(2, 2)}}, same_dict = dict;
  dict.replace("a", Linear(2, 5));
  EXPECT_EQ(same_dict["a"].weight.shape(), (Dims{5, 2}));
  EXPECT_THROW(dict.replace("b", Linear(2, 2)), Error);
}

TEST(Handles, ParametersAreReplacedAndTied) {
  Net net, copy = net;
  Linear layer(4, 8);
  net.up.weight = layer.weight;  // tied
  EXPECT_TRUE(net.get_parameter("up.weight").is_same(layer.weight) && copy.up.weight.is_same(layer.weight));
  check(net), check(copy);
  copy.scale = full({2}, 3.0);  // a leaf that requires grad from now on
  EXPECT_TRUE(net.scale.requires_grad());
  net.shift = ones({2});
  check(net), check(copy);
  EXPECT_EQ(copy.shift.data<float>()[0], 1.0f);
  net.replace_parameter("up.bias", zeros({8}));
  net.replace_buffer("shift", zeros({2}));
  check(net), check(copy);
  const Tensor kept = net.scale;
  EXPECT_ERROR(net.scale = kept * kept, "the new 'scale' is the result of an op");
  EXPECT_ERROR(net.scale = Tensor(), "the new 'scale' is an undefined tensor");
  EXPECT_ERROR(net.replace_parameter("up.none", kept), "has no parameter 'up.none'");
  EXPECT_ERROR(net.replace_buffer("scale", kept), "has no buffer 'scale'");
  EXPECT_TRUE(net.scale.is_same(kept));
  check(net), check(copy);

  Parameter mine = net.scale;  // a variable outside
  mine = ones({5});
  EXPECT_TRUE(net.scale.is_same(kept));
  Linear a(2, 2), b(2, 2);
  a = b;
  EXPECT_TRUE(a.weight.is_same(b.weight) && a.get_parameter("weight").is_same(b.weight));
  a.weight = ones({2, 2});
  EXPECT_TRUE(b.weight.is_same(a.weight) && b.get_parameter("weight").is_same(a.weight));
}

TEST(Handles, RecurrentLayersUseWhatIsRegistered) {
  LSTM lstm(3, 4), copy = lstm;
  const Tensor x = ones({2, 1, 3});
  for (auto& [name, p] : lstm.named_parameters()) copy.replace_parameter(name, zeros(p.shape()));
  EXPECT_EQ(lstm(x)[0].sum().item().as_double(), 0);
  RNNCell cell(3, 4), other = cell;
  cell.weight_ih = zeros({4, 3});
  cell.weight_hh = zeros({4, 4});
  cell.bias_ih = zeros({4});
  cell.bias_hh = zeros({4});
  EXPECT_EQ(other(ones({1, 3})).sum().item().as_double(), 0);
}

TEST(Handles, EveryMistakeHasItsError) {
  Net net;
  const void* up = net.up.identity();
  EXPECT_ERROR(net.replace_module("none", Linear(1, 1)), "has no submodule 'none'");
  EXPECT_ERROR(net.replace_module("up", ReLU()), "'up' is held by a member that this module cannot be assigned to");
  EXPECT_ERROR(net.replace_module("up", net.get_submodule("down")), "has lost its own");
  EXPECT_ERROR(static_cast<Module&>(net.up) = Module(ReLU()), "cannot be assigned to");
  struct Chain : Layer<Chain> {
    Sequential next;
    Chain() { register_module("next", next); }
    Tensor forward(const Tensor& x) const { return next(x); }
  } chain;
  Sequential ring{chain};
  EXPECT_ERROR(chain.next = ring, "contains the module that it would be in");
  EXPECT_EQ(net.up.identity(), up);
  check(net);

  Net gone = net, taken = std::move(gone);
  for (auto use : std::vector<std::function<void()>>{
           [&] {
             gone(ones({1, 4}));
           },
           [&] { gone.parameters(); }, [&] { gone.train(); }, [&] { gone.state_dict(); },
           [&] { gone.register_module("x", ReLU()); }, [&] { taken.replace_module("up", Linear(std::move(gone.up))); },
           [&] { net.register_module("x", gone); }})
    EXPECT_NE(error_of(use).find("was moved from"), std::string::npos) << error_of(use);
  EXPECT_EQ(gone.identity(), nullptr);
  check(taken);
  gone = net;  // holds something again
  check(gone);
  Sequential list{Linear(1, 1)}, there = std::move(list);
  EXPECT_ERROR(list(ones({1, 1})), "was moved from");
  EXPECT_ERROR((void)list.size(), "was moved from");
  Shared<int> number{1}, to = std::move(number);
  EXPECT_ERROR(++*number, "was moved from");
  EXPECT_EQ(*to, 1);
}

// Whose variables are members cannot be told: an assignment is refused, and replace_module() reaches them.
struct Plain : Module {
  Linear up{4, 8};
  Parameter scale;
  Plain() {
    register_module("up", up);
    scale = register_parameter("scale", ones({2}));
  }
};
struct Derived : Net {
  Linear extra;
  Derived() : extra(register_module("extra", Linear(3, 3))) {}
};

TEST(Handles, OfOtherClassesTheyAreReplacedByName) {
  Plain plain, copy = plain;
  EXPECT_ERROR(plain.up = Linear(4, 8), "Use replace_module(\"up\", module)");
  EXPECT_ERROR(copy.up = Linear(4, 8), "Use replace_module(\"up\", module)");
  EXPECT_ERROR(copy.scale = ones({2}), "Use replace_parameter(\"scale\", tensor)");
  plain.replace_module("up", Linear(4, 8));
  plain.replace_parameter("scale", zeros({2}));
  EXPECT_EQ(copy.up.identity(), copy.get_submodule("up").identity());
  EXPECT_TRUE(copy.scale.is_same(plain.get_parameter("scale")) && plain.scale.is_same(copy.scale));

  Derived d, other = d;
  EXPECT_ERROR(d.extra = Linear(3, 3), "Use replace_module");
  EXPECT_ERROR(other.extra = Linear(3, 3), "Use replace_module");
  d.up = Linear(4, 8);
  check(other);
  other.replace_module("extra", Linear(3, 3));
  EXPECT_EQ(d.extra.identity(), d.get_submodule("extra").identity());
  Derived third;
  third = d;
  third.up = Linear(4, 8);
  check(d), check(third);
  third.replace_module("extra", Linear(3, 3));
  EXPECT_EQ(other.extra.identity(), third.extra.identity());
  Net cut = d;  // without what is in Derived
  Linear beside = d.extra;
  beside = Linear(3, 3);
  cut.down = Linear(8, 2);
  check(d);
}

struct Counter : Layer<Counter> {
  Shared<int64_t> calls{0};
  Tensor forward(const Tensor& x) const { return ++*calls, x; }
};

TEST(Handles, SharedValuesAreThoseOfAll) {
  Counter counter, copy = counter;
  Sequential net{counter};
  for (int i = 0; i < 3; ++i) net(ones({1}));
  copy(ones({1}));
  EXPECT_EQ(*counter.calls, 4);
}

TEST(Handles, AModuleMayBeCopiedOnSeveralThreads) {
  const Net net;
  const Linear other(2, 2);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) {
        Net copy = net, moved = std::move(copy);
        Linear layer = moved.up;
        layer = other;
      }
    });
  for (auto& t : threads) t.join();
  Net after = net;
  after.up = Linear(4, 8);
  check(net);
}

TEST(Handles, TheOrderOfDestructionDoesNotMatter) {
  auto net = std::make_unique<Net>();
  auto copy = std::make_unique<Net>(*net);
  Linear up = net->up;
  Module child = net->get_submodule("up");
  net.reset();
  copy->up = Linear(4, 8);
  check(*copy);
  copy.reset();
  up = Linear(2, 2);
  EXPECT_EQ(child.parameters().size(), 2u);
}

}  // namespace
}  // namespace holon::nn
