#include "holon/boxing/async.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/comm/core/communicator.h"
#include "holon/comm/run_ranks.h"
#include "holon/cost/machine.h"
#include "holon/global/slice.h"
#include "holon/kernels/copy.h"

namespace holon::boxing {
namespace {

Array part_of(const GlobalSpec* spec, const Dims& shape, int rank) {
  int index = spec->placement.index_of(rank);
  if (index < 0) return {};
  Region slice = region_of(shape, spec->placement, spec->nd_sbp, index);
  Array a = Array::empty(slice.shape, float32);
  for (int64_t i = 0; i < a.numel(); ++i) a.data<float>()[i] = static_cast<float>(i % 97 + 100 * rank);
  return a;
}

std::vector<const GlobalSpec*> specs() {
  std::vector<const GlobalSpec*> all;
  for (auto ranks : {std::vector<int64_t>{0, 1, 2}, std::vector<int64_t>{2, 0}, std::vector<int64_t>{1}})
    for (Sbp s : {sbp::split(0), sbp::split(1), sbp::broadcast(), sbp::partial_sum()})
      all.push_back(intern_spec(Placement("cpu", ranks), NdSbp({s})));
  return all;
}

TEST(RedistributeAsync, EqualsRedistribute) {
  comm::run_ranks(3, [](int rank) {
    const Dims shape = {40, 70};
    for (auto* from : specs()) {
      // All at once, while the rank's own thread redistributes the same in the same groups.
      Array in = part_of(from, shape, rank);
      std::vector<PendingArray> pending;
      for (auto* to : specs()) pending.push_back(redistribute_async(from, to, shape, float32, in));
      auto next = pending.begin();
      for (auto* to : specs()) {
        Array expected = redistribute(from, to, shape, float32, in), got = (next++)->wait();
        ASSERT_EQ(got.defined(), expected.defined()) << from->str() << " -> " << to->str();
        if (!got.defined()) continue;
        ASSERT_EQ(got.shape, expected.shape);
        Array a = kernels::contiguous(got), b = kernels::contiguous(expected);
        ASSERT_EQ(std::memcmp(a.bytes(), b.bytes(), a.nbytes()), 0) << from->str() << " -> " << to->str();
      }
    }
  });
}

TEST(RedistributeAsync, AViewIsThereAtOnce) {
  comm::run_ranks(2, [](int rank) {
    Placement p("cpu", {0, 1});
    Array in = Array::empty({4, 4}, float32);
    auto pending =
        redistribute_async(intern_spec(p, sbp::broadcast()), intern_spec(p, sbp::split(0)), {4, 4}, float32, in);
    EXPECT_TRUE(pending.done());
    EXPECT_EQ(pending.wait().storage, in.storage);
  });
}

TEST(RedistributeAsync, BothThreadsPlanForOneMachine) {
  comm::run_ranks(2, [](int) {
    MachineCosts costs;
    costs.sync_s = 1e-3;
    set_machine_costs(costs);
    const Machine *mine = machine(), *there = nullptr;
    comm::run_in_background([&] { there = machine(); }).wait();
    EXPECT_EQ(there, mine);
    costs.sync_s = 2e-3;  // and from now on for another
    set_machine_costs(costs);
    comm::run_in_background([&] { there = machine(); }).wait();
    EXPECT_EQ(there, machine());
    EXPECT_NE(there, mine);
  });
}

TEST(RedistributeAsync, ErrorsComeOutOfWait) {
  comm::run_ranks(2, [](int rank) {
    Placement p("cpu", {0, 1});
    Array in = Array::empty({2, 4}, rank == 0 ? float32 : int32);  // each rank's own is as it says
    auto pending =
        redistribute_async(intern_spec(p, sbp::split(0)), intern_spec(p, sbp::broadcast()), {4, 4}, in.dtype, in);
    try {
      pending.wait();
      ADD_FAILURE() << "no error";
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("the ranks disagree on dtype"), std::string::npos) << e.what();
    }
  });
}

}  // namespace
}  // namespace holon::boxing
