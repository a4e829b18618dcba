#include "holon/checkpoint/transfer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "checkpoint/two_jobs.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/index.h"
#include "holon/checkpoint/checkpoint.h"
#include "holon/checkpoint/core/layout.h"
#include "holon/checkpoint/core/pieces.h"
#include "holon/checkpoint/formats/source.h"
#include "holon/checkpoint/transfer/manifest.h"
#include "holon/checkpoint/transfer/part_server.h"
#include "holon/checkpoint/transfer/transfer_source.h"
#include "holon/comm/bootstrap/tcp.h"
#include "holon/comm/run_ranks.h"
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

int n_layouts(int n) { return n < 4 ? 4 : 6; }

Tensor value_of(DType dtype, const Dims& shape = {11, 3}) {
  return arange(shape.numel()).reshape(shape).to(dtype == boolean ? float32 : dtype).to(dtype);
}

Tensor global(const Tensor& whole, const Placement& placement, const NdSbp& nd_sbp) {
  return whole.to_global(Placement::all("cpu"), sbp::broadcast()).to_global(placement, nd_sbp);
}

// Of this host, at a port that the system chooses.
comm::Address local() {
  std::string why;
  return comm::resolve("127.0.0.1", 0, &why).at(0);
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
        dict.push_back({fmt::format("t{}", i++),
                        global(value_of(nd_sbp.has_partial() && dtype == boolean ? uint8 : dtype), placement, nd_sbp)});
    for (int k = 0; k < 2 + n_layouts(n); ++k) export_to(dict, address);
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
  EXPECT_EQ(receives, n * (2 + n_layouts(n)));
}

// What the ranks of a job need of a tensor: what several need counts once.
uint64_t needed(const Tensor& t) {
  uint64_t sum = 0;
  for (auto& held : held_regions(t.shape(), layout_of(*t.spec())))
    sum += to_size(held.region.shape.numel()) * size_bytes(t.dtype());
  return sum;
}

TEST(TransferBytes, NothingIsReceivedTwice) {
  const std::pair<int, int> worlds[] = {{4, 2}, {2, 4}, {4, 4}, {1, 4}, {4, 1}};
  for (auto& worlds_of : worlds) {
    const int m = worlds_of.first, n = worlds_of.second;
    const std::string address = free_address();
    // 3 MB and 200 bytes; the odd sizes split unevenly.
    auto exports = [&](int) {
      for (auto& [placement, nd_sbp] : layouts(m)) {
        Value::Dict dict{{"large", global(value_of(float32, {1021, 769}), placement, nd_sbp)},
                         {"small", global(value_of(float32, {10, 5}), placement, nd_sbp)}};
        for (int k = 0; k < n_layouts(n); ++k) export_to(dict, address);
      }
    };
    std::atomic<uint64_t> received = 0, wanted = 0;
    auto receives = [&](int rank) {
      for (int k = 0; k < n_layouts(m); ++k)
        for (auto& [placement, nd_sbp] : layouts(n)) {
          const uint64_t before = bytes_read();
          Value found = receive(address, {.placement = placement, .sbp = nd_sbp});
          received += bytes_read() - before;
          if (rank == 0) wanted += needed(found["large"].tensor()) + needed(found["small"].tensor());
          EXPECT_TRUE(same_bits(found["large"].tensor(), value_of(float32, {1021, 769})));
        }
    };
    const Errors errors = two_jobs(m, exports, n, receives);
    EXPECT_EQ(errors.exports + errors.receives, "no errorno error");
    EXPECT_GE(received, wanted);
    EXPECT_LE(static_cast<double>(received), 1.05 * static_cast<double>(wanted)) << m << " -> " << n;
  }
}

