#include "holon/comm/core/row_pulls.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

namespace holon::comm {
namespace {

using Kind = RowPulls::Kind;

struct Case {
  Kind kind;
  int members;
  std::vector<int64_t> counts;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  std::mt19937 random(3);
  for (int members : {1, 2, 3, 5, 8})
    for (int64_t largest : {0, 1, 40, 3000}) {
      auto count = [&] { return static_cast<int64_t>(random() % static_cast<uint64_t>(largest + 1)); };
      std::vector<int64_t> each(static_cast<size_t>(members)), matrix(each.size() * each.size());
      for (auto& c : each) c = count();
      for (auto& c : matrix) c = count();
      all.push_back({Kind::kAllReduce, members, {count()}});
      all.push_back({Kind::kReduceScatter, members, each});
      all.push_back({Kind::kAllGather, members, each});
      all.push_back({Kind::kAllToAll, members, matrix});
      all.push_back({Kind::kBroadcast, members, {count(), static_cast<int64_t>(random()) % members}});
    }
  return all;
}

// What every member's part or result holds at most.
int64_t most(const Case& c) {
  int64_t n = 0;
  for (int64_t count : c.counts) n += count;
  return n + c.members;
}

// The short ways of a row do what its pulls say.
TEST(RowPulls, DoWhatTheirPullsSay) {
  for (const Case& c : cases())
    for (int me = 0; me < c.members; ++me) {
      const RowPulls rows(c.kind, c.members, me, c.counts, DType::kFloat32);
      EXPECT_EQ(rows.elements_read(me), rows.GroupPulls::elements_read(me)) << static_cast<int>(c.kind) << " " << me;
      for (int phase = 0; phase < rows.phases(); ++phase) {
        std::vector<std::vector<float>> data(static_cast<size_t>(c.members));
        std::vector<const std::byte*> parts;
        std::mt19937 random(static_cast<unsigned>(me));
        for (auto& part : data) {
          for (int64_t i = 0; i < most(c); ++i) part.push_back(static_cast<float>(random() % 1000));
          parts.push_back(reinterpret_cast<const std::byte*>(part.data()));
        }
        std::vector<float> out(static_cast<size_t>(most(c)), -1), expected = out;
        const size_t bytes = out.size() * sizeof(float);
        rows.run(phase, DType::kFloat32, parts, reinterpret_cast<std::byte*>(out.data()), bytes);
        pull_all(rows.mine(phase), DType::kFloat32, parts, reinterpret_cast<std::byte*>(expected.data()), bytes);
        EXPECT_EQ(out, expected) << static_cast<int>(c.kind) << " of " << c.members << ", member " << me;
      }
    }
}

// Every element of a result is written once.
TEST(RowPulls, FillTheResult) {
  for (const Case& c : cases())
    for (int me = 0; me < c.members; ++me) {
      const RowPulls rows(c.kind, c.members, me, c.counts, DType::kFloat32);
      int64_t size = 0;
      switch (c.kind) {
        case Kind::kAllReduce: size = c.counts[0]; break;
        case Kind::kReduceScatter: size = c.counts[static_cast<size_t>(me)]; break;
        case Kind::kAllGather:
          for (int64_t n : c.counts) size += n;
          break;
        case Kind::kAllToAll:
          for (int k = 0; k < c.members; ++k) size += c.counts[static_cast<size_t>(k * c.members + me)];
          break;
        case Kind::kBroadcast: size = me == c.counts[1] ? 0 : c.counts[0]; break;
      }
      std::vector<int> written(static_cast<size_t>(size));
      for (int phase = 0; phase < rows.phases(); ++phase)
        for (const Pull& p : rows.mine(phase))
          for (int64_t i = 0; i < p.shape[0]; ++i) ++written.at(static_cast<size_t>(p.dst_start + i));
      EXPECT_EQ(written, std::vector<int>(written.size(), 1)) << static_cast<int>(c.kind) << ", member " << me;
    }
}

}  // namespace
}  // namespace holon::comm
