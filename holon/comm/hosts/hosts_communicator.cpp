#include "holon/comm/hosts/hosts_communicator.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "holon/base/blocking.h"
#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/hash.h"
#include "holon/base/index.h"
#include "holon/base/log.h"
#include "holon/base/trace.h"
#include "holon/comm/core/background.h"
#include "holon/comm/core/control.h"
#include "holon/comm/hosts/pulling.h"

namespace holon::comm {

namespace {

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

HostsCommunicator::HostsCommunicator(World& world, std::vector<int> ranks, int index, CommStats& stats,
                                     const char* site)
    : Communicator(std::move(ranks), index, false),
      world_(world),
      stats_(stats),
      site_(site),
      hash_(hash_words(channel())) {
  std::vector<int> order;  // the world's number of each of the group's hosts
  for (int r : this->ranks()) {
    int host = world_.host_of(r);
    host_of_.push_back(host);
    size_t at = to_size(std::find(order.begin(), order.end(), host) - order.begin());
    if (at == order.size()) order.push_back(host), by_host_.emplace_back();
    local_place_.push_back(static_cast<int>(by_host_[at].size()));
    by_host_[at].push_back(static_cast<int>(host_of_.size()) - 1);
    hash_ = hash_words(hash_, r);
  }
  auto mine = at_index(host_of_, index);
  my_host_ = static_cast<int>(std::find(order.begin(), order.end(), mine) - order.begin());
  std::vector<int> local;
  for (int m : at_index(by_host_, my_host_)) local.push_back(rank_of(m));
  local_ = &communicator(local);
  pointers_.resize(this->ranks().size());
}

HostsCommunicator::~HostsCommunicator() = default;

uint64_t HostsCommunicator::tag(uint64_t kind, uint64_t a, uint64_t b) const {
  return hash_words(hash_, calls_, kind, a, b);
}

std::string HostsCommunicator::call_text() const {
  return fmt::format("group {}, call {}, {}", ranks_text(ranks()), calls_, mine_.text);
}

void HostsCommunicator::begin(const CallInfo& info, size_t bytes) {
  ++calls_;
  mine_ = {};
  mine_.fingerprint = info.fingerprint;
  mine_.dtype = info.dtype;
  std::string op = info.op ? info.op : "(unnamed)";
  if (Context::current().layout_free()) op += kLayoutFree;
  op.copy(mine_.op, sizeof mine_.op - 1);
  std::string text = fmt::format("{} {} {} ({} bytes)", op, info.shape, name(info.dtype), bytes);
  char site[sizeof CallDetails::site] = "";
  if (site_[0])
    std::memcpy(site, site_, sizeof site);
  else if (auto where = blocking_hooks().where)
    where(site, sizeof site);
  if (site[0]) text += fmt::format(" at {}", site);
  text.copy(mine_.text, sizeof mine_.text - 1);
  check_ = Hasher().add(info.fingerprint).add(info.dtype).add(calls_).add_text(mine_.op).value();
}

void HostsCommunicator::compare(const Envelope& theirs, int their_rank) const {
  bool same_op = std::strncmp(theirs.op, mine_.op, sizeof mine_.op) == 0;
  if (same_op && theirs.dtype == mine_.dtype && theirs.fingerprint == mine_.fingerprint) return;
  fail_runtime("{}: the ranks disagree on {}: rank {} called {}; rank {} called {} (group {}, call {}). {}", mine_.op,
               !same_op                          ? "what to call"
                   : theirs.dtype != mine_.dtype ? "dtype"
                                                 : "the call's arguments",
               world_.rank(), mine_.text, their_rank, theirs.text, ranks_text(ranks()), calls_,
               same_op ? "Pass the same shape, dtype, placement and sbp on all of these ranks."
                       : "All ranks of a group must make the same calls in the same order: look for code that only "
                         "some of them run.");
}

template <class F>
auto HostsCommunicator::guarded(const CallInfo& info, F&& f) {
  world_.require_own("a collective");
  if (!failed_.empty())
    fail_runtime("ranks {} can no longer communicate, since an earlier call failed: {}", ranks_text(ranks()), failed_);
  stats_.calls += info.continues ? 0 : 1;
  try {
    return f();
  } catch (const std::exception& e) {
    failed_ = e.what();
    world_.abort(failed_);
    throw;
  }
}

std::string HostsCommunicator::trouble(int64_t start_ns) const {
  auto& aborted = world_.block().aborted();
  if (aborted.is_set())
    return fmt::format("{}: rank {} has failed: {} ({})", mine_.op, aborted.rank, aborted.text, call_text());
  for (int r : local_->ranks()) {
    // Who has ended in order has done its part: nobody waits here before all of the host have joined the call, and
    // small buffers let a rank leave before others have what comes from other hosts.
    if (world_.block().rank_entry(r).finished.load()) continue;
    if (std::string how = world_.ended(r); !how.empty())
      return fmt::format("{}: rank {} {} in this call ({}). Read rank {}'s output first.", mine_.op, r, how,
                         call_text(), r);
  }
  if (auto poll = blocking_hooks().poll) poll();
  if (background_must_end())
    return fmt::format("{}: rank {} is ending before its background work is done ({}). Wait for all work first.",
                       mine_.op, world_.rank(), call_text());
  // A little before those who wait for this rank on its host, so that they hear the cause.
  const double limit_s = world_.timeout_s() - std::min(0.3, world_.timeout_s() / 10);
  if (static_cast<double>(now_ns() - start_ns) < limit_s * 1e9) return {};
  std::string late;
  for (size_t h = 0; h < by_host_.size(); ++h)
    if (static_cast<int>(h) != my_host_) {
      std::vector<int> there;
      for (int m : by_host_[h]) there.push_back(rank_of(m));
      late += fmt::format("{}{} on {}", late.empty() ? "" : "; ", ranks_text(there),
                          world_.host_name(at_index(host_of_, by_host_[h][0])));
    }
  return fmt::format(
      "{}: the data for rank {} on {} did not arrive within {:g} s from other hosts: ranks {} ({}). Read their logs "
      "first, and check that the hosts reach each other; HOLON_COMM_TIMEOUT_S raises the limit.",
      mine_.op, world_.rank(), world_.host_name(at_index(host_of_, index())), world_.timeout_s(), late, call_text());
}

void HostsCommunicator::wait(Network::Transit& transit, bool received) {
  tracing::Span span("wait for hosts", "wait");
  const int64_t start = now_ns();
  auto why = [&] { return trouble(start); };
  Network::Failure failure = received ? transit.wait_received(why) : transit.wait_sent(why);
  if (!failure) return;
  if (failure.rank < 0) throw Error(ErrorKind::kRuntime, failure.how);
  // The peer may have told why before it went; its word arrives by another way.
  for (int i = 0; i < 20 && !world_.block().aborted().is_set(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(25));
  if (world_.block().aborted().is_set()) throw Error(ErrorKind::kRuntime, trouble(start));
  fail_runtime("{}: rank {} on {} {} ({}). Read rank {}'s output first.", mine_.op, failure.rank,
               world_.host_name(world_.host_of(failure.rank)), failure.how, call_text(), failure.rank);
}

// Sums are taken on each host and then over the hosts: pairs of neighbours only where each host has the same part.
void HostsCommunicator::check_order(const CallInfo& info, std::span<const Pull> pulls) const {
  for (const Pull& p : pulls) {
    std::vector<size_t> of_hosts;
    for (size_t i = 0; i < p.owners.size(); ++i) {
      const int host = at_index(host_of_, p.owners[i]);
      if (i == 0 || host != at_index(host_of_, p.owners[i - 1])) of_hosts.push_back(0);
      ++of_hosts.back();
    }
    if (of_hosts.size() < 2) continue;
    const bool even = std::all_of(of_hosts.begin(), of_hosts.end(), [&](size_t n) { return n == of_hosts[0]; });
    if (even && std::has_single_bit(of_hosts[0])) continue;
    std::string counts;
    for (size_t n : of_hosts) counts += (counts.empty() ? "" : ", ") + std::to_string(n);
    fail_runtime("{}: deterministic(layout_free=True): ranks {} are on hosts that hold {} of them, so that their sum "
                 "has another order. Give each host as many neighbouring ranks of a sum, a power of two.",
                 info.op ? info.op : "(unnamed)", ranks_text(ranks()), counts);
  }
}

void HostsCommunicator::do_pull(const CallInfo& info, const GroupPulls& pulls, const void* in, size_t in_bytes,
                                void* out, size_t out_bytes) {
  guarded(info, [&] {
    for (int phase = 0; phase < pulls.phases(); ++phase) {
      if (Context::current().layout_free()) check_order(info, pulls.mine(phase));
      const auto schedule = schedule_of(pulls, phase, info.dtype);
      if (phase == 0)
        pull_or_throw(info, *schedule, in, in_bytes, out, out_bytes);
      else
        pull_or_throw(info, *schedule, out, out_bytes, out, out_bytes);
    }
  });
}

std::shared_ptr<const HostSchedule> HostsCommunicator::schedule_of(const GroupPulls& pulls, int phase, DType dtype) {
  const auto item = static_cast<int64_t>(size_bytes(dtype));
  auto make = [&] {
    auto pulls_of = [&](int member) { return pulls.of(member, phase); };
    return std::make_shared<const HostSchedule>(
        make_schedule(host_of_, index(), pulls_of, item, world_.network().piece_bytes()));
  };
  if (pulls.key() == 0) return make();
  constexpr size_t kMost = 4096;
  if (schedules_.size() > kMost) schedules_.clear();
  auto& known = schedules_[hash_words(pulls.key(), phase, item)];
  if (!known) known = make();
  return known;
}

void HostsCommunicator::pull_or_throw(const CallInfo& info, const HostSchedule& s, const void* in, size_t in_bytes,
                                      void* out, size_t out_bytes) {
  begin(info, in_bytes);
  if (log::enabled(log::Channel::kComm)) log::line(log::Channel::kComm, fmt::format("{} ({})", mine_.op, call_text()));
  Pulling pulling(*this, info, s, in, in_bytes, out, out_bytes);
  pulling.start();
  pulling.pull_local();
  pulling.finish();
}

std::span<const std::byte* const> HostsCommunicator::open(const CallInfo& info, const void* data, size_t bytes) {
  return guarded(info, [&] { return open_or_throw(info, data, bytes); });
}

std::span<const std::byte* const> HostsCommunicator::open_or_throw(const CallInfo& info, const void* data,
                                                                   size_t bytes) {
  begin(info, bytes);
  // Leaders tell each other what is called and how much each of their members shows.
  std::vector<uint64_t> sizes(ranks().size());
  std::vector<uint64_t> local_sizes(to_size(local_->size()));
  uint64_t own = bytes;
  CallInfo told = info;
  told.continues = true;
  const auto shown_sizes = local_->open(told, &own, sizeof own);
  for (size_t i = 0; i < local_sizes.size(); ++i) std::memcpy(&local_sizes[i], shown_sizes[i], sizeof own);
  local_->close();
  struct SizeList {
    std::vector<std::byte> bytes;
    SizeList(size_t members) : bytes(sizeof(Envelope) + members * sizeof(uint64_t)) {}
    uint64_t* sizes() { return reinterpret_cast<uint64_t*>(bytes.data() + sizeof(Envelope)); }
  };
  std::vector<SizeList> size_lists;
  for (auto& members : by_host_) size_lists.emplace_back(members.size());
  auto mine = to_size(my_host_);
  if (leads()) {
    std::memcpy(size_lists[mine].bytes.data(), &mine_, sizeof mine_);
    std::copy(local_sizes.begin(), local_sizes.end(), size_lists[mine].sizes());
    std::vector<Network::Message> send, receive;
    for (size_t h = 0; h < by_host_.size(); ++h) {
      if (h == mine) continue;
      int leader = rank_of(by_host_[h][0]);
      send.push_back({leader, tag(kSizes), size_lists[mine].bytes.data(), size_lists[mine].bytes.size()});
      receive.push_back({leader, tag(kSizes), size_lists[h].bytes.data(), size_lists[h].bytes.size()});
      stats_.bytes_received += size_lists[h].bytes.size();
    }
    auto transit = world_.network().start(send, receive);
    wait(*transit, true);
    wait(*transit, false);
    for (size_t h = 0; h < by_host_.size(); ++h) {
      if (h == mine) continue;
      Envelope theirs;
      std::memcpy(&theirs, size_lists[h].bytes.data(), sizeof theirs);
      compare(theirs, rank_of(by_host_[h][0]));
    }
    for (size_t h = 0; h < by_host_.size(); ++h)
      for (size_t i = 0; i < by_host_[h].size(); ++i) at_index(sizes, by_host_[h][i]) = size_lists[h].sizes()[i];
  }
  told.fingerprint ^= 2;
  auto leader = local_->open(told, leads() ? sizes.data() : nullptr, leads() ? sizes.size() * sizeof(uint64_t) : 0);
  std::memcpy(sizes.data(), leader[0], sizes.size() * sizeof(uint64_t));
  local_->close();

  // Everybody's bytes, each at a cache line.
  std::vector<int64_t> at;
  int64_t total = 0;
  for (uint64_t size : sizes) {
    at.push_back(total);
    total += static_cast<int64_t>((size + 63) & ~uint64_t{63});
  }
  shown_ = std::make_unique<Block>(to_size(total));
  if (total > 0) {
    auto pulls_of = [&](int) {
      std::vector<Pull> all;
      for (int o = 0; o < size(); ++o)
        all.push_back(row_pull({o}, 0, at_index(at, o), static_cast<int64_t>(at_index(sizes, o))));
      return all;
    };
    CallInfo bytes_info = info;
    bytes_info.dtype = DType::kUInt8;
    pull_or_throw(bytes_info, make_schedule(host_of_, index(), pulls_of, 1, world_.network().piece_bytes()), data,
                  bytes, shown_->data(), to_size(total));
  }
  for (size_t m = 0; m < pointers_.size(); ++m) pointers_[m] = shown_->data() + at[m];
  at_index(pointers_, index()) = static_cast<const std::byte*>(data);
  return pointers_;
}

void HostsCommunicator::close() { shown_.reset(); }

}  // namespace holon::comm
