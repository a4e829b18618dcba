#include "holon/array/pinned_allocator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <thread>

#include "fake_driver.h"
#include "holon/array/array.h"
#include "holon/array/device_runtime.h"
#include "holon/base/error.h"

using namespace holon;

namespace {

constexpr size_t kMiB = size_t{1} << 20;

using Block = PinnedAllocator::Block;
void* at(Block* b) { return PinnedAllocator::data(b); }

struct Host : FakeDriver {
  explicit Host(size_t total) : FakeDriver(total) { unit = 1; }
};

TEST(PinnedAllocator, UsesABlockAgainAtOnceWhereNoCopyHasIt) {
  Host driver(100 * kMiB);
  PinnedAllocator a(driver);
  Block* x = a.allocate(100'000);
  void* p = at(x);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(p) % 512, 0u);
  a.free(x);
  Block* y = a.allocate(99'000);  // of the same class
  EXPECT_EQ(at(y), p);
  EXPECT_EQ(driver.used, 2 * kMiB);
  EXPECT_GE(a.stats().in_use_bytes, 100'000u);
  EXPECT_EQ(a.stats().in_use_bytes + a.stats().cached_bytes, driver.used);
  a.free(y);
  EXPECT_EQ(a.stats().in_use_bytes, 0u);
  a.release_cached();
  EXPECT_EQ(driver.used, 0u);
}

TEST(PinnedAllocator, AFreedBlockWaitsForTheCopiesThatUseIt) {
  Host driver(100 * kMiB);
  FakeDriver::FakeStream s, t;
  PinnedAllocator a(driver);
  Block* x = a.allocate(5 * kMiB);
  void* p = at(x);
  s.put = 3;
  a.used_on(x, &s);
  t.put = 8;
  a.used_on(x, &t);
  s.put = 4;
  a.used_on(x, &s);  // a second copy on the stream: its event takes the place of the first
  EXPECT_EQ(driver.events, 2);
  a.free(x);
  s.done = 3, t.done = 8;
  Block* y = a.allocate(5 * kMiB);
  EXPECT_NE(at(y), p);
  s.done = 4;
  Block* z = a.allocate(5 * kMiB);
  EXPECT_EQ(at(z), p);
  EXPECT_EQ(driver.events, 0);
  a.free(y);
  a.free(z);
}

TEST(PinnedAllocator, WorkThatIsPutOnAStreamAfterTheCopyIsNotWaitedFor) {
  Host driver(100 * kMiB);
  FakeDriver::FakeStream s;
  PinnedAllocator a(driver);
  Block* x = a.allocate(kMiB);
  void* p = at(x);
  s.put = 1;
  a.used_on(x, &s);
  s.put = 100;
  a.free(x);
  s.done = 1;
  Block* y = a.allocate(kMiB);
  EXPECT_EQ(at(y), p);
  a.free(y);
}

TEST(PinnedAllocator, WaitsForCopiesBeforeItFails) {
  Host driver(8 * kMiB);
  FakeDriver::FakeStream s;
  PinnedAllocator a(driver);
  Block* x = a.allocate(6 * kMiB);
  void* p = at(x);
  s.put = 2;
  a.used_on(x, &s);
  a.free(x);
  Block* y = a.allocate(6 * kMiB);
  EXPECT_EQ(at(y), p);
  EXPECT_EQ(s.done, 2u);
  a.free(y);
}

TEST(PinnedAllocator, GivesCachedSegmentsBackBeforeItFails) {
  Host driver(16 * kMiB);
  PinnedAllocator a(driver);
  Block* small = a.allocate(1000);  // holds a segment of 2 MiB
  Block* x = a.allocate(8 * kMiB);
  a.free(x);
  Block* y = a.allocate(14 * kMiB);
  EXPECT_EQ(driver.used, 16 * kMiB);
  try {
    a.allocate(3 * kMiB);
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("out of pinned memory: 3145728 bytes were requested; 14681088 are in use"),
              std::string::npos)
        << e.what();
  }
  EXPECT_THROW(a.allocate(SIZE_MAX), Error);
  Block* other = a.allocate(2000);  // from the segment that is there
  a.free(other);
  a.free(y);
  a.free(small);
}

TEST(PinnedAllocator, RandomUseByThreadsNeverOverlaps) {
  Host driver(512 * kMiB);
  PinnedAllocator a(driver);
  std::mutex mutex;
  std::map<std::byte*, size_t> live;
  auto work = [&](unsigned seed) {
    std::mt19937 random(seed);
    std::vector<std::pair<Block*, size_t>> mine;
    for (int i = 0; i < 2000; ++i) {
      if (mine.size() < 20 && random() % 3) {
        const size_t bytes = random() % 5 ? random() % 5000 : random() % (4 * kMiB);
        Block* b = a.allocate(bytes);
        std::lock_guard lock(mutex);
        auto* p = static_cast<std::byte*>(at(b));
        auto next = live.lower_bound(p);
        EXPECT_TRUE(next == live.end() || p + bytes <= next->first);
        EXPECT_TRUE(next == live.begin() || std::prev(next)->first + std::prev(next)->second <= p);
        live[p] = std::max<size_t>(bytes, 1);
        mine.push_back({b, bytes});
      } else if (!mine.empty()) {
        std::swap(mine[random() % mine.size()], mine.back());
        {
          std::lock_guard lock(mutex);
          live.erase(static_cast<std::byte*>(at(mine.back().first)));
        }
        a.free(mine.back().first);
        mine.pop_back();
      }
    }
    for (auto& [b, bytes] : mine) {
      std::lock_guard lock(mutex);
      live.erase(static_cast<std::byte*>(at(b)));
      a.free(b);
    }
  };
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < 4; ++i) threads.emplace_back(work, i);
  for (auto& t : threads) t.join();
  EXPECT_EQ(a.stats().in_use_bytes, 0u);
}

TEST(PinnedAllocator, WithoutADeviceTheErrorSaysWhatToDo) {
  if (pinning_runtime()) GTEST_SKIP() << "there is a device";
  try {
    Array::empty_pinned({2, 3}, {3, 1}, DType::kFloat32);
    FAIL();
  } catch (const Error& e) {
    const std::string text = e.what();
    EXPECT_NE(text.find("pin_memory"), std::string::npos) << text;
    EXPECT_NE(text.find("[2, 3]"), std::string::npos) << text;
    EXPECT_NE(text.find("HOLON_SIMULATE=cuda"), std::string::npos) << text;
  }
  EXPECT_FALSE(Array::empty({2}, DType::kFloat32).is_pinned());
}

}  // namespace
