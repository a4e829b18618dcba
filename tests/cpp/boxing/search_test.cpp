// The search against all paths of at most six steps.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <random>

#include "boxing/specs.h"
#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/boxing/planner.h"
#include "holon/boxing/search.h"

namespace holon::boxing {
namespace {

using namespace testing_boxing;

constexpr double kNever = std::numeric_limits<double>::infinity();

// The cheapest of all paths of at most six steps over the given specs that keep to the memory bound, by trying each.
class Oracle {
 public:
  Oracle(std::vector<const GlobalSpec*> specs, Dims shape, const Machine& machine)
      : specs_(std::move(specs)), shape_(std::move(shape)) {
    const size_t n = specs_.size();
    for (auto& prices : price_) prices.assign(n * n, kNever);
    for (size_t i = 0; i < n; ++i) {
      part_.push_back(region_of(shape_, specs_[i]->placement, specs_[i]->nd_sbp, 0).shape.numel());
      for (size_t j = 0; j < n; ++j)
        if (i != j)
          for (InPlan where : {InPlan{false, false}, {false, true}, {true, false}, {true, true}})
            if (auto e = price_step(*specs_[i], *specs_[j], shape_, float32, machine, where))
              price_[where.first * 2 + where.last][i * n + j] = e->predicted_s;
    }
  }
  // Its path goes to *words.
  double cheapest(size_t from, size_t to, std::string* words) const {
    const size_t n = specs_.size();
    const int64_t limit = std::max(part_[from], part_[to]);
    std::vector<double> at(n, kNever);
    std::vector<std::string> path(n);
    at[from] = 0;
    double best = kNever;
    for (int step = 1; step <= 6; ++step) {
      std::vector<double> next(n, kNever);
      std::vector<std::string> longer(n);
      for (size_t i = 0; i < n; ++i) {
        if (at[i] == kNever) continue;
        auto price = [&](size_t j) { return price_[(step == 1) * 2 + (j == to)][i * n + j]; };
        auto through = [&](size_t j) {
          return path[i] + fmt::format(" -> {} ({:g} us)", specs_[j]->nd_sbp, 1e6 * price(j));
        };
        if (double s = at[i] + price(to); s < best) best = s, *words = through(to);
        for (size_t j = 0; j < n; ++j) {
          double s = at[i] + price(j);
          if (j == to || j == from || (specs_[j]->nd_sbp.has_partial() && !sums(j, from, to)) ||
              part_[j] + (i == from ? 0 : part_[i]) > limit || s >= next[j])
            continue;
          next[j] = s;
          longer[j] = through(j);
        }
      }
      at = std::move(next);
      path = std::move(longer);
    }
    return best;
  }

