#include "holon/graph/schedule/cut.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <random>

#include "holon/base/error.h"
#include "tests/cpp/error_of.h"

namespace holon::graph {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

size_t at(int i) { return static_cast<size_t>(i); }

// Every cut, in the order of their first blocks: the first of the best is what cut_stages says it returns.
std::vector<int> best_cut(const std::vector<double>& costs, int stages, const std::vector<double>& cuts) {
  std::vector<int> first{0}, best;
  double least = INFINITY;
  const int n = static_cast<int>(costs.size());
  std::function<void(double)> go = [&](double worst) {
    const int begin = first.back();
    const bool last = static_cast<int>(first.size()) == stages;
    for (int end = last ? n : begin + 1; end <= (last ? n : n - 1); ++end) {
      double cost = std::accumulate(costs.begin() + begin, costs.begin() + end, 0.0);
      if (begin > 0 && !cuts.empty()) cost += cuts[at(begin) - 1];
      if (end < n && !cuts.empty()) cost += cuts[at(end) - 1];
      const double now = std::max(worst, cost);
      if (last) {
        if (now < least) least = now, best = first;
      } else {
        first.push_back(end);
        go(now);
        first.pop_back();
      }
    }
  };
  go(0);
  return best;
}

TEST(Cut, IsTheBestOne) {
  std::mt19937 random(3);
  for (int i = 0; i < 3000; ++i) {
    const int n = 1 + static_cast<int>(random() % 9),
              stages = 1 + static_cast<int>(random() % static_cast<unsigned>(n));
    std::vector<double> costs, cuts;
    for (int b = 0; b < n; ++b) costs.push_back(static_cast<double>(random() % (i % 3 == 0 ? 3 : 20)));
    for (int b = 0; i % 2 && b + 1 < n; ++b) cuts.push_back(static_cast<double>(random() % (i % 5 == 0 ? 30 : 5)));
    EXPECT_EQ(cut_stages(costs, stages, cuts), best_cut(costs, stages, cuts)) << i;
  }
}

TEST(Cut, EarlierStagesGetLess) {
  EXPECT_THAT(cut_stages(std::vector<double>(5, 1), 3), ElementsAre(0, 1, 3));
  EXPECT_THAT(cut_stages(std::vector<double>(8, 1), 4), ElementsAre(0, 2, 4, 6));
  EXPECT_THAT(cut_stages(std::vector<double>{1, 1, 1, 9}, 2), ElementsAre(0, 3));
  EXPECT_THAT(cut_stages(std::vector<double>{0, 0, 0}, 3), ElementsAre(0, 1, 2));
  EXPECT_THAT(cut_stages(std::vector<double>{1, 1, 1, 1}, 2, std::vector<double>{0, 5, 0}), ElementsAre(0, 1));
  const auto first = cut_stages(std::vector<double>(10000, 0.1), 64);  // sums that are not exact
  ASSERT_EQ(first.size(), 64u);
  for (size_t s = 1; s < first.size(); ++s) EXPECT_LE(first[s] - first[s - 1], 157);
  EXPECT_LE(10000 - first.back(), 157);
}

TEST(Cut, WrongArguments) {
  const std::vector<double> costs{1, 2, 3};
  EXPECT_EQ(value_error_of([&] { cut_stages(costs, 4); }),
            "cut_stages: 4 stages need at least as many blocks; there are 3. Request at most 3 stages.");
  EXPECT_EQ(value_error_of([&] { cut_stages(costs, 0); }), "cut_stages: a pipeline has at least 1 stage; got 0.");
  EXPECT_EQ(value_error_of([&] { cut_stages(costs, 2, costs); }),
            "cut_stages: cut_costs has 3 entries; between 3 blocks there are 2 cuts.");
  EXPECT_THAT(value_error_of([&] { cut_stages(std::vector<double>{1, -2}, 1); }), HasSubstr("costs[1] is -2"));
  EXPECT_THAT(value_error_of([&] {
                cut_stages(costs, 2, std::vector<double>{1, NAN});
              }),
              HasSubstr("cut_costs[1] is nan"));
}

}  // namespace
}  // namespace holon::graph
