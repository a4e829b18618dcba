#include "holon/comm/local/group_communicator.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "holon/base/blocking.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/index.h"
#include "holon/base/log.h"
#include "holon/base/trace.h"

namespace holon::comm {

namespace {

// Ranks that disagree wait for each other's lines; all of them get here at once.
constexpr int64_t kSiteNs = 500'000'000;
// While its peers are known to copy, a rank with its own core spins on: waking it would take longer than they
// need.
constexpr uint64_t kSlowBytesPerNs = 4, kMostWorkNs = 20'000'000;

}  // namespace

GroupCommunicator::GroupCommunicator(World& world, std::vector<int> ranks, int index, CommStats& stats,
                                     const char* site, int channel)
    : Communicator(std::move(ranks), index, true),
      world_(world),
      stats_(stats),
      site_(site),
      channel_(channel),
      wait_policy_(world, channel) {
  group_ = world_.block().group(world_, this->ranks(), channel, &table_index_);
  pointers_.resize(to_size(size()));
}

GroupCommunicator::~GroupCommunicator() = default;

std::span<const std::byte* const> GroupCommunicator::open(const CallInfo& info, const void* data, size_t bytes) {
  world_.require_own(info.op);
  if (group_.header->failed.state.load() != 0) [[unlikely]]
    raise_failed();
  stats_.calls += info.continues ? 0 : 1;
  const size_t half = ++calls_ & 1;
  MemberSlot& slot = group_.slots[index()];

  CallDetails& details = slot.details[half];
  const uint64_t check = details.describe(info, calls_, bytes, site_);
  if (channel_ == 0)  // the report has one writer
    world_.block().rank_entry(world_.rank()).report.add(note_of(details, table_index_));

  // What peers may still be reading for the call before stays until they have all come to this one.
  StagingBuffer staging;
  uint64_t offset = MemberSlot::kInline;
  if (bytes <= kInlineBytes) {
    if (bytes) std::memcpy(slot.payload[half], data, bytes);
  } else if (auto reachable = world_.publish(data, bytes)) {
    offset = *reachable;
  } else {
    staging = StagingBuffer(data, bytes);
    offset = *world_.publish(staging.data(), bytes);
  }
  slot.published[half] = {check, bytes, offset};

  if (log::enabled(log::Channel::kComm))
    log::line(log::Channel::kComm, fmt::format("{} ({})", details.op, call_text()));
  open_ = false;  // a call that fails has nothing to close
  arrive_and_wait();
  staging_ = std::move(staging);
  compare();
  open_ = true;
  at_index(pointers_, index()) = static_cast<const std::byte*>(data);
  return pointers_;
}

void GroupCommunicator::close() {
  if (!open_) return;
  open_ = false;
  world_.require_own(my_details().op);
  if (must_wait_) arrive_and_wait();
  work_ns_ = 0;
  staging_ = StagingBuffer();
}

void GroupCommunicator::arrive_and_wait() {
  tracing::Span span("wait", "wait");
  const uint64_t target = ++arrivals_;
  group_.slots[index()].arrived.store(target);
  // A sleeper counts itself before it looks at the arrivals for the last time, and we arrive before we look for
  // sleepers: one of both sees the other.
  if (group_.header->sleepers.load() != 0 && group_.all_arrived(target)) world_.block().wake(group_.header->wake);
  auto all_here = [&, i = 0]() mutable {
    while (i < size() && group_.slots[i].arrived.load() >= target) ++i;
    return i == size();
  };
  if (!spin_until(all_here, wait_policy_, work_ns_)) {
    sleep(target);
    return;
  }
  // A member that gave up did so before it could see the last arrival. Then nobody goes on: it may reuse its buffer.
  if (group_.header->failed.state.load() != 0 && failed_at(target)) [[unlikely]]
    raise_failed();
}

struct GroupCommunicator::Wait {
  GroupCommunicator& c;
  const uint64_t target;

