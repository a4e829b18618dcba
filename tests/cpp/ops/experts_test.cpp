// Rows of experts: values by plain loops; the same on ranks that exchange rows, whatever the choices, and the bytes of
// the exchange; choices that do not fit.
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "error_of.h"
#include "holon/comm/core/communicator.h"
#include "holon/comm/run_ranks.h"
#include "holon/internal_ops/experts.h"
#include "holon/ops/reduce.h"
#include "holon/ops/shape.h"
#include "holon/ops/values.h"

namespace holon {
namespace {

constexpr int64_t kWidth = 3, kHidden = 4;

std::vector<float> numbers(int64_t n, int64_t step) {
  std::vector<float> out;
  for (int64_t i = 0; i < n; ++i) out.push_back(static_cast<float>((i * step) % 11 - 5) / 4);
  return out;
}

// Local operands, alike on all ranks.
struct Operands {
  int64_t rows, experts, k;
  std::vector<int64_t> chosen;
  std::vector<float> x = numbers(rows * kWidth, 7), weights = numbers(rows * k, 3),
                     gate = numbers(experts * kHidden * kWidth, 3), up = numbers(experts * kHidden * kWidth, 5),
                     down = numbers(experts * kWidth * kHidden, 9), dy = numbers(rows * kWidth, 2);

