#include "holon/comm/group_communicator.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "holon/array/storage.h"
#include "holon/base/blocking.h"
#include "holon/base/error.h"
#include "holon/base/log.h"
#include "holon/base/trace.h"
#include "holon/comm/background.h"

namespace holon::comm {

namespace {

int64_t now_ns() {
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

inline uint64_t mix(uint64_t h, uint64_t v) {
  h = (h ^ v) * 0x9e3779b97f4a7c15;
  return h ^ h >> 32;
}

std::string list_text(const std::vector<int>& ranks) {
  std::string text;
  for (size_t i = 0; i < ranks.size(); ++i) text += (i ? ", " : "") + std::to_string(ranks[i]);
  return text;
}

// The longest that a sleeper goes without looking for dead peers, aborts and the deadline.
constexpr int64_t kSliceUs = 50'000;
// How long a late rank gets to say where it is, and of how many an error tells.
constexpr double kAskSeconds = 0.5;
constexpr size_t kMostDescribed = 4;
// Ranks that disagree wait for each other's lines; all of them get here at once.
constexpr int64_t kSiteNs = 500'000'000;
// While its peers are known to copy, a rank with a core of its own spins on: waking it would take longer than they
// need.
constexpr uint64_t kSlowBytesPerNs = 4, kMostWorkNs = 20'000'000;

}  // namespace

GroupCommunicator::Bounce::~Bounce() {
  if (data) free_block(data, bytes);
}

GroupCommunicator::GroupCommunicator(World& world, std::vector<int> ranks, int index, CommStats& stats,
                                     const char* site, int channel)
    : Communicator(std::move(ranks), index),
      world_(world),
      stats_(stats),
      site_(site),
      channel_(channel),
      spin_ns_(channel == 0 || world.cores_here() >= 2 * world.ranks_here() ? world.spin_ns() : 0),
      yields_(channel == 0 ? world.yields() : 0) {
  group_ = world_.block().group(this->ranks(), channel, &table_index_);
  pointers_.resize(static_cast<size_t>(size()));
}

GroupCommunicator::~GroupCommunicator() = default;

std::span<const std::byte* const> GroupCommunicator::open(const CallInfo& info, const void* data, size_t bytes) {
  if (group_.header->failed.state.load() != 0) [[unlikely]]
    raise_failed();
  ++stats_.calls;
  const size_t half = ++calls_ & 1;
  MemberSlot& slot = group_.slots[index()];

  CallDetails& details = slot.details[half];
  details.call = calls_;
  details.bytes = bytes;
  details.fingerprint = info.fingerprint;
  details.axes = static_cast<uint8_t>(info.shape.size());
  for (int i = 0; i < info.shape.size(); ++i) details.shape[i] = info.shape[i];
  details.dtype = info.dtype;
  uint64_t check = mix(mix(info.fingerprint + 1, calls_), static_cast<uint64_t>(info.dtype));
  const size_t length = info.op ? std::strlen(info.op) : 0, n = std::min(length, sizeof details.op - 1);
  for (size_t i = 0; i < length; i += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, info.op + i, std::min(length - i, sizeof word));
    check = mix(check, word);
  }
  if (n) std::memcpy(details.op, info.op, n);
  details.op[n] = 0;
  details.set_sited(false);
  if (site_[0]) {
    std::memcpy(details.site, site_, sizeof details.site);
    details.set_sited(true);
  }
  if (channel_ == 0) record(details);  // the report has one writer

  // What peers may still be reading for the call before stays until they have all come to this one.
  Bounce bounce;
  uint64_t offset = MemberSlot::kInline;
  if (bytes <= kInlineBytes) {
    if (bytes) std::memcpy(slot.payload[half], data, bytes);
  } else if (auto reachable = world_.publish(data, bytes)) {
    offset = *reachable;
  } else {
    bounce.data = allocate_block(bytes);
    bounce.bytes = bytes;
    std::memcpy(bounce.data, data, bytes);
    offset = *world_.publish(bounce.data, bytes);
  }
  slot.published[half] = {mix(check, 0), bytes, offset};

