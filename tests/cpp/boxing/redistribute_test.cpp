// Boxing with ranks as threads: values, bits, and bytes of every kind of pair.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
#include <random>

#include "boxing/specs.h"
#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/boxing/executor.h"
#include "holon/comm/core/communicator.h"
#include "holon/comm/run_ranks.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/regions.h"

namespace holon::boxing {
namespace {

using namespace testing_boxing;

const Sbp S0 = sbp::split(0), S1 = sbp::split(1), B = sbp::broadcast(), P = sbp::partial_sum();

struct Case {
  const GlobalSpec* from;
  const GlobalSpec* to;
  Dims shape;
};

int64_t noise(int64_t a, int64_t b) {
  uint64_t h = (static_cast<uint64_t>(a) * 0x9e3779b97f4a7c15ull) ^ (static_cast<uint64_t>(b) + 0x7f4a7c15ull);
  h = (h ^ (h >> 31)) * 0xbf58476d1ce4e5b9ull;
  return static_cast<int64_t>((h >> 40) % 101) - 50;
}

// The logical tensor: small whole numbers, so that every sum is exact.
int64_t value_of(int64_t element) { return noise(element, 12345); }

// The place of a rank along the P axes, and how many places there are.
std::pair<int64_t, int64_t> partial_place(const GlobalSpec& spec, int index) {
  Dims at = spec.placement.coordinate(index);
  int64_t place = 0, places = 1;
  for (int a = 0; a < at.size(); ++a)
    if (spec.nd_sbp[a].is_partial()) {
      place = place * spec.placement.hierarchy()[a] + at[a];
      places *= spec.placement.hierarchy()[a];
    }
  return {place, places};
}

template <class F>
void for_each_element(const Dims& logical, const Region& slice, F&& f) {
  int64_t n = slice.shape.numel();
  Dims strides = contiguous_strides(logical);
  for (int64_t i = 0; i < n; ++i) {
    int64_t rest = i, element = 0;
    for (int a = logical.size() - 1; a >= 0; --a) {
      element += (slice.offset[a] + rest % slice.shape[a]) * strides[a];
      rest /= slice.shape[a];
    }
    f(i, element);
  }
}

// A rank's part of the tensor. Addends are uneven: all but the last are noise, and the last makes the sum right.
template <class T>
Array part_of(const GlobalSpec& spec, const Dims& shape, int rank, bool strided) {
  int index = spec.placement.index_of(rank);
  if (index < 0) return {};
  Region slice = region_of(shape, spec.placement, spec.nd_sbp, index);
  auto [place, places] = partial_place(spec, index);
  DType dtype = DTypeOf<T>::value;
  Array a = Array::empty(slice.shape, dtype);
  if (strided) {
    // The axes' order in memory is turned round, and there is a gap after every element.
    Dims strides;
    int64_t step = 2;
    for (int64_t n : slice.shape) {
      strides.push_back(step);
      step *= n;
    }
    a = Array::empty({2 * a.numel() + 3}, dtype).view(slice.shape, strides, 3);
  }
  Array flat = strided ? Array::empty(slice.shape, dtype) : a;
  for_each_element(shape, slice, [&, place = place, places = places](int64_t i, int64_t element) {
    int64_t v = place < places - 1 ? noise(element, place) : value_of(element);
    for (int64_t q = 0; place == places - 1 && q < place; ++q) v -= noise(element, q);
    flat.data<T>()[i] = static_cast<T>(static_cast<float>(v));
  });
  if (strided) kernels::copy_region(a.bytes(), a.strides, flat.bytes(), flat.strides, a.shape, sizeof(T));
  return a;
}

// Empty if the parts are those of the tensor, else what is wrong.
template <class T>
std::string wrong(const Case& c, const std::vector<Array>& parts) {
  auto& spec = *c.to;
  std::map<std::vector<int64_t>, std::vector<double>> sums;  // by the coordinates that are not of P
  for (int rank = 0; rank < static_cast<int>(parts.size()); ++rank) {
    auto& part = parts[static_cast<size_t>(rank)];
    int index = spec.placement.index_of(rank);
    if (index < 0) {
      if (part.defined()) return fmt::format("rank {} is outside and has a part", rank);
      continue;
    }
    Region slice = region_of(c.shape, spec.placement, spec.nd_sbp, index);
    if (!part.defined() || !(part.shape == slice.shape) || part.dtype != DTypeOf<T>::value)
      return fmt::format("rank {} has a part of {}, not {}", rank, part.shape, slice.shape);
    Array flat = kernels::contiguous(part);
    Dims at = spec.placement.coordinate(index);
    std::vector<int64_t> key;
    for (int a = 0; a < at.size(); ++a)
      if (!spec.nd_sbp[a].is_partial()) key.push_back(at[a]);
    auto& sum = sums[key];
    sum.resize(static_cast<size_t>(slice.shape.numel()));
    for (int64_t i = 0; i < slice.shape.numel(); ++i)
      sum[static_cast<size_t>(i)] += static_cast<double>(static_cast<float>(flat.data<T>()[i]));
  }
  std::string text;
  for (auto& [key, sum] : sums) {
    int index = -1;
    for (int i = 0; i < spec.placement.size() && index < 0; ++i) {
      Dims at = spec.placement.coordinate(i);
      std::vector<int64_t> k;
      for (int a = 0; a < at.size(); ++a)
        if (!spec.nd_sbp[a].is_partial()) k.push_back(at[a]);
      if (k == key) index = i;
    }
    for_each_element(c.shape, region_of(c.shape, spec.placement, spec.nd_sbp, index),
                     [&, &sum = sum](int64_t i, int64_t element) {
                       if (text.empty() && sum[static_cast<size_t>(i)] != static_cast<double>(value_of(element)))
                         text = fmt::format("element {} at place {} is {}, not {}", element, index,
                                            sum[static_cast<size_t>(i)], value_of(element));
                     });
  }
  return text;
}

class RedistributeTest : public testing::Test {
 protected:
  // Runs all cases in one world and checks values, and that the bytes read are those of the plan.
  template <class T>
  void check(int world, const std::vector<Case>& cases, bool strided = false) {
    std::vector<std::vector<Array>> parts(cases.size(), std::vector<Array>(static_cast<size_t>(world)));
    std::vector<std::string> complaints(static_cast<size_t>(world));
    std::vector<std::vector<int64_t>> received(cases.size(), std::vector<int64_t>(static_cast<size_t>(world)));
    auto body = [&](int rank) {
      if (!hosts_.empty()) set_machine({{}, {hosts_}});  // as check_crossings() plans
      for (size_t i = 0; i < cases.size(); ++i) {
        auto& c = cases[i];
        Array in = part_of<T>(*c.from, c.shape, rank, strided);
        auto before = comm::stats().bytes_read, received_before = comm::stats().bytes_received;
        parts[i][static_cast<size_t>(rank)] = redistribute(c.from, c.to, c.shape, DTypeOf<T>::value, in);
        auto read = static_cast<int64_t>(comm::stats().bytes_read - before);
        received[i][static_cast<size_t>(rank)] = static_cast<int64_t>(comm::stats().bytes_received - received_before);
        int64_t planned = c.from == c.to ? 0 : plan(c.from, c.to, c.shape, DTypeOf<T>::value).read_bytes(rank);
        if (read != planned && complaints[static_cast<size_t>(rank)].empty())
          complaints[static_cast<size_t>(rank)] = fmt::format("rank {} has read {} bytes in {}", rank, read,
                                                              explain(c.from, c.to, c.shape, DTypeOf<T>::value));
      }
    };
    if (hosts_.empty())
      comm::run_ranks(world, body);
    else
      comm::run_ranks(hosts_, body);
    for (auto& text : complaints) EXPECT_EQ(text, "");
    if (!hosts_.empty()) check_crossings(cases, received, DTypeOf<T>::value);
    int failures = 0;
    for (size_t i = 0; i < cases.size() && failures < 5; ++i) {
      std::string text = wrong<T>(cases[i], parts[i]);
      if (text.empty()) continue;
      ++failures;
      ADD_FAILURE() << text << "\n" << explain(cases[i].from, cases[i].to, cases[i].shape, DTypeOf<T>::value);
    }
  }
  // What came into the busiest host is what the plan says, where one step does it.
  void check_crossings(const std::vector<Case>& cases, const std::vector<std::vector<int64_t>>& received, DType dtype) {
    Machine machine{{}, {hosts_}};
    int failures = 0, compared = 0;
    for (size_t i = 0; i < cases.size() && failures < 5; ++i) {
      auto& c = cases[i];
      Plan p = find_plan(c.from, c.to, c.shape, dtype, machine);
      if (c.from == c.to || p.steps().size() != 1) continue;
      std::map<int, int64_t> into;
      for (size_t r = 0; r < received[i].size(); ++r) into[hosts_[r]] += received[i][r];
      int64_t most = 0;
      for (auto [host, bytes] : into) most = std::max(most, bytes);
      ++compared;
      if (most == p.steps()[0].host_bytes) continue;
      ++failures;
      ADD_FAILURE() << most << " bytes came into a host\n" << p.str();
    }
    EXPECT_GT(compared, 10);
  }
  static std::vector<Case> pairs(const std::vector<const GlobalSpec*>& specs, const std::vector<Dims>& shapes) {
    std::vector<Case> cases;
    for (auto& shape : shapes)
      for (auto* from : specs)
        for (auto* to : specs) cases.push_back({from, to, shape});
    return cases;
  }
  std::vector<int> hosts_;  // of each rank; empty: all on one
  Context context_{0, 8, 0, 8};
  ContextGuard guard_{context_};
};

TEST_F(RedistributeTest, EveryPairOfOneAxis) {
  std::vector<Dims> shapes = {{4, 6, 2}, {5, 3, 2}, {1, 7, 2}, {0, 3, 1}, {40, 30, 20}};
  check<float>(2, pairs(all_specs(Placement("cpu", {0, 1}), options_of(3)), shapes));
  check<float>(3, pairs(all_specs(Placement("cpu", {0, 1, 2}), options_of(3)), shapes));
  check<float>(3, pairs(all_specs(Placement("cpu", {2, 0, 1}), options_of(3)), {{5, 4, 2}}));
}

TEST_F(RedistributeTest, EveryPairOfTwoAxes) {
  std::vector<Dims> shapes = {{4, 6, 2}, {5, 3, 2}, {1, 7, 2}};
  check<float>(4, pairs(all_specs(Placement::nested("cpu", {{0, 1}, {2, 3}}), options_of(3)), shapes));
  check<float>(4, pairs(all_specs(Placement::nested("cpu", {{0, 2}, {3, 1}}), options_of(3)), {{5, 3, 2}}));
}

TEST_F(RedistributeTest, EveryPairOfTwoAxesWithLargeSums) {
  // Above the limit of small sums, so all_reduce has two phases, uneven pieces among them.
  check<float>(4, pairs(all_specs(Placement::nested("cpu", {{0, 1}, {2, 3}}), options_of(2)), {{79, 53}}));
}

TEST_F(RedistributeTest, EveryPairOfPlacements) {
  std::vector<const GlobalSpec*> specs;
  auto add = [&](const Placement& p) {
    for (auto* s : all_specs(p, options_of(2))) specs.push_back(s);
  };
  add(Placement("cpu", {0, 1}));
  add(Placement("cpu", {2, 3}));
  add(Placement("cpu", {1, 2}));
  add(Placement("cpu", {1, 0}));
  add(Placement("cpu", {3}));
  add(Placement("cpu", {0, 1, 2, 3}));
  add(Placement::nested("cpu", {{0, 1}, {2, 3}}));
  add(Placement::nested("cpu", {{0, 2}, {1, 3}}));
  check<float>(4, pairs(specs, {{5, 3, 2}}));
}

TEST_F(RedistributeTest, EveryPairAcrossHosts) {
  for (std::vector<int> hosts : {std::vector{0, 0, 1, 1}, {0, 1, 0, 1}, {0, 1, 1, 1}, {0, 1, 2, 3}}) {
    hosts_ = hosts;
    check<float>(4,
                 pairs(all_specs(Placement("cpu", {0, 1, 2, 3}), options_of(2)), {{5, 3, 2}, {0, 3, 1}, {79, 53, 1}}));
    check<float>(4,
                 pairs(all_specs(Placement::nested("cpu", {{0, 1}, {2, 3}}), options_of(2)), {{5, 3, 2}, {79, 53, 1}}));
    check<float>(4, pairs(all_specs(Placement::nested("cpu", {{0, 2}, {3, 1}}), options_of(2)), {{5, 3, 2}}));
  }
  hosts_ = {0, 0, 1};
  check<BFloat16>(3, pairs(all_specs(Placement("cpu", {2, 0, 1}), options_of(3)), {{5, 4, 2}, {130, 9, 2}}));
}

TEST_F(RedistributeTest, EveryPairOfPlacementsAcrossHosts) {
  std::vector<const GlobalSpec*> specs;
  auto add = [&](const Placement& p) {
    for (auto* s : all_specs(p, options_of(2))) specs.push_back(s);
  };
  add(Placement("cpu", {0, 1}));
  add(Placement("cpu", {2, 3}));
  add(Placement("cpu", {1, 2}));
  add(Placement("cpu", {3}));
  add(Placement("cpu", {0, 1, 2, 3}));
  add(Placement::nested("cpu", {{0, 2}, {1, 3}}));
  hosts_ = {0, 0, 1, 1};
  check<float>(4, pairs(specs, {{5, 3, 2}}));
}

TEST_F(RedistributeTest, TensorsWithoutAxesOrElements) {
  std::vector<const GlobalSpec*> specs;
  for (auto& p : {Placement("cpu", {0, 1}), Placement("cpu", {3, 1, 2}), Placement("cpu", Dims{2, 2}, {0, 1, 2, 3})})
    for (auto* s : all_specs(p, options_of(0))) specs.push_back(s);
  check<float>(4, pairs(specs, {{}}));

  specs.clear();
  for (auto& p : {Placement("cpu", {0, 1, 2}), Placement("cpu", Dims{2, 2}, {0, 1, 2, 3})})
    for (auto* s : all_specs(p, options_of(2))) specs.push_back(s);
  check<float>(4, pairs(specs, {{0, 3}, {2, 0}, {1, 1}, {2, 1}}));
}

TEST_F(RedistributeTest, StridedParts) {
  std::vector<const GlobalSpec*> specs = all_specs(Placement("cpu", {0, 1, 2}), options_of(3));
  for (auto* s : all_specs(Placement("cpu", {1, 0}), options_of(3))) specs.push_back(s);
  check<float>(3, pairs(specs, {{5, 3, 2}, {7, 1, 4}}), true);
}

TEST_F(RedistributeTest, EveryTypeOfElement) {
  std::vector<const GlobalSpec*> specs = all_specs(Placement("cpu", {0, 1, 2}), options_of(2));
  std::vector<Dims> shapes = {{5, 3}, {130, 90}};
  check<double>(3, pairs(specs, shapes));
  check<int64_t>(3, pairs(specs, shapes));
  check<int32_t>(3, pairs(specs, shapes));
  check<Float16>(3, pairs(specs, shapes));
  check<BFloat16>(3, pairs(specs, shapes));
}

TEST_F(RedistributeTest, RandomGridsOfThreeAxes) {
  std::mt19937 random(11);
  auto pick = [&](size_t n) { return random() % n; };
  std::vector<Dims> grids = {{2, 2, 2}, {2, 4}, {8}, {2, 3}, {3, 1, 2}, {5}, {4, 2}, {1}};
  auto spec = [&](const Dims& grid, std::vector<int64_t> ranks) {
    std::vector<Sbp> list;
    for (int a = 0; a < grid.size(); ++a) list.push_back(options_of(3)[pick(5)]);
    return intern_spec(Placement("cpu", grid, std::move(ranks)), NdSbp(list));
  };
  std::vector<Case> cases;
  for (int trial = 0; trial < 500; ++trial) {
    std::vector<int64_t> ranks(8);
    std::iota(ranks.begin(), ranks.end(), 0);
    if (trial % 2) std::shuffle(ranks.begin(), ranks.end(), random);
    Dims shape = {static_cast<int64_t>(pick(10)), static_cast<int64_t>(1 + pick(9)), static_cast<int64_t>(1 + pick(5))};
    Dims from = {2, 2, 2}, to = trial % 3 ? from : grids[pick(grids.size())];
    std::vector<int64_t> others = ranks;
    if (trial % 3 == 0) std::shuffle(others.begin(), others.end(), random);
    others.resize(static_cast<size_t>(to.numel()));
    cases.push_back({spec(from, ranks), spec(to, others), shape});
    cases.push_back({spec(to, others), spec(from, ranks), shape});
  }
  check<float>(8, cases);
}

TEST_F(RedistributeTest, ViewsShareMemory) {
  auto* b = intern_spec(Placement("cpu", {0, 1}), B);
  auto* s = intern_spec(Placement("cpu", {0, 1}), S1);
  auto* p = intern_spec(Placement("cpu", {0, 1}), P);
  auto* overlapping = intern_spec(Placement("cpu", {1, 2}), B);
  comm::run_ranks(3, [&](int rank) {
    Array in = part_of<float>(*b, {3, 5}, rank, false);
    auto calls = comm::stats().calls;
    Array split = redistribute(b, s, {3, 5}, float32, in);
    Array partial = redistribute(b, p, {3, 5}, float32, in);
    EXPECT_EQ(redistribute(b, b, {3, 5}, float32, in).storage, in.storage);
    EXPECT_EQ(comm::stats().calls, calls) << "views need no communication";
    if (rank < 2) {
      EXPECT_EQ(split.storage, in.storage);
      EXPECT_EQ(split.offset, rank == 0 ? 0 : 3);
      EXPECT_EQ(split.strides, (Dims{5, 1}));
      EXPECT_EQ(partial.storage == in.storage, rank == 0);
    } else {
      EXPECT_FALSE(split.defined() || partial.defined());
    }
    // Rank 1 has it already, whatever the others do.
    Array moved = redistribute(b, overlapping, {3, 5}, float32, in);
    EXPECT_EQ(moved.defined(), rank > 0);
    EXPECT_EQ(moved.storage == in.storage, rank == 1 || rank == 0 ? moved.defined() : false);
  });
}

// Sums of numbers that do not fit together: every rank gets the same bits, those of adding in the order of the ranks.
template <class T>
void check_bits(int64_t n) {
  auto* p = intern_spec(Placement("cpu", {0, 1, 2, 3}), P);
  auto* b = intern_spec(Placement("cpu", {0, 1, 2, 3}), B);
  auto* s = intern_spec(Placement("cpu", {0, 1, 2, 3}), S0);
  std::vector<std::vector<T>> addends(4, std::vector<T>(static_cast<size_t>(n)));
  std::mt19937 random(3);
  for (auto& a : addends)
    for (auto& v : a)
      v = static_cast<T>(static_cast<float>(
          std::ldexp(static_cast<float>(random() % 2000) - 1000.f, static_cast<int>(random() % 9) - 10)));
  std::vector<T> expected(static_cast<size_t>(n));
  for (size_t i = 0; i < expected.size(); ++i) {
    typename DTypeOf<T>::Compute sum = addends[0][i];
    for (size_t r = 1; r < 4; ++r) sum = sum + static_cast<typename DTypeOf<T>::Compute>(addends[r][i]);
    expected[i] = static_cast<T>(sum);
  }
  comm::run_ranks(4, [&](int rank) {
    Array in = Array::empty({n}, DTypeOf<T>::value);
    std::memcpy(in.bytes(), addends[static_cast<size_t>(rank)].data(), in.nbytes());
    Array whole = redistribute(p, b, {n}, in.dtype, in);
    EXPECT_EQ(std::memcmp(whole.bytes(), expected.data(), whole.nbytes()), 0) << name(in.dtype) << " " << n;
    Array piece = redistribute(p, s, {n}, in.dtype, in);
    Region mine = region_of({n}, s->placement, s->nd_sbp, rank);
    EXPECT_EQ(std::memcmp(piece.bytes(), expected.data() + mine.offset[0], piece.nbytes()), 0)
        << name(in.dtype) << " " << n;
    // The parts that were given are as they were.
    EXPECT_EQ(std::memcmp(in.bytes(), addends[static_cast<size_t>(rank)].data(), in.nbytes()), 0);
  });
}

TEST_F(RedistributeTest, SumsHaveTheSameBitsEverywhere) {
  for (int64_t n : {1, 7, 100, 20011}) {
    check_bits<float>(n);
    check_bits<double>(n);
    check_bits<Float16>(n);
    check_bits<BFloat16>(n);
  }
}

TEST_F(RedistributeTest, BooleansAreOred) {
  auto* p = intern_spec(Placement("cpu", {0, 1}), P);
  auto* b = intern_spec(Placement("cpu", {0, 1}), B);
  comm::run_ranks(2, [&](int rank) {
    Array in = Array::empty({4}, boolean);
    bool mine[2][4] = {{false, true, false, true}, {false, false, true, true}};
    std::memcpy(in.bytes(), mine[rank], 4);
    Array out = redistribute(p, b, {4}, boolean, in);
    bool expected[4] = {false, true, true, true};
    EXPECT_EQ(std::memcmp(out.bytes(), expected, 4), 0);
  });
}

TEST_F(RedistributeTest, DevicesOfAnotherKindShareNoMemory) {
  setenv("HOLON_SIMULATE", "cuda", 1);
  auto* cpu = intern_spec(Placement("cpu", {0, 1}), B);
  auto* cuda = intern_spec(Placement("cuda", {0, 1}), B);
  auto* half = intern_spec(Placement("cuda", {0, 1}), S0);
  unsetenv("HOLON_SIMULATE");
  comm::run_ranks(2, [&](int rank) {
    Array in = part_of<float>(*cpu, {4, 2}, rank, false);
    for (auto* to : {cuda, half}) {
      Array out = redistribute(cpu, to, {4, 2}, float32, in);
      EXPECT_FALSE(out.storage == in.storage);
      EXPECT_EQ(out.device.type, parse_device_type("cuda"));
      EXPECT_TRUE(out.device.simulated);
      Region slice = region_of({4, 2}, to->placement, to->nd_sbp, rank);
      for_each_element({4, 2}, slice, [&](int64_t i, int64_t element) {
        EXPECT_EQ(out.data<float>()[i], static_cast<float>(value_of(element)));
      });
    }
  });
}

TEST_F(RedistributeTest, APartOfAnotherShapeIsOurFault) {
  auto* s = intern_spec(Placement("cpu", {0}), S0);
  auto* b = intern_spec(Placement("cpu", {0}), B);
  comm::run_ranks(1, [&](int) {
    EXPECT_THROW(redistribute(s, b, {4}, float32, Array::empty({3}, float32)), Error);
    EXPECT_THROW(redistribute(s, b, {4}, float32, Array::empty({4}, float64)), Error);
    EXPECT_THROW(redistribute(s, b, {4}, float32, {}), Error);
  });
}

}  // namespace
}  // namespace holon::boxing
