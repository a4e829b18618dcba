// What plans move, counted: steps, messages and bytes. None of it depends on the machine that the test runs on, since
// the one that is planned for is given.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "boxing/specs.h"
#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/boxing/planner.h"

namespace holon::boxing {
namespace {

const Sbp S0 = sbp::split(0), S1 = sbp::split(1), S2 = sbp::split(2), B = sbp::broadcast(), P = sbp::partial_sum();

Machine on_hosts(std::vector<int> host_of_rank) { return {{}, {std::move(host_of_rank)}}; }

struct Row {
  const char* what;
  Placement from;
  NdSbp before;
  Placement to;
  NdSbp after;
  Dims shape;
  Machine machine;
  std::vector<StepKind> kinds;
  int64_t messages, bytes;  // of all ranks
  int64_t most;             // that one rank reads
};

class CountsTest : public testing::Test {
 protected:
  static Placement row(std::vector<int64_t> ranks) { return Placement("cpu", std::move(ranks)); }
  static Placement grid(const Dims& h, int64_t first = 0) {
    std::vector<int64_t> ranks(static_cast<size_t>(h.numel()));
    std::iota(ranks.begin(), ranks.end(), first);
    return Placement("cpu", h, ranks);
  }
  Context context_{0, 128, 0, 128};
  ContextGuard guard_{context_};
};

TEST_F(CountsTest, StepsMessagesAndBytes) {
  using K = StepKind;
  const Placement two = row({0, 1}), three = row({0, 1, 2}), four = row({0, 1, 2, 3}), square = grid({2, 2});
  const Placement cube = grid({2, 2, 2}), chess = grid({8, 8});
  std::vector<int> rows_of_eight(64);
  for (size_t i = 0; i < 64; ++i) rows_of_eight[i] = static_cast<int>(i) / 8;
  const Machine one, eight = on_hosts(rows_of_eight);
  const int64_t M = 1 << 20;
  const Row rows[] = {
      // On one axis.
      {"views", four, B, four, S1, {8, 8}, one, {K::kSlice}, 0, 0, 0},
      {"zeros", four, S0, four, P, {8, 8}, one, {K::kZeroFill}, 0, 0, 0},
      {"all_gather", four, S0, four, B, {8, 8}, one, {K::kAllGather}, 12, 12 * 64, 192},
      {"all_gather, uneven", four, S0, four, B, {6, 8}, one, {K::kAllGather}, 12, 3 * 192, 192 - 32},
      {"all_gather, empty parts", four, S0, four, B, {2, 8}, one, {K::kAllGather}, 6, 2 * 32 + 2 * 64, 64},
      {"all_to_all", four, S0, four, S1, {8, 8}, one, {K::kAllToAll}, 12, 12 * 16, 48},
      {"all_to_all, large", four, S1, four, S0, {1024, 1024}, one, {K::kAllToAll}, 12, 12 * M / 4, 3 * M / 4},
      {"all_to_all, uneven", three, S0, three, S1, {5, 4}, one, {K::kAllToAll}, 6, 80 - 4 * (4 + 2 + 1), 24},
      {"reduce_scatter", four, P, four, S0, {8, 8}, one, {K::kReduceScatter}, 12, 12 * 64, 192},
      {"reduce_scatter, large", four, P, four, S1, {1024, 1024}, one, {K::kReduceScatter}, 12, 12 * M, 3 * M},
      {"small sums at once", four, P, four, B, {8, 8}, one, {K::kAllReduce}, 12, 12 * 256, 3 * 256},
      {"large sums in two", four, P, four, B, {1024, 1024}, one, {K::kAllReduce}, 24, 24 * M, 6 * M},
      {"no axis", three, P, three, B, {}, one, {K::kAllReduce}, 6, 24, 8},
      {"no element", three, P, three, S0, {0, 4}, one, {K::kSlice}, 0, 0, 0},
      // On a grid.
      {"each rank reads what it lacks", square, {S0, S1}, square, {S1, S0}, {8, 8}, one, {K::kExchange}, 2, 128, 64},
      {"on eight by eight", chess, {S0, S1}, chess, {S1, S0}, {64, 64}, one, {K::kExchange}, 56, 56 * 256, 256},
      {"between the rows alone", square, {S0, S1}, square, {B, S1}, {8, 8}, one, {K::kAllGather}, 4, 4 * 64, 64},
      {"copies read their own row", square, {B, S0}, square, {S0, S1}, {8, 8}, one, {K::kExchange}, 2, 2 * 64, 64},
      {"both cuts change", square, {S0, S0}, square, {S1, S1}, {8, 8}, one, {K::kExchange}, 12, 12 * 16, 48},
      {"three axes turned", cube, {S0, S1, S2}, cube, {S2, S0, S1}, {8, 8, 8}, one, {K::kExchange}, 6, 6 * 256, 256},
      // Sums over two axes: at once, or first within and then across.
      {"sums of a small grid at once", square, {P, P}, square, {B, B}, {4, 4}, one, {K::kAllReduce}, 12, 12 * 64, 192},
      {"small sums of many ranks by rows and columns",
       chess,
       {P, P},
       chess,
       {B, B},
       {4, 4},
       one,
       {K::kAllReduce, K::kAllReduce},
       2 * 64 * 7,
       2 * 64 * 7 * 64,
       2 * 7 * 64},
      {"scattered inside the hosts",
       chess,
       {P, P},
       chess,
       {B, B},
       {64, 64},
       eight,
       {K::kReduceScatter, K::kReduceScatter, K::kAllGather, K::kAllGather},
       4 * 64 * 7,
       64 * 2 * (7 * 2048 + 7 * 256),
       2 * (7 * 2048 + 7 * 256)},
      // Between placements.
      {"a copy", row({0}), B, row({1}), B, {8, 8}, one, {K::kExchange}, 1, 256, 256},
      {"n to m, each element once", row({0, 1, 2}), S0, row({3, 4}), S0, {6, 4}, one, {K::kExchange}, 4, 96, 48},
      {"m to n, each element once", row({0, 1}), S0, row({2, 3, 4}), S1, {6, 4}, one, {K::kExchange}, 6, 96, 48},
      {"what is there already stays", row({0, 1, 2}), S0, row({1, 2}), S0, {6, 4}, one, {K::kExchange}, 2, 48, 32},
      {"turned round", two, S0, row({1, 0}), S0, {6, 4}, one, {K::kExchange}, 2, 96, 48},
      {"the same ranks as a grid", four, S0, square, {S0, S0}, {8, 8}, one, {K::kSlice}, 0, 0, 0},
      {"the same ranks as a grid with copies",
       four,
       S0,
       square,
       {S0, B},
       {8, 8},
       one,
       {K::kSlice, K::kAllGather},
       4,
       4 * 64,
       64},
      {"addends move as they are", two, P, row({3, 2}), P, {8, 8}, one, {K::kExchange}, 2, 512, 256},
      {"reduced before it leaves",
       row({0, 1, 2, 3}),
       P,
       row({4}),
       B,
       {1024, 1024},
       one,
       {K::kReduceScatter, K::kExchange},
       12 + 4,
       12 * M + 4 * M,
       4 * M},
  };
  for (auto& r : rows) {
    Plan p = find_plan(intern_spec(r.from, r.before), intern_spec(r.to, r.after), r.shape, float32, r.machine);
    SCOPED_TRACE(std::string(r.what) + "\n" + p.str());
    std::vector<StepKind> kinds;
    for (auto& s : p.steps()) kinds.push_back(s.kind);
    EXPECT_EQ(kinds, r.kinds);
    int64_t messages = 0, bytes = 0, planned = 0;
    for (auto& link : p.links()) messages += link.messages, bytes += link.bytes;
    for (int rank = 0; rank < 128; ++rank) planned += p.read_bytes(rank);
    EXPECT_EQ(messages, r.messages);
    EXPECT_EQ(bytes, r.bytes);
    EXPECT_EQ(planned, r.bytes);
    EXPECT_EQ(p.max_read_bytes(), r.most);
  }
}

// Of what crosses between hosts, each element crosses once, however many ranks of the host need it.
TEST_F(CountsTest, BytesBetweenHosts) {
  auto crossing = [&](const Placement& p, NdSbp a, const Placement& q, NdSbp b, const Dims& shape, const Machine& m) {
    int64_t bytes = 0;
    const Plan found = find_plan(intern_spec(p, a), intern_spec(q, b), shape, float32, m);
    for (auto& s : found.steps()) bytes += s.host_bytes;
    return bytes;
  };
  const Placement square = grid({2, 2}), two = row({0, 1}), others = row({2, 3});
  const Machine halves = on_hosts({0, 0, 1, 1});
  const Dims shape{256, 256};
  const int64_t whole = 256 * 256 * 4;
  EXPECT_EQ(crossing(two, B, others, B, shape, halves), whole);
  EXPECT_EQ(crossing(two, S0, others, S1, shape, halves), whole);
  EXPECT_EQ(crossing(two, P, others, B, shape, halves), whole);
  EXPECT_EQ(crossing(two, P, two, B, shape, halves), 0);
  EXPECT_EQ(crossing(square, {S0, B}, square, {B, B}, shape, halves), whole / 2);
  EXPECT_EQ(crossing(square, {S0, S1}, square, {B, B}, shape, halves), whole / 2);
  EXPECT_EQ(crossing(square, {B, S0}, square, {B, B}, shape, halves), 0);
  EXPECT_EQ(crossing(square, {P, P}, square, {B, B}, {2048, 2048}, halves), 64 * whole);
  EXPECT_EQ(crossing(square, {P, P}, square, {S0, S1}, shape, halves), whole / 2);
}

// Ranks that hold the same are asked in turn.
TEST_F(CountsTest, OwnersOfCopiesTakeTurns) {
  Plan p =
      find_plan(intern_spec(row({0, 1, 2}), B), intern_spec(row({3, 4, 5, 6, 7, 8}), B), {6, 4}, float32, Machine{});
  std::vector<int64_t> given(3);
  for (auto& link : p.links()) given[static_cast<size_t>(link.from)] += link.bytes;
  EXPECT_EQ(given, (std::vector<int64_t>{192, 192, 192}));
}

}  // namespace
}  // namespace holon::boxing
