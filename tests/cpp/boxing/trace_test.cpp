#include "holon/base/trace.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "holon/base/error.h"
#include "holon/base/trace_parts.h"
#include "holon/comm/core/communicator.h"
#include "holon/comm/run_ranks.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/create.h"

namespace holon {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class Trace : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/holon-trace-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    folder_ = name;
    path_ = folder_ / "trace.json";
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::vector<json> slices() const {
    std::vector<json> result;
    const json all = json::parse(std::ifstream(path_));
    for (auto& e : all["traceEvents"])
      if (e["ph"] == "X") result.push_back(e);
    return result;
  }

  fs::path folder_, path_;
};

TEST_F(Trace, OpsAndStepsOfEveryRank) {
  constexpr int kRanks = 3, kTimes = 400;  // more than a bunch of events per thread
  std::vector<uint64_t> bytes(kRanks);
  tracing::start(path_);
  comm::run_ranks(kRanks, [&](int rank) {
    Placement all = Placement::all("cpu");
    OnesOptions o;
    o.placement = all;
    o.sbp = NdSbp{sbp::split(0)};
    Tensor x = ones({6, 4}, o);
    for (int i = 0; i < kTimes; ++i) add(x, x).to_global(all, NdSbp{sbp::broadcast()});
    bytes[static_cast<size_t>(rank)] = comm::stats().bytes_read;
  });
  tracing::stop();
  std::map<int, int> adds, steps;
  std::map<int, uint64_t> told;
  for (auto& e : slices()) {
    const int rank = e["pid"];
    adds[rank] += e["name"] == "add";
    if (e["cat"] != "boxing") continue;
    ++steps[rank];
    told[rank] += e["args"]["bytes"].get<uint64_t>();
    EXPECT_EQ(e["name"], "all_gather S(0) -> B");
  }
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(adds[rank], kTimes);
    EXPECT_EQ(steps[rank], kTimes);
    EXPECT_EQ(told[rank], bytes[static_cast<size_t>(rank)]);
    EXPECT_GT(told[rank], 0u);
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1);
}

TEST_F(Trace, OffNothingIsRecordedAndASecondTraceIsItsOwn) {
  { tracing::Span before("before", "op"); }
  tracing::start(path_);
  { tracing::Span first("first", "op"); }
  tracing::stop();
  EXPECT_EQ(slices().size(), 1u);
  { tracing::Span between("between", "op"); }
  tracing::start(path_);
  {
    tracing::Span second("second \"one\"\n", "op");
    ASSERT_TRUE(second);
    second.arg("text", "a\\b\"c");
    second.arg("number", int64_t{7});
    second.arg("real", 0.5);
  }
  tracing::stop();
  tracing::stop();
  ASSERT_EQ(slices().size(), 1u);
  json e = slices()[0];
  EXPECT_EQ(e["name"], "second \"one\"\n");
  EXPECT_EQ(e["args"], (json{{"text", "a\\b\"c"}, {"number", 7}, {"real", 0.5}}));
  EXPECT_FALSE(tracing::Span("after", "op"));
}

TEST_F(Trace, ClocksOfHostsAreAligned) {
  auto start_of = [&](int64_t offset) {
    tracing::set_clock_offset_ns(offset);
    tracing::start(path_);
    { tracing::Span s("s", "op"); }
    tracing::stop();
    return slices()[0]["ts"].get<double>();
  };
  const double plain = start_of(0), later = start_of(int64_t{3'600'000'000'000});
  tracing::set_clock_offset_ns(0);
  EXPECT_GT(later - plain, 3.6e9);
  EXPECT_LT(later - plain, 3.7e9);
}

TEST_F(Trace, PartsOfProcessesThatEndedBadlyAreJoined) {
  const std::string head = tracing::part_head(), event = R"({"name":"a","ph":"X","pid":0})";
  // This process's part stays open until it ends itself.
  std::ofstream(path_.string() + ".rank0") << head << "\n" << event << "\n";
  EXPECT_TRUE(tracing::join_parts(path_, true) == false) << "a part of a process that lives was taken";
  std::string dead = head;
  const std::string pid = std::to_string(getpid());
  dead.replace(dead.find(pid), pid.size(), "999999999");
  // One was killed in the middle of a line, one has ended, one is of another run, one is none.
  std::ofstream(path_.string() + ".rank0") << dead << "\n" << event << "\n" << event << "\n{\"name\":\"cut";
  std::ofstream(path_.string() + ".rank1") << dead << "\n" << event << "\n" << tracing::kPartEnd << "\n";
  std::ofstream(path_.string() + ".rank2") << "something else\n";
  EXPECT_TRUE(tracing::join_parts(path_, true));
  EXPECT_EQ(slices().size(), 3u);
  EXPECT_FALSE(fs::exists(path_.string() + ".rank0"));
  EXPECT_TRUE(fs::exists(path_.string() + ".rank2"));
  EXPECT_FALSE(tracing::join_parts(path_, true)) << "there is nothing left to join";
}

TEST_F(Trace, AFolderThatIsNotThere) {
  EXPECT_THROW(tracing::start(folder_ / "no" / "trace.json"), Error);
  EXPECT_FALSE(tracing::on());
}

}  // namespace
}  // namespace holon
