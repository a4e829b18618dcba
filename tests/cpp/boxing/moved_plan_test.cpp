// Plans are found once for all ranks that stand alike: what the cache gives is what a search for these very ranks
// finds.
#include <gtest/gtest.h>

#include "holon/base/context.h"
#include "holon/boxing/planner.h"

namespace holon::boxing {
namespace {

std::vector<NdSbp> layouts() {
  std::vector<NdSbp> all;
  for (Sbp a : {sbp::split(0), sbp::split(1), sbp::broadcast(), sbp::partial_sum()})
    for (Sbp b : {sbp::split(0), sbp::broadcast(), sbp::partial_sum()}) all.push_back(NdSbp({a, b}));
  return all;
}

Placement ranks_from(int first, bool turned = false) {
  std::vector<int64_t> ranks;
  for (int r = 0; r < 4; ++r) ranks.push_back(first + (turned ? 3 - r : r));
  return Placement("cpu", Dims{2, 2}, ranks);
}

void expect_as_found(const GlobalSpec* from, const GlobalSpec* to, const Machine& machine) {
  const Dims shape{8, 6};
  Plan got = plan(from, to, shape, float32), want = find_plan(from, to, shape, float32, machine);
  ASSERT_EQ(got.steps().size(), want.steps().size()) << from->str() << " " << to->str();
  for (size_t i = 0; i < want.steps().size(); ++i) {
    const Step &a = got.steps()[i], &b = want.steps()[i];
    EXPECT_EQ(a.from, b.from);
    EXPECT_EQ(a.to, b.to);
    EXPECT_EQ(a.label, b.label);
    EXPECT_EQ(a.fingerprint, b.fingerprint);
    EXPECT_EQ(a.read_bytes, b.read_bytes);
    EXPECT_EQ(a.host_bytes, b.host_bytes);
  }
  EXPECT_DOUBLE_EQ(got.predicted_s(), want.predicted_s());
  EXPECT_EQ(got.max_read_bytes(), want.max_read_bytes());
  EXPECT_EQ(got.links(), want.links());
}

TEST(MovedPlan, IsTheOneThatASearchFinds) {
  for (int per_host : {0, 2, 3}) {
    Context context(0, 24, 0, 24);
    ContextGuard guard(context);
    Machine machine;
    for (int r = 0; per_host && r < 24; ++r) machine.hosts.host_of_rank.push_back(r / per_host);
    set_machine(machine);
    for (int first : {4, 5})
      for (auto& a : layouts())
        for (auto& b : layouts()) {
          auto* from = intern_spec(ranks_from(first), a);
          expect_as_found(from, intern_spec(ranks_from(first), b), machine);
          expect_as_found(from, intern_spec(ranks_from(first + 4), b), machine);
          expect_as_found(from, intern_spec(ranks_from(first + 2, true), b), machine);
        }
  }
}

}  // namespace
}  // namespace holon::boxing
