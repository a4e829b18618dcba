#include "holon/array/device_allocator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <random>
#include <thread>
#include <utility>

#include "fake_driver.h"
#include "holon/base/blocking.h"
#include "holon/base/error.h"

using namespace holon;

namespace {

constexpr size_t kMiB = size_t{1} << 20;

using Block = DeviceAllocator::Block;
void* at(Block* b) { return DeviceAllocator::data(b); }

TEST(DeviceAllocator, UsesAgainOnItsStreamAtOnce) {
  FakeDriver driver(100 * kMiB);
  FakeDriver::FakeStream s;
  DeviceAllocator a(driver);
  Block* x = a.allocate(&s, 1000);
  void* p = at(x);
  s.put = 5;
  a.free(x);
  Block* y = a.allocate(&s, 900);
  EXPECT_EQ(at(y), p);
  EXPECT_EQ(driver.used, 2 * kMiB);
  EXPECT_EQ(a.stats().in_use_bytes, 1024u);
  EXPECT_EQ(a.stats().peak_bytes, 1024u);
  EXPECT_EQ(a.stats().cached_bytes, 2 * kMiB - 1024);
  a.free(y);
  a.release_cached();
  EXPECT_EQ(driver.used, 0u);
}

TEST(DeviceAllocator, OtherStreamsWaitForTheWorkBefore) {
  FakeDriver driver(100 * kMiB);
  FakeDriver::FakeStream s, t;
  DeviceAllocator a(driver);
  Block* x = a.allocate(&s, 30 * kMiB);
  void* p = at(x);
  s.put = 7;
  a.free(x);
  Block* y = a.allocate(&t, 30 * kMiB);
  EXPECT_NE(at(y), p);
  s.done = 7;
  Block* z = a.allocate(&t, 30 * kMiB);
  EXPECT_EQ(at(z), p);
  a.free(y);
  a.free(z);
}

TEST(DeviceAllocator, ABlockThatTwoStreamsUseWaitsForBoth) {
  FakeDriver driver(100 * kMiB);
  FakeDriver::FakeStream s, communication;
  DeviceAllocator a(driver);
  Block* x = a.allocate(&s, 12 * kMiB);
  void* p = at(x);
  a.record_stream(x, &communication);
  a.record_stream(x, &s);
  communication.put = 3;
  a.free(x);
  Block* y = a.allocate(&s, 12 * kMiB);
  EXPECT_NE(at(y), p);
  communication.done = 3;
  Block* z = a.allocate(&s, 12 * kMiB);
  EXPECT_EQ(at(z), p);
  a.free(y);
  a.free(z);
}

TEST(DeviceAllocator, TakesTheSmallestThatFitsSplitsAndJoins) {
  FakeDriver driver(200 * kMiB);
  FakeDriver::FakeStream s;
  DeviceAllocator a(driver);
  Block* x = a.allocate(&s, 6 * kMiB);
  Block* y = a.allocate(&s, 6 * kMiB);
  Block* z = a.allocate(&s, 6 * kMiB);
  EXPECT_EQ(driver.used, 20 * kMiB);
  EXPECT_EQ(static_cast<std::byte*>(at(y)) - static_cast<std::byte*>(at(x)), static_cast<ptrdiff_t>(6 * kMiB));
  void* first = at(x);
  a.free(x);
  a.free(z);
  a.free(y);
  Block* whole = a.allocate(&s, 20 * kMiB);
  EXPECT_EQ(at(whole), first);
  EXPECT_EQ(driver.used, 20 * kMiB);
  Block* own = a.allocate(&s, 33 * kMiB);
  EXPECT_EQ(driver.used, 54 * kMiB);
  a.free(own);
  a.free(whole);
  // 34 and 20 MiB are free: the smaller one is enough.
  Block* best = a.allocate(&s, 9 * kMiB);
  EXPECT_EQ(at(best), first);
  a.free(best);
}

TEST(DeviceAllocator, GivesCachedSegmentsBackBeforeItFails) {
  FakeDriver driver(64 * kMiB);
  FakeDriver::FakeStream s, t;
  DeviceAllocator a(driver);
  Block* x = a.allocate(&s, 30 * kMiB);
  Block* y = a.allocate(&t, 30 * kMiB);
  s.put = t.put = 4;
  a.free(x);
  a.free(y);
  Block* z = a.allocate(&s, 60 * kMiB);
  EXPECT_EQ(driver.used, 60 * kMiB);
  try {
    a.allocate(&s, 8 * kMiB);
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(
        std::string(e.what()).find(
            "out of memory on cuda:0: 8.0 MiB (8388608 bytes) were requested; 60.0 MiB are in use and 0.0 MiB are "
            "cached in pieces, the device has 4.0 MiB free of 64.0 MiB"),
        std::string::npos)
        << e.what();
  }
  // A segment that is smaller than usual is better than none.
  Block* w = a.allocate(&s, 3 * kMiB);
  a.free(w);
  a.free(z);
}

TEST(DeviceAllocator, WaitsForOthersBeforeItFails) {
  FakeDriver driver(32 * kMiB);
  FakeDriver::FakeStream s, t;
  DeviceAllocator a(driver);
  Block* x = a.allocate(&s, 30 * kMiB);
  void* p = at(x);
  s.put = 9;
  a.free(x);
  Block* y = a.allocate(&t, 29 * kMiB);
  EXPECT_EQ(at(y), p);
  EXPECT_EQ(s.done, 9u);
  a.free(y);
}

TEST(DeviceAllocator, AFailedTryOfTheDriverIsTriedAgain) {
  FakeDriver driver(64 * kMiB);
  FakeDriver::FakeStream s;
  DeviceAllocator a(driver);
  driver.fail_next = 1;
  Block* x = a.allocate(&s, 100);
  EXPECT_TRUE(x);
  a.free(x);
}

TEST(DeviceAllocator, MemoryOfARecordingStaysWithIt) {
  FakeDriver driver(100 * kMiB);
  FakeDriver::FakeStream s;
  DeviceAllocator a(driver);
  Block* before = a.allocate(&s, 1000);
  Block* cached = a.allocate(&s, 1000);
  void *p_before = at(before), *p_cached = at(cached);
  a.free(cached);
  const auto pool = a.begin_recording(&s);
  driver.recorded.insert(&s);
  Block* x = a.allocate(&s, 1000);
  void* p = at(x);
  EXPECT_NE(p, p_cached);
  a.free(x);
  Block* y = a.allocate(&s, 1000);
  EXPECT_EQ(at(y), p);  // in the recording's order
  a.free(before);       // made outside: what was recorded may use it
  a.end_recording(&s);
  driver.recorded.clear();
  Block* after = a.allocate(&s, 1000);
  EXPECT_EQ(at(after), p_cached);
  a.free(y);
  Block* more = a.allocate(&s, 1000);
  EXPECT_NE(at(more), p);
  EXPECT_NE(at(more), p_before);
  a.free(after);
  a.free(more);
  a.release_cached();
  EXPECT_EQ(driver.used, 4 * kMiB);
  a.release(pool);
  a.release_cached();
  EXPECT_EQ(driver.used, 0u);
}

TEST(DeviceAllocator, NothingWaitsWhileItIsRecorded) {
  FakeDriver driver(32 * kMiB);
  FakeDriver::FakeStream s;
  DeviceAllocator a(driver);
  Block* x = a.allocate(&s, 20 * kMiB);
  a.free(x);
  const auto pool = a.begin_recording(&s);
  driver.recorded.insert(&s);
  EXPECT_THROW(a.allocate(&s, 20 * kMiB), Error);
  a.end_recording(&s);
  driver.recorded.clear();
  a.release(pool);
}

// Random work on three streams. No two live blocks overlap, and none begins where another stream's work is not done.
TEST(DeviceAllocator, RandomWork) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    std::mt19937_64 random(seed);
    FakeDriver driver(160 * kMiB);
    std::vector<FakeDriver::FakeStream> streams(3);
    DeviceAllocator a(driver);
    struct Live {
      std::byte* p;
      size_t bytes;
      size_t stream;
      std::vector<size_t> users;
    };
    struct Use {
      std::byte *begin, *end;
      size_t stream;
      uint64_t until;
      DeviceAllocator::PoolId pool;
    };
    std::map<Block*, Live> live;
    std::vector<Use> uses;
    size_t in_use = 0;
    DeviceAllocator::PoolId pool = 0, kept = 0;  // being recorded (of stream 0); one that lives on
    auto end_recording = [&] {
      a.end_recording(&streams[0]);
      driver.recorded.clear();
      if (kept) a.release(kept);
      for (auto& u : uses)
        if (kept && u.pool == kept) u.pool = 0, u.until = streams[0].put;
      kept = pool;
      pool = 0;
    };
    for (int step = 0; step < 4000; ++step) {
      const uint64_t what = random() % 100;
      if (what < 50) {
        const size_t stream = random() % streams.size();
        const size_t kind = random() % 4;
        const size_t bytes = kind < 2 ? random() % 5000 + 1
            : kind == 2               ? random() % kMiB + 1
                                      : random() % (14 * kMiB) + 1;
        Block* b = nullptr;
        try {
          b = a.allocate(&streams[stream], bytes);
        } catch (const Error&) {
          continue;
        }
        auto* p = static_cast<std::byte*>(at(b));
        ASSERT_EQ(reinterpret_cast<uintptr_t>(p) % 512, 0u);
        auto segment = std::prev(driver.segments.upper_bound(p));
        ASSERT_LE(p + bytes, segment->first + segment->second);
        for (auto& [other, l] : live)
          ASSERT_TRUE(p + bytes <= l.p || l.p + l.bytes <= p) << "two live blocks overlap, seed " << seed;
        for (auto& u : uses) {
          if (p + bytes <= u.begin || u.end <= p) continue;
          ASSERT_TRUE(u.pool == 0 || (u.pool == pool && stream == 0))
              << "a recording's memory was given away, seed " << seed;
          ASSERT_TRUE(u.stream == stream || streams[u.stream].done >= u.until)
              << "used before its event, seed " << seed;
        }
        live[b] = {p, bytes, stream, {}};
      } else if (what < 85 && !live.empty()) {
        auto it = std::next(live.begin(), static_cast<ptrdiff_t>(random() % live.size()));
        Live& l = it->second;
        auto use = [&](size_t s) { uses.push_back({l.p, l.p + l.bytes, s, ++streams[s].put, s == 0 ? pool : 0}); };
        use(l.stream);
        for (size_t s : l.users) use(s);
        a.free(it->first);
        live.erase(it);
      } else if (what < 90 && !live.empty()) {
        auto it = std::next(live.begin(), static_cast<ptrdiff_t>(random() % live.size()));
        const size_t user = 1 + random() % (streams.size() - 1);
        a.record_stream(it->first, &streams[user]);
        if (user != it->second.stream) it->second.users.push_back(user);
      } else if (what < 97) {
        auto& s = streams[random() % streams.size()];
        if (s.put > s.done) s.done += random() % (s.put - s.done) + 1;
      } else if (what == 97) {
        a.release_cached();
      } else if (what == 98) {
        if (pool) {
          end_recording();
        } else {
          pool = a.begin_recording(&streams[0]);
          driver.recorded.insert(&streams[0]);
        }
      }
      std::erase_if(uses, [&](const Use& u) { return u.pool == 0 && streams[u.stream].done >= u.until; });
      in_use = a.stats().in_use_bytes;
      size_t least = 0;
      for (auto& [b, l] : live) least += l.bytes;
      ASSERT_GE(in_use, least);
      ASSERT_EQ(a.stats().in_use_bytes + a.stats().cached_bytes, driver.used);
    }
    if (pool) end_recording();
    if (kept) a.release(kept);
    for (auto& [b, l] : live) a.free(b);
    a.release_cached();
    EXPECT_EQ(a.stats().in_use_bytes, 0u);
    EXPECT_EQ(driver.used, 0u) << "seed " << seed;
  }
}

