// Graphs leave split parameters where they are, and find the best signatures of a chain.
#include <gmock/gmock.h>

#include <algorithm>
#include <limits>
#include <map>
#include <random>

#include "holon/boxing/events.h"
#include "holon/boxing/planner.h"
#include "holon/dispatch/signature.h"
#include "holon/graph/ir/signatures.h"
#include "holon/graph/passes/parameters.h"
#include "holon/graph/passes/rewrite.h"
#include "holon/ops/activation.h"
#include "holon/ops/matmul.h"
#include "holon/ops/norm.h"
#include "holon/ops/shape.h"
#include "tests/cpp/graph/small_graphs.h"

namespace holon::graph {
namespace {

using namespace testing;

// Whether the node gathers a parameter. of: parameter_values().
bool gathers(const Graph& g, const std::vector<bool>& of, const Node& n) {
  return is_single_boxing(n) && of[static_cast<size_t>(n.in[0])] &&
      local_bytes(g.value(n.out[0])) > local_bytes(g.value(n.in[0]));
}
int64_t copies(const Graph& g, Section section) {
  const std::vector<bool> of = parameter_values(g);
  return count(g, [&](const Node& n) { return n.section == section && gathers(g, of, n); });
}

// Rows outnumber the width by far, so that whole weights would be the least to move.
constexpr MlpOptions kManyRows{.blocks = 4, .rows = 600, .width = 8, .hidden = 16, .adam = false};

TEST(ParameterBoxings, TensorParallelBlocksHaveNone) {
  auto check = [](const Layout& l) {
    CompileOptions all;
    all.verify = true;
    Captured after = expect_unchanged([&] { return mlp(l, kManyRows); }, all, 1e-5);
    EXPECT_EQ(copies(after.g, Section::kForward) + copies(after.g, Section::kBackward), 0) << str(after.g);
  };
  comm::run_ranks(4, [&](int) {
    Layout l = tensor_parallel({0, 1, 2, 3});
    check(l);
    l.data = sbp::split(0);
    check(l);
    check(grid());
  });
}

TEST(ParameterBoxings, UnderThePolicyThatGathersBackwardMakesThemAgain) {
  comm::run_ranks(4, [](int) {
    boxing::ParameterPolicyGuard gather(boxing::ParameterPolicy::kGather);
    for (int micro_batches : {1, 2}) {
      CompileOptions all;
      all.verify = true;
      all.keep_parameters = false;
      MlpOptions options = kManyRows;
      options.micro_batches = micro_batches;
      // Rows and weights are split over the same ranks.
      Layout l = tensor_parallel({0, 1, 2, 3});
      l.data = sbp::split(0);
      Captured before = mlp(l, options), after = mlp(l, options);
      if (micro_batches > 1) run_passes(before.g, only({"accumulate"}));
      run_passes(after.g, all);
      expect_equal(run(before), run(after), 1e-5);
      EXPECT_GT(copies(after.g, Section::kForward), 0) << str(after.g);
      EXPECT_EQ(copies(after.g, Section::kOnceBefore), 0) << "a copy lives for all micro-batches";
      const std::vector<bool> of = parameter_values(after.g);
      std::vector<NodeId> made_by = producers(after.g);
      for (auto& n : after.g.nodes)
        for (ValueId v : n.in) {
          if (v == kNoValue || n.section != Section::kBackward || !of[static_cast<size_t>(v)]) continue;
          const NodeId by = made_by[static_cast<size_t>(v)];
          EXPECT_FALSE(by >= 0 && after.g.nodes[static_cast<size_t>(by)].section == Section::kForward &&
                       gathers(after.g, of, after.g.nodes[static_cast<size_t>(by)]))
              << str(after.g, n);
        }
    }
  });
}

// A row of ops, each of which reads the one before; the last one's layout is given.
Captured chain(uint32_t seed) {
  std::mt19937 draw(seed);
  const Layout l = data_parallel({0, 1, 2, 3});
  const Sbp sbps[] = {sbp::split(0), sbp::split(1), sbp::broadcast()};
  Captured c;
  c.inputs = {random(l, {16, 16}, sbps[draw() % 3], 0)};
  Capture capture;
  Tensor x = tanh(capture.input_like(c.inputs[0]));
  for (int i = 0; i < 5; ++i) switch (draw() % 6) {
      case 0: x = tanh(x); break;
      case 1: x = softmax(x, static_cast<int64_t>(draw() % 2)); break;
      case 2: x = transpose(x, 0, 1); break;
      case 3: x = matmul(x, random(l, {16, 16}, sbps[draw() % 3], 1 + i)); break;
      case 4: x = x * Scalar(2.0); break;
      default: x = x + random(l, {16, 16}, sbps[draw() % 3], 1 + i); break;
    }
  c.g = capture.finish(std::vector<Tensor>{tanh(x.to_global(l.placement, sbps[draw() % 3]))});
  return c;
}

// The least that the boxings of a captured chain can cost, of all signatures of all nodes that hold no more than they
// did.
class Least {
 public:
  explicit Least(const Graph& g) : g_(g) {
    source_.resize(g.values.size());
    for (size_t v = 0; v < source_.size(); ++v) source_[v] = static_cast<ValueId>(v);
    for (auto& n : g.nodes) {
      if (is_single_boxing(n) && !n.pinned)
        source_[static_cast<size_t>(n.out[0])] = source_[static_cast<size_t>(n.in[0])];
      else
        nodes_.push_back(&n);
    }
    for (auto& v : g.values) now_.push_back(v.spec);
    captured_ = now_;
  }
  double run() { return from(0); }

