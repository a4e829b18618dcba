#include "holon/array/memory.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "holon/array/arena.h"
#include "holon/array/storage.h"
#include "holon/base/error.h"
#include "tests/cpp/sanitizers.h"

namespace holon {
namespace {

constexpr size_t kMiB = size_t{1} << 20;
// What makes a block of so many MiB, also with the bytes behind it that AddressSanitizer guards.
constexpr size_t block(size_t mib) { return mib * kMiB - 64; }

// Begins with an empty cache, and leaves no limit behind.
class Memory : public ::testing::Test {
 protected:
  Memory() { reset(); }
  ~Memory() override { reset(); }
  static void reset() {
    set_memory_limit(std::nullopt);
    set_cache_high_water(std::nullopt);
    release_cached_memory();
    reset_peak_memory();
  }
  static size_t cached() { return memory_stats().cached_bytes; }
  static size_t in_use() { return memory_stats().in_use_bytes; }
};

struct Block {
  explicit Block(size_t bytes) : bytes(bytes), at(allocate_block(bytes)) {}
  ~Block() { free_block(at, bytes); }
  Block(const Block&) = delete;
  size_t bytes;
  void* at;
};

TEST_F(Memory, ShapesThatVaryKeepNoMoreThanWasInUse) {
  const size_t largest = 300 * kMiB, before = cached();
  for (size_t bytes = 10 * kMiB; bytes <= largest; bytes += bytes / 8) Block one(bytes);
  // The largest, rounded up by at most a quarter; small blocks are kept in any case.
  EXPECT_LE(cached(), largest + largest / 4 + before);
  // And what is used again and again stays.
  void* at = Block(largest).at;
  const size_t kept = cached();
  EXPECT_EQ(Block(largest).at, at);
  EXPECT_EQ(cached(), kept);
}

TEST_F(Memory, OneStepAfterTheOtherReusesItsBlocks) {
  // As in training: sizes that do not repeat within a step, all held at its middle. Nothing is taken anew in the
  // second.
  auto step = [] {
    std::set<void*> found;
    std::vector<std::unique_ptr<Block>> held;
    for (size_t i = 1; i <= 12; ++i) found.insert(held.emplace_back(std::make_unique<Block>(i * 3 * kMiB))->at);
    return found;
  };
  const auto first = step();
  EXPECT_EQ(step(), first);
  EXPECT_EQ(step(), first);
}

TEST_F(Memory, TheLongestUnusedGoesFirst) {
  set_cache_high_water(100 * kMiB);
  EXPECT_EQ(cache_high_water(), 100 * kMiB);
  const size_t before = cached();
  void *a = allocate_block(block(40)), *b = allocate_block(block(28)), *c = allocate_block(block(48));
  free_block(b, block(28));
  free_block(a, block(40));
  EXPECT_EQ(cached(), before + 68 * kMiB);
  free_block(c, block(48));
  EXPECT_EQ(cached(), before + 88 * kMiB) << "the block that was freed first is gone";
  set_cache_high_water(0);
  EXPECT_EQ(cached(), before) << "only blocks of up to 1 MiB are left";
  { Block d(block(40)); }
  EXPECT_EQ(cached(), before) << "nothing is kept";
  set_cache_high_water(std::nullopt);
  EXPECT_EQ(cache_high_water(), std::nullopt);
}

TEST_F(Memory, ALimitIsKeptAndWhatIsCachedGivenBackFirst) {
  { Block slab(64); }  // small blocks have their first slab from here on
  const size_t base = in_use() + cached() + 8 * kMiB;
  set_memory_limit(base + 100 * kMiB);
  EXPECT_EQ(memory_limit(), base + 100 * kMiB);
  set_cache_high_water(1000 * kMiB);
  { Block first(block(80)); }
  EXPECT_GE(cached(), 80 * kMiB);
  {
    Block other(block(64));  // would be 144 MiB with what is cached
    EXPECT_LT(cached(), 80 * kMiB);
    const size_t used = in_use();
    try {
      allocate_block(block(64));
      FAIL() << "128 MiB within a limit of 100";
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kRuntime);
      EXPECT_NE(std::string(e.what()).find("out of memory: 67108800 bytes were requested"), std::string::npos)
          << e.what();
      EXPECT_NE(std::string(e.what()).find("set_memory_limit"), std::string::npos) << e.what();
    }
    EXPECT_EQ(in_use(), used) << "what failed is not counted";
    Block fits(block(16));
  }
  set_memory_limit(std::nullopt);
  EXPECT_EQ(memory_limit(), std::nullopt);
  Block large(200 * kMiB);
}

TEST_F(Memory, ALowerLimitTrimsAtOnce) {
  { Block slab(64); }
  const size_t base = in_use() + cached() + 8 * kMiB;
  set_cache_high_water(1000 * kMiB);
  { Block a(40 * kMiB), b(80 * kMiB); }
  set_memory_limit(base + 90 * kMiB);
  EXPECT_LE(in_use() + cached(), base + 90 * kMiB);
}

#ifndef HOLON_ADDRESS_SANITIZER  // which needs address space of its own

// The system's own no: address space is what a process may limit for itself, without regard to the machine's memory.
TEST_F(Memory, WhatTheSystemRefusesIsTriedAgainWithoutTheCache) {
  const pid_t child = fork();
  if (child == 0) {
    // 0: as it should be; else where it went wrong.
    _exit([]() -> int {
      set_cache_high_water(size_t{1} << 40);
      { Block cached(512 * kMiB); }
      size_t pages = 0;
      std::ifstream("/proc/self/statm") >> pages;
      const size_t now = pages * static_cast<size_t>(sysconf(_SC_PAGESIZE));
      const rlimit limit{now + 256 * kMiB, now + 256 * kMiB};
      if (setrlimit(RLIMIT_AS, &limit) != 0) return 2;
      try {
        Block other(640 * kMiB);  // room for 256, and 768 without the cache
      } catch (const Error&) {
        return 3;
      }
      try {
        Block more(2048 * kMiB);
        return 4;
      } catch (const Error&) {
      }
      return 0;
    }());
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

#endif

TEST_F(Memory, RandomBlocksAreApartAndCounted) {
  std::mt19937 random(7);
  set_cache_high_water(64 * kMiB);
  struct One {
    size_t bytes;
    uint8_t mark;
    uint8_t* at;
  };
  std::vector<One> live;
  const size_t before = in_use();
  for (int i = 0; i < 3000; ++i) {
    if (live.empty() || random() % 2) {
      const size_t bytes = size_t{1} << (random() % 23), n = bytes + random() % bytes;
      auto* at = static_cast<uint8_t*>(allocate_block(n));
      live.push_back({n, static_cast<uint8_t>(i), at});
      at[0] = at[n - 1] = static_cast<uint8_t>(i);
    } else {
      const size_t k = random() % live.size();
      EXPECT_EQ(live[k].at[0], live[k].mark);
      EXPECT_EQ(live[k].at[live[k].bytes - 1], live[k].mark);
      free_block(live[k].at, live[k].bytes);
      live[k] = live.back();
      live.pop_back();
    }
  }
  for (auto& one : live) free_block(one.at, one.bytes);
  EXPECT_EQ(in_use(), before);
}

TEST(AddressSpace, JoinsWhatIsGivenBack) {
  AddressSpace space(100);
  EXPECT_EQ(space.take(30), 0u);
  EXPECT_EQ(space.take(30), 30u);
  EXPECT_EQ(space.take(30), 60u);
  EXPECT_EQ(space.take(20), std::nullopt);
  space.give(0, 30);
  EXPECT_EQ(space.take(40), std::nullopt);
  space.give(30, 30);
  EXPECT_EQ(space.take(60), 0u);
  space.give(60, 30);
  EXPECT_EQ(space.end(), 60u);
  EXPECT_EQ(space.take(40), 60u);
  space.give(0, 60);
  space.give(60, 40);
  EXPECT_EQ(space.end(), 0u);
}

TEST(AddressSpace, AgainstAListOfBytes) {
  std::mt19937 random(3);
  AddressSpace space(400);
  std::vector<bool> taken(400);
  std::vector<std::pair<size_t, size_t>> live;
  for (int i = 0; i < 5000; ++i) {
    if (live.empty() || random() % 5 < 3) {
      const size_t n = 1 + random() % 40;
      const auto at = space.take(n);
      size_t run = 0, longest = 0;
      for (bool t : taken) longest = std::max(longest, run = t ? 0 : run + 1);
      ASSERT_EQ(at.has_value(), longest >= n);
      if (!at) continue;
      for (size_t b = *at; b < *at + n; ++b) {
        ASSERT_FALSE(taken[b]);
        taken[b] = true;
      }
      live.emplace_back(*at, n);
    } else {
      const size_t k = random() % live.size();
      space.give(live[k].first, live[k].second);
      for (size_t b = live[k].first; b < live[k].first + live[k].second; ++b) taken[b] = false;
      live.erase(live.begin() + static_cast<ptrdiff_t>(k));
    }
  }
}

}  // namespace
}  // namespace holon
