// The rules against their formulas in double precision.
#include "holon/optim/update.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "holon/base/error.h"
#include "values.h"

namespace holon::optim {
namespace {

using holon::testing::largest_difference;
using holon::testing::make;
using holon::testing::numbers;
using holon::testing::values_of;
using List = std::vector<double>;

double tolerance(DType t) { return t == float64 ? 1e-13 : t == float32 ? 2e-6 : t == float16 ? 5e-3 : 4e-2; }

struct SgdReference {
  List p, m;
  bool first = true;
  void step(const List& grad, const SgdOptions& o) {
    m.resize(p.size());
    for (size_t i = 0; i < p.size(); ++i) {
      double g = (o.maximize ? -grad[i] : grad[i]) + o.weight_decay * p[i], d = g;
      if (o.momentum != 0) {
        m[i] = first ? g : o.momentum * m[i] + (1 - o.dampening) * g;
        d = o.nesterov ? g + o.momentum * m[i] : m[i];
      }
      p[i] -= o.lr * d;
    }
    first = false;
  }
};

struct AdamReference {
  List p, m, v, most;
  int t = 0;
  void step(const List& grad, const AdamOptions& o) {
    ++t;
    m.resize(p.size()), v.resize(p.size()), most.resize(p.size());
    for (size_t i = 0; i < p.size(); ++i) {
      double g = o.maximize ? -grad[i] : grad[i];
      if (o.decoupled)
        p[i] -= o.lr * o.weight_decay * p[i];
      else
        g += o.weight_decay * p[i];
      m[i] = o.beta1 * m[i] + (1 - o.beta1) * g;
      v[i] = o.beta2 * v[i] + (1 - o.beta2) * g * g;
      most[i] = std::max(most[i], v[i]);
      double second = (o.amsgrad ? most[i] : v[i]) / (1 - std::pow(o.beta2, t));
      p[i] -= o.lr * (m[i] / (1 - std::pow(o.beta1, t))) / (std::sqrt(second) + o.eps);
    }
  }
};

class Rules : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(All, Rules, ::testing::Values(float32, float64, float16, bfloat16),
                         [](auto& info) { return std::string(name(info.param)); });

TEST_P(Rules, SgdFollowsItsFormula) {
  DType t = GetParam();
  for (SgdOptions o :
       {SgdOptions{.lr = 0.1}, SgdOptions{.lr = 0.1, .weight_decay = 0.02}, SgdOptions{.lr = 0.1, .maximize = true},
        SgdOptions{.lr = 0.05, .momentum = 0.9},
        SgdOptions{.lr = 0.05, .momentum = 0.8, .dampening = 0.3, .weight_decay = 0.1},
        SgdOptions{.lr = 0.05, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true, .maximize = true}}) {
    std::vector<Tensor> params{make(numbers(15, 1), t, {3, 5}), make(numbers(4, 2), t, {4})}, momenta(2);
    SgdReference a{values_of(params[0].array()), {}}, b{values_of(params[1].array()), {}};
    for (int step = 0; step < 5; ++step) {
      std::vector<Tensor> grads{make(numbers(15, 10 + step), t, {3, 5}), make(numbers(4, 20 + step), t, {4})};
      a.step(values_of(grads[0].array()), o);
      b.step(values_of(grads[1].array()), o);
      sgd_update(params, grads, momenta, o);
    }
    EXPECT_LT(largest_difference(values_of(params[0].array()), a.p), tolerance(t));
    EXPECT_LT(largest_difference(values_of(params[1].array()), b.p), tolerance(t));
    EXPECT_EQ(momenta[0].defined(), o.momentum != 0);
  }
}

TEST_P(Rules, AdamFollowsItsFormula) {
  DType t = GetParam();
  for (AdamOptions o : {AdamOptions{.lr = 0.01}, AdamOptions{.lr = 0.01, .weight_decay = 0.1},
                        AdamOptions{.lr = 0.01, .weight_decay = 0.1, .decoupled = true},
                        AdamOptions{.lr = 0.01, .beta1 = 0.8, .beta2 = 0.5, .amsgrad = true},
                        AdamOptions{.lr = 0.02, .eps = 1e-3, .maximize = true}}) {
    std::vector<Tensor> params{make(numbers(15, 1), t, {3, 5})}, m(1), v(1), most(1);
    AdamReference ref{values_of(params[0].array()), {}, {}, {}};
    for (int step = 1; step <= 6; ++step) {
      double scale = step == 1 ? 2 : 0.5;  // so that the largest second moment is an early one
      List g = numbers(15, 10 + step);
      for (double& x : g) x *= scale;
      std::vector<Tensor> grads{make(g, t, {3, 5})};
      ref.step(values_of(grads[0].array()), o);
      adam_update(params, grads, m, v, most, step, o);
    }
    EXPECT_LT(largest_difference(values_of(params[0].array()), ref.p), tolerance(t));
    EXPECT_EQ(most[0].defined(), o.amsgrad);
    EXPECT_EQ(m[0].dtype(), size_bytes(t) == 2 ? float32 : t);
  }
}

TEST(Update, LargeTensorsAreUpdatedWhole) {
  size_t n = 3 * (1 << 15) + 7;
  std::vector<Tensor> params{make(numbers(n, 1), float32, {static_cast<int64_t>(n)}),
                             make(numbers(3, 2), float32, {3})},
      momenta(2);
  std::vector<Tensor> grads{make(numbers(n, 3), float32, {static_cast<int64_t>(n)}), make(numbers(3, 4), float32, {3})};
  SgdOptions o{.lr = 0.1, .momentum = 0.9};
  SgdReference a{values_of(params[0].array()), {}}, b{values_of(params[1].array()), {}};
  for (int step = 0; step < 2; ++step) {
    a.step(values_of(grads[0].array()), o);
    b.step(values_of(grads[1].array()), o);
    sgd_update(params, grads, momenta, o);
  }
  EXPECT_LT(largest_difference(values_of(params[0].array()), a.p), 2e-6);
  EXPECT_LT(largest_difference(values_of(params[1].array()), b.p), 2e-6);
}

// The parameter, its gradient and its state may lie in memory in different orders, the parameter even with gaps.
TEST(Update, StridesDoNotMatter) {
  for (bool gaps : {false, true}) {
    Tensor whole = make(numbers(24, 1), float32, {4, 6});
    Array view = gaps ? whole.array().view({4, 3}, {6, 2}) : whole.array().view({6, 4}, {1, 6});
    std::vector<Tensor> params{Tensor::local(view)}, m(1), v(1);
    List before = values_of(whole.array());
    AdamReference ref{values_of(view), {}, {}, {}};
    AdamOptions o{.lr = 0.1, .amsgrad = false};
    for (int step = 1; step <= 3; ++step) {
      Tensor g = make(numbers(static_cast<size_t>(view.numel()), 5 + step), float32, view.shape);
      ref.step(values_of(g.array()), o);
      std::vector<Tensor> grads{g};
      adam_update(params, grads, m, v, {}, step, o);
      if (step == 1) m[0] = make(values_of(m[0].array()), float32, view.shape);  // as a checkpoint would bring it back
    }
    EXPECT_LT(largest_difference(values_of(params[0].array()), ref.p), 2e-6) << gaps;
    List after = values_of(whole.array());
    for (size_t i = 1; gaps && i < 24; i += 2)
      EXPECT_EQ(after[i], before[i]) << "between the elements lies somebody else's";
  }
}

TEST(Update, SkipsParametersWithoutGradientAndCountsVersions) {
  std::vector<Tensor> params{make({1, 2}, float32, {2}), make({3, 4}, float32, {2}), make({}, float32, {0})},
      momenta(3);
  std::vector<Tensor> grads{make({1, 1}, float32, {2}), Tensor(), make({}, float32, {0})};
  uint32_t version = params[0].array().storage->version, other = params[1].array().storage->version;
  sgd_update(params, grads, momenta, {.lr = 1, .momentum = 0.5});
  EXPECT_EQ(values_of(params[0].array()), (List{0, 1}));
  EXPECT_EQ(values_of(params[1].array()), (List{3, 4}));
  EXPECT_GT(params[0].array().storage->version, version);
  EXPECT_EQ(params[1].array().storage->version, other);
  EXPECT_FALSE(momenta[1].defined());
}

TEST(Update, RefusesWhatDoesNotFit) {
  auto refused = [](std::vector<Tensor> params, std::vector<Tensor> grads, std::vector<Tensor> state,
                    SgdOptions o = {.momentum = 0.9}) {
    List before = values_of(params[0].array());
    EXPECT_THROW(sgd_update(params, grads, state, o), Error);
    EXPECT_EQ(values_of(params[0].array()), before);
  };
  Tensor p = make({1, 2}, float32, {2}), g = make({1, 1}, float32, {2});
  refused({p}, {}, {Tensor()});
  refused({p}, {g}, {});
  refused({p}, {make({1, 1, 1}, float32, {3})}, {Tensor()});
  refused({p}, {make({1, 1}, float64, {2})}, {Tensor()});
  refused({p}, {g}, {make({0, 0}, float64, {2})});
  refused({p, p}, {g, make({1}, float32, {1})}, {Tensor(), Tensor()});
  refused({make({1, 2}, int64, {2})}, {Tensor()}, {Tensor()});
  refused({p}, {g}, {Tensor()}, {.momentum = -1});
  refused({p}, {g}, {Tensor()}, {.momentum = 0.9, .dampening = 0.1, .nesterov = true});
  std::vector<Tensor> ps{p}, gs{g}, m(1), v(1), most;
  EXPECT_THROW(adam_update(ps, gs, m, v, most, 0, {}), Error);
  EXPECT_THROW(adam_update(ps, gs, m, v, most, 1, {.beta1 = 1}), Error);
  EXPECT_THROW(adam_update(ps, gs, m, v, most, 1, {.amsgrad = true}), Error);
}

}  // namespace
}  // namespace holon::optim
