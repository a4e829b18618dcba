// Random ops: the same values, to the bit, for every sbp and any number of ranks.
#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>

#include "cases.h"
#include "holon/base/context.h"
#include "holon/comm/run_ranks.h"
#include "holon/dispatch/dispatch.h"
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

// What a draw makes of a layout: a global tensor of two axes, or of one (randperm).
struct Draw {
  const char* name;
  int axes;
  Tensor (*make)(const Placement&, const NdSbp&);
};

Tensor base(const Placement& p, const NdSbp& s) { return zeros({5, 7}, {.placement = p, .sbp = s}); }

const std::vector<Draw> kDraws{
    {"rand", 2,
     [](const Placement& p, const NdSbp& s) {
       return rand({5, 7}, {.placement = p, .sbp = s});
     }},
    {"randn", 2,
     [](const Placement& p, const NdSbp& s) {
       return randn({5, 7}, {.placement = p, .sbp = s});
     }},
    {"randn float64", 2,
     [](const Placement& p, const NdSbp& s) {
       return randn({3, 1}, {.placement = p, .sbp = s, .dtype = float64});
     }},
    {"randint", 2,
     [](const Placement& p, const NdSbp& s) {
       return randint(-3, 9, {5, 7}, {.placement = p, .sbp = s});
     }},
    {"randperm", 1, [](const Placement& p, const NdSbp& s) { return randperm(11, {.placement = p, .sbp = s}); }},
    {"normal_", 2, [](const Placement& p, const NdSbp& s) { return normal_(base(p, s), 1.0, 0.5); }},
    {"uniform_", 2, [](const Placement& p, const NdSbp& s) { return uniform_(base(p, s), -1.0, 2.0); }},
    {"trunc_normal_", 2,
     [](const Placement& p, const NdSbp& s) { return trunc_normal_(base(p, s), 0.0, 1.0, -0.5, 0.5); }},
    {"bernoulli_", 2, [](const Placement& p, const NdSbp& s) { return bernoulli_(base(p, s), 0.3); }},
    {"randn_like", 2, [](const Placement& p, const NdSbp& s) { return randn_like(base(p, s)); }},
    {"rand_like", 2, [](const Placement& p, const NdSbp& s) { return rand_like(base(p, s)); }},
    {"randint_like", 2, [](const Placement& p, const NdSbp& s) { return randint_like(base(p, s), -3, 9); }},
    {"random_", 2, [](const Placement& p, const NdSbp& s) { return random_(base(p, s), 2, 50); }},
    {"dropout", 2,
     [](const Placement& p, const NdSbp& s) {
       return dropout(ones({5, 7}, {.placement = p, .sbp = s}), 0.4);
     }},
};

Values drawn(const Draw& d, int ranks, const Dims& hierarchy, const NdSbp& s) {
  Values first;
  std::mutex mutex;
  comm::run_ranks(ranks, [&](int rank) {
    std::vector<int64_t> all;
    for (int r = 0; r < ranks; ++r) all.push_back(r);
    Placement p("cpu", hierarchy, all);
    manual_seed(5);
    d.make(p, s);  // the second draw differs from the first
    Tensor t = d.make(p, s);
    EXPECT_EQ(t.nd_sbp().str(), s.str()) << d.name;
    Values v = values_of(t.full().array());
    std::lock_guard lock(mutex);
    if (rank == 0) first = v;
  });
  return first;
}

TEST(Random, ValuesDoNotDependOnTheLayout) {
  for (auto& d : kDraws) {
    Values one = drawn(d, 1, {1}, broadcast());
    std::vector<Sbp> kinds{broadcast(), split(0), partial_sum()};
    if (d.axes == 2) kinds.push_back(split(1));
    for (Sbp s : kinds) {
      for (int ranks : {1, 2, 3})
        EXPECT_EQ(drawn(d, ranks, {ranks}, s), one) << d.name << " " << s.str() << " on " << ranks;
      for (Sbp t : kinds) EXPECT_EQ(drawn(d, 4, {2, 2}, {s, t}), one) << d.name << " " << NdSbp({s, t}).str();
    }
  }
}

