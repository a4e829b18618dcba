#include "holon/graph/schedule/cut.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "holon/base/error.h"
#include "holon/base/index.h"

namespace holon::graph {

namespace {

constexpr size_t kMostCells = size_t{1} << 26;  // of the table below

void check_costs(const char* what, std::span<const double> costs) {
  for (size_t i = 0; i < costs.size(); ++i)
    if (!std::isfinite(costs[i]) || costs[i] < 0)
      fail_value("cut_stages: {}[{}] is {}; it must be finite and at least 0.", what, i, costs[i]);
}

}  // namespace

std::vector<int> cut_stages(std::span<const double> costs, int stages, std::span<const double> cut_costs) {
  const size_t n = costs.size();
  if (stages < 1) fail_value("cut_stages: a pipeline has at least 1 stage; got {}.", stages);
  const size_t k = to_size(stages);
  if (n < k)
    fail_value("cut_stages: {} stages need at least as many blocks; there are {}. Request at most {} stages.", stages,
               n, n);
  if (n > kMostCells / k)
    fail_value("cut_stages: {} blocks for {} stages; their product may be at most {}. Use larger blocks.", n, k,
               kMostCells);
  if (!cut_costs.empty() && cut_costs.size() != n - 1)
    fail_value("cut_stages: cut_costs has {} entries; between {} blocks there are {} cuts.", cut_costs.size(), n,
               n - 1);
  check_costs("costs", costs);
  check_costs("cut_costs", cut_costs);

  std::vector<double> sums(n + 1), cut(n + 1);
  for (size_t i = 0; i < n; ++i) sums[i + 1] = sums[i] + costs[i];
  for (size_t i = 0; i < cut_costs.size(); ++i) cut[i + 1] = cut_costs[i];
  // A stage of blocks [i, j). head and tail are what it takes from either end.
  auto head = [&](size_t i) { return sums[i] - cut[i]; };
  auto tail = [&](size_t j) { return sums[j] + cut[j]; };
  auto stage_cost = [&](size_t i, size_t j) { return tail(j) - head(i); };

  // best[s][i]: the least cost of the most expensive stage when blocks [i, n) make s + 1 stages.
  std::vector<std::vector<double>> best(k, std::vector<double>(n + 1, std::numeric_limits<double>::infinity()));
  for (size_t i = 0; i < n; ++i) best[0][i] = stage_cost(i, n);
  for (size_t s = 1; s < k; ++s) {
    // The ends j of the first stage that no other end beats, sorted: with growing rest, falling tail.
    struct End {
      double rest;  // best[s - 1][j]
      size_t j;
    };
    std::vector<End> ends;
    for (size_t i = n - s; i-- > 0;) {
      const End added{best[s - 1][i + 1], i + 1};
      // Mostly at the back: with more blocks the rest costs more, except the cost of the cut.
      auto place = std::partition_point(ends.begin(), ends.end(), [&](const End& e) { return e.rest < added.rest; });
      const bool beaten = (place != ends.begin() && tail(std::prev(place)->j) <= tail(added.j)) ||
          (place != ends.end() && place->rest == added.rest && tail(place->j) <= tail(added.j));
      if (!beaten) {
        auto worse = place;
        while (worse != ends.end() && tail(worse->j) >= tail(added.j)) ++worse;
        ends.insert(ends.erase(place, worse), added);
      }
      // The larger of rest and first stage is least where the two cross.
      const auto crossing =
          std::partition_point(ends.begin(), ends.end(), [&](const End& e) { return e.rest < stage_cost(i, e.j); });
      if (crossing != ends.end()) best[s][i] = crossing->rest;
      if (crossing != ends.begin()) best[s][i] = std::min(best[s][i], stage_cost(i, std::prev(crossing)->j));
    }
  }

  std::vector<int> first{0};
  const double limit = best[k - 1][0];
  for (size_t s = k - 1, i = 0; s > 0; --s) {
    size_t j = i + 1;
    while (std::max(stage_cost(i, j), best[s - 1][j]) > limit) ++j;
    first.push_back(static_cast<int>(i = j));
  }
  return first;
}

}  // namespace holon::graph
