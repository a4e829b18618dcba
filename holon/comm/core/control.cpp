#include "holon/comm/core/control.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <cstring>

#include "holon/base/blocking.h"
#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/hash.h"
#include "holon/base/index.h"
#include "holon/comm/core/world.h"

namespace holon::comm {

namespace {

constexpr uint32_t kFree = 0, kReady = 1, kClaimed = 2;

struct GroupDescriptor {
  std::atomic<uint32_t> state;  // kFree, kReady, or kClaimed + the rank that writes it
  uint32_t size;
  int64_t channel;
  uint64_t hash;
  uint64_t offset;
};

constexpr size_t align64(size_t n) { return (n + 63) & ~size_t{63}; }

size_t group_bytes(size_t members) {
  return align64(sizeof(GroupHeader) + members * sizeof(int32_t)) + members * sizeof(MemberSlot);
}

uint64_t hash_of(std::span<const int> ranks, int64_t channel) {
  return Hasher().add(channel).add_bytes(ranks.data(), ranks.size_bytes()).value();
}

}  // namespace

struct ControlBlock::Header {
  uint32_t world_size;
  std::atomic<uint64_t> used;  // bytes of the region that are taken
  OneText<2000> aborted;
  alignas(64) GroupDescriptor groups[kMaxGroups];
};

std::string CallDetails::str() const {
  std::string text =
      fmt::format("{} {} {} ({} bytes)", op[0] ? op : "(unnamed)",
                  Dims(std::span<const int64_t>(shape, std::min<size_t>(axes, kMaxAxes))), name(dtype), bytes);
  if (has_site() && site[0]) text += fmt::format(" at {}", site);
  return text;
}

uint64_t CallDetails::describe(const CallInfo& info, uint64_t number, size_t size, const char* where) {
  call = number;
  bytes = size;
  fingerprint = info.fingerprint ^ call_owner();
  axes = static_cast<uint8_t>(info.shape.size());
  for (int i = 0; i < info.shape.size(); ++i) shape[i] = info.shape[i];
  dtype = info.dtype;
  const bool marked = Context::current().layout_free();
  const std::string_view called = info.op ? info.op : "";
  const size_t n = std::min(called.size(), sizeof op - (marked ? sizeof kLayoutFree : 1));
  if (n) std::memcpy(op, called.data(), n);
  op[n] = 0;
  if (marked) std::memcpy(op + n, kLayoutFree, sizeof kLayoutFree);
  set_sited(false);
  if (where[0]) {
    std::memcpy(site, where, sizeof site);
    set_sited(true);
  }
  return Hasher().add(fingerprint).add(number).add(info.dtype).add_text(marked ? std::string_view(op) : called).value();
}

void CallDetails::note_site() {
  if (has_site()) return;
  site[0] = 0;
  if (auto line = blocking_hooks().where) line(site, sizeof site);
  set_sited(true);
}

CallNote note_of(const CallDetails& details, int table_index) {
  CallNote note;
  note.call = details.call;
  note.bytes = details.bytes;
  std::copy_n(details.shape, std::size(note.shape), note.shape);
  note.group = table_index;
  note.axes = details.axes;
  note.dtype = details.dtype;
  static_assert(sizeof note.op == sizeof details.op);
  std::memcpy(note.op, details.op, sizeof note.op);
  return note;
}

std::string ranks_text(std::span<const int> ranks) {
  bool consecutive = ranks.size() > 2;
  for (size_t i = 1; i < ranks.size(); ++i) consecutive &= ranks[i] == ranks[i - 1] + 1;
  if (consecutive) return fmt::format("[{}-{}]", ranks.front(), ranks.back());
  std::string text = "[";
  for (size_t i = 0; i < ranks.size(); ++i) text += (i ? ", " : "") + std::to_string(ranks[i]);
  return text + "]";
}

ControlBlock::Header& ControlBlock::header() const { return *reinterpret_cast<Header*>(base_); }

void ControlBlock::create(int world_size) {
  header().world_size = static_cast<uint32_t>(world_size);
  header().used = align64(sizeof(Header)) + to_size(world_size) * sizeof(RankEntry);
}

int ControlBlock::world_size() const { return static_cast<int>(header().world_size); }

RankEntry& ControlBlock::rank_entry(int rank) const {
  return reinterpret_cast<RankEntry*>(base_ + align64(sizeof(Header)))[rank];
}

OneText<2000>& ControlBlock::aborted() const { return header().aborted; }

Group ControlBlock::view(uint64_t offset, uint32_t size) const {
  auto* header = reinterpret_cast<GroupHeader*>(base_ + offset);
  auto* slots = reinterpret_cast<MemberSlot*>(base_ + offset + align64(sizeof(GroupHeader) + size * sizeof(int32_t)));
  return {header, slots, static_cast<int>(size)};
}

const int32_t* ControlBlock::members(uint64_t offset) const {
  return reinterpret_cast<const int32_t*>(base_ + offset + sizeof(GroupHeader));
}

// The claimer needs well under a microsecond, unless it was stopped or killed just there. An entry that a dead rank
// left is nobody's: what groups need that rank find out elsewhere, and the others go on.
void ControlBlock::await_claim(const World& world, int table_index, std::span<const int> ranks) const {
  using Clock = std::chrono::steady_clock;
  GroupDescriptor& d = header().groups[table_index];
  const auto give_up = Clock::now() + std::chrono::duration<double>(world.timeout_s());
  auto look_again = Clock::now() + std::chrono::milliseconds(1);
  for (uint32_t state; (state = d.state.load()) != kReady; sched_yield()) {
    if (Clock::now() < look_again) continue;
    look_again = Clock::now() + std::chrono::milliseconds(20);
    const auto claimer = static_cast<int>(state - kClaimed);
    if (!world.ended(claimer).empty() && d.state.load() == state) {
      d.size = 0;
      d.state.compare_exchange_strong(state, kReady);
    } else if (Clock::now() > give_up) {
      fail_runtime("the group {} could not be formed: rank {} stopped while entering its groups.", ranks_text(ranks),
                   claimer);
    }
  }
}

// Everybody walks the table from its start, and entries are never freed: the first that fits is the same for all.
Group ControlBlock::group(const World& world, std::span<const int> ranks, int64_t channel, int* table_index) const {
  const uint64_t hash = hash_of(ranks, channel);
  for (int i = 0; i < kMaxGroups; ++i) {
    GroupDescriptor& d = header().groups[i];
    if (table_index) *table_index = i;
    uint32_t state = d.state.load();
    if (state == kFree && d.state.compare_exchange_strong(state, kClaimed + static_cast<uint32_t>(world.rank()))) {
      uint64_t bytes = group_bytes(ranks.size());
      uint64_t offset = header().used.fetch_add(bytes);
      bool fits = offset + bytes <= kRegionBytes;
      if (!fits) header().used.fetch_sub(bytes), offset = 0;
      d.size = fits ? static_cast<uint32_t>(ranks.size()) : 0;
      d.channel = channel;
      d.hash = hash;
      d.offset = offset;
      if (fits) std::copy(ranks.begin(), ranks.end(), reinterpret_cast<int32_t*>(base_ + offset + sizeof(GroupHeader)));
      d.state.store(kReady);
      if (!fits) break;
      return view(offset, d.size);
    }
    if (d.state.load() != kReady) await_claim(world, i, ranks);
    if (d.hash == hash && d.channel == channel && d.size == ranks.size() &&
        std::equal(ranks.begin(), ranks.end(), members(d.offset)))
      return view(d.offset, d.size);
  }
  fail_runtime("there is no space for another group of ranks, {}: a world holds {} groups and {} MiB of their slots. "
               "Use fewer different groups.",
               ranks_text(ranks), kMaxGroups, kRegionBytes >> 20);
}

std::string ControlBlock::group_text(int table_index) const { return ranks_text(group_ranks(table_index)); }

std::vector<int> ControlBlock::group_ranks(int table_index) const {
  const GroupDescriptor& d = header().groups[table_index];
  return {members(d.offset), members(d.offset) + d.size};
}

void ControlBlock::wake_all() const {
  for (int i = 0; i < kMaxGroups && header().groups[i].state.load() != kFree; ++i) {
    const GroupDescriptor& d = header().groups[i];
    if (d.state.load() != kReady || d.size == 0) continue;
    GroupHeader& group = *view(d.offset, d.size).header;
    if (group.sleepers.load() != 0) wake(group.wake);
  }
}

void ControlBlock::wake(std::atomic<uint32_t>& word) const {
  word.fetch_add(1);
  syscall(SYS_futex, &word, between_processes_ ? FUTEX_WAKE : FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

void ControlBlock::sleep(std::atomic<uint32_t>& word, uint32_t seen, int64_t slice_us) const {
  timespec slice{slice_us / 1'000'000, slice_us % 1'000'000 * 1000};
  syscall(SYS_futex, &word, between_processes_ ? FUTEX_WAIT : FUTEX_WAIT_PRIVATE, seen, &slice, nullptr, 0);
}

}  // namespace holon::comm