  std::vector<Tensor> tensors(DType dtype = float32) const {
    return {tensor(x, {rows, kWidth}).to(dtype),
            tensor(chosen, {rows, k}),
            tensor(weights, {rows, k}).to(dtype),
            tensor(gate, {experts, kHidden, kWidth}).to(dtype),
            tensor(up, {experts, kHidden, kWidth}).to(dtype),
            tensor(down, {experts, kWidth, kHidden}).to(dtype)};
  }
};

// The result, and the gradients in x, weights, gate, up and down.
struct Result {
  std::vector<std::vector<float>> values;
};
Result result_of(std::vector<Tensor> in, const Tensor& dy) {
  for (size_t i : {0, 2, 3, 4, 5}) in[i].set_requires_grad();
  Tensor y = expert_swiglu(in[0], in[1], in[2], in[3], in[4], in[5]);
  y.backward(dy);
  Result out{{to_vector<float>(y.detach().to(float32))}};
  for (size_t i : {0, 2, 3, 4, 5}) out.values.push_back(to_vector<float>(in[i].grad().to(float32)));
  return out;
}
void expect_near(const Result& found, const Result& wanted, double rtol, const std::string& what) {
  for (size_t i = 0; i < wanted.values.size(); ++i) {
    ASSERT_EQ(found.values[i].size(), wanted.values[i].size());
    double largest = 1e-30, apart = 0;
    for (size_t j = 0; j < wanted.values[i].size(); ++j) {
      largest = std::max<double>(largest, std::abs(wanted.values[i][j]));
      apart = std::max<double>(apart, std::abs(found.values[i][j] - wanted.values[i][j]));
    }
    EXPECT_LE(apart, rtol * largest) << what << ", value " << i;
  }
}

TEST(Experts, EachRowIsOfItsExperts) {
  const Operands o{.rows = 5, .experts = 3, .k = 2, .chosen = {0, 2, 2, 0, -1, 2, 2, 2, -1, -1}};
  const auto in = o.tensors();
  const auto y = to_vector<float>(expert_swiglu(in[0], in[1], in[2], in[3], in[4], in[5]));
  auto at = [](const std::vector<float>& v, int64_t i) { return static_cast<double>(v[static_cast<size_t>(i)]); };
  for (int64_t r = 0; r < o.rows; ++r)
    for (int64_t i = 0; i < kWidth; ++i) {
      double wanted = 0;
      for (int64_t j = 0; j < o.k; ++j) {
        const int64_t e = o.chosen[static_cast<size_t>(r * o.k + j)];
        for (int64_t h = 0; e >= 0 && h < kHidden; ++h) {
          double gate = 0, up = 0;
          for (int64_t c = 0; c < kWidth; ++c) {
            gate += at(o.gate, (e * kHidden + h) * kWidth + c) * at(o.x, r * kWidth + c);
            up += at(o.up, (e * kHidden + h) * kWidth + c) * at(o.x, r * kWidth + c);
          }
          wanted += at(o.weights, r * o.k + j) * at(o.down, (e * kWidth + i) * kHidden + h) * gate /
              (1 + std::exp(-gate)) * up;
        }
      }
      EXPECT_NEAR(at(y, r * kWidth + i), wanted, 1e-5) << r << " " << i;
    }
}

// Choices of rows, by name.
std::vector<std::pair<std::string, Operands>> patterns(int64_t rows, int64_t experts) {
  auto with = [&](int64_t k, auto choice) {
    Operands o{.rows = rows, .experts = experts, .k = k};
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t j = 0; j < k; ++j) o.chosen.push_back(choice(r, j));
    return o;
  };
  return {{"spread", with(2, [&](int64_t r, int64_t j) { return (r * r + 3 * j + r * j) % experts; })},
          {"all to the last one", with(1, [&](int64_t, int64_t) { return experts - 1; })},
          {"all to the first two", with(2, [&](int64_t, int64_t j) { return j; })},
          {"none", with(2, [&](int64_t, int64_t) { return int64_t{-1}; })},
          {"some dropped",
           with(3, [&](int64_t r, int64_t j) { return (r + j) % 3 == 0 ? -1 : (r + 2 * j) % experts; })}};
}

// Of operands on a grid of ranks: rows along all axes but the last `tp` ones; experts along those named.
struct Grid {
  std::string name;
  Dims sizes;
  NdSbp rows, experts, experts_down;
};
std::vector<Grid> grids() {
  const Sbp b = sbp::broadcast(), s = sbp::split(0), h = sbp::split(1), d = sbp::split(2);
  return {{"ep 2", {2}, s, s, s},
          {"ep 3", {3}, s, s, s},
          {"ep 4", {4}, s, s, s},
          {"dp 2 x ep 2", {2, 2}, {s, s}, {b, s}, {b, s}},
          {"ep 2 x tp 2", {2, 2}, {s, b}, {s, h}, {s, d}},
          {"dp 3 x ep 2", {3, 2}, {s, s}, {b, s}, {b, s}},
          {"dp 2 x ep 2 x tp 2", {2, 2, 2}, {s, s, b}, {b, s, h}, {b, s, d}},
          {"ep 2 x ep 2", {2, 2}, {s, s}, {s, s}, {s, s}},
          {"exchanged along one axis of two", {2, 2}, {s, b}, {s, s}, {s, s}},
          {"dp 1 x ep 8", {1, 8}, {s, s}, {b, s}, {b, s}}};
}

void compare(const Grid& g, const Operands& o, const std::vector<int>& hosts, const std::string& what,
             DType dtype = float32, double rtol = 1e-5) {
  const Result wanted = result_of(o.tensors(dtype), tensor(o.dy, {o.rows, kWidth}).to(dtype));
  const auto n = static_cast<int>(g.sizes.numel());
  auto run = [&](int rank) {
    std::vector<int64_t> ranks(static_cast<size_t>(n));
    std::iota(ranks.begin(), ranks.end(), 0);
    const Placement placement("cpu", g.sizes, ranks);
    auto in = o.tensors(dtype);
    for (size_t i = 0; i < in.size(); ++i)
      in[i] = place(in[i], placement, i < 3 ? g.rows : i == 5 ? g.experts_down : g.experts).detach();
    const Result found = result_of(in, place(tensor(o.dy, {o.rows, kWidth}).to(dtype), placement, g.rows));
    if (rank == 0) expect_near(found, wanted, rtol, what + ", " + g.name);
  };
  if (hosts.empty())
    comm::run_ranks(n, run);
  else
    comm::run_ranks(hosts, run);
}

// Rows that divide evenly, that do not, and fewer than ranks.
TEST(Experts, OnRanksAsOnOne) {
  for (const Grid& g : grids())
    for (int64_t rows : {16, 13, 3, 1})
      for (auto& [name, o] : patterns(rows, 8)) compare(g, o, {}, name + ", " + std::to_string(rows) + " rows");
}

TEST(Experts, ExpertsThatRanksShareUnevenly) {
  for (const Grid& g : grids())
    for (int64_t experts : {5, 2})
      for (auto& [name, o] : patterns(7, experts))
        compare(g, o, {}, name + ", " + std::to_string(experts) + " experts");
}

TEST(Experts, OnSeveralHosts) {
  for (const Grid& g : grids()) {
    const auto n = static_cast<size_t>(g.sizes.numel());
    std::vector<int> halves, each;
    for (size_t r = 0; r < n; ++r) halves.push_back(r < n / 2 ? 0 : 1), each.push_back(static_cast<int>(r));
    for (int64_t rows : {13, 3})
      for (auto& [name, o] : patterns(rows, 8)) {
        compare(g, o, halves, name + " on two hosts");
        if (n <= 4) compare(g, o, each, name + " on a host each");
      }
  }
}

TEST(Experts, OtherDtypes) {
  const Grid g = grids()[0];
  for (auto& [name, o] : patterns(9, 4)) {
    compare(g, o, {}, name + " float64", float64);
    compare(g, o, {}, name + " bfloat16", bfloat16, 0.02);
    compare(g, o, {}, name + " float16", float16, 0.005);
  }
}

// What a rank reads: the others' choices, each of their rows of which it has an expert, once, and back what the others
// have computed of its own.
TEST(Experts, ReadsEachRowOnce) {
  constexpr int64_t kRows = 24, kExperts = 8, kRanks = 4, kHere = kRows / kRanks;
  for (auto& pattern : patterns(kRows, kExperts))
    for (bool hosts : {false, true}) {
      const auto& name = pattern.first;
      const Operands& o = pattern.second;
      std::vector<int64_t> wanted(kRanks), found(kRanks);
      for (int64_t rank = 0; rank < kRanks; ++rank) {
        int64_t rows = 0;
        for (int64_t r = 0; r < kRows; ++r) {
          std::set<int64_t> ranks;
          for (int64_t j = 0; j < o.k; ++j)
            if (const int64_t e = o.chosen[static_cast<size_t>(r * o.k + j)]; e >= 0)
              ranks.insert(e / (kExperts / kRanks));
          if (r / kHere == rank)
            rows += static_cast<int64_t>(ranks.size()) - static_cast<int64_t>(ranks.count(rank));
          else
            rows += static_cast<int64_t>(ranks.count(rank));
        }
        wanted[static_cast<size_t>(rank)] = rows * kWidth * 4 + (kRows - kHere) * o.k * 8;
      }
      auto run = [&](int rank) {
        const Placement all = Placement::all("cpu");
        auto in = o.tensors();
        for (Tensor& t : in) t = place(t, all, sbp::split(0));
        const uint64_t before = comm::stats().bytes_read;
        expert_swiglu(in[0], in[1], in[2], in[3], in[4], in[5]);
        found[static_cast<size_t>(rank)] = static_cast<int64_t>(comm::stats().bytes_read - before);
      };
      if (hosts)
        comm::run_ranks(std::vector<int>{0, 0, 1, 1}, run);
      else
        comm::run_ranks(kRanks, run);
      EXPECT_EQ(found, wanted) << name << (hosts ? " on two hosts" : "");
    }
}

// Which rows go where changes from step to step, and the ranks stay together.
TEST(Experts, ChoicesChangeFromStepToStep) {
  comm::run_ranks(4, [](int) {
    const Placement grid("cpu", Dims{2, 2}, {0, 1, 2, 3});
    const NdSbp rows{sbp::split(0), sbp::split(0)}, experts{sbp::broadcast(), sbp::split(0)};
    for (int64_t step = 0; step < 50; ++step) {
      Operands o{.rows = 1 + step % 9, .experts = 4, .k = 1 + step % 3};
      for (int64_t i = 0; i < o.rows * o.k; ++i)
        o.chosen.push_back((i * (step + 3) + step * step) % (step % 5 + 1) % 5 - 1);
      auto in = o.tensors();
      const auto wanted = to_vector<float>(expert_swiglu(in[0], in[1], in[2], in[3], in[4], in[5]));
      for (size_t i = 0; i < in.size(); ++i) in[i] = place(in[i], grid, i < 3 ? rows : experts);
      const auto found = to_vector<float>(expert_swiglu(in[0], in[1], in[2], in[3], in[4], in[5]));
      for (size_t i = 0; i < wanted.size(); ++i) ASSERT_NEAR(found[i], wanted[i], 1e-4) << step;
    }
  });
}

TEST(Experts, AnExpertThatThereIsNotIsAnErrorOnAllRanks) {
  const Operands o{.rows = 4, .experts = 4, .k = 1, .chosen = {0, 1, 4, 2}};
  auto call = [&](std::vector<Tensor> in) { expert_swiglu(in[0], in[1], in[2], in[3], in[4], in[5]); };
  EXPECT_NE(value_error_of([&] { call(o.tensors()); })
                .find("row 2 of rank 0 chooses expert 4; experts are numbered "
                      "from 0 to 3, and -1 is none"),
            std::string::npos);
  comm::run_ranks(2, [&](int) {
    auto in = o.tensors();
    for (Tensor& t : in) t = place(t, Placement::all("cpu"), sbp::split(0));
    EXPECT_NE(value_error_of([&] { call(in); }).find("row 0 of rank 1 chooses expert 4"), std::string::npos);
  });
  Operands low = o;
  low.chosen = {0, -2, 1, 2};
  EXPECT_NE(value_error_of([&] { call(low.tensors()); }).find("chooses expert -2 or less"), std::string::npos);
  low.chosen = {0, INT64_MIN, 1, INT64_MAX};
  EXPECT_NE(value_error_of([&] { call(low.tensors()); }).find("chooses expert -2 or less"), std::string::npos);
}

TEST(Experts, AGradientOfAnotherShapeIsAnError) {
  const Operands o{.rows = 4, .experts = 2, .k = 1, .chosen = {0, 1, 1, 0}};
  const auto in = o.tensors();
  for (const Tensor& dy : {slice(in[0], 0, 0, 1), slice(in[0], 1, 0, 2)})
    EXPECT_NE(value_error_of([&] {
                expert_swiglu_backward(dy, in[0], in[1], in[2], in[3], in[4], in[5]);
              }).find("different shapes"),
              std::string::npos);
}

TEST(Experts, CapacityKeepsFirstChoicesAndEarlierTokens) {
  // Two rows of four tokens with two choices.
  const Tensor chosen = tensor(std::vector<int64_t>{0, 1, 0, 1, 0, 1, 1, 0, 2, 0, 2, 0, -1, 2, 0, 2}, {2, 4, 2});
  EXPECT_EQ(to_vector<int64_t>(expert_capacity(chosen, 3, 2)),
            (std::vector<int64_t>{0, 1, 0, -1, -1, -1, 1, -1, 2, 0, 2, -1, -1, -1, 0, -1}));
  EXPECT_EQ(to_vector<int64_t>(expert_capacity(chosen, 3, 4)), to_vector<int64_t>(chosen));
  EXPECT_EQ(to_vector<int64_t>(expert_capacity(chosen, 3, 0)), std::vector<int64_t>(16, -1));
  EXPECT_NE(value_error_of([&] { expert_capacity(chosen, 2, 1); }).find("chooses expert 2"), std::string::npos);
}

}  // namespace
}  // namespace holon
