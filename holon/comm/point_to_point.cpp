#include "holon/comm/point_to_point.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <map>

#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/hash.h"
#include "holon/base/index.h"
#include "holon/base/log.h"
#include "holon/base/small_vec.h"
#include "holon/base/trace.h"
#include "holon/comm/hosts/remote_point_to_point.h"
#include "holon/kernels/regions.h"

namespace holon::comm {

namespace {

int place_of(const std::vector<int>& list, int value) {
  auto it = std::find(list.begin(), list.end(), value);
  return it == list.end() ? -1 : static_cast<int>(it - list.begin());
}

bool reads_from(const std::vector<Pull>& pulls, int sender) {
  return std::any_of(pulls.begin(), pulls.end(),
                     [&](const Pull& p) { return p.shape.numel() > 0 && place_of(p.owners, sender) >= 0; });
}

// What a receiver pulls of one sender.
std::vector<Pull> pulls_from(const std::vector<Pull>& pulls, int sender) {
  std::vector<Pull> regions;
  for (const Pull& p : pulls)
    if (p.shape.numel() > 0 && place_of(p.owners, sender) >= 0) regions.push_back(p);
  return regions;
}

constexpr uint64_t kSlowBytesPerNs = 4, kMostWorkNs = 20'000'000;

}  // namespace

PointToPoint::PointToPoint(std::vector<int> senders, std::vector<int> receivers, int number, DType dtype,
                           const PullsOf& pulls_of, bool with_ways)
    : kept_(shared_world()),
      world_(*kept_),
      stats_(stats()),
      site_(call_site()),
      own_thread_(channel() == 0),
      wait_policy_(world_, channel()),
      senders_(std::move(senders)),
      receivers_(std::move(receivers)),
      number_(number),
      dtype_(dtype),
      with_ways_(with_ways) {
  for (auto* ranks : {&senders_, &receivers_})
    for (int r : *ranks)
      if (r < 0 || r >= world_.size())
        fail_value("the transfer {} -> {} names rank {}, but the world has the ranks 0 to {}. Start more ranks or name "
                   "others.",
                   ranks_text(senders_), ranks_text(receivers_), r, world_.size() - 1);
  sender_ = place_of(senders_, world_.rank());
  receiver_ = place_of(receivers_, world_.rank());
  if (sender_ >= 0 || receiver_ >= 0) connect(pulls_of);
}

void PointToPoint::connect(const PullsOf& pulls_of) {
  // Ranks of other hosts have slots in other memory. What tells objects apart is all ranks, so it is in the key.
  Hasher all;
  all.add(senders_.size()).add(number_);
  for (auto* ranks : {&senders_, &receivers_})
    for (int r : *ranks) all.add(r);
  const uint64_t key = all.value();
  const int here = world_.host_of(world_.rank());
  std::vector<int> sender_slots(senders_.size(), -1), receiver_slots(receivers_.size(), -1);
  auto add = [&](const std::vector<int>& ranks, std::vector<int>& slots) {
    for (size_t i = 0; i < ranks.size(); ++i) {
      if (world_.host_of(ranks[i]) != here) continue;
      slots[i] = static_cast<int>(slot_ranks_.size());
      slot_ranks_.push_back(ranks[i]);
    }
  };
  add(senders_, sender_slots);
  add(receivers_, receiver_slots);
  // The channels of a rank's threads are small numbers.
  const auto group_channel = static_cast<int64_t>(key >> 2 | uint64_t{1} << 61);
  group_ = world_.block().group(world_, slot_ranks_, group_channel, &table_index_);

  const bool apart = slot_ranks_.size() < senders_.size() + receivers_.size();
  if (apart) remote_ = std::make_unique<RemotePointToPoint>(world_, stats_, dtype_, key, with_ways_);
  auto pair = [&](int sender, size_t receiver) { return static_cast<uint64_t>(sender) << 32 | receiver; };
  if (sender_ >= 0) {
    my_send_ = at_index(sender_slots, sender_);
    for (size_t t = 0; t < receivers_.size(); ++t) {
      const std::vector<Pull> theirs = pulls_of(static_cast<int>(t));
      if (!reads_from(theirs, sender_)) continue;
      if (receiver_slots[t] >= 0) {
        readers_.push_back(receiver_slots[t]);
      } else {
        remote_readers_.push_back(static_cast<int>(reader_places_.size()));
        remote_->add_receiver(receivers_[t], pair(sender_, t), pulls_from(theirs, sender_));
      }
      reader_places_.push_back(static_cast<int>(t));
    }
  }
  if (receiver_ < 0) return;
  my_receive_ = at_index(receiver_slots, receiver_);
  pulls_ = pulls_of(receiver_);
  pointers_.resize(senders_.size());
  remote_places_.resize(senders_.size(), -1);
  for (size_t g = 0; g < senders_.size(); ++g) {
    const int sender = static_cast<int>(g);
    if (!reads_from(pulls_, sender)) continue;
    if (sender_slots[g] >= 0) {
      sources_.push_back(sender_slots[g]);
      source_places_.push_back(sender);
    } else {
      remote_places_[g] =
          remote_->add_sender(senders_[g], pair(sender, to_size(receiver_)), pulls_from(pulls_, sender));
    }
  }
  if (!with_ways_) return;
  places_at_sources_.resize(sources_.size());
  for (int t = 0; t < receiver_; ++t) {
    const std::vector<Pull> theirs = pulls_of(t);
    for (size_t i = 0; i < sources_.size(); ++i) places_at_sources_[i] += reads_from(theirs, source_places_[i]) ? 1 : 0;
  }
}

PointToPoint::~PointToPoint() {
  if (world_.inherited()) {
    (void)remote_.release();  // its connections are the parent's
    staging_.leave();
    return;
  }
  if (!group_.header || group_.header->failed.state.load() != 0 || std::uncaught_exceptions() > 0) {
    staging_.leave();
    return;
  }
  try {
    wait_for(readers_, staged_round_, sending_, work_ns_);
    if (remote_) remote_->flush();
  } catch (...) {
    staging_.leave();  // whoever reads it late reads what was there
  }
}

bool PointToPoint::have_arrived(const std::vector<int>& slots, uint64_t round) const {
  for (int s : slots)
    if (group_.slots[s].arrived.load() < round) return false;
  return true;
}

void PointToPoint::arrive(int slot, uint64_t round) {
  group_.slots[slot].arrived.store(round);
  // A sleeper counts itself before it looks for the last time, and we arrive before we look for sleepers.
  if (group_.header->sleepers.load() != 0) world_.block().wake(group_.header->wake);
}

void PointToPoint::check_failed() const {
  world_.require_own("a transfer");
  auto& failed = group_.header->failed;
  if (failed.state.load() == 0) [[likely]]
    return;
  const std::string_view why = failed.await();
  if (!failed.is_set() || failed.rank == world_.rank())
    fail_runtime("the transfer {} -> {} cannot continue, since an earlier call failed: {}", ranks_text(senders_),
                 ranks_text(receivers_), why);
  fail_runtime("{} (found by rank {})", failed.text, failed.rank);
}

void PointToPoint::fail(const std::string& why) {
  group_.header->failed.set(world_.rank(), 0, why);
  world_.block().wake(group_.header->wake);
}

struct PointToPoint::Wait {
  PointToPoint& h;
  const std::vector<int>& slots;
  const uint64_t round;
  CallDetails& call;