TEST(DeviceAllocator, ThreadsWithStreamsOfTheirOwn) {
  FakeDriver driver(512 * kMiB);
  DeviceAllocator a(driver);
  std::vector<FakeDriver::FakeStream> streams(4);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < streams.size(); ++t)
    threads.emplace_back([&, t] {
      std::mt19937_64 random(t);
      std::vector<Block*> mine;
      for (int i = 0; i < 20000; ++i) {
        if (mine.size() < 20 && random() % 2) {
          mine.push_back(a.allocate(&streams[t], random() % (2 * kMiB) + 1));
        } else if (!mine.empty()) {
          std::swap(mine[random() % mine.size()], mine.back());
          a.free(mine.back());
          mine.pop_back();
        }
      }
      for (Block* b : mine) a.free(b);
    });
  for (auto& t : threads) t.join();
  EXPECT_EQ(a.stats().in_use_bytes, 0u);
}

// An interpreter's lock, which threads give away while they wait.
std::mutex interpreter;
thread_local bool has_interpreter = false;
std::atomic<bool> never_got_it_back{false};

void take_interpreter() {
  // try_lock_for() would lock by pthread_mutex_clocklock(), which ThreadSanitizer does not see.
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!(has_interpreter = interpreter.try_lock()) && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  if (!has_interpreter) never_got_it_back = true;
}
void give_interpreter() {
  if (std::exchange(has_interpreter, false)) interpreter.unlock();
}

