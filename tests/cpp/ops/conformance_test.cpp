// Every sample on every layout: values and gradients of the global call equal the local ones.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>

#include "cases.h"
#include "holon/autograd/engine.h"
#include "holon/base/context.h"
#include "holon/base/fmt.h"
#include "holon/comm/run_ranks.h"
#include "holon/dispatch/dispatch.h"

namespace holon::testing {
namespace {

// A world, and the placement in it that the case runs on.
struct World {
  const char* name;
  int ranks;
  Dims hierarchy;
  std::vector<int64_t> members;
  size_t most;  // layouts of the inputs; a sample of them where there are more
};
void PrintTo(const World& w, std::ostream* out) { *out << w.name; }

const std::vector<World> kWorlds{
    {"one rank", 1, {1}, {0}, 4},
    {"two ranks", 2, {2}, {0, 1}, 40},
    {"three ranks", 3, {3}, {0, 1, 2}, 20},
    {"two of three ranks", 3, {2}, {2, 0}, 6},
    {"2x2 ranks", 4, {2, 2}, {0, 1, 2, 3}, 40},
};

bool absent(const Input& in) { return in.fill == Input::Fill::kAbsent; }

// Inputs' values, and what the local call gives.
struct Truth {
  struct Out {
    std::vector<double> values;
    Dims shape;
    DType dtype;
    bool grad;
    std::vector<double> dy;
  };
  std::vector<std::vector<double>> in;
  std::vector<Out> out;
  std::vector<std::vector<double>> gradients;  // of the inputs, empty where there is none
  std::vector<double> in_place;                // what the op's in-place form leaves, empty where there is none
};

std::vector<Tensor> with_grad(const TensorVec& outs) {
  std::vector<Tensor> v;
  for (auto& t : outs)
    if (t.requires_grad()) v.push_back(t);
  return v;
}

std::vector<double> weights(size_t o, int64_t n) {
  std::vector<double> w(static_cast<size_t>(n));
  for (size_t e = 0; e < w.size(); ++e) w[e] = (static_cast<double>(mix(o, e, 9) % 33) - 16) / 8;
  return w;
}

bool runs_in_place(const OpDef& op, const Case& c, const Truth& t) {
  return op.in_place && t.out.size() == 1 && !absent(c.in[0]) && t.out[0].shape == c.in[0].shape &&
      t.out[0].dtype == c.in[0].dtype;
}

Truth local_truth(const Case& c) {
  Truth t;
  TensorVec in;
  const OpDef& op = find_op(c.op);
  for (size_t i = 0; i < c.in.size(); ++i) {
    t.in.push_back(input_values(c, i));
    in.push_back(absent(c.in[i]) ? Tensor() : Tensor::local(array_of(t.in[i], c.in[i].shape, c.in[i].dtype)));
    if (in[i].defined() && is_floating(in[i].dtype()) && has_gradient(op)) in[i].set_requires_grad();
  }
  TensorVec outs = dispatch(op, in, make_attrs(c));
  std::vector<Tensor> gradients;
  for (size_t o = 0; o < outs.size(); ++o) {
    auto& y = outs[o];
    t.out.push_back({values_of(y.array()), y.shape(), y.dtype(), y.requires_grad(), weights(o, y.numel())});
    if (y.requires_grad()) gradients.push_back(Tensor::local(array_of(t.out[o].dy, y.shape(), y.dtype())));
  }
  if (!gradients.empty()) autograd::backward(with_grad(outs), gradients, false, false);
  for (auto& x : in)
    t.gradients.push_back(x.defined() && x.grad().defined() ? values_of(x.grad().array()) : std::vector<double>());
  if (runs_in_place(op, c, t)) {
    NoGradGuard no_grad;
    in[0] = Tensor::local(array_of(t.in[0], c.in[0].shape, c.in[0].dtype));
    t.in_place = values_of(dispatch_in_place(op, in, make_attrs(c)).array());
  }
  return t;
}

// All ways to lay out a tensor along the axes of a placement.
std::vector<NdSbp> layouts(const Dims& shape, DType dtype, int axes) {
  std::vector<Sbp> one{sbp::broadcast()};
  for (int a = 0; a < shape.size(); ++a) one.push_back(sbp::split(a));
  if (is_floating(dtype) && !is_float8(dtype)) one.push_back(sbp::partial_sum());
  std::vector<NdSbp> all;
  for (Sbp s : one) {
    if (axes == 1)
      all.push_back(s);
    else
      for (Sbp t : one) all.push_back({s, t});
  }
  return all;
}

// Combinations of the inputs' layouts: all, or a reproducible sample.
std::vector<std::vector<NdSbp>> combinations(const std::vector<std::vector<NdSbp>>& choices, size_t most) {
  size_t total = 1;
  for (auto& c : choices) total *= c.size();
  std::vector<std::vector<NdSbp>> picked;
  for (size_t k = 0; k < std::min(total, most); ++k) {
    uint64_t code = total <= most ? k : mix(total, k) % total;
    std::vector<NdSbp> combination;
    for (auto& c : choices) {
      combination.push_back(c[code % c.size()]);
      code /= c.size();
    }
    picked.push_back(combination);
  }
  return picked;
}

std::string text_of(const std::vector<NdSbp>& list) {
  std::string s;
  for (auto& x : list) s += (s.empty() ? "" : ", ") + (x ? x.str() : std::string("-"));
  return s;
}

// One layout of one case, on this rank. Returns what is wrong.
std::string run_one(const Case& c, const Truth& truth, const Placement& placement, const std::vector<NdSbp>& sbps) {
  const OpDef& op = find_op(c.op);
  int index = placement.index_of(Context::current().rank());
  auto make = [&](size_t i) {
    if (absent(c.in[i])) return Tensor();
    Array part = index < 0 ? Array() : part_of(truth.in[i], c.in[i].shape, c.in[i].dtype, placement, sbps[i], index);
    return Tensor::global(part, c.in[i].shape, c.in[i].dtype, intern_spec(placement, sbps[i]));
  };
  TensorVec in;
  for (size_t i = 0; i < c.in.size(); ++i) {
    in.push_back(make(i));
    if (in[i].defined() && is_floating(in[i].dtype()) && has_gradient(op)) in[i].set_requires_grad();
  }
  Attrs attrs = c.in.empty() ? make_attrs(c, placement, sbps[0]) : make_attrs(c);
  TensorVec outs = dispatch(op, in, attrs);
  if (outs.size() != truth.out.size()) return fmt::format("{} outputs, not {}", outs.size(), truth.out.size());
  std::vector<Tensor> gradients;
  for (size_t o = 0; o < outs.size(); ++o) {
    const Tensor& y = outs[o];
    auto& want = truth.out[o];
    if (!y.is_global() || y.shape() != want.shape || y.dtype() != want.dtype || y.requires_grad() != want.grad)
      return fmt::format("output {} is {} {} {}", o, y.is_global() ? "global" : "local", y.shape(), name(y.dtype()));
    if (index >= 0 && y.array().shape != region_of(y.shape(), placement, y.nd_sbp(), index).shape)
      return fmt::format("output {} of {} has the part {} on {}", o, y.nd_sbp(), y.array().shape, rank_text());
    if (index < 0 && y.array().defined()) return "a rank outside of the placement holds data";
    if (std::string d = differs(values_of(y.full().array()), want.values, tolerance(y.dtype())); !d.empty())
      return fmt::format("output {} as {}: {}", o, y.nd_sbp(), d);
    if (!want.grad) continue;
    auto choices = layouts(y.shape(), y.dtype(), placement.hierarchy().size());
    NdSbp dy = choices[mix(std::hash<std::string>()(text_of(sbps)), o) % choices.size()];
    Array part = index < 0 ? Array() : part_of(want.dy, y.shape(), y.dtype(), placement, dy, index);
    gradients.push_back(Tensor::global(part, y.shape(), y.dtype(), intern_spec(placement, dy)));
  }
  if (!gradients.empty()) autograd::backward(with_grad(outs), gradients, false, false);
  for (size_t i = 0; i < in.size(); ++i) {
    if (!in[i].defined()) continue;
    Tensor g = in[i].grad();
    if (g.defined() == truth.gradients[i].empty() && in[i].numel() > 0)
      return fmt::format("input {} has {} gradient", i, g.defined() ? "a" : "no");
    if (!g.defined()) continue;
    if (g.spec() != in[i].spec()) return fmt::format("the gradient of input {} is {}", i, g.nd_sbp());
    if (std::string d = differs(values_of(g.full().array()), truth.gradients[i], 3 * tolerance(g.dtype())); !d.empty())
      return fmt::format("gradient of input {}: {}", i, d);
  }
  if (!truth.in_place.empty()) {
    NoGradGuard no_grad;
    in[0] = make(0);
    Tensor y = dispatch_in_place(op, in, attrs);
    if (!y.is_same(in[0]) || y.nd_sbp() != sbps[0]) return "in place: another tensor or sbp";
    if (std::string d = differs(values_of(y.full().array()), truth.in_place, tolerance(y.dtype())); !d.empty())
      return "in place: " + d;
  }
  return {};
}

// The first failure of these layouts, in one world.
std::string failures(const World& world, const Case& c, const Truth& truth,
                     const std::vector<std::vector<NdSbp>>& layouts) {
  std::mutex mutex;
  std::string first;
  try {
    comm::run_ranks(world.ranks, [&](int) {
      Placement placement(test_device(), world.hierarchy, world.members);
      for (auto& sbps : layouts) {
        std::string wrong;
        try {
          wrong = run_one(c, truth, placement, sbps);
        } catch (const Error& e) {
          fail_runtime("{}: {}", text_of(sbps), e.what());
        }
        if (wrong.empty()) continue;
        std::lock_guard lock(mutex);
        if (first.empty()) first = text_of(sbps) + ": " + wrong;
      }
    });
  } catch (const std::exception& e) {
    if (first.empty()) first = e.what();
  }
  return first;
}

// The cases that run: all, or what HOLON_TEST_CASES says: "2/7", each seventh beginning with number 2, or a part of
// their names.
std::vector<const Case*> chosen_cases() {
  const char* wanted = std::getenv("HOLON_TEST_CASES");
  if (wanted && !*wanted) wanted = nullptr;
  size_t first = 0, step = 1;
  const bool numbers = wanted && std::sscanf(wanted, "%zu/%zu", &first, &step) == 2;
  if (numbers && (step == 0 || first >= step))
    fail_value("HOLON_TEST_CASES={}: the first number is less than the second.", wanted);
  std::vector<const Case*> chosen;
  for (size_t i = 0; i < cases().size(); ++i) {
    const Case& c = cases()[i];
    if (!wanted || (numbers ? i % step == first : c.name().find(wanted) != std::string::npos)) chosen.push_back(&c);
  }
  if (chosen.empty()) fail_value("HOLON_TEST_CASES={}: no case has such a name.", wanted);
  return chosen;
}

class Conformance : public ::testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(Worlds, Conformance, ::testing::ValuesIn(kWorlds), [](auto& info) {
  std::string s = info.param.name;
  std::replace(s.begin(), s.end(), ' ', '_');
  return s;
});

TEST_P(Conformance, GlobalEqualsLocal) {
  const World& world = GetParam();
  for (const Case* chosen : chosen_cases()) {
    const Case& c = *chosen;
    SCOPED_TRACE(c.name());
    if (std::getenv("HOLON_TEST_VERBOSE"))
      std::fprintf(stderr, "%s\n", c.name().c_str());  // a crash leaves the last one
    Truth truth;
    try {
      truth = local_truth(c);
    } catch (const Error& e) {
      ADD_FAILURE() << c.name() << " by itself: " << e.what();
      continue;
    }
    std::vector<std::vector<NdSbp>> choices;
    int axes = world.hierarchy.size();
    for (auto& in : c.in)
      choices.push_back(absent(in) ? std::vector<NdSbp>{NdSbp()} : layouts(in.shape, in.dtype, axes));
    if (c.in.empty()) choices.push_back(layouts(truth.out[0].shape, float32, axes));
    auto all = combinations(choices, world.most);
    if (failures(world, c, truth, all).empty()) continue;
    // Something is wrong: each layout in a world of its own tells what, and which.
    for (auto& sbps : all)
      if (std::string wrong = failures(world, c, truth, {sbps}); !wrong.empty())
        ADD_FAILURE() << c.name() << " of " << wrong;
  }
}

TEST(Cases, EveryOpHasOne) {
  std::map<std::string, int> seen;
  for (auto& c : cases()) ++seen[c.op];
  if (std::getenv("HOLON_TEST_LIST"))  // for ./dev op
    for (auto& [op, n] : seen) std::printf("cases of %s: %d\n", op.c_str(), n);
  for (auto& e : exempt_ops()) {
    EXPECT_TRUE(try_find_op(e.op)) << e.op;
    EXPECT_EQ(seen.count(e.op), 0u) << e.op << " has cases and is exempt";
    ++seen[e.op];
  }
  std::string missing;
  for (auto* op : all_ops())
    if (!seen.count(op->name())) missing += std::string(" ") + op->name();
  EXPECT_EQ(missing, "") << "ops without a case in cases.cpp";
}

}  // namespace
}  // namespace holon::testing