// Ops that redistribute their input where its layout does not fit: the values are alike, the sbp of the result is its
// own affair.
TEST(Random, DrawsFromTensorsDoNotDependOnTheLayout) {
  struct Of {
    const char* name;
    Tensor (*make)(const Tensor&);
  };
  const std::vector<Of> ops{
      {"bernoulli", [](const Tensor& x) { return bernoulli(x); }},
      {"normal", [](const Tensor& x) { return normal(x, x); }},
      {"multinomial", [](const Tensor& x) { return multinomial(x, 4); }},
      {"multinomial with replacement", [](const Tensor& x) { return multinomial(x, 9, true); }},
      {"dropout2d",
       [](const Tensor& x) {
         return dropout2d(expand(reshape(x, {5, 7, 1, 1}), {5, 7, 2, 3}), 0.4);
       }},
  };
  for (auto& op : ops) {
    auto run = [&](const Dims& hierarchy, const NdSbp& s) {
      Values first;
      std::mutex mutex;
      int ranks = static_cast<int>(hierarchy.numel());
      comm::run_ranks(ranks, [&](int rank) {
        std::vector<int64_t> all;
        for (int r = 0; r < ranks; ++r) all.push_back(r);
        Placement p("cpu", hierarchy, all);
        manual_seed(5);
        Tensor x = rand({5, 7}, {.placement = p, .sbp = s});
        Values v = values_of(op.make(x).full().array());
        std::lock_guard lock(mutex);
        if (rank == 0) first = v;
      });
      return first;
    };
    Values one = run({1}, NdSbp(broadcast()));
    for (Sbp s : {broadcast(), split(0), split(1), partial_sum()}) {
      for (int ranks : {2, 3})
        EXPECT_EQ(differs(run({ranks}, NdSbp(s)), one, 1e-6), "") << op.name << " " << s.str() << " on " << ranks;
      EXPECT_EQ(differs(run({2, 2}, {s, split(0)}), one, 1e-6), "") << op.name << " " << s.str();
    }
  }
}

TEST(Random, DistributionsAreWhatTheyAreCalled) {
  manual_seed(7);
  auto mean = [](const Values& v) {
    double sum = 0;
    for (double x : v) sum += x;
    return sum / static_cast<double>(v.size());
  };
  Values of = values_of(bernoulli(full({20000}, 0.3)).array());
  EXPECT_NEAR(mean(of), 0.3, 0.015);
  EXPECT_NEAR(mean(values_of(bernoulli(zeros({20000}), 0.8).array())), 0.8, 0.015);
  Values n = values_of(normal(full({20000}, 3.0), full({1}, 2.0)).array());
  EXPECT_NEAR(mean(n), 3, 0.06);
  double spread = 0;
  for (double x : n) spread += (x - 3) * (x - 3);
  EXPECT_NEAR(spread / 20000, 4, 0.2);
  for (double x : values_of(random_(zeros({1000}, {.dtype = int8})).array())) {
    EXPECT_GE(x, 0);
    EXPECT_LE(x, 127);
  }

  // Frequencies of 4 classes, one of them impossible.
  Tensor weights = Tensor::local(array_of({1, 0, 3, 4}, {4}, float32));
  std::vector<double> count(4);
  for (double x : values_of(multinomial(weights, 16000, true).array())) ++count[static_cast<size_t>(x)];
  for (auto [k, p] : std::vector<std::pair<size_t, double>>{{0, 0.125}, {1, 0}, {2, 0.375}, {3, 0.5}})
    EXPECT_NEAR(count[k] / 16000, p, 0.02);
  // Without replacement the first of two draws has those frequencies, and no row has one twice.
  Values two = values_of(multinomial(expand(weights, {8000, 4}), 2).array());
  std::vector<double> first(4);
  for (size_t i = 0; i < two.size(); i += 2) {
    ++first[static_cast<size_t>(two[i])];
    EXPECT_NE(two[i], two[i + 1]);
    EXPECT_NE(two[i + 1], 1);
  }
  for (auto [k, p] : std::vector<std::pair<size_t, double>>{{0, 0.125}, {1, 0}, {2, 0.375}, {3, 0.5}})
    EXPECT_NEAR(first[k] / 8000, p, 0.025);
  EXPECT_THROW(multinomial(weights, 4), Error);  // only three are possible
  EXPECT_THROW(multinomial(weights, 5), Error);
  EXPECT_THROW(multinomial(weights * -1.0, 1), Error);
  EXPECT_THROW(multinomial(zeros({3}), 1, true), Error);

  // Channels are dropped as a whole, and what is kept is scaled.
  Values d = values_of(dropout2d(ones({10, 20, 2, 3}), 0.25).array());
  int dropped = 0;
  for (size_t i = 0; i < d.size(); i += 6) {
    for (size_t k = 1; k < 6; ++k) EXPECT_EQ(d[i + k], d[i]);
    if (d[i] != 0) {
      EXPECT_NEAR(d[i], 1 / 0.75, 1e-6);
    }
    dropped += d[i] == 0;
  }
  EXPECT_NEAR(dropped, 50, 25);
}

