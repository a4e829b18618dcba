// The memory through which ranks of one host communicate: a table of groups, and for each group one slot per member. It
// is the same whether ranks are processes or threads; it starts as zeros and nothing in it is a pointer. A group is
// claimed by whichever member asks first and stays for as long as the world.
#pragma once

#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "holon/array/dims.h"
#include "holon/comm/core/communicator.h"
#include "holon/comm/core/report.h"

namespace holon::comm {

// A text that is written once, by whoever comes first.
template <size_t N>
struct OneText {
  std::atomic<uint32_t> state;  // 0 empty, 1 being written, 2 readable
  int32_t rank;                 // who wrote it
  uint64_t at;                  // when, in the writer's count
  char text[N];

  bool set(int by, uint64_t when, std::string_view value) {
    uint32_t empty = 0;
    if (!state.compare_exchange_strong(empty, 1)) return false;
    rank = by;
    at = when;
    size_t n = value.copy(text, N - 1);
    text[n] = 0;
    state.store(2);
    return true;
  }
  bool is_set() const { return state.load() == 2; }
  // The text that somebody writes or has written. Who writes needs well under a microsecond, unless it is stopped or
  // killed just there.
  std::string_view await() const {
    using Clock = std::chrono::steady_clock;
    for (const auto give_up = Clock::now() + std::chrono::seconds(1); !is_set(); sched_yield())
      if (Clock::now() > give_up) return "a rank has failed, and has ended or stopped before it could say why";
    return text;
  }
};

class World;

// What a member says about its call; peers read it only to word an error.
struct CallDetails {
  uint64_t call;  // the group's opens, counted from 1
  uint64_t bytes;
  uint64_t fingerprint;
  int64_t shape[kMaxAxes];
  uint8_t axes;
  DType dtype;
  char op[46];
  uint32_t sited;  // 1: site may be read; by has_site() and set_sited() only, as a peer may look meanwhile
  char site[112];

  bool has_site() const { return std::atomic_ref(const_cast<uint32_t&>(sited)).load(std::memory_order_acquire) != 0; }
  void set_sited(bool is) { std::atomic_ref(sited).store(is, std::memory_order_release); }

  // Writes the call down, with the site if there is one. Returns the hash of what must be alike.
  uint64_t describe(const CallInfo& info, uint64_t number, size_t size, const char* where);
  // Looks up where the user's program is, if that is not known yet.
  void note_site();

  std::string str() const;  // "all_reduce [4, 5] float32 (80 bytes)"
};

// In the rank's report.
CallNote note_of(const CallDetails& details, int table_index);

// Written by one member, read by the others. The two halves of published, details and payload alternate between calls:
// a peer may still read the one of call n while call n + 1 is written, and nobody writes call n + 2 before all members
// have come to call n + 1.
struct alignas(64) MemberSlot {
  struct Published {
    uint64_t check;  // op, dtype, fingerprint and call number, hashed
    uint64_t bytes;
    uint64_t offset;  // where peers find the buffer; kInline: in payload
  };
  static constexpr uint64_t kInline = ~uint64_t{0};

  std::atomic<uint64_t> arrived;  // how many synchronisations of the group this member has come to
  Published published[2];
  alignas(64) CallDetails details[2];
  alignas(64) std::byte payload[2][Communicator::kInlineBytes];
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

struct alignas(64) GroupHeader {
  std::atomic<uint32_t> wake;        // futex word: changes when sleepers should look again
  std::atomic<uint32_t> sleepers;    // members inside or near a futex wait
  alignas(64) OneText<1400> failed;  // why the group cannot go on
};

struct Group {
  GroupHeader* header = nullptr;
  MemberSlot* slots = nullptr;
  int size = 0;

  bool all_arrived(uint64_t target) const {
    for (int i = 0; i < size; ++i)
      if (slots[i].arrived.load() < target) return false;
    return true;
  }
};

struct alignas(64) RankEntry {
  std::atomic<uint32_t> finished;       // the rank's program has ended
  std::atomic<uint32_t> waiting_group;  // 1 + table index of the group that the rank sleeps in, 0: none
  std::atomic<uint64_t> waiting_call;
  RankReport report;
};

// The block of a world. Pre: the memory was zero before create().
class ControlBlock {
 public:
  static constexpr size_t kRegionBytes = size_t{512} << 20;  // address space: pages that are not touched cost nothing
  static constexpr int kMaxGroups = 8192;

  ControlBlock() = default;
  ControlBlock(void* base, bool between_processes)
      : base_(static_cast<std::byte*>(base)), between_processes_(between_processes) {}
  void create(int world_size);

  int world_size() const;
  RankEntry& rank_entry(int rank) const;
  OneText<2000>& aborted() const;

  // The group of exactly these ranks, in this order, on this channel, for a rank of `world`. Errors: the table is full;
  // a rank that was about to enter a group is neither dead nor goes on within the communication time-out.
  Group group(const World& world, std::span<const int> ranks, int64_t channel = 0, int* table_index = nullptr) const;
  std::string group_text(int table_index) const;  // "[0-3]"
  std::vector<int> group_ranks(int table_index) const;

  // Makes everybody who sleeps in any group look again.
  void wake_all() const;
  // Futexes on a word of the block; sleep() returns when woken, when the word is not `seen`, or after slice_us.
  void wake(std::atomic<uint32_t>& word) const;
  void sleep(std::atomic<uint32_t>& word, uint32_t seen, int64_t slice_us) const;

 private:
  struct Header;
  Header& header() const;
  Group view(uint64_t offset, uint32_t size) const;
  const int32_t* members(uint64_t offset) const;
  void await_claim(const World& world, int table_index, std::span<const int> ranks) const;

  std::byte* base_ = nullptr;
  bool between_processes_ = false;
};

// "[0-3]" or "[0, 2, 5]"
std::string ranks_text(std::span<const int> ranks);

}  // namespace holon::comm
