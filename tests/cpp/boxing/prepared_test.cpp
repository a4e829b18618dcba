#include "holon/boxing/prepared.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "boxing/allocations.h"
#include "boxing/prepared_cases.h"
#include "boxing/specs.h"
#include "comm/messages.h"
#include "comm/processes.h"
#include "holon/array/storage.h"
#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/boxing/executor.h"
#include "holon/comm/core/background.h"
#include "holon/comm/core/communicator.h"
#include "holon/comm/run_ranks.h"

namespace holon::boxing {
namespace {

using namespace testing_boxing;
using comm::test::messages;

const Sbp S0 = sbp::split(0), S1 = sbp::split(1), B = sbp::broadcast(), P = sbp::partial_sum();

Placement row(std::vector<int64_t> ranks) { return Placement("cpu", std::move(ranks)); }

TEST(Prepared, EqualsExecute) {
  comm::run_ranks(4, [](int) { check_prepared(); });
}

TEST(Prepared, EqualsExecuteBetweenProcesses) {
  const int port = comm::test::free_port();
  std::vector<std::unique_ptr<comm::test::Process>> ranks;
  for (int r = 0; r < 4; ++r) {
    auto variables = comm::test::rank_environment(r, 4, port);
    variables["HOLON_MACHINE_COSTS"] = "fixed";
    ranks.push_back(
        std::make_unique<comm::test::Process>(std::vector<std::string>{BOXING_RANK_PROGRAM, "prepared"}, variables));
  }
  for (auto& r : ranks) EXPECT_EQ(r->wait(120), 0) << r->output();
}

TEST(Prepared, EqualsExecuteOnSeveralHosts) {
  const std::vector<int> hosts = {0, 1, 0, 1};
  comm::run_ranks(hosts, [](int) {
    for (auto& specs : {specs_of_rows(), specs_of_grids()})
      for (size_t i = 0; i < specs.size(); ++i)
        for (size_t k = i % 3; k < specs.size(); k += 3) {
          auto wrong = prepared_is_wrong(specs[i], specs[k], {6, 5}, float32, false);
          ASSERT_EQ(wrong, "") << specs[i]->str() << " -> " << specs[k]->str();
        }
  });
}

TEST(Prepared, StepsAndViewsOnManyDevices) {
  setenv("HOLON_SIMULATE", "cuda", 1);
  comm::run_ranks(2, [](int) {
    Placement cpu = row({0, 1}), cuda("cuda", {0, 1});
    for (Sbp a : {S0, B, P})
      for (Sbp b : {S0, S1, B, P})
        for (auto [p, q] : {std::pair{cpu, cuda}, {cuda, cpu}, {cuda, cuda}}) {
          auto *from = intern_spec(p, a), *to = intern_spec(q, b);
          ASSERT_EQ(prepared_is_wrong(from, to, {5, 3}, float32, true), "") << from->str() << " -> " << to->str();
        }
  });
  unsetenv("HOLON_SIMULATE");
}

TEST(Prepared, ViewsAreToldApart) {
  comm::run_ranks(2, [](int rank) {
    Placement p = row({0, 1});
    auto prepared = [&](Sbp a, Sbp b) {
      return Prepared::prepare(intern_spec(p, a), intern_spec(p, b), {4, 6}, float32);
    };
    EXPECT_TRUE(prepared(B, S1).is_view());
    EXPECT_FALSE(prepared(B, S1).communicates());
    EXPECT_TRUE(prepared(S0, S0).is_view());
    EXPECT_FALSE(prepared(S0, B).is_view());
    EXPECT_TRUE(prepared(S0, B).communicates());
    EXPECT_EQ(prepared(B, P).is_view(), rank == 0);
    EXPECT_FALSE(prepared(B, P).communicates());
    Array in = some_part(intern_spec(p, B), {4, 6}, float32), half = prepared(B, S1).view_of(in);
    EXPECT_EQ(half.storage, in.storage);
    EXPECT_EQ(half.data<float>(), in.data<float>() + 3 * rank);
    EXPECT_EQ(half.strides, (Dims{6, 1}));
  });
}

TEST(Prepared, RunAllocatesNothing) {
  comm::run_ranks(2, [](int) {
    Placement p = row({0, 1}), turned = row({1, 0}), one = row({1});
    struct Pair {
      const GlobalSpec *from, *to;
    };
    const Pair pairs[] = {
        {intern_spec(p, S0), intern_spec(p, B)},  {intern_spec(p, S0), intern_spec(p, S1)},
        {intern_spec(p, P), intern_spec(p, S1)},  {intern_spec(p, P), intern_spec(p, B)},
        {intern_spec(p, B), intern_spec(p, P)},   {intern_spec(p, S0), intern_spec(turned, S0)},
        {intern_spec(p, P), intern_spec(one, B)}, {intern_spec(p, S1), intern_spec(p, P)},
    };
    for (auto [from, to] : pairs)
      for (Dims shape : {Dims{6, 5}, Dims{70, 50}, Dims{300, 2}})
        for (bool strided : {false, true}) {
          const Array in = some_part(from, shape, float32, strided);
          auto prepared =
              Prepared::prepare(from, to, shape, float32, strided ? Input::kAnyStrides : Input::kContiguous);
          const Array out = garbage(prepared.has_out(), prepared.out_shape(), float32);
          auto scratch = scratch_of(prepared.scratch_bytes());
          expect_no_allocation(
              fmt::format("{} -> {} {}", *from, *to, shape), [&] { prepared.run(in, out, scratch); },
              shape.numel() < 100 ? 1000 : 100);
          EXPECT_TRUE(same_bits(out, redistribute(from, to, shape, float32, in)));
        }
  });
}

TEST(Prepared, BatchRunAllocatesNothing) {
  comm::run_ranks(3, [](int) {
    Placement p = row({0, 1, 2});
    const std::vector<Dims> shapes = {{6, 5}, {70, 50}, {2, 2}};
    for (auto [a, b] : {std::pair{P, B}, {P, S0}, {S0, B}}) {
      auto batch = PreparedBatch::prepare(intern_spec(p, a), intern_spec(p, b), shapes, float32);
      Array in = garbage(true, {batch.in_elements()}, float32), out = garbage(true, {batch.out_elements()}, float32);
      expect_no_allocation(a.str() + b.str(), [&] { batch.run(in, out); });
    }
  });
}

TEST(Prepared, BatchesEqualEachTensorAlone) {
  const std::vector<Dims> shapes = {{5, 7}, {1, 3}, {40, 30}, {2, 64}, {0, 4}};
  comm::run_ranks(4, [&](int) {
    for (auto& specs : {specs_of_rows(), specs_of_grids()})
      for (auto* from : specs)
        for (auto* to : specs)
          for (DType dtype : {float32, bfloat16}) {
            // The order of several sums is the plan's own when each tensor goes alone.
            int sums = 0;
            for (int a = 0; a < from->nd_sbp.size(); ++a) sums += from->nd_sbp[a].is_partial();
            if (!one_move(*from, *to) || sums > 1) continue;
            ASSERT_EQ(batch_is_wrong(from, to, shapes, dtype), "") << from->str() << " -> " << to->str() << name(dtype);
          }
  });
}

TEST(Prepared, BatchesOnSeveralHosts) {
  const std::vector<int> hosts = {0, 0, 1};
  comm::run_ranks(hosts, [&](int) {
    const std::vector<Dims> shapes = {{5, 7}, {1, 3}, {60, 30}};
    for (auto [a, b] : {std::pair{P, B}, {P, S0}, {S0, B}, {S1, S0}}) {
      auto *from = intern_spec(row({0, 1, 2}), a), *to = intern_spec(row({0, 1, 2}), b);
      ASSERT_EQ(batch_is_wrong(from, to, shapes, int32), "") << from->str() << " -> " << to->str();
    }
  });
}

TEST(Prepared, RunsOnTheBackgroundThreadInItsOwnGroups) {
  comm::run_ranks(3, [](int rank) {
    Placement p = row({0, 1, 2});
    auto *from = intern_spec(p, P), *to = intern_spec(p, B);
    const std::vector<Dims> shapes = {{100, 30}, {7}};
    auto batch = PreparedBatch::prepare(from, to, shapes, float32);
    auto sum = Prepared::prepare(from, to, {50, 50}, float32);
    Array buffer = garbage(true, {batch.in_elements()}, float32);
    const Array in = some_part(from, {50, 50}, float32), out = garbage(true, {50, 50}, float32);
    const Array expected = redistribute(from, to, {50, 50}, float32, in);
    for (int i = 0; i < 50; ++i) {
      for (int64_t k = 0; k < buffer.numel(); ++k) buffer.data<float>()[k] = static_cast<float>(k % 13 + rank);
      auto scratch = scratch_of(sum.scratch_bytes());
      auto first = comm::run_in_background([&] { batch.run(buffer, buffer); });
      // The rank's own thread communicates with the same ranks meanwhile.
      ASSERT_TRUE(same_bits(redistribute(from, to, {50, 50}, float32, in), expected));
      first.wait();
      auto second = comm::run_in_background([&] { sum.run(in, out, scratch); });
      second.wait();
      for (int64_t k = 0; k < buffer.numel(); ++k)
        ASSERT_EQ(buffer.data<float>()[k], static_cast<float>(3 * (k % 13) + 3)) << k;
      ASSERT_TRUE(same_bits(out, expected));
      sum.run(in, out, scratch);  // and back on the rank's own thread
      ASSERT_TRUE(same_bits(out, expected));
    }
  });
}

TEST(Prepared, WhatIsNotAsPreparedIsRefused) {
  auto heard = messages(2, [](int rank) {
    Placement p = row({0, 1});
    auto prepared = Prepared::prepare(intern_spec(p, S0), intern_spec(p, B), {4, 6}, float32);
    Array in = Array::empty({2, 6}, float32), out = Array::empty({4, 6}, float32);
    if (rank == 0) prepared.run(Array::empty({6, 2}, float32).view({2, 6}, {1, 2}), out, {});
    prepared.run(in, Array::empty({4, 5}, float32), {});
  });
  EXPECT_HAS(heard[0], "the part of rank 0 of 2 should be row-major, but has the strides [1, 2]");
  EXPECT_HAS(heard[1], "the result of rank 1 of 2 should be float32 [4, 6], but is float32 [4, 5]");

  heard = messages(1, [](int) {
    auto *s = intern_spec(row({0}), S0), *t = intern_spec(row({0}), P);
    PreparedBatch::prepare(s, t, std::vector<Dims>{}, float32);
  });
  EXPECT_HAS(heard[0], "a batch of no tensors");
  heard = messages(2, [](int) {
    auto *s = intern_spec(row({0, 1}), S0), *t = intern_spec(row({0, 1}), P);
    PreparedBatch::prepare(s, t, std::vector<Dims>{{4}}, float32);
  });
  EXPECT_HAS(heard[0], "in one step");
}

TEST(Prepared, RanksThatDisagreeHearOfIt) {
  auto heard = messages(2, [](int rank) {
    Placement p = row({0, 1});
    Dims shape = {4, rank ? 6 : 5};
    auto prepared = Prepared::prepare(intern_spec(p, S0), intern_spec(p, B), shape, float32);
    comm::set_call_site(rank ? "b.py:2" : "a.py:1");
    prepared.run(garbage(true, prepared.in_shape(), float32), garbage(true, shape, float32), {});
  });
  for (auto& text : heard) {
    EXPECT_HAS(text, "the ranks disagree on the call's arguments: rank 0 called all_gather S(0) -> B [4, 5] float32");
    EXPECT_HAS(text, "rank 1 called all_gather S(0) -> B [4, 6] float32 (48 bytes) at b.py:2");
  }
  heard = messages(2, [](int rank) {
    Placement p = row({0, 1});
    const std::vector<Dims> shapes = {{4, rank ? 6 : 5}};
    auto batch = PreparedBatch::prepare(intern_spec(p, S0), intern_spec(p, B), shapes, float32);
    batch.run(garbage(true, {batch.in_elements()}, float32), garbage(true, {batch.out_elements()}, float32));
  });
  for (auto& text : heard) EXPECT_HAS(text, "the ranks disagree on the call's arguments");
}

TEST(Prepared, APeerThatLeavesIsNamed) {
  auto heard = messages(2, [](int rank) {
    Placement p = row({0, 1});
    auto prepared = Prepared::prepare(intern_spec(p, P), intern_spec(p, B), {4, 6}, float32);
    Array in = garbage(true, {4, 6}, float32), out = garbage(true, {4, 6}, float32);
    auto scratch = scratch_of(prepared.scratch_bytes());
    for (int i = 0; i < (rank ? 3 : 5); ++i) prepared.run(in, out, scratch);
  });
  EXPECT_HAS(heard[0], "all_reduce P -> B: rank 1 has ended without joining this call (group [0, 1], call 4, [4, 6]");
}

}  // namespace
}  // namespace holon::boxing
