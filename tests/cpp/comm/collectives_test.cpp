#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <vector>

#include "holon/base/error.h"
#include "holon/comm/core/communicator.h"
#include "holon/comm/run_ranks.h"
#include "holon/kernels/add_n.h"
#include "tests/cpp/comm/collective_cases.h"

namespace holon::comm {
namespace {

Communicator& whole_world(int n) {
  std::vector<int> ranks(static_cast<size_t>(n));
  std::iota(ranks.begin(), ranks.end(), 0);
  return communicator(ranks);
}

class Collectives : public testing::TestWithParam<int> {};

TEST_P(Collectives, EveryDType) {
  const int n = GetParam();
  run_ranks(n, [&](int) {
    for (int d = 0; d < kComputedDTypeCount; ++d) test::check_collectives(whole_world(n), static_cast<DType>(d));
  });
}

TEST_P(Collectives, Subgroups) {
  const int n = GetParam();
  run_ranks(n, [&](int rank) { test::check_subgroups(rank, n); });
}

TEST_P(Collectives, ByteCounts) {
  const int n = GetParam();
  run_ranks(n, [&](int) { test::check_byte_counts(whole_world(n)); });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Collectives, testing::Values(1, 2, 3, 5, 8));

TEST(Collectives, LargeAllReduceHasTheSameBitsOnEveryRank) {
  // Sums of these depend on the order of addition; the ranks' own order is promised.
  const int n = 3;
  const int64_t count = 10007;
  std::vector<std::vector<float>> results(n);
  run_ranks(n, [&](int rank) {
    std::vector<float> in(count);
    for (int64_t i = 0; i < count; ++i)
      in[static_cast<size_t>(i)] = std::pow(10.f, static_cast<float>((i + rank * 3) % 9)) / 7;
    auto& out = results[static_cast<size_t>(rank)];
    out.resize(count);
    whole_world(n).all_reduce(in.data(), out.data(), count, float32);
  });
  for (int64_t i = 0; i < count; ++i) {
    float sum = 0;
    for (int r = 0; r < n; ++r) sum += std::pow(10.f, static_cast<float>((i + r * 3) % 9)) / 7;
    ASSERT_EQ(results[0][static_cast<size_t>(i)], sum) << i;
  }
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

// One way to sum, whichever way it is moved: sizes that are inline, cut into stretches, streamed; any number of ranks.
TEST(Collectives, SumsHaveTheBitsOfTheRanksInOrder) {
  for (DType dtype : {float32, float64, float16, bfloat16})
    visit_dtype(dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      using Acc = std::conditional_t<sizeof(T) == 2, float, T>;
      if constexpr (std::is_same_v<T, float> || std::is_same_v<T, double> || sizeof(T) == 2) {
        auto value = [](int rank, int64_t i) {
          return static_cast<T>(std::pow(10.f, static_cast<float>((i + rank * 3) % 5)) / 7 - static_cast<float>(rank));
        };
        for (int n : {2, 3, 5})
          for (int64_t count : {int64_t{11}, int64_t{10'007}, int64_t{5'000'000} / static_cast<int64_t>(sizeof(T))}) {
            std::vector<T> expected(static_cast<size_t>(count));
            for (int64_t i = 0; i < count; ++i) {
              auto sum = static_cast<Acc>(value(0, i));
              for (int r = 1; r < n; ++r) sum += static_cast<Acc>(value(r, i));
              expected[static_cast<size_t>(i)] = static_cast<T>(sum);
            }
            run_ranks(n, [&](int rank) {
              std::vector<T> in(expected.size()), out(expected.size());
              for (int64_t i = 0; i < count; ++i) in[static_cast<size_t>(i)] = value(rank, i);
              auto same = [&](const T* got, int64_t from, int64_t size) {
                return std::memcmp(got, expected.data() + from, static_cast<size_t>(size) * sizeof(T)) == 0;
              };
              for (int run = 0; run < 2; ++run) {
                whole_world(n).all_reduce(in.data(), out.data(), count, dtype);
                EXPECT_TRUE(same(out.data(), 0, count)) << "all_reduce " << name(dtype) << " " << n << " " << count;
              }
              std::vector<int64_t> counts(static_cast<size_t>(n), count / n);
              counts[0] += count % n;
              whole_world(n).reduce_scatter(in.data(), out.data(), counts, dtype);
              const int64_t before = rank == 0 ? 0 : counts[0] + (rank - 1) * (count / n);
              EXPECT_TRUE(same(out.data(), before, counts[static_cast<size_t>(rank)]))
                  << "reduce_scatter " << name(dtype) << " " << n << " " << count;
            });
          }
      }
    });
}

TEST(Collectives, HalfTypesAreAddedInFloat32) {
  // In float16 itself 2048 + 1 is 2048, in bfloat16 256 + 1 is 256.
  const int n = 5;
  run_ranks(n, [&](int rank) {
    for (int64_t count : {int64_t{3}, int64_t{9000}}) {
      std::vector<Float16> a(static_cast<size_t>(count), Float16(rank == 0 ? 2048.f : 1.f)), b(a.size());
      whole_world(n).all_reduce(a.data(), b.data(), count, float16);
      for (Float16 v : b) ASSERT_EQ(static_cast<float>(v), 2052.f);
      std::vector<BFloat16> c(a.size(), BFloat16(rank == 0 ? 256.f : 1.f)), d(a.size());
      whole_world(n).all_reduce(c.data(), d.data(), count, bfloat16);
      for (BFloat16 v : d) ASSERT_EQ(static_cast<float>(v), 260.f);
    }
  });
}

TEST(Collectives, OpenShowsPeersBuffersUntilClose) {
  run_ranks(3, [](int rank) {
    auto& g = whole_world(3);
    for (int round = 0; round < 200; ++round) {
      // Sizes differ between the ranks: inline on some, in place on others.
      std::vector<int> data(static_cast<size_t>(rank == round % 3 ? 5000 : 10 + rank), rank * 1000 + round);
      auto peers = g.open({"show", int32}, data.data(), data.size() * sizeof(int));
      for (int k = 0; k < 3; ++k) {
        auto* p = reinterpret_cast<const int*>(peers[static_cast<size_t>(k)]);
        ASSERT_EQ(p[0], k * 1000 + round);
        ASSERT_EQ(p[k == round % 3 ? 4999 : 9 + k], k * 1000 + round);
      }
      g.close();
    }
  });
}

TEST(Collectives, AllToAllChecksBothSides) {
  run_ranks(2, [](int rank) {
    int data[4] = {}, out[4];
    std::vector<int64_t> send = {1, rank == 0 ? 3 : 1}, recv = {1, 1};
    try {
      whole_world(2).all_to_all(data, out, send, recv, int32);
      ADD_FAILURE() << "no error";
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("rank 0 sends 3 elements to rank 1, which expects 1"), std::string::npos)
          << e.what();
    }
  });
}

TEST(Communicators, WrongGroups) {
  auto message = [](std::vector<int> ranks) -> std::string {
    try {
      communicator(ranks);
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kValue);
      return e.what();
    }
    return "";
  };
  run_ranks(2, [&](int rank) {
    EXPECT_NE(message({0, 2}).find("names rank 2, but the world has the ranks 0 to 1"), std::string::npos);
    EXPECT_NE(message({0, -1}).find("names rank -1"), std::string::npos);
    EXPECT_NE(message({0, 0}).find("rank 0 twice"), std::string::npos);
    EXPECT_NE(message({}).find("no ranks"), std::string::npos);
    EXPECT_NE(message({1 - rank}).find("not in"), std::string::npos);
  });
}

TEST(AddN, RoundsHalfTypesOnce) {
  for (DType dtype : {float16, bfloat16}) {
    visit_dtype(dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      if constexpr (sizeof(T) == 2) {
        // Every bit pattern of the first operand, with a second one that makes rounding matter.
        std::vector<T> a(65536), b(65536), out(65536);
        for (uint32_t i = 0; i < 65536; ++i) {
          a[i].bits = static_cast<uint16_t>(i);
          b[i] = T(static_cast<float>(i % 977) / 31 - 9);
        }
        const void* src[] = {a.data(), b.data()};
        kernels::add_n(out.data(), src, 65536, dtype);
        for (uint32_t i = 0; i < 65536; ++i) {
          float sum = static_cast<float>(a[i]) + static_cast<float>(b[i]);
          if (std::isnan(sum))
            ASSERT_TRUE(std::isnan(static_cast<float>(out[i]))) << name(dtype) << " " << i;
          else
            ASSERT_EQ(out[i].bits, T(sum).bits) << name(dtype) << " " << i;
        }
      }
    });
  }
}

TEST(AddN, AddsInPairsHoweverManyThereAre) {
  constexpr size_t kCount = 1300;  // more than one block
  std::vector<std::vector<float>> sources;
  for (size_t k = 0; k < 33; ++k) {
    sources.emplace_back(kCount);
    for (size_t i = 0; i < kCount; ++i) sources[k][i] = std::sin(static_cast<float>(i * 37 + k * 101 + 1));
  }
  std::function<float(size_t, size_t, size_t)> pairs = [&](size_t i, size_t first, size_t n) {
    if (n == 1) return sources[first][i];
    const size_t half = std::bit_floor(n - 1);
    return pairs(i, first, half) + pairs(i, first + half, n - half);
  };
  std::vector<const void*> src;
  for (auto& s : sources) {
    src.push_back(s.data());
    std::vector<float> out(kCount);
    kernels::add_n(out.data(), src, kCount, float32);
    for (size_t i = 0; i < kCount; ++i) ASSERT_EQ(out[i], pairs(i, 0, src.size())) << src.size() << " " << i;
  }
  std::vector<float> expected(kCount);
  for (size_t i = 0; i < kCount; ++i) expected[i] = pairs(i, 0, 8);
  src.resize(8);
  kernels::add_n(sources[5].data(), src, kCount, float32);  // in place
  EXPECT_EQ(sources[5], expected);
}

TEST(AddN, IntegersWrapAndBoolIsOr) {
  int32_t a[] = {std::numeric_limits<int32_t>::max(), 5}, b[] = {1, -7}, c[] = {0, 1}, d[] = {0, 2}, out[2];
  const void* src[] = {a, b, c, d};
  kernels::add_n(out, src, 2, int32);
  EXPECT_EQ(out[0], std::numeric_limits<int32_t>::min());
  EXPECT_EQ(out[1], 1);
  bool x[] = {false, true, true}, y[] = {false, false, true};
  const void* flags[] = {x, y};
  kernels::add_n(x, flags, 3, boolean);
  EXPECT_FALSE(x[0]);
  EXPECT_TRUE(x[1]);
  EXPECT_TRUE(x[2]);
}

}  // namespace
}  // namespace holon::comm
