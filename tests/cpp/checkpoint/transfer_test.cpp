#include "holon/checkpoint/transfer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "checkpoint/two_jobs.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/index.h"
#include "holon/checkpoint/checkpoint.h"
#include "holon/nn/layers.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/create.h"
#include "holon/ops/random.h"
#include "holon/ops/shape.h"
#include "tests/cpp/checkpoint/same_bits.h"
#include "tests/cpp/error_of.h"

namespace holon::checkpoint {
namespace {

using Layouts = std::vector<std::pair<Placement, NdSbp>>;

Layouts layouts(int n) {
  auto all = Placement::all("cpu");
  Layouts out{{all, sbp::split(0)},
              {all, sbp::split(1)},
              {all, sbp::broadcast()},
              {Placement("cpu", {n - 1}), sbp::broadcast()}};
  if (n < 4) return out;
  Placement grid("cpu", Dims{2, 2}, {3, 1, 0, 2});
  out.push_back({grid, {sbp::split(1), sbp::split(1)}});
  out.push_back({grid, {sbp::broadcast(), sbp::split(0)}});
  return out;
}

Tensor value_of(DType dtype, const Dims& shape = {11, 3}) {
  return arange(shape.numel()).reshape(shape).to(dtype == boolean ? float32 : dtype).to(dtype);
}

Tensor global(const Tensor& whole, const Placement& placement, const NdSbp& nd_sbp) {
  return whole.to_global(Placement::all("cpu"), sbp::broadcast()).to_global(placement, nd_sbp);
}

class Transfer : public ::testing::TestWithParam<std::tuple<int, int>> {};
INSTANTIATE_TEST_SUITE_P(Worlds, Transfer, ::testing::Combine(::testing::Values(1, 2, 4), ::testing::Values(1, 3, 4)));

TEST_P(Transfer, EveryLayoutUnderEveryOther) {
  auto [n_export, n_receive] = GetParam();
  const std::string address = free_address();
  const DType dtypes[] = {float32, bfloat16, float16, boolean, uint8, int64};
  const int n = n_receive, m = n_export;
  std::atomic<int> receives = 0;
  auto exports = [&, n](int) {
    Value::Dict dict{{"step", 7}, {"local", arange(5)}, {"empty", zeros({0, 3})}};
    auto all = layouts(m);
    if (m == 4) all.push_back({Placement("cpu", Dims{2, 2}, {3, 1, 0, 2}), {sbp::split(0), sbp::partial_sum()}});
    int i = 0;
    for (auto& [placement, nd_sbp] : all)
      for (DType dtype : dtypes)
        dict.push_back({fmt::format("t{}", i++), global(value_of(nd_sbp.has_partial() && dtype == boolean ? uint8 : dtype),
                                                         placement, nd_sbp)});
    const int times = n >= 4 ? 8 : 6;
    for (int k = 0; k < times; ++k) export_to(dict, address);
  };
  auto receives_all = [&](int) {
    auto check = [&](const Value& found) {
      EXPECT_EQ(found["step"].integer(), 7);
      EXPECT_TRUE(same_bits(found["local"].tensor(), arange(5)));
      EXPECT_EQ(found["empty"].tensor().shape(), (Dims{0, 3}));
      for (size_t i = 0; found.contains(fmt::format("t{}", i)); ++i) {
        Tensor t = found[fmt::format("t{}", i)].tensor();
        EXPECT_TRUE(same_bits(t, value_of(t.dtype()))) << i;
        EXPECT_TRUE(i >= 24 || t.dtype() == dtypes[i % 6]) << i;
      }
      ++receives;
    };
    Value found = receive(address);
    EXPECT_TRUE(found["t0"].tensor().is_global());
    check(found);
    found = receive(address, {.device = Device()});
    EXPECT_TRUE(found["t0"].tensor().is_local());
    check(found);
    for (auto& [placement, nd_sbp] : layouts(n)) {
      found = receive(address, {.placement = placement, .sbp = nd_sbp});
      EXPECT_EQ(found["t0"].tensor().spec(), intern_spec(placement, nd_sbp));
      check(found);
    }
  };
  const Errors errors = two_jobs(m, exports, n, receives_all);
  EXPECT_EQ(errors.exports, "no error");
  EXPECT_EQ(errors.receives, "no error");
  EXPECT_EQ(receives, n * (n >= 4 ? 8 : 6));
}

}  // namespace
}  // namespace holon::checkpoint