 private:
  double boxing(ValueId v, const GlobalSpec* to) const {
    const Value& x = g_.value(v);
    const GlobalSpec* from = now_[static_cast<size_t>(v)];
    return from == to ? 0 : boxing::cost(from, to, x.shape, x.dtype);
  }
  using Specs = std::vector<const GlobalSpec*>;
  int64_t bytes(ValueId v, const GlobalSpec* spec) const {
    Value x = g_.value(v);
    x.spec = spec;
    return local_bytes(x);
  }
  // Of a copy of a source; 0: none is made.
  int64_t copy(ValueId v, const GlobalSpec* spec, const Specs& now) const {
    return reads_peers(g_.value(v), now[static_cast<size_t>(v)], spec) ? bytes(v, spec) : 0;
  }
  // Whether a node that wants its inputs so makes more copies of what lies beside the chain than it did, or the value
  // in the chain and its copy are larger.
  bool larger(const Node& n, std::span<const GlobalSpec* const> in, const GlobalSpec* fixed = nullptr) const {
    int64_t beside = 0, most = 0;
    for (size_t i = 0; i < n.in.size(); ++i) {
      const ValueId s = source_[static_cast<size_t>(n.in[i])];
      const GlobalSpec *was = captured_[static_cast<size_t>(s)], *is = now_[static_cast<size_t>(s)];
      const int64_t copied = copy(s, in[i], now_),
                    before = copy(s, fixed ? fixed : captured_[static_cast<size_t>(n.in[i])], captured_);
      if (g_.value(s).kind == ValueKind::kNode) {
        if (bytes(s, is) + copied > bytes(s, was) + before) return true;
      } else {
        beside += copied;
        most += before;
      }
    }
    return beside > most;
  }
  double from(size_t at) {
    if (at == nodes_.size()) return 0;
    const Node& n = *nodes_[at];
    const bool is_boxing = is_single_boxing(n);
    if (is_boxing || is_output(n.out[0])) {
      const GlobalSpec* want = is_boxing ? g_.value(n.out[0]).spec : g_.value(n.in[0]).spec;
      if (larger(n, {&want, 1}, want)) return std::numeric_limits<double>::infinity();
      return boxing(source_[static_cast<size_t>(n.in[0])], want) + from(at + 1);
    }
    SmallVec<Meta, 4> in;
    for (ValueId v : n.in) in.push_back({g_.value(v).shape, g_.value(v).dtype});
    SmallVec<Meta, 2> out{{g_.value(n.out[0]).shape, g_.value(n.out[0]).dtype}};
    double least = std::numeric_limits<double>::infinity();
    for (const Signature& s : signatures_of(*n.op, n.attrs, in, out)) {
      SmallVec<const GlobalSpec*, 4> want;
      double sum = 0;
      bool reached = true;
      for (size_t i = 0; i < n.in.size(); ++i) {
        const ValueId v = source_[static_cast<size_t>(n.in[i])];
        const GlobalSpec* from = now_[static_cast<size_t>(v)];
        want.push_back(intern_spec(from->placement, NdSbp(s.in[i])));
        reached = reached && (!s.in[i].is_partial() || from->nd_sbp[0].is_partial());
        if (reached) sum += boxing(v, want.back());
      }
      const GlobalSpec* made = intern_spec(g_.value(n.out[0]).spec->placement, NdSbp(s.out[0]));
      if (!reached || larger(n, want)) continue;
      if (s.even_units && s.even_units % 4) continue;
      const GlobalSpec* old = now_[static_cast<size_t>(n.out[0])];
      now_[static_cast<size_t>(n.out[0])] = made;
      least = std::min(least, sum + from(at + 1));
      now_[static_cast<size_t>(n.out[0])] = old;
    }
    return least;
  }
  bool is_output(ValueId v) const { return std::ranges::count(g_.only().outputs, v) > 0; }

  const Graph& g_;
  std::vector<ValueId> source_;
  std::vector<const Node*> nodes_;
  Specs now_, captured_;
};

double boxing_cost(const Graph& g) {
  double sum = 0;
  for (auto& n : g.nodes)
    if (is_single_boxing(n))
      sum +=
          boxing::cost(g.value(n.in[0]).spec, g.value(n.out[0]).spec, g.value(n.in[0]).shape, g.value(n.in[0]).dtype);
  return sum;
}

TEST(ChooseSbp, FindsTheBestOfAChain) {
  comm::run_ranks(4, [](int) {
    int better = 0;
    for (uint32_t seed = 0; seed < 60; ++seed) {
      auto make = [&] { return chain(seed); };
      Captured before = make();
      const double least = Least(before.g).run();
      CompileOptions options = only({"choose_sbp", "dead_code_again"});
      options.verify = true;
      Captured after = seed % 10 ? make() : expect_unchanged(make, options, 1e-5);
      if (seed % 10) run_passes(after.g, options);
      // A gain of less than two parts in a hundred is not worth a change.
      EXPECT_LE(boxing_cost(after.g), least * 1.021 + 1e-12) << "seed " << seed << "\n"
                                                             << str(before.g) << str(after.g);
      better += boxing_cost(after.g) < 0.98 * boxing_cost(before.g);
    }
    EXPECT_GT(better, 5);
  });
}

}  // namespace
}  // namespace holon::graph
