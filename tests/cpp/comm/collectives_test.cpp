#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "holon/base/error.h"
#include "holon/comm/communicator.h"
#include "holon/comm/run_ranks.h"
#include "holon/kernels/cpu/add_n.h"
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
    for (int d = 0; d < kDTypeCount; ++d) test::check_collectives(whole_world(n), static_cast<DType>(d));
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
