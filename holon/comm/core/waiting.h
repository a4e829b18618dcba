// How ranks of one host wait for each other: they spin first, then sleep on the group's futex, and look now and then
// why they wait in vain. Header of comm/'s own sources.
#pragma once

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "holon/base/blocking.h"
#include "holon/base/error.h"
#include "holon/base/format.h"
#include "holon/comm/core/background.h"
#include "holon/comm/core/world.h"

namespace holon::comm {

inline int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

inline void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// The longest that a sleeper goes without looking for dead peers, aborts and the deadline.
inline constexpr int64_t kSliceUs = 50'000;

// The channel on which the rank's own thread measures the machine before the program begins: it waits there as on 0.
inline constexpr int kMeasuringChannel = 2;

// How a thread of this rank spins: not at all, or for so long, or so many times letting others run.
struct WaitPolicy {
  int64_t spin_ns;
  int yields;
  // channel: of the thread's context. A second thread spins where it has its own core.
  WaitPolicy(const World& world, int channel)
      : spin_ns(is_own(channel) || world.cores_here() >= 2 * world.ranks_here() ? world.spin_ns() : 0),
        yields(is_own(channel) ? world.yields() : 0) {}
  // The rank's own thread waits there.
  static bool is_own(int channel) { return channel == 0 || channel == kMeasuringChannel; }
};

// False: done() has not become true yet. work_ns: how much longer than usual it may take.
template <class Done>
bool spin_until(Done&& done, const WaitPolicy& policy, int64_t work_ns = 0) {
  int64_t until = 0;
  int yields = 0;
  for (int turns = 0; !done();) {
    if (policy.spin_ns <= 0) {
      // Who is to come is often ready to run on this very core, and then needs no waking.
      if (++yields > policy.yields) return false;
      sched_yield();
      continue;
    }
    if (++turns % 32 == 0) {
      int64_t now = now_ns();
      if (until == 0) until = now + policy.spin_ns + work_ns;
      if (now > until) return false;
    }
    pause_cpu();
  }
  return true;
}

// In its scope the host language runs on, and peers can see that this rank sleeps and in which group.
class Sleeping {
 public:
  // shown: the rank's entry has room for one thread, its own.
  Sleeping(World& world, GroupHeader& header, int table_index, uint64_t call, bool shown)
      : header_(header), entry_(world.block().rank_entry(world.rank())), shown_(shown) {
    if (shown_) {
      entry_.waiting_call.store(call);
      entry_.waiting_group.store(static_cast<uint32_t>(table_index) + 1);
    }
    header_.sleepers.fetch_add(1);
  }
  ~Sleeping() {
    header_.sleepers.fetch_sub(1);
    if (shown_) entry_.waiting_group.store(0);
  }

 private:
  BlockingScope unlocked_;
  GroupHeader& header_;
  RankEntry& entry_;
  const bool shown_;
};

// Sleeps until call.done(); false if this rank has given up first, but what it waited for came at that moment. A call
// says:
//   bool done();                // what it waits for is there
//   void check();               // throws if the group has failed
//   std::string trouble(int64_t waited_ns, int* ended);  // why waiting is hopeless, empty while it is not; *ended: the
//                                                         // rank that is gone, if that is why
//   void give_up(const std::string& why);                 // so that the others hear of it
//   std::string op(), text();                             // for messages
template <class Call>
bool sleep_until(Call& call, World& world, GroupHeader& header) {
  const int64_t start = now_ns();
  for (;;) {
    uint32_t seen = header.wake.load();
    if (call.done()) return true;
    int64_t waited = now_ns() - start;
    call.check();
    int ended = -1;
    std::string why = call.trouble(waited, &ended);
    if (!why.empty()) {
      if (ended >= 0) world.report_failure(ended);
      call.give_up(why);
      if (call.done()) return false;
      throw Error(ErrorKind::kRuntime, why);
    }
    if (auto poll = blocking_hooks().poll) {
      try {
        poll();
      } catch (...) {
        call.give_up(
            formatted("{}: rank {} was interrupted while waiting ({}).", call.op(), world.rank(), call.text()));
        throw;
      }
    }
    if (background_must_end()) {
      why = formatted("{}: rank {} is ending before its background work is done ({}). Wait for all work first.",
                      call.op(), world.rank(), call.text());
      call.give_up(why);
      call.check();
      throw Error(ErrorKind::kRuntime, why);
    }
    int64_t left_us = static_cast<int64_t>((world.timeout_s() * 1e9 - static_cast<double>(waited)) / 1000) + 1;
    world.block().sleep(header.wake, seen, std::clamp<int64_t>(left_us, 1, kSliceUs));
  }
}

// Of how many late ranks an error tells.
inline constexpr size_t kMostDescribed = 4;

// What is known of ranks that do not come, a text for each of the first kMostDescribed: " Rank 2 waits in another
// group, ... It waits there for rank 3. Rank 3 is stopped ... Rank 2 sleeps at train.py:31. Its last call was ... . "
// They are asked, which takes a moment. table_index: of the group that waits.
std::vector<std::string> describe_late(const World& world, std::span<const int> ranks, int table_index);
// "Its last call was ... . "
std::string last_seen(const World& world, int rank);

// "0, 2"
std::string list_text(std::span<const int> ranks);

// A copy of a caller's buffer in memory that peers reach.
class StagingBuffer {
 public:
  StagingBuffer() = default;
  explicit StagingBuffer(size_t bytes);  // uninitialised
  StagingBuffer(const void* data, size_t bytes);
  StagingBuffer(StagingBuffer&& o) noexcept : data_(std::exchange(o.data_, nullptr)), bytes_(o.bytes_) {}
  StagingBuffer& operator=(StagingBuffer&& o) noexcept {
    std::swap(data_, o.data_), std::swap(bytes_, o.bytes_);
    return *this;
  }
  ~StagingBuffer();
  void* data() const { return data_; }
  // Peers may read on in it.
  void leave() { data_ = nullptr; }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace holon::comm
