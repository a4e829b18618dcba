#include "holon/base/hash.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace holon {
namespace {

TEST(Hash, DependsOnEveryWordAndOnTheOrder) {
  static_assert(hash_words(1, 2) == hash_words(1, 2));
  EXPECT_NE(hash_words(1, 2), hash_words(2, 1));
  EXPECT_NE(hash_words(0), hash_words(0, 0));
  EXPECT_NE(hash_words(), hash_words(0));
  EXPECT_EQ(hash_words(-1), hash_words(~uint64_t{0}));  // signs are extended
  const int there = 0;
  EXPECT_EQ(hash_words(&there), Hasher().add(reinterpret_cast<uintptr_t>(&there)).value());
}

TEST(Hash, OfBytesDependsOnTheirNumber) {
  std::set<uint64_t> seen;
  for (size_t n = 0; n < 40; ++n) seen.insert(hash_text(std::string(n, '\0')));
  EXPECT_EQ(seen.size(), 40u);
  EXPECT_EQ(hash_text("placement"), hash_bytes("placement", 9));
  EXPECT_NE(Hasher().add_text("ab").add_text("c").value(), Hasher().add_text("a").add_text("bc").value());
}

// Tables take the low bits, and tags are cut to some of them: no single bit of a word may be without effect there.
TEST(Hash, SpreadsSmallWordsOverAllBits) {
  for (int shift : {0, 24, 48}) {
    std::set<uint64_t> parts;
    for (uint64_t i = 0; i < 4096; ++i) parts.insert(hash_words(i) >> shift & 0xffff);
    EXPECT_GT(parts.size(), 3900u) << "bits from " << shift;  // 3,970 would be expected of random numbers
  }
  for (int bit = 0; bit < 64; ++bit) EXPECT_NE(hash_words(uint64_t{1} << bit) & 0xffff, hash_words(0) & 0xffff) << bit;
}

// Shuffles and drawn digits are made of these numbers: they never change.
TEST(SplitMix64, HasTheNumbersOfItsDefinition) {
  uint64_t state = 1234567;
  for (uint64_t expected : {6457827717110365317ull, 3203168211198807973ull, 9817491932198370423ull,
                            4593380528125082431ull, 16408922859458223821ull})
    EXPECT_EQ(splitmix64(state), expected);
}

}  // namespace
}  // namespace holon
