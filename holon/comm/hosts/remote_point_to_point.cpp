#include "holon/comm/hosts/remote_point_to_point.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "holon/base/blocking.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/hash.h"
#include "holon/base/index.h"
#include "holon/comm/core/background.h"
#include "holon/comm/core/waiting.h"
#include "holon/kernels/regions.h"

namespace holon::comm {

RemotePointToPoint::RemotePointToPoint(World& world, CommStats& stats, DType dtype, uint64_t key, bool with_ways)
    : world_(world), stats_(stats), dtype_(dtype), key_(key), with_ways_(with_ways) {}

RemotePointToPoint::~RemotePointToPoint() {
  for (auto* peers : {&receivers_, &senders_})
    for (Peer& p : *peers) {
      p.note_transit.reset();
      p.data_transit.reset();
      if (p.memory) free_block(p.memory, p.bytes);
    }
}

RemotePointToPoint::Peer RemotePointToPoint::peer(int rank, uint64_t pair, std::vector<Pull> regions) const {
  Peer p;
  p.rank = rank;
  p.pair = pair;
  p.regions = std::move(regions);
  for (const Pull& b : p.regions) {
    p.at.push_back(p.bytes);
    p.bytes += (to_size(b.shape.numel()) * size_bytes(dtype_) + 63) & ~size_t{63};
  }
  if (p.bytes) p.memory = static_cast<std::byte*>(allocate_block(p.bytes));
  return p;
}

void RemotePointToPoint::add_receiver(int rank, uint64_t pair, std::vector<Pull> regions) {
  receivers_.push_back(peer(rank, pair, std::move(regions)));
}

int RemotePointToPoint::add_sender(int rank, uint64_t pair, std::vector<Pull> regions) {
  senders_.push_back(peer(rank, pair, std::move(regions)));
  return static_cast<int>(senders_.size()) - 1;
}

// The data of different calls has different tags and cannot be mixed up; the notes show which calls they are.
uint64_t RemotePointToPoint::tag(const Peer& p, uint64_t round, uint64_t kind) const {
  return hash_words(key_, 0x68616e64, p.pair, round, kind);
}

const std::byte* RemotePointToPoint::region(int sender, size_t region) const {
  const Peer& p = at_index(senders_, sender);
  return p.memory + p.at[region];
}

void RemotePointToPoint::fail(const std::string& why) {
  failed_ = why;
  world_.abort(why);  // ranks of other hosts hear of it in no other way
  throw Error(ErrorKind::kRuntime, why);
}

void RemotePointToPoint::wait(Network::Transit& transit, bool received, const Call& call, const Peer& p) {
  const int64_t start = now_ns();
  auto aborted = [&]() -> std::string {
    auto& a = world_.block().aborted();
    return a.is_set() ? fmt::format("{}: rank {} has failed: {} ({})", call.op, a.rank, a.text, call.text) : "";
  };
  auto trouble = [&]() -> std::string {
    if (std::string why = aborted(); !why.empty()) return why;
    if (auto poll = blocking_hooks().poll) poll();
    if (background_must_end())
      return fmt::format("{}: rank {} is ending before its background work is done ({}). Wait for all work first.",
                         call.op, world_.rank(), call.text);
    if (static_cast<double>(now_ns() - start) < world_.timeout_s() * 1e9) return {};
    return fmt::format("{}: rank {} on {} did not {} within {:g} s ({}). Read its log first, and check that the hosts "
                       "reach each other; HOLON_COMM_TIMEOUT_S raises the limit.",
                       call.op, p.rank, world_.host_name(world_.host_of(p.rank)), received ? "send" : "receive",
                       world_.timeout_s(), call.text);
  };
  Network::Failure failure;
  try {
    failure = received ? transit.wait_received(trouble) : transit.wait_sent(trouble);
  } catch (const std::exception& e) {
    failed_ = fmt::format("{}: rank {} was interrupted while waiting ({}).", call.op, world_.rank(), call.text);
    world_.abort(failed_);
    throw;
  }
  if (!failure) return;
  if (failure.rank < 0) fail(failure.how);
  // The peer may have told why before it went; its word arrives by another way.
  for (int i = 0; i < 20 && !world_.block().aborted().is_set(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(25));
  if (std::string why = aborted(); !why.empty()) fail(why);
  fail(fmt::format("{}: rank {} on {} {} ({}). Read rank {}'s output first.", call.op, failure.rank,
                   world_.host_name(world_.host_of(failure.rank)), failure.how, call.text, failure.rank));
}

void RemotePointToPoint::send(Call call, const std::byte* data, std::span<const uint64_t> ways) {
  if (!failed_.empty()) fail_runtime("this transfer has failed: {}", failed_);
  sent_ = std::move(call);
  const auto item = static_cast<int64_t>(size_bytes(dtype_));
  for (size_t k = 0; k < receivers_.size(); ++k) {
    Peer& p = receivers_[k];
    p.note = {};
    p.note.check = sent_.check;
    p.note.way = ways[k];
    sent_.text.copy(p.note.text, sizeof p.note.text - 1);
    Network::Message note{p.rank, tag(p, sent_.round, 0), &p.note, sizeof p.note};
    p.note_transit = world_.network().start({&note, 1}, {});
    if (p.note.way != 0) continue;
    for (size_t i = 0; i < p.regions.size(); ++i) {
      const Pull& b = p.regions[i];
      kernels::copy_region(p.memory + p.at[i], contiguous_strides(b.shape), data + b.src_start * item, b.src_strides,
                           b.shape, item);
    }
    Network::Message message{p.rank, tag(p, sent_.round, sent_.check), p.memory, p.bytes};
    p.data_transit = world_.network().start({&message, 1}, {});
  }
}

void RemotePointToPoint::flush() {
  if (!failed_.empty()) fail_runtime("this transfer has failed: {}", failed_);
  for (Peer& p : receivers_)
    for (auto* transit : {&p.note_transit, &p.data_transit})
      if (*transit) {
        wait(**transit, false, sent_, p);
        transit->reset();
      }
}

void RemotePointToPoint::start_receive(const Call& call) {
  if (!failed_.empty()) fail_runtime("this transfer has failed: {}", failed_);
  for (Peer& p : senders_) {
    Network::Message note{p.rank, tag(p, call.round, 0), &p.note, sizeof p.note};
    p.note_transit = world_.network().start({}, {&note, 1});
    if (!with_ways_) start_data(p, call);  // else it may never come
  }
}

void RemotePointToPoint::start_data(Peer& p, const Call& call) {
  Network::Message message{p.rank, tag(p, call.round, call.check), p.memory, p.bytes};
  p.data_transit = world_.network().start({}, {&message, 1});
  stats_.bytes_received += p.bytes;
}

void RemotePointToPoint::finish_receive(const Call& call) {
  for (Peer& p : senders_) {
    wait(*p.note_transit, true, call, p);
    p.note_transit.reset();
    p.note.text[sizeof p.note.text - 1] = 0;
    if (p.note.check != call.check)
      fail(fmt::format("{}: the ranks disagree on the call's arguments: rank {} sent {}; rank {} expects {}. Pass the "
                       "same shape, dtype, placement and sbp on all of these ranks.",
                       call.op, p.rank, p.note.text, world_.rank(), call.text));
  }
  for (Peer& p : senders_)
    if (with_ways_ && p.note.way == 0) start_data(p, call);
  for (Peer& p : senders_) {
    if (!p.data_transit) continue;
    wait(*p.data_transit, true, call, p);
    p.data_transit.reset();
  }
}

}  // namespace holon::comm
