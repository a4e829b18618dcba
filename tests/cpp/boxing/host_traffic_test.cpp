// What the search supposes of traffic between hosts, against what schedules send.
#include "holon/boxing/host_traffic.h"

#include <gtest/gtest.h>

#include <numeric>

#include "holon/base/context.h"
#include "tests/cpp/boxing/specs.h"

namespace holon::boxing {
namespace {

using namespace testing_boxing;

// Hosts of so many ranks of the placement each.
HostMap hosts_of(int ranks, int each) {
  HostMap hosts;
  for (int r = 0; r < ranks; ++r) hosts.host_of_rank.push_back(r / each);
  return hosts;
}

// Every step between layouts of the two placements, and within each.
void compare(const Placement& source, const Placement& target, const Dims& shape, const HostMap& hosts) {
  HostTraffic traffic(source, target, shape, hosts);
  std::vector<const GlobalSpec*> layouts = all_specs(source, options_of(2));
  const size_t on_source = layouts.size();
  for (auto* s : all_specs(target, options_of(2))) layouts.push_back(s);
  for (size_t i = 0; i < layouts.size(); ++i) traffic.add(*layouts[i], i >= on_source);
  int pairs = 0;
  for (size_t i = 0; i < layouts.size(); ++i)
    for (size_t k = i < on_source ? 0 : on_source; k < layouts.size(); ++k) {
      const GlobalSpec &from = *layouts[i], &to = *layouts[k];
      if (&from == &to || !one_move(from, to)) continue;
      const unsigned fixed = fixed_axes(from, to);
      bool all_reduce = from.placement == to.placement;
      for (int a = 0; all_reduce && a < from.nd_sbp.size(); ++a)
        all_reduce &= from.nd_sbp[a] == to.nd_sbp[a] || (from.nd_sbp[a].is_partial() && to.nd_sbp[a].is_broadcast());
      for (bool two_phase : {false, true}) {
        if (two_phase && !all_reduce) continue;
        std::vector<Transfer> transfers = transfers_of(from, to, shape, hosts);
        if (two_phase)
          for (Transfer& t : transfers) split_in_phases(t);
        const HostLoad sent = host_load(transfers, two_phase, hosts);
        const HostLoad supposed = traffic.estimate(static_cast<int>(i), static_cast<int>(k), fixed, two_phase);
        EXPECT_EQ(supposed.in_elements, sent.in_elements) << from.str() << " -> " << to.str() << two_phase;
        EXPECT_LE(traffic.into_first_host(static_cast<int>(i), static_cast<int>(k), fixed, two_phase),
                  supposed.in_elements);
        EXPECT_EQ(supposed.summed_elements > 0, sent.summed_elements > 0) << from.str() << " -> " << to.str();
        ++pairs;
      }
    }
  EXPECT_GT(pairs, 150);
}

TEST(HostTraffic, EstimatesAreWhatIsSent) {
  Context big(0, 64, 0, 64);
  ContextGuard guard(big);
  auto grid = [](const Dims& h, int first) {
    std::vector<int64_t> ranks(static_cast<size_t>(h.numel()));
    std::iota(ranks.begin(), ranks.end(), first);
    return Placement("cpu", h, ranks);
  };
  for (int each : {2, 4, 8}) {
    const Placement p = grid({4, 4}, 0), q = grid({4, 4}, 16), other = grid({2, 8}, 16), row = grid({16}, 16);
    compare(p, p, {64, 48}, hosts_of(32, each));
    compare(p, q, {64, 48}, hosts_of(32, each));
    compare(row, p, {64, 48}, hosts_of(32, each));  // sums within the target, whose grid is another
    compare(p, other, {64, 48}, hosts_of(32, each));
  }
}

}  // namespace
}  // namespace holon::boxing
