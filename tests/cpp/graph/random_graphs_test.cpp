// All passes on random programs in random layouts.
#include <cstdlib>
#include <random>

#include "holon/base/error.h"
#include "tests/cpp/graph/small_graphs.h"

namespace holon::graph {
namespace {

using namespace testing;

constexpr int64_t kSize = 8;

class Program {
 public:
  Program(const Placement& p, unsigned seed) : placement_(p), draw_(seed) {}

  Captured capture(int micro_batches) {
    Captured c;
    const int n_parameters = 2 + below(4);
    for (int i = 0; i < n_parameters; ++i) c.parameters.push_back(make_parameter(i));
    const NdSbp data =
        !placement_ || below(2) ? any_sbp(false) : NdSbp::filled(axes(), sbp::broadcast()).with(0, sbp::split(0));
    c.inputs = {random(layout(), {kSize * micro_batches, kSize}, data, 1000),
                random(layout(), {kSize * micro_batches, kSize}, data, 1001)};
    Capture capture;
    capture.set_micro_batches(micro_batches);
    std::vector<Tensor> pool;
    for (auto& t : c.inputs) pool.push_back(capture.input_like(t));
    for (size_t i = 0; i < c.parameters.size(); ++i)
      capture.name_external(c.parameters[i], "p" + std::to_string(i), true);
    const int blocks = 1 + below(4);
    for (int b = 0; b < blocks; ++b) {
      capture.push_scope("model.block" + std::to_string(b));
      const int n = 2 + below(6);
      for (int k = 0; k < n; ++k) pool.push_back(op(pool, c.parameters));
      capture.pop_scope();
    }
    Tensor loss;
    for (auto& p : c.parameters) {  // each has a gradient
      Tensor term = mean(tanh(matmul(pool.back(), p)));
      loss = loss.defined() ? loss + term : term;
    }
    loss = loss + mean(pool[pool.size() - 2] * pool.back());
    loss.backward();
    optim::Rule rule;
    rule.lr = 0.1;
    rule.momentum = below(2) ? 0.9 : 0;
    capture.add_update(rule, c.parameters);
    std::vector<Tensor> outputs{loss};
    if (micro_batches == 1) outputs.push_back(pool[static_cast<size_t>(below(static_cast<int>(pool.size())))]);
    c.g = capture.finish(outputs);
    return c;
  }

 private:
  int below(int n) { return static_cast<int>(draw_() % static_cast<unsigned>(n)); }
  int axes() const { return placement_ ? placement_.hierarchy().size() : 0; }
  Layout layout() const { return {placement_}; }
  NdSbp any_sbp(bool partial) {
    if (!placement_) return {};
    std::vector<Sbp> list;
    for (int a = 0; a < axes(); ++a) {
      const int kind = below(partial ? 4 : 3);
      list.push_back(kind == 2 ? sbp::broadcast() : kind == 3 ? sbp::partial_sum() : sbp::split(kind));
    }
    return NdSbp(list);
  }
  Tensor make_parameter(int i) { return parameter(layout(), {kSize, kSize}, any_sbp(false), i, 0.4); }

  Tensor op(const std::vector<Tensor>& pool, const std::vector<Tensor>& parameters) {
    const Tensor x =
        pool[pool.size() - 1 - static_cast<size_t>(below(std::min<int>(3, static_cast<int>(pool.size()))))];
    const Tensor other = pool[static_cast<size_t>(below(static_cast<int>(pool.size())))];
    const Tensor w = parameters[static_cast<size_t>(below(static_cast<int>(parameters.size())))];
    switch (below(13)) {
      case 0:
      case 1: return tanh(matmul(x, w));
      case 2: return tanh(x) + other;
      case 3: return x * sigmoid(other);
      case 4: return transpose(x, 0, 1);
      case 5: return reshape(reshape(x, {2, kSize / 2, kSize}), {kSize, kSize});
      case 6: return dropout(x, 0.3);
      case 7: return softmax(x, 1);
      case 8: return x - mean(x, Dims{1}, true);
      case 9: return x.to(bfloat16).to(float32);
      case 10: return tanh(matmul(x, transpose(w, 0, 1)));
      case 11: return tanh(x) + w;
      default: return placement_ ? x.to_global(placement_, any_sbp(true)) : relu(x);
    }
  }

  Placement placement_;
  std::mt19937 draw_;
};

void check(const Placement& p, unsigned seed) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 draw(seed * 7919 + 1);
  const int micro_batches = 1 << draw() % 3;
  PassOptions o;
  o.verify = true;
  o.zero_stage = static_cast<int>(draw() % 4);
  o.bucket_bytes = draw() % 2 ? 600 : 0;
  if (draw() % 2) o.recompute = {"model.block0"};
  Captured before = Program(p, seed).capture(micro_batches), after = Program(p, seed).capture(micro_batches);
  std::vector<Tensor> stored = after.parameters;
  if (o.zero_stage == 3 && p) {
    auto specs = zero3_specs(after.g, o);
    for (size_t e = 0; e < specs.size(); ++e) {
      Tensor& t = after.g.externals[e].tensor;
      if (!specs[e]) continue;
      NoGradGuard guard;
      Tensor shard = t.to_global(specs[e]->placement, specs[e]->nd_sbp).detach();
      for (auto& s : stored)
        if (s == t) s = shard;
      t = shard;
    }
  }
  PassOptions plain = only({"stages", "accumulate"});
  run_passes(before.g, plain);
  if (draw() % 3 == 0) {
    Graph copy = after.g;
    PassOptions none = o;
    run_passes(copy, none);
    o.memory_budget_bytes = estimate_peak_bytes(copy) * 9 / 10;
    try {
      copy = after.g;
      run_passes(copy, o);
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::kValue) throw;
      o.memory_budget_bytes = 0;
    }
  }
  const std::string text = str(after.g);
  run_passes(after.g, o);
  Course a = run(before), b = run(after);
  b.parameters = stored;
  expect_equal(a, b, 2e-2);  // casts to bfloat16 round sums that were taken in another order
  if (::testing::Test::HasFailure() && Context::current().rank() == 0)
    ADD_FAILURE() << "zero " << o.zero_stage << ", micro-batches " << micro_batches << "\n"
                  << text << "\n"
                  << str(after.g);
}

// HOLON_TEST_MORE=10: ten times as many.
unsigned many(unsigned n) {
  const char* more = std::getenv("HOLON_TEST_MORE");
  return n * (more ? static_cast<unsigned>(std::atoi(more)) : 1);
}

TEST(RandomGraphs, Local) {
  for (unsigned seed = 0; seed < many(60) && !HasFailure(); ++seed) check({}, seed);
}

TEST(RandomGraphs, OnTwoRanks) {
  for (unsigned seed = 0; seed < many(100) && !HasFailure(); ++seed)
    comm::run_ranks(2, [&](int) { check(Placement("cpu", {0, 1}), seed); });
}

TEST(RandomGraphs, OnAGrid) {
  for (unsigned seed = 0; seed < many(50) && !HasFailure(); ++seed)
    comm::run_ranks(4, [&](int) { check(Placement::nested("cpu", {{0, 1}, {2, 3}}), seed); });
}

}  // namespace
}  // namespace holon::graph
