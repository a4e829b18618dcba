// Every rule against its formula in double precision, written here element by element, on one rank and on two under
// every sbp; and float32 master copies of parameters of two bytes.
#include "holon/optim/rule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>

#include "holon/base/error.h"
#include "holon/comm/run_ranks.h"
#include "holon/data/place.h"
#include "holon/optim/optimizer.h"
#include "values.h"

namespace holon::optim {
namespace {

using comm::run_ranks;
using holon::testing::largest_difference;
using holon::testing::make;
using holon::testing::numbers;
using holon::testing::values_of;
using List = std::vector<double>;

double norm(const List& x) {
  double sum = 0;
  for (double v : x) sum += v * v;
  return std::sqrt(sum);
}

// The rule on one parameter; states in the order of the rule's.
struct Reference {
  List p, a, b, c;
  int t = 0;

  void step(const Rule& r, const List& grad) {
    ++t;
    const size_t n = p.size();
    a.resize(n, r.kind == RuleKind::kAdagrad ? r.initial_accumulator_value : 0), b.resize(n), c.resize(n);
    List g(n), d(n);
    for (size_t i = 0; i < n; ++i) g[i] = (r.maximize ? -grad[i] : grad[i]) + (r.decoupled ? 0 : r.weight_decay * p[i]);
    const double c1 = r.bias_correction ? 1 - std::pow(r.beta1, t) : 1,
                 c2 = r.bias_correction ? 1 - std::pow(r.beta2, t) : 1;
    if (r.kind == RuleKind::kLars) {
      const double of_p = norm(p), of_g = norm(grad);
      const double scale =
          of_p > 0 && of_g > 0 ? r.trust_coefficient * of_p / (of_g + r.weight_decay * of_p + r.eps) : 1;
      for (double& x : g) x *= scale;
    }
    for (size_t i = 0; i < n; ++i) switch (r.kind) {
        case RuleKind::kSgd:
        case RuleKind::kLars:
          if (r.momentum != 0 && r.lr_in_momentum) {
            a[i] = r.momentum * a[i] - r.lr * (1 - r.dampening) * g[i];
            d[i] = -a[i];
          } else if (r.momentum != 0) {
            a[i] = t == 1 ? g[i] : r.momentum * a[i] + (1 - r.dampening) * g[i];
            d[i] = r.lr * (r.nesterov ? g[i] + r.momentum * a[i] : a[i]);
          } else {
            d[i] = r.lr * g[i];
          }
          break;
        case RuleKind::kAdam:
        case RuleKind::kLamb: {
          a[i] = r.beta1 * a[i] + (1 - r.beta1) * g[i];
          b[i] = r.beta2 * b[i] + (1 - r.beta2) * g[i] * g[i];
          c[i] = std::max(c[i], b[i]);
          const double v = (r.amsgrad ? c[i] : b[i]) / c2;
          d[i] = a[i] / c1 / (r.eps_in_root ? std::sqrt(v + r.eps) : std::sqrt(v) + r.eps);
          if (r.decoupled && !r.ratio_before_decay) d[i] += r.weight_decay * p[i];
          if (r.kind == RuleKind::kAdam) d[i] *= r.lr;
          break;
        }
        case RuleKind::kAdagrad:
          a[i] += g[i] * g[i];
          d[i] = r.lr / (1 + (t - 1) * r.lr_decay) * g[i] / (std::sqrt(a[i]) + r.eps);
          break;
        case RuleKind::kAdadelta: {
          a[i] = r.rho * a[i] + (1 - r.rho) * g[i] * g[i];
          const double s = std::sqrt(b[i] + r.eps) / std::sqrt(a[i] + r.eps) * g[i];
          b[i] = r.rho * b[i] + (1 - r.rho) * s * s;
          d[i] = r.lr * s;
          break;
        }
        case RuleKind::kRmsprop: {
          a[i] = r.rho * a[i] + (1 - r.rho) * g[i] * g[i];
          double v = a[i];
          if (r.centered) {
            b[i] = r.rho * b[i] + (1 - r.rho) * g[i];
            v = std::max(0.0, v - b[i] * b[i]);
          }
          d[i] = r.eps_in_root ? g[i] / std::sqrt(v + r.eps) : g[i] / (std::sqrt(v) + r.eps);
          if (r.momentum > 0) d[i] = c[i] = r.momentum * c[i] + d[i];
          d[i] *= r.lr;
          break;
        }
      }
    if (r.kind == RuleKind::kLamb) {
      const double of_p = norm(p), of_d = norm(d), ratio = of_p > 0 && of_d > 0 ? of_p / of_d : 1;
      for (size_t i = 0; i < n; ++i) d[i] += r.decoupled && r.ratio_before_decay ? r.weight_decay * p[i] : 0;
      for (double& x : d) x *= r.lr * ratio;
    }
    for (size_t i = 0; i < n; ++i) p[i] -= d[i];
  }
};

std::vector<std::pair<const char*, Rule>> rules() {
  std::vector<std::pair<const char*, Rule>> list;
  auto add = [&](const char* name, const auto& options) { list.emplace_back(name, rule_of(options)); };
  add("sgd", SgdOptions{.lr = 0.1, .momentum = 0.9, .dampening = 0.1, .weight_decay = 0.1});
  add("sgd lr in momentum",
      SgdOptions{.lr = 0.1, .momentum = 0.9, .dampening = 0.2, .weight_decay = 0.1, .lr_in_momentum = true});
  add("sgd lr in no momentum", SgdOptions{.lr = 0.1, .weight_decay = 0.1, .lr_in_momentum = true});
  add("adam", AdamOptions{.lr = 0.05, .weight_decay = 0.1, .amsgrad = true});
  add("adam without correction", AdamOptions{.lr = 0.05, .eps = 1e-3, .bias_correction = false});
  add("adamw", AdamOptions{.lr = 0.05, .weight_decay = 0.1, .decoupled = true, .maximize = true});
  add("adagrad", AdagradOptions{.lr = 0.1, .lr_decay = 0.1, .weight_decay = 0.05, .initial_accumulator_value = 0.2});
  add("adagrad maximize", AdagradOptions{.lr = 0.1, .maximize = true});
  add("adadelta", AdadeltaOptions{.lr = 2, .rho = 0.8, .eps = 1e-3, .weight_decay = 0.1});
  add("rmsprop", RmspropOptions{.lr = 0.05, .alpha = 0.9, .weight_decay = 0.1});
  add("rmsprop centered", RmspropOptions{.lr = 0.05, .alpha = 0.9, .eps = 1e-2, .centered = true});
  add("rmsprop momentum", RmspropOptions{.lr = 0.02, .alpha = 0.9, .momentum = 0.7});
  add("rmsprop eps in root",
      RmspropOptions{
          .lr = 0.05, .alpha = 0.9, .eps = 1e-2, .weight_decay = 0.1, .centered = true, .eps_in_root = true});
  add("rmsprop both",
      RmspropOptions{.lr = 0.02,
                     .alpha = 0.9,
                     .eps = 1e-2,
                     .weight_decay = 0.1,
                     .momentum = 0.7,
                     .centered = true,
                     .maximize = true});
  add("lamb", LambOptions{.lr = 0.05, .weight_decay = 0.1});
  add("lamb eps in root", LambOptions{.lr = 0.05, .eps = 1e-2, .weight_decay = 0.1, .eps_in_root = true});
  add("lamb ratio before decay", LambOptions{.lr = 0.05, .weight_decay = 0.3, .ratio_before_decay = true});
  add("lamb l2", LambOptions{.lr = 0.05, .weight_decay = 0.1, .decoupled = false, .bias_correction = false});
  add("lars", LarsOptions{.lr = 1, .momentum = 0.9, .weight_decay = 0.1, .trust_coefficient = 0.1});
  add("lars nesterov",
      LarsOptions{.lr = 1, .momentum = 0.5, .trust_coefficient = 0.1, .nesterov = true, .maximize = true});
  return list;
}

constexpr int kSteps = 5;
List gradient(int step) { return numbers(15, 10 + step); }

TEST(Rule, FollowsItsFormula) {
  for (auto& [what, rule] : rules())
    for (DType t : {float64, float32, bfloat16, float16}) {
      Slot s;
      s.param = make(numbers(15, 1), t, {3, 5});
      Slot zero;  // without norm and without gradient
      zero.param = make(List(4), t, {4});
      Reference ref{values_of(s.param.array())};
      for (int step = 0; step < kSteps; ++step) {
        s.grad = make(gradient(step), t, {3, 5});
        zero.grad = make(List(4), t, {4});
        ref.step(rule, values_of(s.grad.array()));
        Slot slots[] = {s, zero};
        update(rule, slots);
        s = slots[0], zero = slots[1];
      }
      const double tolerance = t == float64 ? 1e-12 : t == float32 ? 2e-5 : t == float16 ? 1e-2 : 6e-2;
      EXPECT_LT(largest_difference(values_of(s.param.array()), ref.p), tolerance) << what << " " << name(t);
      EXPECT_EQ(values_of(zero.param.array()), List(4)) << what;
      EXPECT_EQ(s.step, kSteps);
      for (int k = 0; k < kMaxStates; ++k)
        EXPECT_EQ(s.state[static_cast<size_t>(k)].defined(), state_name(rule, k) != nullptr) << what << " " << k;
    }
}

// Uneven parts, gradients of any sbp, partial sums too: always the values of one rank.
TEST(Rule, IsRightUnderEverySbp) {
  for (int ranks : {2, 3})
    run_ranks(ranks, [&](int) {
      Placement p = Placement::all("cpu");
      for (auto& [what, rule] : rules())
        for (Sbp own : {sbp::broadcast(), sbp::split(0), sbp::split(1), sbp::partial_sum()})
          for (Sbp given : {sbp::broadcast(), sbp::split(0), sbp::partial_sum()}) {
            Reference ref{numbers(15, 1)};
            Slot slots[1];
            slots[0].param = data::place(make(numbers(15, 1), float64, {3, 5}), p, own);
            for (int step = 0; step < kSteps; ++step) {
              slots[0].grad = data::place(make(gradient(step), float64, {3, 5}), p, given);
              ref.step(rule, gradient(step));
              update(rule, slots);
            }
            EXPECT_EQ(slots[0].param.nd_sbp(), NdSbp(own));
            EXPECT_LT(largest_difference(values_of(slots[0].param.full().array()), ref.p), 1e-12)
                << what << " " << own.str() << " " << given.str();
          }
    });
}

// Parameters on a part of the world, and on a grid.
TEST(Rule, IsRightOnEveryPlacement) {
  run_ranks(4, [&](int) {
    Placement grid("cpu", Dims{2, 2}, {0, 1, 2, 3}), some("cpu", {2, 1}), one("cpu", {3});
    for (auto& [what, rule] : rules()) {
      Slot slots[4];
      const std::pair<Placement, NdSbp> layouts[] = {{grid, {sbp::split(0), sbp::broadcast()}},
                                                     {grid, {sbp::partial_sum(), sbp::split(1)}},
                                                     {some, sbp::split(1)},
                                                     {one, sbp::broadcast()}};
      for (size_t i = 0; i < 4; ++i)
        slots[i].param = data::place(make(numbers(15, 1), float64, {3, 5}), layouts[i].first, layouts[i].second);
      Reference ref{numbers(15, 1)};
      for (int step = 0; step < 3; ++step) {
        for (size_t i = 0; i < 4; ++i)
          slots[i].grad = data::place(make(gradient(step), float64, {3, 5}), layouts[i].first, layouts[i].second);
        ref.step(rule, gradient(step));
        update(rule, slots);
      }
      for (Slot& s : slots)
        EXPECT_LT(largest_difference(values_of(s.param.full().array()), ref.p), 1e-12)
            << what << " " << s.param.nd_sbp().str();
    }
  });
}

// With small steps a parameter of two bytes alone would not move at all.
TEST(Rule, MasterCopiesKeepSmallSteps) {
  for (int ranks : {1, 2})
    run_ranks(ranks, [&](int) {
      Placement p = Placement::all("cpu");
      for (Sbp own : {sbp::broadcast(), sbp::split(0), sbp::partial_sum()}) {
        Rule rule = rule_of(SgdOptions{.lr = 0x1p-13, .group = {.master_weights = true}});
        Slot slots[1];
        slots[0].param = data::place(make({1, -1, 2, 0.5}, bfloat16, {4}), p, own);
        slots[0].grad = data::place(make({1, 1, -1, 0}, bfloat16, {4}), p, own);
        for (int step = 0; step < 200; ++step) update(rule, slots);
        const double moved = 200 * 0x1p-13;  // exact in float32
        const List want{1 - moved, -1 - moved, 2 + moved, 0.5};
        EXPECT_EQ(values_of(slots[0].master.full().array()), want);
        EXPECT_EQ(values_of(slots[0].param.full().array()), values_of(make(want, bfloat16, {4}).array())) << own.str();
        EXPECT_EQ(slots[0].master.dtype(), float32);
      }
    });
}

// What was saved under one sbp is loaded under another.
TEST(Rule, StateLoadsAcrossSbps) {
  run_ranks(2, [](int) {
    Placement p = Placement::all("cpu");
    auto make_optimizer = [&](Sbp own) {
      Tensor w = data::place(make(numbers(15, 1), float64, {3, 5}), p, own);
      w.set_requires_grad();
      return std::pair{w, std::make_unique<LAMB>(std::vector<Tensor>{w}, LambOptions{.lr = 0.1, .weight_decay = 0.1})};
    };
    auto advance = [&](Tensor w, LAMB& o, int from, int to) {
      for (int step = from; step < to; ++step) {
        w.set_grad(data::place(make(gradient(step), float64, {3, 5}), p, w.nd_sbp()));
        o.step();
      }
    };
    auto [w, whole] = make_optimizer(sbp::broadcast());
    advance(w, *whole, 0, 3);
    for (Sbp own : {sbp::split(0), sbp::split(1), sbp::partial_sum()}) {
      auto [v, other] = make_optimizer(own);
      advance(v, *other, 0, 3);
      auto [u, third] = make_optimizer(own);
      advance(u, *third, 0, 3);
      third->load_state_dict(whole->state_dict());
      advance(v, *other, 3, 5);
      advance(u, *third, 3, 5);
      EXPECT_LT(largest_difference(values_of(u.full().array()), values_of(v.full().array())), 1e-12) << own.str();
    }
  });
}

TEST(Rule, ClippingAndScalingAgreeOverRanks) {
  run_ranks(3, [](int rank) {
    Placement all = Placement::all("cpu"), some("cpu", {1, 2});
    const std::pair<Placement, NdSbp> layouts[] = {{all, sbp::split(0)},
                                                   {all, sbp::broadcast()},
                                                   {all, sbp::partial_sum()},
                                                   {some, sbp::split(1)},
                                                   {some, sbp::broadcast()}};
    std::vector<Tensor> params;
    for (auto& [placement, sbp] : layouts)
      params.push_back(data::place(make(numbers(15, 1), float64, {3, 5}), placement, sbp));
    auto set = [&] {
      List whole;
      for (size_t i = 0; i < params.size(); ++i) {
        List g = gradient(static_cast<int>(i));
        params[i].set_grad(data::place(make(g, float64, {3, 5}), layouts[i].first, layouts[i].second));
        whole.insert(whole.end(), g.begin(), g.end());
      }
      return whole;
    };
    for (double p : {1.0, 2.0, 3.5, 0.0, double(INFINITY), -double(INFINITY)}) {
      List whole = set();
      double want = std::isinf(p) ? std::abs(whole[0]) : 0;
      for (double x : whole) {
        double a = std::abs(x);
        if (std::isinf(p))
          want = p > 0 ? std::max(want, a) : std::min(want, a);
        else
          want += p == 0 ? a != 0 : std::pow(a, p);
      }
      if (p > 0 && !std::isinf(p)) want = std::pow(want, 1 / p);
      if (p == 0) want = static_cast<double>(params.size());  // each gradient counts once, if it is not 0
      EXPECT_NEAR(clip_grad_norm(params, want / 2, p) / want, 1, 1e-12) << p;
      EXPECT_NEAR(values_of(params[2].grad().full().array())[1] / (gradient(2)[1] / 2), 1, 1e-3);
    }
    set();
    clip_grad_value(params, 0.3);
    for (size_t i = 0; i < params.size(); ++i) {
      List g = gradient(static_cast<int>(i));
      for (double& x : g) x = std::clamp(x, -0.3, 0.3);
      EXPECT_LT(largest_difference(values_of(params[i].grad().full().array()), g), 1e-15);
    }
    set();
    EXPECT_TRUE(scale_grads(params, 0.5));
    // One bad element on one rank: all ranks hear of it, also the one outside of the placement.
    Tensor last = params[3].grad();
    if (rank == 2) last.data<double>()[0] = NAN;
    EXPECT_FALSE(scale_grads(params, 0.5));
  });
}

}  // namespace
}  // namespace holon::optim