// Two ranks of the other job hold the same: each is asked for half.
TEST(TransferBytes, RanksThatHoldTheSameAreUsedInTurn) {
  const std::string address = free_address();
  Manifest manifest;
  const Tensor whole = value_of(float32, {512, 512});
  manifest.tree = tree_of_names({{"a", float32, {512, 512}, 0, 0}, {"b", float32, {512, 512}, 0, 0}});
  manifest.session = "s";
  for (const char* name : {"a", "b"})
    manifest.tensors.push_back(
        {{name, float32, {512, 512}, 0, 0}, SavedLayout{"cpu", {2}, {0, 1}, {sbp::broadcast()}}});
  // Each of the two serves one of the tensors only.
  std::vector<std::unique_ptr<PartServer>> servers;
  for (const char* name : {"a", "b"}) {
    comm::Fd listener = comm::listen_tcp(local());
    manifest.addresses.push_back(comm::local_address(listener.get()).str());
    servers.push_back(std::make_unique<PartServer>(std::move(listener), "", manifest.session,
                                                   std::unordered_map<std::string, ServedPart>{
                                                       {name, {checkpoint::whole(whole.shape()), whole.array()}}}));
  }
  auto source = transfer_source(manifest, "the other job", "", 60);
  for (const char* name : {"a", "b"})
    EXPECT_TRUE(same_bits(Tensor::local(source->read(name, {0, 0}, {512, 512})), whole));
}

TEST(TransferInto, EachTensorInTheLayoutOfTheModule) {
  const std::string address = free_address();
  auto exports = [&](int) {
    nn::Linear model(6, 4);
    nn::StateDict state = model.state_dict();
    Value::Dict dict;
    int k = 1;
    for (auto& [name, t] : state)
      dict.push_back({name,
                      global(arange(t.numel()).reshape(t.shape()).to(bfloat16) + float(k++), Placement::all("cpu"),
                             sbp::split(0))});
    export_to({{"model", dict}, {"step", 3}}, address);
    export_to({{"model", dict}, {"step", 3}}, address);
  };
  auto receives = [&](int) {
    nn::Linear local_model(6, 4);
    nn::LoadResult result = receive_into(local_model, address, {.prefix = "model."});
    EXPECT_TRUE(result.missing.empty() && result.unexpected.empty());
    nn::Linear model(6, 4);
    model.to_global(Placement::all("cpu"), sbp::broadcast());
    auto before = model.state_dict()[0].second.spec();
    EXPECT_NE(error_of([&] { receive_into(model, address); }).find("'model.weight' is not expected"),
              std::string::npos);
    EXPECT_EQ(model.state_dict()[0].second.spec(), before);
    for (auto& [name, t] : local_model.state_dict()) {
      EXPECT_TRUE(t.is_local());
      EXPECT_EQ(t.dtype(), float32);
      EXPECT_EQ(t.array().data<float>()[1], name == "weight" ? 2.f : 3.f);
    }
  };
  const Errors errors = two_jobs(2, exports, 3, receives);
  EXPECT_NE(errors.exports.find("failed: receive: rank 0: receive: the tensors of"), std::string::npos)
      << errors.exports;
  EXPECT_EQ(errors.receives, "no error");
}

// The ranks of the job that exports are on two hosts, which share no memory.
TEST(TransferInto, FromRanksOfSeveralHosts) {
  const std::string address = free_address();
  std::string exported = "no error";
  std::thread other([&] {
    exported = error_of([&] {
      const int host_of_rank[] = {0, 0, 1};
      comm::run_ranks(host_of_rank, [&](int) {
        Tensor t = arange(30).reshape({10, 3}).to_global(Placement::all("cpu"), sbp::broadcast());
        export_to({{"t", t.to_global(Placement::all("cpu"), sbp::split(0))}}, address);
      });
    });
  });
  comm::run_ranks(2, [&](int) {
    Value found = receive(address, {.placement = Placement::all("cpu"), .sbp = sbp::split(1)});
    EXPECT_TRUE(same_bits(found["t"].tensor(), arange(30).reshape({10, 3})));
  });
  other.join();
  EXPECT_EQ(exported, "no error");
}

}  // namespace
}  // namespace holon::checkpoint
