#include "holon/cost/cost.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/comm/run_ranks.h"
#include "holon/cost/machine.h"
#include "holon/cost/measure.h"

namespace holon {
namespace {

TEST(Cost, MoreWorkIsNeverFaster) {
  MachineCosts c;
  double before = 0;
  for (double bytes = 1; bytes < 1e10; bytes *= 1.3) {
    Work w;
    w.copy.add(bytes);
    double s = seconds(w, c);
    EXPECT_GT(s, before) << bytes;
    before = s;
  }
  Work w{};
  w.syncs = 1;
  w.members = 2;
  double two = seconds(w, c);
  w.members = 8;
  EXPECT_GT(seconds(w, c), two);
}

TEST(Cost, RatesFallFromTheCacheToMemory) {
  MachineCosts c;
  EXPECT_EQ(rate(c.copy, 1000, c), c.copy.near);
  EXPECT_EQ(rate(c.copy, 2 * c.cache_bytes, c), c.copy.mid);
  EXPECT_EQ(rate(c.copy, 1e12, c), c.copy.far);
  double between = rate(c.copy, c.cache_bytes, c);
  EXPECT_LT(between, c.copy.near);
  EXPECT_GT(between, c.copy.mid);
}

TEST(Cost, TheSharedCacheIsDividedByWhoIsAtWork) {
  MachineCosts c;
  c.cache_bytes = 1 << 20;
  c.shared_cache_bytes = 32 << 20;
  EXPECT_EQ(rate(c.copy, 8 << 20, c), c.copy.mid);  // a quarter of it
  EXPECT_EQ(rate(c.copy, 32 << 20, c), c.copy.far);
  EXPECT_EQ(rate(c.copy, 8 << 20, c, 4), c.copy.far);
  const double half = rate(c.copy, 16 << 20, c);
  EXPECT_LT(half, c.copy.mid);
  EXPECT_GT(half, c.copy.far);
  // The memory's limit comes in as work leaves the cache, not at once.
  Work w;
  for (int rank = 0; rank < 2; ++rank) w.copy.add(2 << 20);
  MachineCosts narrow = c;
  narrow.memory_bytes_per_s = c.copy.far;
  EXPECT_EQ(seconds(w, narrow), seconds(w, c));
}

TEST(Cost, RanksBeyondTheCoresWait) {
  Work w;
  for (int rank = 0; rank < 8; ++rank) w.copy.add(1 << 20);
  MachineCosts enough, few;
  few.cores = 2;
  EXPECT_GT(seconds(w, few), 3.9 * seconds(w, enough));
  MachineCosts narrow;  // the memory gives all cores no more than one could take
  narrow.memory_bytes_per_s = narrow.copy.far;
  w.copy = {};
  for (int rank = 0; rank < 8; ++rank) w.copy.add(64 << 20);
  EXPECT_NEAR(seconds(w, narrow), 8 * seconds(w, enough), 1e-9);
}

TEST(Cost, BetweenHosts) {
  MachineCosts c;
  Work w;
  w.net_syncs = 2;
  w.net_bytes = 1.2e9;
  EXPECT_NEAR(seconds(w, c), 2 * c.net_latency_s + 1.2e9 / c.net_bytes_per_s, 1e-12);
  // A link that is as fast both ways together as it is in one.
  w.net_both_bytes = 2 * w.net_bytes;
  EXPECT_NEAR(seconds(w, c), 2 * c.net_latency_s + 1.2e9 / c.net_bytes_per_s, 1e-12);
  c.net_both_bytes_per_s = c.net_bytes_per_s;
  EXPECT_NEAR(seconds(w, c), 2 * c.net_latency_s + 2.4e9 / c.net_bytes_per_s, 1e-12);
}

TEST(Machine, FiguresAsTextKeepTheirBits) {
  MachineCosts c;
  c.sync_s = 1.0 / 3e6;
  c.copy = {1e11 / 3, 1e10 / 7, 1e9 / 9};
  c.cores = 3;
  EXPECT_EQ(parse_costs(text_of(c), {}), c);
  EXPECT_EQ(parse_costs("", c), c);
  MachineCosts changed = parse_costs("sync=2e-6,copy=5e9,reduce=3e9/2e9/1e9", c);
  EXPECT_EQ(changed.sync_s, 2e-6);
  EXPECT_EQ(changed.copy, (Rates{5e9, 5e9, 5e9}));
  EXPECT_EQ(changed.reduce, (Rates{3e9, 2e9, 1e9}));
  EXPECT_EQ(changed.cores, 3);
}

TEST(Machine, RefusesWhatItCannotRead) {
  auto says = [](const char* text, const char* what) {
    try {
      parse_costs(text, {});
      ADD_FAILURE() << text;
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kValue);
      EXPECT_THAT(e.what(), testing::HasSubstr(what));
    }
  };
  says("sync", "is not a pair name=number");
  says("sink=1", "there is no \"sink\". The names are copy, reduce, fill, sync");
  says("sync=fast", "\"fast\" is not a number");
  says("sync=-1", "not a number from 0");
  says("copy=0", "not a number above 0");
  says("copy=1/2", "one rate, or three");
  says("sync=nan", "not a number");
  says("copy=inf", "not a number");
  says("sync=1,,", "is not a pair");
  says("cache=0", "not a number above 0");
}

TEST(Machine, BelongsToTheRankAndEqualOnesAreOne) {
  Context a(0, 4, 0, 4), b(1, 4, 1, 4);
  Machine slow;
  slow.costs.sync_s = 1;
  slow.hosts.host_of_rank = {0, 0, 1, 1};
  const Machine *of_a, *of_b;
  {
    ContextGuard guard(a);
    set_machine(slow);
    of_a = machine();
    EXPECT_EQ(machine_costs().sync_s, 1);
  }
  {
    ContextGuard guard(b);
    set_machine(slow);
    of_b = machine();
    set_machine_costs({});
    EXPECT_EQ(machine_costs().sync_s, MachineCosts{}.sync_s);
    EXPECT_EQ(machine()->hosts, slow.hosts) << "the hosts stay";
  }
  EXPECT_EQ(of_a, of_b);
}

// Whatever is measured, ranks that are threads plan by the same figures.
TEST(Machine, RanksAsThreadsShareOne) {
  setenv("HOLON_MACHINE_COSTS", "sync_rank=3e-6", 1);
  std::atomic<const Machine*> seen[3] = {};
  comm::run_ranks(3, [&](int rank) { seen[rank] = machine(); });
  setenv("HOLON_MACHINE_COSTS", "fixed", 1);
  EXPECT_EQ(seen[0], seen[1]);
  EXPECT_EQ(seen[0], seen[2]);
  EXPECT_EQ(seen[0].load()->costs.sync_rank_s, 3e-6);
  EXPECT_GT(seen[0].load()->costs.sync_s, 0);
  EXPECT_GT(seen[0].load()->costs.cores, 0);
  comm::run_ranks(3, [&](int rank) { seen[rank] = machine(); });
  EXPECT_EQ(seen[0].load()->costs, MachineCosts{});
}

TEST(Machine, MeasuresSomethingReal) {
  MachineCosts c = measure_memory({}, 2);
  for (auto r : {c.copy, c.reduce, c.fill}) {
    EXPECT_GT(r.far, 1e6);
    EXPECT_LE(r.far, r.mid);
    EXPECT_LE(r.mid, r.near);
    EXPECT_LT(r.near, 1e13);
  }
  // However busy the machine is, a sum of two is not measured as something else than a copy of somewhat more.
  for (double Rates::*level : {&Rates::near, &Rates::mid, &Rates::far}) {
    EXPECT_GE(c.reduce.*level, 0.7 * c.copy.*level);
    EXPECT_LE(c.reduce.*level, 3.1 * c.copy.*level);
  }
  EXPECT_GE(c.copy.mid, c.copy.near / 9);
  EXPECT_GT(c.row_s, 0);
  EXPECT_GT(c.cache_bytes, 0);
  EXPECT_EQ(parse_costs(text_of(c), {}), c);
}

}  // namespace
}  // namespace holon
