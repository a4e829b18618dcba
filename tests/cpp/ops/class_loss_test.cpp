// Cross-entropy on logits that are split by classes: values, gradients, and that no logits travel.
#include <gtest/gtest.h>

#include <cmath>

#include "cases.h"
#include "holon/autograd/engine.h"
#include "holon/boxing/events.h"
#include "holon/comm/run_ranks.h"
#include "holon/dispatch/dispatch.h"
#include "holon/dispatch/signature.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/cast.h"
#include "holon/ops/class_loss.h"
#include "holon/ops/compare.h"
#include "holon/ops/create.h"
#include "holon/ops/random.h"
#include "holon/ops/reduce.h"
#include "holon/ops/shape.h"
#include "holon/ops/to_global.h"

namespace holon::testing {
namespace {

using Values = std::vector<double>;
using sbp::broadcast;
using sbp::partial_sum;
using sbp::split;

struct Layout {
  Dims hierarchy;
  NdSbp sbp;
};

const std::vector<Layout> kLayouts{
    {{2}, split(1)},
    {{3}, split(1)},
    {{4}, split(1)},
    {{2, 2}, {split(0), split(1)}},
    {{2, 2}, {split(1), split(0)}},
    {{2, 2}, {split(1), split(1)}},
    {{2, 2}, {broadcast(), split(1)}},
    {{2, 2}, {partial_sum(), split(1)}},
};

template <class F>
void on(const Layout& l, F f) {
  int n = static_cast<int>(l.hierarchy.numel());
  comm::run_ranks(n, [&](int) {
    std::vector<int64_t> all;
    for (int r = 0; r < n; ++r) all.push_back(r);
    f(Placement("cpu", l.hierarchy, all));
  });
}

Tensor logits_of(int64_t rows, int64_t classes) {
  Case c{"relu", {{{rows, classes}, Input::Fill::kGrid, -4, 4, float32}}, {}, false};
  return Tensor::local(array_of(input_values(c, 0), {rows, classes}, float32));
}
Tensor targets_of(int64_t rows, int64_t classes) {
  Values v;
  for (int64_t i = 0; i < rows; ++i)
    v.push_back(static_cast<double>(mix(static_cast<uint64_t>(i), 3) % static_cast<uint64_t>(classes)));
  if (rows > 2) v[1] = -100;
  return Tensor::local(array_of(v, {rows}, int64));
}

TEST(ClassLoss, SplitClassesGiveTheSameLossAndGradient) {
  // With 3 classes on 4 ranks some have none; 7 do not divide evenly.
  for (int64_t classes : {3, 7, 40})
    for (double smoothing : {0.0, 0.2})
      for (const char* reduction : {"mean", "sum", "none"}) {
        Tensor x = logits_of(5, classes).set_requires_grad(), t = targets_of(5, classes);
        CrossEntropyOptions options{.reduction = reduction, .label_smoothing = smoothing};
        Tensor y = cross_entropy(x, t, {}, options);
        sum(mul(y, y)).backward();
        Values want = values_of(y.array()), slope = values_of(x.grad().array());
        for (auto& l : kLayouts)
          on(l, [&](const Placement& p) {
            Tensor g = to_global(x.detach(), p, NdSbp::filled(l.hierarchy.size(), broadcast())).detach();
            g = to_global(g, p, l.sbp).detach().set_requires_grad();
            Tensor target = to_global(t, p, NdSbp::filled(l.hierarchy.size(), broadcast()));
            Tensor loss = cross_entropy(g, target, {}, options);
            EXPECT_EQ(differs(values_of(loss.full().array()), want, 1e-5), "")
                << classes << " as " << l.sbp.str() << " " << reduction;
            sum(mul(loss, loss)).backward();
            EXPECT_EQ(differs(values_of(g.grad().full().array()), slope, 3e-5), "")
                << classes << " as " << l.sbp.str() << " " << reduction;
            EXPECT_EQ(g.grad().nd_sbp(), l.sbp);
          });
      }
}

// An axis of size 1 is a row as any other: it is not taken for one that is broadcast along the classes.
TEST(ClassLoss, OneRowOnTwoRanks) {
  Tensor x = logits_of(1, 6).set_requires_grad(), t = targets_of(1, 6);
  cross_entropy(x, t).backward();
  Values slope = values_of(x.grad().array());
  comm::run_ranks(2, [&](int) {
    Placement p("cpu", {0, 1});
    auto rows = [&](const Tensor& whole) {
      return to_global(to_global(whole, p, {broadcast()}), p, {split(0)}).detach();
    };
    Tensor g = rows(x.detach()).set_requires_grad();
    cross_entropy(g, rows(t)).backward();
    EXPECT_EQ(differs(values_of(g.grad().full().array()), slope, 1e-6), "");
  });
}

TEST(ClassLoss, NoBoxingMovesSplitLogits) {
  for (auto& l : kLayouts) {
    bool partial = l.sbp[0].is_partial();
    if (partial) continue;  // these must be added up
    on(l, [&](const Placement& p) {
      Tensor x = rand({6, 64}, {.placement = p, .sbp = l.sbp}).set_requires_grad();
      Tensor t = to_global(targets_of(6, 64), p, NdSbp::filled(l.hierarchy.size(), broadcast()));
      boxing::reset_boxing_counters();
      for (bool sparse : {false, true}) {
        Tensor loss = sparse ? sum(sparse_softmax_cross_entropy(x, masked_fill(t, lt(t, 0), 0))) : cross_entropy(x, t);
        loss.backward();
      }
      for (auto& e : boxing::recent_events()) EXPECT_LE(e.shape.numel(), 6 * 4) << l.sbp.str() << ": " << e.str();
      // Rows of numbers only: far less than one rank's part of the logits would be.
      EXPECT_LT(boxing::boxing_counters().bytes, 6 * 64 * 4 / 2) << l.sbp.str();
    });
  }
}

TEST(ClassLoss, HalfPrecisionIsComputedInFloat32) {
  for (DType t : {float16, bfloat16}) {
    Tensor x = cast(logits_of(5, 7), t).set_requires_grad(), target = targets_of(5, 7);
    Tensor loss = cross_entropy(x, target), want = cross_entropy(cast(x, float32), target);
    EXPECT_EQ(loss.dtype(), t);
    EXPECT_EQ(differs(values_of(loss.array()), values_of(want.array()), 1e-2), "");
    loss.backward();
    EXPECT_EQ(x.grad().dtype(), t);
  }
}

// d/dx of the sum of weighted gradients, against finite differences of the gradient.
TEST(ClassLoss, CanBeDifferentiatedTwice) {
  Tensor base = cast(logits_of(4, 3), float64), t = targets_of(4, 3);
  auto gradient = [&](Tensor x) {
    Tensor y = cross_entropy(x, t, {}, {.reduction = "none", .label_smoothing = 0.1});
    sum(mul(y, y)).backward({}, true, true);
    Tensor g = x.grad();
    x.set_grad({});  // x holds it, and it holds x
    return g;
  };
  Tensor x = clone(base).set_requires_grad();
  Tensor weights = cast(logits_of(4, 3) * 0.5, float64);
  Tensor g = gradient(x);
  sum(mul(g, weights)).backward();
  Values analytic = values_of(x.grad().array()), at = values_of(base.array());
  for (size_t e = 0; e < at.size(); ++e) {
    double h = 1e-5, side[2];
    for (int k = 0; k < 2; ++k) {
      Values v = at;
      v[e] += k == 0 ? -h : h;
      Tensor moved = Tensor::local(array_of(v, {4, 3}, float64)).set_requires_grad();
      side[k] = sum(mul(gradient(moved), weights)).item().as_double();
    }
    EXPECT_NEAR(analytic[e], (side[1] - side[0]) / (2 * h), 1e-6) << "element " << e;
  }
}

TEST(ClassLoss, BoolsHaveNoPartialSums) {
  Meta bools{{4, 6}, boolean};
  for (const char* name : {"logical_or", "add", "mul"}) {
    const OpDef& op = find_op(name);
    Meta in[] = {bools, bools};
    for (auto& s : signatures_of(op, Attrs(), in, std::span<const Meta>(&bools, 1)))
      for (Sbp i : {s.in[0], s.in[1], s.out[0]}) EXPECT_FALSE(i.is_partial()) << name;
  }
  // The sum of bools is one of integers, which may be partial; its input may not.
  const OpDef& op = find_op("sum");
  Meta count{{}, int64};
  int partial = 0;
  for (auto& s :
       signatures_of(op, op.schema.defaults, std::span<const Meta>(&bools, 1), std::span<const Meta>(&count, 1))) {
    EXPECT_FALSE(s.in[0].is_partial());
    partial += s.out[0].is_partial();
  }
  EXPECT_EQ(partial, 2);
}

TEST(Dispatch, MissingAttributesRaise) {
  EXPECT_THROW(dispatch(find_op("add_scalar"), {ones({2})}, Attrs()), Error);
  Attrs none;
  none.push_none();
  none.push_bool(false);
  try {
    dispatch(find_op("add_scalar"), {ones({2})}, none);
    ADD_FAILURE() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kType);
    EXPECT_NE(std::string(e.what()).find("value"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace holon::testing