struct WaitingDriver : FakeDriver {
  using FakeDriver::FakeDriver;
  std::atomic<bool> waits{false};
  void wait(Event e) override {
    BlockingScope unlocked;
    waits = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // the other thread takes the interpreter meanwhile
    FakeDriver::wait(e);
  }
};

TEST(DeviceAllocator, WaitsForMemoryWhileOtherThreadsWithTheInterpreterFreeTheirs) {
  const BlockingHooks before = blocking_hooks();
  set_blocking_hooks({[]() -> void* {
                        if (!has_interpreter) return nullptr;
                        give_interpreter();
                        return &interpreter;
                      },
                      [](void*) { take_interpreter(); }, before.poll, before.where, before.place, before.function,
                      before.dump_stack});
  WaitingDriver driver(32 * kMiB);
  FakeDriver::FakeStream s, t;
  {
    DeviceAllocator a(driver);
    Block* small = a.allocate(&s, 1000);
    Block* large = a.allocate(&s, 30 * kMiB);
    s.put = 1;
    a.free(large);
    std::thread other([&] {
      while (!driver.waits) std::this_thread::yield();
      take_interpreter();
      a.free(small);
      give_interpreter();
    });
    take_interpreter();
    a.free(a.allocate(&t, 29 * kMiB));
    give_interpreter();
    other.join();
  }
  EXPECT_FALSE(never_got_it_back);
  set_blocking_hooks(before);
}

}  // namespace