TEST(Random, EachDrawIsAnother) {
  manual_seed(5);
  Values a = values_of(randn({7}).array()), b = values_of(randn({7}).array());
  EXPECT_NE(a, b);
  manual_seed(5);
  EXPECT_EQ(values_of(randn({7}).array()), a);
  manual_seed(6);
  EXPECT_NE(values_of(randn({7}).array()), a);
}

TEST(Random, LocalDrawsDifferBetweenRanksUntilSeeded) {
  Values unseeded[3], seeded[3];
  comm::run_ranks(3, [&](int rank) {
    unseeded[rank] = values_of(randn({7}).array());
    manual_seed(8);
    seeded[rank] = values_of(randn({7}).array());
  });
  EXPECT_NE(unseeded[0], unseeded[1]);
  EXPECT_NE(unseeded[1], unseeded[2]);
  EXPECT_NE(unseeded[0], unseeded[2]);
  EXPECT_EQ(seeded[0], seeded[1]);
  EXPECT_EQ(seeded[1], seeded[2]);
}

TEST(Random, LocalDrawsLeaveGlobalOnesAlike) {
  comm::run_ranks(2, [](int rank) {
    if (rank == 1) randn({3});
    Tensor t = randn({5}, {.placement = Placement::all("cpu"), .sbp = broadcast()});
    Tensor sum = to_global(t.to_local(), t.placement(), partial_sum());
    EXPECT_EQ(values_of(sum.full().array()), values_of((t * 2.0).full().array()));
  });
}

TEST(Random, DropoutsGradientHasItsMask) {
  comm::run_ranks(4, [](int) {
    Placement p("cpu", {2, 2}, {0, 1, 2, 3});
    for (NdSbp s : {NdSbp({split(0), broadcast()}), NdSbp({split(1), split(0)}), NdSbp({partial_sum(), split(1)}),
                    NdSbp({broadcast(), broadcast()})}) {
      Tensor x = ones({5, 7}, {.placement = p, .sbp = s}).set_requires_grad();
      Tensor y = dropout(x, 0.4);
      y.backward(ones({5, 7}, {.placement = p, .sbp = {broadcast(), split(1)}}));
      Values out = values_of(y.full().array()), grad = values_of(x.grad().full().array());
      EXPECT_EQ(differs(grad, out, 1e-6), "");
      EXPECT_EQ(x.grad().nd_sbp(), s);
      int kept = 0;
      for (double v : out) kept += v != 0;
      EXPECT_GT(kept, 8);
      EXPECT_LT(kept, 33);
    }
  });
}

TEST(Random, Extremes) {
  Tensor x = ones({3, 5});
  EXPECT_EQ(values_of(dropout(x, 1.0).array()), Values(15, 0.0));
  EXPECT_TRUE(dropout(x, 0.0).is_same(x));
  EXPECT_TRUE(dropout(x, 0.5, false).is_same(x));
  EXPECT_EQ(values_of(bernoulli_(zeros({5}), 1.0).array()), Values(5, 1.0));
  EXPECT_EQ(values_of(randint(4, 5, {3}).array()), Values(3, 4.0));
  EXPECT_EQ(randperm(0).numel(), 0);
  EXPECT_THROW(dropout(x, 1.5), Error);
  EXPECT_THROW(randint(3, 3, {2}), Error);
  EXPECT_THROW(randint(0, 3, {-2}), Error);
  EXPECT_THROW(bernoulli_(zeros({5}), -0.5), Error);
  auto perm = values_of(randperm(100).array());
  std::sort(perm.begin(), perm.end());
  for (size_t i = 0; i < perm.size(); ++i) EXPECT_EQ(perm[i], static_cast<double>(i));
}

}  // namespace
}  // namespace holon::testing