  if (log::enabled(log::Channel::kComm))
    log::line(log::Channel::kComm, fmt::format("{} ({})", details.op, call_text()));
  open_ = false;  // a call that fails has nothing to close
  arrive_and_wait();
  bounce_ = std::move(bounce);
  compare();
  open_ = true;
  pointers_[static_cast<size_t>(index())] = static_cast<const std::byte*>(data);
  return pointers_;
}

void GroupCommunicator::close() {
  if (!open_) return;
  open_ = false;
  if (must_wait_) arrive_and_wait();
  work_ns_ = 0;
  bounce_ = Bounce();
}

void GroupCommunicator::arrive_and_wait() {
  tracing::Span span("wait", "wait");
  const uint64_t target = ++arrivals_;
  group_.slots[index()].arrived.store(target);
  // A sleeper counts itself before it looks at the arrivals for the last time, and we arrive before we look for
  // sleepers: one of both sees the other.
  if (group_.header->sleepers.load() != 0 && group_.all_arrived(target)) world_.block().wake(group_.header->wake);
  if (!spin(target)) {
    sleep(target);
    return;
  }
  // A member that gave up did so before it could see the last arrival. Then nobody goes on: it may reuse its buffer.
  if (group_.header->failed.state.load() != 0 && failed_at(target)) [[unlikely]]
    raise_failed();
}

void GroupCommunicator::record(const CallDetails& details) {
  world_.block().rank_entry(world_.rank()).report.note([&](CallNote& note) {
    note.call = details.call;
    note.bytes = details.bytes;
    std::copy_n(details.shape, std::size(note.shape), note.shape);
    note.group = table_index_;
    note.axes = details.axes;
    note.dtype = details.dtype;
    static_assert(sizeof note.op == sizeof details.op);
    std::memcpy(note.op, details.op, sizeof note.op);
  });
}

void GroupCommunicator::note_site() {
  CallDetails& details = group_.slots[index()].details[calls_ & 1];
  if (details.has_site()) return;
  details.site[0] = 0;
  if (auto where = blocking_hooks().where) where(details.site, sizeof details.site);
  details.set_sited(true);
}

bool GroupCommunicator::spin(uint64_t target) const {
  int64_t until = 0;
  int yields = 0;
  for (int i = 0, turns = 0; i < size();) {
    if (group_.slots[i].arrived.load() >= target) {
      ++i;
      continue;
    }
    if (spin_ns_ <= 0) {
      // Who is to come is often ready to run on this very core, and then needs no waking.
      if (++yields > yields_) return false;
      sched_yield();
      continue;
    }
    if (++turns % 32 == 0) {
      int64_t now = now_ns();
      if (until == 0) until = now + spin_ns_ + work_ns_;
      if (now > until) return false;
    }
    pause_cpu();
  }
  return true;
}

// Lets the host language run, and tells peers that this rank sleeps and where.
class GroupCommunicator::Sleeping {
 public:
  explicit Sleeping(GroupCommunicator& c)
      : header_(*c.group_.header), entry_(c.world_.block().rank_entry(c.world_.rank())), shown_(c.channel_ == 0) {
    // An entry has room for one thread of the rank: its own.
    if (shown_) {
      entry_.waiting_call.store(c.calls_);
      entry_.waiting_group.store(static_cast<uint32_t>(c.table_index_) + 1);
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

void GroupCommunicator::sleep(uint64_t target) {
  note_site();  // who sleeps has the time
  Sleeping scope(*this);
  auto& header = *group_.header;
  const int64_t start = now_ns();
  auto give_up = [&](const std::string& why) {
    header.failed.set(world_.rank(), target, why);
    world_.block().wake(header.wake);
  };
  for (;;) {
    uint32_t seen = header.wake.load();
    if (group_.all_arrived(target)) break;
    int64_t waited = now_ns() - start;
    if (header.failed.state.load() != 0 && failed_at(target)) raise_failed();
    int ended = -1;
    std::string why = trouble(target, waited, &ended);
    if (!why.empty()) {
      if (ended >= 0) world_.report_failure(ended);
      give_up(why);
      // They came at the last moment and may be reading my buffer already: this call has succeeded, the next will fail.
      if (group_.all_arrived(target)) return;
      throw Error(ErrorKind::kRuntime, why);
    }
    if (auto poll = blocking_hooks().poll) {
      try {
        poll();
      } catch (...) {
        give_up(fmt::format("{}: rank {} was interrupted while it waited ({}).", my_details().op, world_.rank(),
                            call_text()));
        throw;
      }
    }
    if (background_must_end()) {
      give_up(fmt::format("{}: rank {} ends before its work in the background is done ({}). Wait for all work first.",
                          my_details().op, world_.rank(), call_text()));
      raise_failed();
    }
    int64_t left_us = static_cast<int64_t>((world_.timeout_s() * 1e9 - static_cast<double>(waited)) / 1000) + 1;
    world_.block().sleep(header.wake, seen, std::clamp<int64_t>(left_us, 1, kSliceUs));
  }
  if (header.failed.state.load() != 0 && failed_at(target)) raise_failed();
}

std::vector<int> GroupCommunicator::missing(uint64_t target) const {
  std::vector<int> result;
  for (int i = 0; i < size(); ++i)
    if (group_.slots[i].arrived.load() < target) result.push_back(ranks()[static_cast<size_t>(i)]);
  return result;
}

std::string GroupCommunicator::call_text() const {
  const CallDetails& d = my_details();
  std::string text = fmt::format("group {}, call {}, {} {}, {} bytes", ranks_text(ranks()), d.call,
                                 Dims(std::span<const int64_t>(d.shape, d.axes)), name(d.dtype), d.bytes);
  if (d.has_site() && d.site[0]) text += fmt::format(", at {}", d.site);
  return text;
}

std::string GroupCommunicator::trouble(uint64_t target, int64_t waited_ns, int* ended) const {
  const char* op = my_details().op;
  auto& aborted = world_.block().aborted();
  if (aborted.is_set()) {
    // The failing rank may have arrived here before it failed; then this call is complete.
    if (group_.all_arrived(target)) return {};
    return fmt::format("{}: rank {} has failed: {} ({})", op, aborted.rank, aborted.text, call_text());
  }
  for (int rank : missing(target)) {
    std::string how = world_.ended(rank);
    if (how.empty()) continue;
    auto still = missing(target);  // it may have arrived just before it ended
    if (std::find(still.begin(), still.end(), rank) == still.end()) continue;
    *ended = rank;
    return fmt::format(
        "{}: rank {} {} without joining this call ({}). Did not arrive: {}. {}Read rank {}'s output first.", op, rank,
        how, call_text(), list_text(still), last_seen(rank), rank);
  }
  if (static_cast<double>(waited_ns) < world_.timeout_s() * 1e9) return {};
  std::vector<int> late = missing(target);
  if (late.empty()) return {};
  std::vector<RankReport*> reports;
  for (int rank : late) reports.push_back(&world_.block().rank_entry(rank).report);
  if (reports.size() > kMostDescribed) reports.resize(kMostDescribed);
  // A rank that waits elsewhere may give up at the same time as this one: looked at first.
  std::vector<std::string> elsewhere;
  for (RankReport* r : reports) {
    RankEntry& entry = world_.block().rank_entry(rank_of(*r));
    const uint32_t other = entry.waiting_group.load();
    elsewhere.push_back(other == 0 || other == static_cast<uint32_t>(table_index_) + 1
                            ? ""
                            : fmt::format(" Rank {} waits in another group, {}, in its call {}.", rank_of(*r),
                                          world_.block().group_text(static_cast<int>(other) - 1), entry.waiting_call.load()));
  }
  // Their own words take a moment, in which one may come.
  std::vector<std::string> where = ask_where(reports, kAskSeconds);
  if (late = missing(target); late.empty()) return {};
  std::string about, here;
  for (size_t i = 0; i < reports.size(); ++i) {
    const int rank = rank_of(*reports[i]);
    if (std::find(late.begin(), late.end(), rank) == late.end()) continue;
    about += fmt::format("{} Rank {} {}. {}", elsewhere[i], rank, where[i], last_seen(rank));
  }
  for (int i = 0; i < size(); ++i) {
    if (group_.slots[i].arrived.load() < target) continue;
    const CallDetails& d = group_.slots[i].details[calls_ & 1];
    here += (here.empty() ? "" : ", ") + std::to_string(ranks()[static_cast<size_t>(i)]);
    if (i != index() && d.call == calls_ && d.has_site() && d.site[0] && std::strcmp(d.site, my_details().site) != 0)
      here += fmt::format(" (at {})", d.site);
  }
  if (about.empty() || about.back() != ' ') about += ' ';
  return fmt::format("{}: rank{} {} did not arrive within {:g} s ({}). Arrived: {}.{}Read the log of rank {} first; "
                     "HOLON_COMM_TIMEOUT_S raises the limit.",
                     op, late.size() > 1 ? "s" : "", list_text(late), world_.timeout_s(), call_text(), here, about, late[0]);
}

int GroupCommunicator::rank_of(const RankReport& report) const {
  for (int rank : ranks())
    if (&world_.block().rank_entry(rank).report == &report) return rank;
  return -1;
}

std::string GroupCommunicator::last_seen(int rank) const {
  const RankReport& report = world_.block().rank_entry(rank).report;
  const std::string trouble = report.troubled.load() == 2 ? fmt::format("Another thread of it has failed: {}. ", report.trouble) : "";
  auto calls = report.last_calls(1);
  if (calls.empty()) return trouble + "It has called no collective yet. ";
  const CallNote& c = calls[0];
  const size_t axes = std::min<size_t>(c.axes, std::size(c.shape));
  return fmt::format("{}Its last call was {} {} {} ({} bytes), call {} of group {}. ", trouble, c.op, Dims(std::span(c.shape, axes)),
                     name(c.dtype), c.bytes, c.call, world_.block().group_text(c.group));
}

bool GroupCommunicator::failed_at(uint64_t target) const {
  while (!group_.header->failed.is_set()) pause_cpu();
  return group_.header->failed.at <= target;
}

void GroupCommunicator::raise_failed() const {
  auto& failed = group_.header->failed;
  while (!failed.is_set()) pause_cpu();
  if (failed.rank == world_.rank())
    fail_runtime("the ranks {} cannot communicate any more, since an earlier call failed: {}", ranks_text(ranks()),
                 failed.text);
  fail_runtime("{} (found by rank {})", failed.text, failed.rank);
}

void GroupCommunicator::compare() {
  const size_t half = calls_ & 1;
  const uint64_t expected = group_.slots[0].published[half].check;
  bool same = true;
  must_wait_ = false;
  uint64_t bytes = 0;
  for (int i = 0; i < size(); ++i) {
    const auto& p = group_.slots[i].published[half];
    same &= p.check == expected;
    bytes += p.bytes;
    if (p.offset == MemberSlot::kInline) {
      pointers_[static_cast<size_t>(i)] = group_.slots[i].payload[half];
    } else {
      pointers_[static_cast<size_t>(i)] = world_.address(ranks()[static_cast<size_t>(i)], p.offset);
      must_wait_ = true;
    }
  }
  work_ns_ = static_cast<int64_t>(std::min(bytes / kSlowBytesPerNs, kMostWorkNs));
  if (!same) [[unlikely]]
    raise_mismatch();
}

// Pre: all members have come to this call's comparison, or are a call away and tell nothing.
void GroupCommunicator::exchange_sites() {
  note_site();
  BlockingScope unlocked;
  const size_t half = calls_ & 1;
  const int64_t until = now_ns() + kSiteNs;
  for (int i = 0; i < size(); ++i) {
    const CallDetails& d = group_.slots[i].details[half];
    while (d.call == calls_ && !d.has_site() && now_ns() < until)
      std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

void GroupCommunicator::raise_mismatch() {
  exchange_sites();
  const size_t half = calls_ & 1;
  struct Kind {
    uint64_t check;
    std::string call;
    std::vector<int> ranks;
  };
  std::vector<Kind> kinds;
  bool in_step = true;
  for (int i = 0; i < size(); ++i) {
    const MemberSlot& slot = group_.slots[i];
    const uint64_t check = slot.published[half].check;
    auto kind = std::find_if(kinds.begin(), kinds.end(), [&](const Kind& k) { return k.check == check; });
    if (kind == kinds.end()) kind = kinds.insert(kinds.end(), {check, slot.details[half].str(), {}});
    kind->ranks.push_back(ranks()[static_cast<size_t>(i)]);
    in_step &= slot.details[half].call == calls_;
  }
  std::string text;
  for (const Kind& k : kinds)
    text += fmt::format("{}rank{} {} called {}", text.empty() ? "" : "; ", k.ranks.size() > 1 ? "s" : "",
                        list_text(k.ranks), k.call);
  const CallDetails &a = group_.slots[0].details[half], &me = my_details();
  bool other_op = false, other_dtype = false;
  for (int i = 0; i < size(); ++i) {
    other_op |= std::strcmp(group_.slots[i].details[half].op, a.op) != 0;
    other_dtype |= group_.slots[i].details[half].dtype != a.dtype;
  }
  std::string message = fmt::format(
      "{}: the ranks disagree on {}: {} (group {}, call {}). {}", me.op,
      other_op          ? "what to call"
          : other_dtype ? "dtype"
                        : "the call's arguments",
      text, ranks_text(ranks()), calls_,
      other_op ? "All ranks of a group make the same calls in the same order: look for code that only some of them run."
          : other_dtype ? "Convert first, so that all ranks pass the same dtype."
                        : "Pass the same shape, placement and sbp on all of these ranks.");
  // A rank out of step has left a call half way; the group cannot find together again.
  if (!in_step) group_.header->failed.set(world_.rank(), arrivals_, message), world_.block().wake(group_.header->wake);
  throw Error(ErrorKind::kRuntime, message);
}

}  // namespace holon::comm