 private:
  // Zeros that neither end asks for are no way: -0.0 + 0.0 is another number than -0.0.
  bool sums(size_t at, size_t from, size_t to) const {
    for (size_t end : {from, to})
      if (specs_[end]->placement == specs_[at]->placement && specs_[end]->nd_sbp.has_partial()) return true;
    return false;
  }
  std::vector<const GlobalSpec*> specs_;
  Dims shape_;
  std::vector<double> price_[4];  // first * 2 + last
  std::vector<int64_t> part_;
};

std::map<std::string, Machine> machines() {
  std::map<std::string, Machine> m;
  m["built in"] = {};
  m["slow syncs"].costs.sync_s = 5e-5;
  m["few cores"].costs.cores = 2;
  m["free syncs"].costs.sync_s = m["free syncs"].costs.sync_rank_s = m["free syncs"].costs.step_s =
      m["free syncs"].costs.view_s = 0;
  m["two hosts"].hosts.host_of_rank = {0, 0, 1, 1, 1, 0};
  m["three hosts"].hosts.host_of_rank = {0, 1, 2, 0, 1, 2};
  m["crowded"].costs.sync_rank_s = 3e-5;
  return m;
}

class SearchTest : public testing::Test {
 protected:
  void compare(const std::vector<const GlobalSpec*>& from, const std::vector<const GlobalSpec*>& to, const Dims& shape,
               const std::map<std::string, Machine>& on = machines()) {
    for (auto& [name, machine] : on) {
      std::vector<const GlobalSpec*> all = from;
      for (auto* s : to)
        if (std::find(all.begin(), all.end(), s) == all.end()) all.push_back(s);
      Oracle oracle(all, shape, machine);
      for (size_t i = 0; i < from.size(); ++i)
        for (auto* t : to) {
          auto j = static_cast<size_t>(std::find(all.begin(), all.end(), t) - all.begin());
          if (i == j) continue;
          Plan p = find_plan(from[i], t, shape, float32, machine);
          std::string path;
          double best = oracle.cheapest(i, j, &path);
          ASSERT_NEAR(p.predicted_s(), best, 1e-9 * best) << name << "\n" << p.str() << "\nbest" << path;
        }
    }
  }
  Context context_{0, 12, 0, 12};
  ContextGuard guard_{context_};
};

TEST_F(SearchTest, NoPathOnOnePlacementIsCheaper) {
  for (const Dims& shape : {Dims{6, 5}, Dims{256, 256}, Dims{2048, 512}, Dims{3, 100000}, Dims{0, 4}}) {
    auto grid = all_specs(Placement::nested("cpu", {{0, 1}, {2, 3}}), options_of(2));
    compare(grid, grid, shape);
    auto row = all_specs(Placement("cpu", {0, 1, 2}), options_of(2));
    compare(row, row, shape);
    auto wide = all_specs(Placement("cpu", Dims{3, 2}, {0, 4, 2, 3, 1, 5}), options_of(2));
    compare(wide, wide, shape);
  }
}

TEST_F(SearchTest, NoPathBetweenPlacementsIsCheaper) {
  auto two = all_specs(Placement("cpu", {0, 1}), options_of(2)),
       turned = all_specs(Placement("cpu", {1, 0}), options_of(2));
  auto three = all_specs(Placement("cpu", {1, 2, 3}), options_of(2)),
       one = all_specs(Placement("cpu", {3}), options_of(2));
  auto grid = all_specs(Placement::nested("cpu", {{0, 1}, {2, 3}}), options_of(2));
  auto other = all_specs(Placement::nested("cpu", {{2, 4}, {5, 1}}), options_of(2));
  for (const Dims& shape : {Dims{5, 7}, Dims{512, 300}, Dims{2, 70000}}) {
    compare(two, turned, shape);
    compare(two, three, shape);
    compare(three, two, shape);
    compare(one, grid, shape);
    compare(grid, one, shape);
    compare(grid, other, shape);
  }
}

TEST_F(SearchTest, NoPathOverAThirdAxisOfTheTensorIsCheaper) {
  auto row = all_specs(Placement("cpu", {0, 1, 2, 3}), options_of(3));
  for (const Dims& shape : {Dims{6, 5, 4}, Dims{128, 128, 3}, Dims{2, 3, 50000}}) compare(row, row, shape);
  auto grid = all_specs(Placement::nested("cpu", {{0, 1}, {2, 3}}), options_of(3));
  for (const Dims& shape : {Dims{6, 5, 4}, Dims{2, 3, 50000}}) compare(grid, grid, shape);
}

// Of more ranks than are priced by all pulls, the search leaves out steps by what must come into one host.
TEST_F(SearchTest, NoPathOverSeveralHostsIsCheaper) {
  std::map<std::string, Machine> on;
  for (int each : {2, 4, 6})
    for (double net : {1.2e9, 2e11}) {
      Machine& m = on[fmt::format("{} ranks to a host, {} bytes/s", each, net)];
      for (int r = 0; r < 12; ++r) m.hosts.host_of_rank.push_back(r / each);
      m.costs.net_bytes_per_s = net;
      if (net > 1e10) m.costs.net_latency_s = 1e-6;
    }
  auto grid = all_specs(Placement("cpu", Dims{6, 2}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}), options_of(2));
  for (const Dims& shape : {Dims{12, 24}, Dims{1200, 240}}) compare(grid, grid, shape, on);
}

// Above some hundreds of ranks the search looks at part of them; the price of its path is that of all, and no worse
// than that of the steps that name themselves.
TEST_F(SearchTest, LargePlacementsArePricedExactly) {
  Context big(0, 2048, 0, 2048);
  ContextGuard guard(big);
  std::vector<int64_t> ranks(1050);
  for (size_t i = 0; i < ranks.size(); ++i) ranks[i] = static_cast<int64_t>((i * 37) % 1050);
  Placement p("cpu", Dims{7, 10, 15}, ranks);
  std::mt19937 random(5);
  Machine machine;
  for (int trial = 0; trial < 60; ++trial) {
    auto pick = [&] {
      return intern_spec(
          p, NdSbp({options_of(3)[random() % 5], options_of(3)[random() % 5], options_of(3)[random() % 5]}));
    };
    auto *from = pick(), *to = pick();
    Dims shape = {static_cast<int64_t>(1 + random() % 300), static_cast<int64_t>(1 + random() % 300), 50};
    Plan plan = find_plan(from, to, shape, float32, machine);
    for (auto& step : plan.steps()) {
      auto exact = price_step(*step.from, *step.to, shape, float32, machine, {step.from == from, step.to == to});
      ASSERT_TRUE(exact);
      EXPECT_EQ(step.predicted_s, exact->predicted_s) << plan.str();
      EXPECT_EQ(*std::max_element(step.read_bytes.begin(), step.read_bytes.end()), exact->read_bytes) << plan.str();
    }
    if (from == to) continue;
    if (auto direct = price_step(*from, *to, shape, float32, machine)) {
      EXPECT_LE(plan.predicted_s(), direct->predicted_s * 1.02) << plan.str();
    }
  }
}

}  // namespace
}  // namespace holon::boxing
