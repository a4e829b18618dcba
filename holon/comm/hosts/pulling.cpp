#include "holon/comm/hosts/pulling.h"

#include <algorithm>

#include "holon/base/index.h"
#include "holon/kernels/regions.h"

namespace holon::comm {

namespace {

constexpr size_t lines_of(size_t bytes) { return (bytes + 63) & ~size_t{63}; }

}  // namespace

HostsCommunicator::Pulling::Pulling(HostsCommunicator& group, const CallInfo& info, const HostSchedule& schedule,
                                    const void* in, size_t in_bytes, void* out, size_t out_bytes)
    : group_(group),
      info_(info),
      s_(schedule),
      in_(static_cast<const std::byte*>(in)),
      in_bytes_(in_bytes),
      out_(static_cast<std::byte*>(out)),
      overlap_(in && out && in_ < out_ + out_bytes && out_ < in_ + in_bytes),
      item_(static_cast<int64_t>(size_bytes(info.dtype))),
      staging_(s_.direct ? 0 : bytes_of(s_.shown_elements)),
      shown_(s_.direct ? out_ : staging_.data()) {
  info_.continues = true;
}

// Different calls have different tags, so that their data cannot be mixed up; the leaders' envelopes show which calls
// they are.
uint64_t HostsCommunicator::Pulling::tag_of(const Packet& p) const {
  return group_.tag(kData, group_.check_, static_cast<uint64_t>(p.number));
}

void HostsCommunicator::Pulling::gather(std::byte* dst, const Dims& dst_strides, const std::vector<int>& owners,
                                        int64_t start, const Dims& strides, const Dims& shape) const {
  std::vector<const std::byte*> from;
  for (int o : owners) from.push_back(at_index(peers_, at_index(group_.local_place_, o)) + start * item_);
  if (from.size() > 1)
    kernels::sum_region(dst, dst_strides, from, strides, shape, info_.dtype);
  else if (from[0] != dst)
    kernels::copy_region(dst, dst_strides, from[0], strides, shape, item_);
}

bool HostsCommunicator::Pulling::is_sent_in_place(const Packet& p) const {
  return p.addends.size() == 1 && p.addends[0] == group_.index() && p.src_strides == contiguous_strides(p.shape) &&
      !is_written(p);
}

bool HostsCommunicator::Pulling::is_written(const Packet& p) const {
  if (!overlap_) return false;
  const std::byte* begin = in_ + p.src_start * item_;
  return std::any_of(s_.pulls.begin(), s_.pulls.end(), [&](const HostPull& pull) {
    int64_t last = pull.dst_start;
    for (int a = 0; a < pull.shape.size(); ++a) last += (pull.shape[a] - 1) * pull.dst_strides[a];
    return out_ + pull.dst_start * item_ < begin + bytes_of(p.elements) && begin < out_ + (last + 1) * item_;
  });
}

void HostsCommunicator::Pulling::start() {
  peers_ = group_.local_->open(info_, in_, in_bytes_);
  Network& network = group_.world_.network();
  if (group_.leads()) {
    auto [before, next] = group_.neighbours();
    Network::Message to{next, group_.tag(kEnvelope), &group_.mine_, sizeof group_.mine_};
    Network::Message from{before, group_.tag(kEnvelope), &theirs_, sizeof theirs_};
    envelope_ = network.start({&to, 1}, {&from, 1});
  }
  // Receivers first: what peers send then goes straight to its place.
  for (const Packet& p : s_.receive) {
    Network::Message m{group_.rank_of(p.peer), tag_of(p), shown_ + p.at * item_, bytes_of(p.elements)};
    incoming_.push_back(network.start({}, {&m, 1}));
    group_.stats_.bytes_received += bytes_of(p.elements);
  }
  size_t packed = 0;
  for (const Packet& p : s_.send)
    if (!is_sent_in_place(p)) packed += lines_of(bytes_of(p.elements));
  packed_ = std::make_unique<Block>(packed);
  std::byte* free = packed_->data();
  for (const Packet& p : s_.send) {
    auto* data = const_cast<std::byte*>(in_) + p.src_start * item_;
    if (!is_sent_in_place(p)) {
      data = free;
      free += lines_of(bytes_of(p.elements));
      gather(data, contiguous_strides(p.shape), p.addends, p.src_start, p.src_strides, p.shape);
    }
    Network::Message m{group_.rank_of(p.peer), tag_of(p), data, bytes_of(p.elements)};
    outgoing_.push_back(network.start({&m, 1}, {}));
  }
}

void HostsCommunicator::Pulling::pull_local() {
  sums_.resize(s_.pulls.size());
  for (size_t i = 0; i < s_.pulls.size(); ++i) {
    const HostPull& p = s_.pulls[i];
    for (const Term& t : p.terms) {
      if (t.owners.empty()) continue;
      if (p.local()) {
        gather(out_ + p.dst_start * item_, p.dst_strides, t.owners, p.src_start, p.src_strides, p.shape);
      } else {
        sums_[i] = std::make_unique<Block>(bytes_of(p.shape.numel()));
        gather(sums_[i]->data(), contiguous_strides(p.shape), t.owners, p.src_start, p.src_strides, p.shape);
      }
    }
  }
}

void HostsCommunicator::Pulling::finish_pull(size_t i, std::span<const std::byte* const> shown) const {
  const HostPull& p = s_.pulls[i];
  if (p.local() || (s_.direct && p.terms.size() == 1 && p.terms[0].holder == group_.index())) return;
  std::vector<const std::byte*> terms;
  for (const Term& t : p.terms)
    terms.push_back(t.owners.empty() ? at_index(shown, at_index(group_.local_place_, t.holder)) + t.at * item_
                                     : sums_[i]->data());
  std::byte* dst = out_ + p.dst_start * item_;
  Dims strides = contiguous_strides(p.shape);
  if (terms.size() > 1)
    kernels::sum_region(dst, p.dst_strides, terms, strides, p.shape, info_.dtype);
  else
    kernels::copy_region(dst, p.dst_strides, terms[0], strides, p.shape, item_);
}

void HostsCommunicator::Pulling::finish() {
  // First of all, as data of another call would never come.
  if (envelope_) {
    group_.wait(*envelope_, true);
    group_.compare(theirs_, group_.neighbours().before);
  }
  size_t come = 0;
  auto wait_for = [&](size_t packets) {
    for (; come < packets; ++come) group_.wait(*incoming_[come], true);
  };
  if (s_.reads_staged) {
    wait_for(incoming_.size());
    CallInfo again = info_;
    again.fingerprint ^= 1;
    auto shown = group_.local_->open(again, shown_, bytes_of(s_.shown_elements));
    for (size_t i = 0; i < s_.pulls.size(); ++i) finish_pull(i, shown);
  } else {
    // Nobody else waits for it: each pull as soon as it is there.
    std::vector<const std::byte*> own(to_size(group_.local_->size()), shown_);
    for (size_t i = 0; i < s_.pulls.size(); ++i) {
      for (const Term& t : s_.pulls[i].terms)
        if (t.owners.empty()) wait_for(to_size(t.packet) + 1);
      finish_pull(i, own);
    }
    wait_for(incoming_.size());
  }
  for (auto& o : outgoing_) group_.wait(*o, false);
  if (envelope_) group_.wait(*envelope_, false);
  group_.local_->close();
}

}  // namespace holon::comm
