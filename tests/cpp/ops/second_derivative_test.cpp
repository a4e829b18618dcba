// Second derivatives of every differentiable sample: backward() with create_graph, and backward() through its results,
// against differences of first derivatives in float64. Those that are missing are listed here; the list may only
// shrink.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>

#include "cases.h"
#include "holon/autograd/engine.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/index.h"
#include "holon/dispatch/dispatch.h"

namespace holon::testing {
namespace {

// Ops whose gradient has none itself, by their names in the registry (./dev op NAME reads this table, too).
const std::map<std::string, const char*> kWithoutSecondDerivative{
    {"ctc_loss", "of ctc_loss_alpha"},
    {"ctc_loss_alpha", "would need the probabilities of pairs of steps"},
    {"expert_swiglu", "not written yet"},
};

// Samples that say nothing of second derivatives.
const std::map<std::string, const char*> kNotCompared{
    {"linalg_vector_norm [5, 3]; ord=inf; dim=[1]", "two elements are the largest"},
    {"normalize [5, 3]; p=3; dim=0", "an element is 0, where the second derivative of |x|^3 has a kink"},
    {"nll_rows_backward [5] int64[5]; classes=3; dtype=float32; ignore_index=1", "its attribute says float32"},
};

using Values = std::vector<double>;

// A call whose inputs and outputs' gradients are float64 leaves.
struct Problem {
  const Case& c;
  const OpDef& op = find_op(c.op);
  Attrs attrs = make_attrs(c);
  std::vector<Values> in, dy;  // dy: of the differentiable outputs, in order

  explicit Problem(const Case& sample) : c(sample) {
    for (size_t i = 0; i < c.in.size(); ++i) in.push_back(input_values(c, i));
  }
  bool differentiable(size_t i) const { return c.in[i].fill != Input::Fill::kAbsent && is_floating(c.in[i].dtype); }

  struct First {
    std::vector<Tensor> leaves;     // inputs, then the outputs' gradients
    std::vector<Tensor> gradients;  // of the inputs; undefined where there is none
    size_t n_inputs = 0;
  };
  First first(bool create_graph) {
    First f;
    TensorVec inputs;
    for (size_t i = 0; i < c.in.size(); ++i) {
      inputs.emplace_back();
      if (c.in[i].fill == Input::Fill::kAbsent) continue;
      inputs[i] = Tensor::local(array_of(in[i], c.in[i].shape, differentiable(i) ? float64 : c.in[i].dtype));
      if (!differentiable(i)) continue;
      inputs[i].set_requires_grad();
      f.leaves.push_back(inputs[i]);
    }
    f.n_inputs = f.leaves.size();
    std::vector<Tensor> roots, seeds;
    for (const Tensor& y : dispatch(op, inputs, attrs))
      if (y.requires_grad()) roots.push_back(y);
    if (dy.empty())
      for (size_t o = 0; o < roots.size(); ++o) {
        dy.emplace_back(to_size(roots[o].numel()));
        for (size_t e = 0; e < dy[o].size(); ++e) dy[o][e] = number(o, e, 9);
      }
    for (size_t o = 0; o < roots.size(); ++o) {
      seeds.push_back(Tensor::local(array_of(dy[o], roots[o].shape(), roots[o].dtype())));
      seeds.back().set_requires_grad();
      f.leaves.push_back(seeds.back());
    }
    if (roots.empty()) return f;
    f.gradients = autograd::grad(roots, std::span(f.leaves).first(f.n_inputs), seeds, false, create_graph, true);
    return f;
  }

  static double number(size_t a, size_t b, size_t c) { return (static_cast<double>(mix(a, b, c) % 33) - 16) / 8; }

  // Of the gradients, one number: their sum with weights.
  double weighted(const First& f) const {
    double sum = 0;
    for (size_t i = 0; i < f.gradients.size(); ++i) {
      if (!f.gradients[i].defined()) continue;
      const Values v = values_of(f.gradients[i].array());
      for (size_t e = 0; e < v.size(); ++e) sum += number(i, e, 5) * v[e];
    }
    return sum;
  }

  // All values of the leaves in order, moved by h times a direction.
  void move(double h, size_t way) {
    size_t leaf = 0;
    auto along = [&](Values& v) {
      for (size_t e = 0; e < v.size(); ++e) v[e] += h * number(leaf, e, 11 + way);
      ++leaf;
    };
    for (size_t i = 0; i < in.size(); ++i)
      if (differentiable(i)) along(in[i]);
    for (Values& v : dy) along(v);
  }
};

TEST(SecondDerivatives, FollowDifferencesOfFirstOnes) {
  std::set<std::string> missing, there;
  for (const Case& c : cases()) {
    if (!has_gradient(find_op(c.op)) || kNotCompared.count(c.name())) continue;
    SCOPED_TRACE(c.name());
    Problem p(c);
    Problem::First f;
    std::vector<Tensor> second;
    try {
      f = p.first(true);
      std::vector<Tensor> roots, weights;
      for (size_t i = 0; i < f.gradients.size(); ++i) {
        if (!f.gradients[i].defined() || !f.gradients[i].requires_grad()) continue;
        Values w(to_size(f.gradients[i].numel()));
        for (size_t e = 0; e < w.size(); ++e) w[e] = Problem::number(i, e, 5);
        roots.push_back(f.gradients[i]);
        weights.push_back(Tensor::local(array_of(w, f.gradients[i].shape(), f.gradients[i].dtype())));
      }
      if (roots.empty()) continue;
      second = autograd::grad(roots, f.leaves, weights, false, false, true);
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kNotImplemented) << e.what();
      missing.insert(c.op);
      continue;
    }
    there.insert(c.op);
    if (!c.differences) continue;
    const double by_kernels = p.weighted(p.first(false)), recorded = p.weighted(f);
    EXPECT_NEAR(recorded, by_kernels, 1e-9 * std::max(1.0, std::abs(by_kernels))) << "the first derivatives differ";
    for (size_t way = 0; way < 3; ++way) {
      double along = 0;
      for (size_t i = 0; i < second.size(); ++i) {
        if (!second[i].defined()) continue;
        const Values v = values_of(second[i].array());
        for (size_t e = 0; e < v.size(); ++e) along += Problem::number(i, e, 11 + way) * v[e];
      }
      const double h = 1e-5;
      auto at = [&](double distance) {
        p.move(distance, way);
        const double value = p.weighted(p.first(false));
        p.move(-distance, way);
        return value;
      };
      const double numeric = (8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * h);
      EXPECT_NEAR(along, numeric, 2e-6 * std::max(1.0, std::abs(numeric)));
    }
  }
  for (const std::string& op : missing)
    EXPECT_TRUE(kWithoutSecondDerivative.count(op)) << op << " has no second derivative. Give its gradient's op one.";
  for (const auto& [op, reason] : kWithoutSecondDerivative)
    EXPECT_TRUE(missing.count(op)) << op << " has a second derivative: take it off the list.";
  EXPECT_GT(there.size(), 200u);
}

}  // namespace
}  // namespace holon::testing