  bool done() const { return c.group_.all_arrived(target); }
  void check() const {
    if (c.group_.header->failed.state.load() != 0 && c.failed_at(target)) c.raise_failed();
  }
  std::string trouble(int64_t waited_ns, int* ended) const { return c.trouble(target, waited_ns, ended); }
  void give_up(const std::string& why) const {
    c.group_.header->failed.set(c.world_.rank(), target, why);
    c.world_.block().wake(c.group_.header->wake);
  }
  std::string op() const { return c.my_details().op; }
  std::string text() const { return c.call_text(); }
};

void GroupCommunicator::sleep(uint64_t target) {
  group_.slots[index()].details[calls_ & 1].note_site();  // who sleeps has the time
  Sleeping scope(world_, *group_.header, table_index_, calls_, channel_ == 0);
  Wait call{*this, target};
  // False: they came at the last moment and may be reading my buffer already, so this call has succeeded, and the next
  // will fail.
  if (sleep_until(call, world_, *group_.header)) call.check();
}

std::vector<int> GroupCommunicator::missing(uint64_t target) const {
  std::vector<int> result;
  for (int i = 0; i < size(); ++i)
    if (group_.slots[i].arrived.load() < target) result.push_back(at_index(ranks(), i));
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
  for (int i = 0; i < size(); ++i) {
    if (group_.slots[i].arrived.load() >= target) continue;
    const int rank = at_index(ranks(), i);
    std::string how = world_.ended(rank);
    if (how.empty()) continue;
    auto still = missing(target);  // it may have arrived just before it ended
    if (std::find(still.begin(), still.end(), rank) == still.end()) continue;
    *ended = rank;
    return fmt::format(
        "{}: rank {} {} without joining this call ({}). Did not arrive: {}. {}Read rank {}'s output first.", op, rank,
        how, call_text(), list_text(still), last_seen(world_, rank), rank);
  }
  if (static_cast<double>(waited_ns) < world_.timeout_s() * 1e9) return {};
  std::vector<int> late = missing(target);
  if (late.empty()) return {};
  const std::vector<int> asked = late;
  const std::vector<std::string> found = describe_late(world_, asked, table_index_);
  // Their own words took a moment, in which one may have come.
  if (late = missing(target); late.empty()) return {};
  std::string about, here;
  for (size_t i = 0; i < found.size(); ++i)
    if (std::find(late.begin(), late.end(), asked[i]) != late.end()) about += found[i];
  for (int i = 0; i < size(); ++i) {
    if (group_.slots[i].arrived.load() < target) continue;
    const CallDetails& d = group_.slots[i].details[calls_ & 1];
    here += (here.empty() ? "" : ", ") + std::to_string(at_index(ranks(), i));
    if (i != index() && d.call == calls_ && d.has_site() && d.site[0] && std::strcmp(d.site, my_details().site) != 0)
      here += fmt::format(" (at {})", d.site);
  }
  if (about.empty() || about.back() != ' ') about += ' ';
  return fmt::format("{}: rank{} {} did not arrive within {:g} s ({}). Arrived: {}.{}Read the log of rank {} first; "
                     "HOLON_COMM_TIMEOUT_S raises the limit.",
                     op, late.size() > 1 ? "s" : "", list_text(late), world_.timeout_s(), call_text(), here, about,
                     late[0]);
}

bool GroupCommunicator::failed_at(uint64_t target) const {
  auto& failed = group_.header->failed;
  failed.await();
  return !failed.is_set() || failed.at <= target;
}

void GroupCommunicator::raise_failed() const {
  auto& failed = group_.header->failed;
  const std::string_view why = failed.await();
  if (!failed.is_set() || failed.rank == world_.rank())
    fail_runtime("ranks {} can no longer communicate, since an earlier call failed: {}", ranks_text(ranks()), why);
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
      at_index(pointers_, i) = group_.slots[i].payload[half];
    } else {
      at_index(pointers_, i) = world_.address(at_index(ranks(), i), p.offset);
      must_wait_ = true;
    }
  }
  work_ns_ = static_cast<int64_t>(std::min(bytes / kSlowBytesPerNs, kMostWorkNs));
  if (!same) [[unlikely]]
    raise_mismatch();
}

// Pre: all members have come to this call's comparison, or are a call away and tell nothing.
void GroupCommunicator::exchange_sites() {
  group_.slots[index()].details[calls_ & 1].note_site();
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
    kind->ranks.push_back(at_index(ranks(), i));
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
      other_op
          ? "All ranks of a group must make the same calls in the same order: look for code that only some of them run."
          : other_dtype ? "Convert first, so that all ranks pass the same dtype."
                        : "Pass the same shape, placement and sbp on all of these ranks, and call the same graph.");
  // A rank out of step has left a call half way; the group cannot find together again.
  if (!in_step) group_.header->failed.set(world_.rank(), arrivals_, message), world_.block().wake(group_.header->wake);
  throw Error(ErrorKind::kRuntime, message);
}

}  // namespace holon::comm