  bool sends() const { return &call == &h.receiving_; }  // what the others have to do
  bool done() const { return h.have_arrived(slots, round); }
  void check() const { h.check_failed(); }
  std::string trouble(int64_t waited_ns, int* ended) const { return h.trouble(*this, waited_ns, ended); }
  void give_up(const std::string& why) const { h.fail(why); }
  std::string op() const { return call.op; }
  std::string text() const { return h.text_of(call); }
};

std::string PointToPoint::text_of(CallDetails& call) const {
  std::string text = fmt::format("transfer {} -> {}, channel {}, {} {}, {} {}, {} bytes", ranks_text(senders_),
                                 ranks_text(receivers_), number_, &call == &receiving_ ? "receive" : "send", call.call,
                                 Dims(std::span<const int64_t>(call.shape, call.axes)), name(call.dtype), call.bytes);
  if (call.has_site() && call.site[0]) text += fmt::format(", at {}", call.site);
  return text;
}

std::string PointToPoint::trouble(const Wait& wait, int64_t waited_ns, int* ended) const {
  const char* op = wait.call.op;
  auto missing = [&] {
    std::vector<int> ranks;
    for (int s : wait.slots)
      if (group_.slots[s].arrived.load() < wait.round) ranks.push_back(at_index(slot_ranks_, s));
    return ranks;
  };
  auto& aborted = world_.block().aborted();
  if (aborted.is_set()) {
    if (wait.done()) return {};
    return fmt::format("{}: rank {} has failed: {} ({})", op, aborted.rank, aborted.text, wait.text());
  }
  for (int s : wait.slots) {
    if (group_.slots[s].arrived.load() >= wait.round) continue;
    const int rank = at_index(slot_ranks_, s);
    std::string how = world_.ended(rank);
    if (how.empty() || group_.slots[s].arrived.load() >= wait.round) continue;  // it may have come just before
    *ended = rank;
    return fmt::format("{}: rank {} {} without {} ({}). {}Read rank {}'s output first.", op, rank, how,
                       wait.sends() ? "sending" : "receiving", wait.text(), last_seen(world_, rank), rank);
  }
  if (static_cast<double>(waited_ns) < world_.timeout_s() * 1e9) return {};
  const std::vector<int> asked = missing();
  const std::vector<std::string> found = describe_late(world_, asked, table_index_);
  const std::vector<int> late = missing();
  if (late.empty()) return {};
  std::string about;
  for (size_t i = 0; i < found.size(); ++i)
    if (place_of(late, asked[i]) >= 0) about += found[i];
  if (about.empty() || about.back() != ' ') about += ' ';
  return fmt::format("{}: rank{} {} did not {} within {:g} s ({}).{}Read the log of rank {} first; "
                     "HOLON_COMM_TIMEOUT_S raises the limit.",
                     op, late.size() > 1 ? "s" : "", list_text(late), wait.sends() ? "send" : "receive",
                     world_.timeout_s(), wait.text(), about, late[0]);
}

void PointToPoint::wait_for(const std::vector<int>& slots, uint64_t round, CallDetails& call, int64_t work_ns) {
  auto all_here = [&, i = size_t{0}]() mutable {
    while (i < slots.size() && group_.slots[slots[i]].arrived.load() >= round) ++i;
    return i == slots.size();
  };
  if (all_here()) return;
  tracing::Span span("wait", "wait");
  if (spin_until(all_here, wait_policy_, work_ns)) return;
  call.note_site();  // who sleeps has the time
  Sleeping scope(world_, *group_.header, table_index_, call.call, own_thread_);
  Wait wait{*this, slots, round, call};
  if (!sleep_until(wait, world_, *group_.header)) check_failed();
}

uint64_t PointToPoint::owed(uint64_t round) const {
  // A slot has room for two sends.
  return std::max({held_, staged_round_, round > 2 ? round - 2 : 0});
}

void PointToPoint::send(const CallInfo& info, const void* data, size_t bytes, std::span<const uint64_t> ways) {
  if (sender_ < 0) return;
  HOLON_CHECK(with_ways_ ? ways.size() <= kMostWays : ways.empty(), "{} ways", ways.size());
  check_failed();
  ++stats_.calls;
  MemberSlot& slot = group_.slots[my_send_];
  const uint64_t round = slot.arrived.load() + 1;
  const size_t half = round & 1;
  const uint64_t check = sending_.describe(info, round, bytes, site_);
  if (own_thread_) world_.block().rank_entry(world_.rank()).report.add(note_of(sending_, table_index_));
  if (log::enabled(log::Channel::kComm))
    log::line(log::Channel::kComm, fmt::format("{} ({})", sending_.op, text_of(sending_)));
  wait_for(readers_, owed(round), sending_, work_ns_);
  if (remote_) remote_->flush();

  held_ = staged_round_ = 0;
  staging_ = StagingBuffer();
  shown_ = static_cast<const std::byte*>(data);
  uint64_t offset = MemberSlot::kInline;
  if (!readers_.empty()) {
    if (with_ways_) {  // these are in the slot, and the data does not
      const size_t n = ways.size() * sizeof(uint64_t);
      std::memset(slot.payload[half], 0, sizeof(uint64_t) * std::min(reader_places_.size(), kMostWays));
      if (n) std::memcpy(slot.payload[half], ways.data(), n);
    }
    if (bytes == 0 || (!with_ways_ && bytes <= Communicator::kInlineBytes)) {
      if (bytes) std::memcpy(slot.payload[half], data, bytes);
    } else if (auto reachable = world_.publish(data, bytes)) {
      offset = *reachable;
      held_ = round;
    } else {
      staging_ = StagingBuffer(data, bytes);
      offset = *world_.publish(staging_.data(), bytes);
      staged_round_ = round;
    }
  }
  work_ns_ = static_cast<int64_t>(std::min(bytes / kSlowBytesPerNs, kMostWorkNs));
  slot.published[half] = {check, bytes, offset};
  slot.details[half] = sending_;
  arrive(my_send_, round);
  if (!remote_) return;
  std::vector<uint64_t> told(remote_readers_.size());
  for (size_t i = 0; i < told.size(); ++i)
    if (const auto k = to_size(remote_readers_[i]); k < ways.size()) told[i] = ways[k];
  remote_->send({round, check, sending_.op, text_of(sending_)}, shown_, told);
}

bool PointToPoint::try_release() {
  if (sender_ < 0 || held_ == 0) return true;
  world_.require_own(sending_.op);
  if (have_arrived(readers_, held_)) {
    held_ = 0;
    return true;
  }
  check_failed();
  if (auto& aborted = world_.block().aborted(); aborted.is_set())
    fail_runtime("{}: rank {} has failed: {} ({})", sending_.op, aborted.rank, aborted.text, text_of(sending_));
  return false;
}

void PointToPoint::release() {
  if (sender_ < 0 || held_ == 0) return;
  world_.require_own(sending_.op);
  wait_for(readers_, held_, sending_, work_ns_);
  held_ = 0;
}

void PointToPoint::raise_mismatch(int slot, uint64_t round) {
  const int sender = at_index(slot_ranks_, slot);
  receiving_.note_site();
  const CallDetails& theirs = group_.slots[slot].details[round & 1];
  const bool dtype = theirs.dtype != receiving_.dtype;
  std::string why = fmt::format(
      "{}: the ranks disagree on {}: rank {} sent {}; rank {} expects {} (transfer {} -> {}, channel {}, receive {}). "
      "{}",
      receiving_.op,
      std::strcmp(theirs.op, receiving_.op) != 0 ? "what is sent"
          : dtype                                ? "dtype"
                                                 : "the call's arguments",
      sender, theirs.str(), world_.rank(), receiving_.str(), ranks_text(senders_), ranks_text(receivers_), number_,
      round,
      dtype ? "Convert first, so that all ranks pass the same dtype."
            : "Pass the same shape, placement and sbp on all of these ranks, and give each object its own channel.");
  fail(why);
  throw Error(ErrorKind::kRuntime, why);
}

void PointToPoint::pull(std::byte* out, size_t bytes, std::span<const uint64_t> ways) const {
  const auto item = static_cast<int64_t>(size_bytes(dtype_));
  auto comes_another_way = [&](const Pull& p) { return !ways.empty() && at_index(ways, p.owners[0]) != 0; };
  if (!remote_) {
    if (ways.empty()) return pull_all(pulls_, dtype_, pointers_, out, bytes);
    std::vector<Pull> here;
    for (const Pull& p : pulls_)
      if (!comes_another_way(p)) here.push_back(p);
    return pull_all(here, dtype_, pointers_, out, bytes);
  }
  std::vector<size_t> next(senders_.size());  // region of each sender
  for (const Pull& p : pulls_) {
    if (p.shape.numel() == 0 || comes_another_way(p)) continue;
    const Dims packed = contiguous_strides(p.shape);
    std::byte* to = out + p.dst_start * item;
    std::vector<const std::byte*> from;
    std::vector<std::unique_ptr<StagingBuffer>> copies;
    bool remote = false;
    for (int o : p.owners) remote |= at_index(remote_places_, o) >= 0;
    for (int o : p.owners) {
      const auto g = to_size(o);
      if (remote_places_[g] >= 0) {
        from.push_back(remote_->region(remote_places_[g], next[g]++));
        continue;
      }
      from.push_back(pointers_[g] + p.src_start * item);
      if (!remote) continue;
      // Addends are laid out alike.
      copies.push_back(std::make_unique<StagingBuffer>(to_size(p.shape.numel() * item)));
      auto* copy = static_cast<std::byte*>(copies.back()->data());
      kernels::copy_region(copy, packed, from.back(), p.src_strides, p.shape, item);
      from.back() = copy;
    }
    const Dims& strides = remote ? packed : p.src_strides;
    if (from.size() > 1)
      kernels::sum_region(to, p.dst_strides, from, strides, p.shape, dtype_);
    else
      kernels::copy_region(to, p.dst_strides, from[0], strides, p.shape, item, bytes);
  }
}

void PointToPoint::receive(const CallInfo& info, void* out, size_t bytes, std::span<uint64_t> ways) {
  if (receiver_ < 0) return;
  HOLON_CHECK(ways.size() == (with_ways_ ? senders_.size() : 0), "{} ways", ways.size());
  std::fill(ways.begin(), ways.end(), uint64_t{0});
  check_failed();
  ++stats_.calls;
  const uint64_t round = group_.slots[my_receive_].arrived.load() + 1;
  const uint64_t check = receiving_.describe(info, round, bytes, site_);
  if (own_thread_) world_.block().rank_entry(world_.rank()).report.add(note_of(receiving_, table_index_));
  if (log::enabled(log::Channel::kComm))
    log::line(log::Channel::kComm, fmt::format("{} ({})", receiving_.op, text_of(receiving_)));
  if (my_send_ >= 0 && group_.slots[my_send_].arrived.load() < round && place_of(sources_, my_send_) >= 0)
    fail_runtime("{}: rank {} receives what it has not sent yet ({}). Send first.", receiving_.op, world_.rank(),
                 text_of(receiving_));
  RemotePointToPoint::Call call;
  if (remote_) remote_->start_receive(call = {round, check, receiving_.op, text_of(receiving_)});
  wait_for(sources_, round, receiving_, 0);
  for (size_t i = 0; i < sources_.size(); ++i) {
    const int s = sources_[i];
    const MemberSlot& slot = group_.slots[s];
    const auto& shown = slot.published[round & 1];
    if (shown.check != check) [[unlikely]]
      raise_mismatch(s, round);
    const auto sender = to_size(source_places_[i]);
    if (with_ways_)
      if (const auto k = to_size(places_at_sources_[i]); k < kMostWays)
        std::memcpy(&ways[sender], slot.payload[round & 1] + k * sizeof(uint64_t), sizeof(uint64_t));
    const std::byte*& pointer = pointers_[sender];
    if (shown.offset == MemberSlot::kInline)
      pointer = slot.payload[round & 1];
    else if (s == my_send_)
      pointer = shown_;
    else
      pointer = world_.address(at_index(slot_ranks_, s), shown.offset);
  }
  if (remote_) {
    remote_->finish_receive(call);
    for (size_t g = 0; g < ways.size(); ++g)
      if (remote_places_[g] >= 0) ways[g] = remote_->way(remote_places_[g]);
  }
  pull(static_cast<std::byte*>(out), bytes, ways);
  check_failed();  // a sender that has given up may have changed what was read
  arrive(my_receive_, round);
}

}  // namespace holon::comm
