#include "holon/boxing/point_to_point_device.h"

#include <algorithm>
#include <map>

#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/boxing/rank_step.h"
#include "holon/kernels/copy.h"

namespace holon::boxing {

namespace {

std::vector<int> sorted_ranks(const GlobalSpec& s) {
  std::vector<int> ranks(s.placement.ranks().begin(), s.placement.ranks().end());
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

size_t place_of(const std::vector<int>& sorted, int rank) {
  return to_size(std::lower_bound(sorted.begin(), sorted.end(), rank) - sorted.begin());
}

bool is_stretch(const Dims& shape, const Dims& strides) {
  return Array{{}, 0, shape, strides, DType::kUInt8, {}}.is_contiguous();
}

// What a sender shows to a receiver: `count` elements from `at` on, in the host's memory.
struct Shown {
  int64_t count = 0, at = 0;
  int regions = 0;
  bool stretch = false;  // one piece of the part, from `start` on: receivers of the same share it
  int64_t start = 0;
};

// For each sender and each receiver, all ranks alike.
std::vector<std::vector<Shown>> shown_by(const Plan& plan, size_t step, const std::vector<int>& senders,
                                         const std::vector<int>& receivers) {
  std::vector<std::vector<Shown>> all(senders.size(), std::vector<Shown>(receivers.size()));
  for (size_t k = 0; k < receivers.size(); ++k) {
    const Transfer& t = plan.transfer(step, receivers[k]);
    for (const comm::Pull& p : t.pulls)
      for (int owner : p.owners) {
        const int rank = at_index(t.members, owner);
        if (rank == receivers[k] || p.shape.numel() == 0) continue;
        Shown& s = all[place_of(senders, rank)][k];
        s.stretch = ++s.regions == 1 && is_stretch(p.shape, p.src_strides);
        s.start = p.src_start;
        s.count += p.shape.numel();
      }
  }
  for (auto& row : all) {
    std::map<std::pair<int64_t, int64_t>, int64_t> shared;
    int64_t end = 0;
    for (Shown& s : row) {
      if (s.stretch) {
        const auto [at, fresh] = shared.try_emplace({s.start, s.count}, end);
        s.at = at->second;
        if (!fresh) continue;
      }
      s.at = end;
      end += s.count;
    }
  }
  return all;
}

}  // namespace

DeviceCrossing::DeviceCrossing(const Plan& plan, size_t step, int rank, int channel)
    : plan_(plan), step_(step), rank_(rank), channel_(channel) {}

DeviceCrossing::~DeviceCrossing() {
  try {
    for (Outgoing& o : outgoing_)
      if (o.way) o.link->join(o.way);
  } catch (...) {  // nothing is under way any more
  }
}

void DeviceCrossing::bind() {
  if (!object_) make();
}

void DeviceCrossing::make() {
  const Step& step = plan_.steps()[step_];
  const std::vector<int> senders = sorted_ranks(*step.from), receivers = sorted_ranks(*step.to);
  const auto shown = shown_by(plan_, step_, senders, receivers);
  // Towards a receiver: what the senders show it, one after the other.
  auto pulls_of = [&](int receiver) {
    std::vector<comm::Pull> pulls;
    int64_t end = 0;
    for (size_t g = 0; g < senders.size(); ++g) {
      const Shown& s = at_index(shown[g], receiver);
      if (s.count == 0) continue;
      pulls.push_back(comm::row_pull({static_cast<int>(g)}, s.at, end, s.count));
      end += s.count;
    }
    return pulls;
  };
  const Device from = step.from->placement.device(), to = step.to->placement.device();
  const bool linked = on_alike_devices(*step.from, *step.to);
  auto object = std::make_unique<comm::PointToPoint>(senders, receivers, channel_, plan_.dtype(), pulls_of, linked);

  const Transfer& mine = plan_.transfer(step_, rank_);
  const comm::PullsByMember pulls(mine.me, [&](int member) {
    return plan_.transfer(step_, at_index(mine.members, member)).pulls;
  });
  exchange_ = std::make_unique<const comm::DeviceExchange>(static_cast<int>(mine.members.size()), mine.me, pulls);
  reads_own_ = exchange_->reads_own();
  senders_ = senders.size();
  const auto readers = object->readers();
  for (const comm::DeviceExchange::Message& m : exchange_->sends()) {
    const int peer = at_index(mine.members, m.peer);
    const size_t receiver = place_of(receivers, peer);
    const Shown& s = shown[place_of(senders, rank_)][receiver];
    const auto reader =
        to_size(std::find(readers.begin(), readers.end(), static_cast<int>(receiver)) - readers.begin());
    const bool told = linked && reader < comm::PointToPoint::kMostWays;
    outgoing_.push_back({m, reader, s.at, told ? comm::device_link(rank_, peer, from) : nullptr});
    shown_elements_ = std::max(shown_elements_, s.at + s.count);
  }
  std::map<size_t, int64_t> staged_at;
  if (step.to->placement.index_of(rank_) >= 0)
    for (const comm::Pull& p : pulls_of(static_cast<int>(place_of(receivers, rank_)))) {
      staged_at[to_size(p.owners[0])] = p.dst_start;
      staged_elements_ += p.shape.numel();
    }
  for (const comm::DeviceExchange::Message& m : exchange_->receives()) {
    const int peer = at_index(mine.members, m.peer);
    const size_t sender = place_of(senders, peer);
    incoming_.push_back({m, sender, staged_at.at(sender), linked ? comm::device_link(peer, rank_, to) : nullptr});
  }
  object_ = std::move(object);
}

void DeviceCrossing::send(const Array& part) {
  bind();
  if (own_.defined())
    fail_runtime("transfer: {} sends again before it has received what it sent to itself. Receive first.", rank_text());
  release();
  const comm::CallInfo info = call_info(plan_, plan_.steps()[step_]);
  if (reads_own_) own_ = part;
  sent_ = part;
  const Array packed = exchange_->pack(part);
  std::vector<uint64_t> ways(std::min(object_->readers().size(), comm::PointToPoint::kMostWays));
  bool through_host = false;
  for (Outgoing& o : outgoing_) {
    if (!o.link || !o.link->open()) {
      through_host = true;
      continue;
    }
    o.way = ways[o.reader] = o.link->send(info, comm::DeviceExchange::row_of(o.message, part, packed));
    if (!o.message.direct) o.link->uses(packed);
  }
  if (through_host && !shown_.defined()) shown_ = Array::empty({shown_elements_}, plan_.dtype());
  std::vector<int64_t> written;
  for (const Outgoing& o : outgoing_) {
    if (o.way || std::find(written.begin(), written.end(), o.host_at) != written.end()) continue;
    Array to = shown_.view({o.message.count}, {1}, o.host_at);
    kernels::copy(comm::DeviceExchange::row_of(o.message, part, packed), to);
    written.push_back(o.host_at);
  }
  const bool linked = !outgoing_.empty() && outgoing_[0].link;
  object_->send(info, through_host ? shown_.bytes() : nullptr, through_host ? shown_.nbytes() : 0,
                linked ? std::span<const uint64_t>(ways) : std::span<const uint64_t>());
}

void DeviceCrossing::receive(const Array& out) {
  bind();
  if (reads_own_ && !own_.defined())
    fail_runtime("transfer: {} receives what it has not sent yet. Send first.", rank_text());
  const Step& step = plan_.steps()[step_];
  const comm::CallInfo info = call_info(plan_, step);
  const bool linked = on_alike_devices(*step.from, *step.to);
  if (staged_elements_ && !staged_.defined()) staged_ = Array::empty({staged_elements_}, plan_.dtype());
  std::vector<uint64_t> ways(linked ? senders_ : 0);
  object_->receive(info, staged_.defined() ? staged_.bytes() : nullptr, staged_.defined() ? staged_.nbytes() : 0, ways);

  const Array received = exchange_->make_received(plan_.dtype(), out.device);
  struct Copy {
    Array from, to;
  };
  std::vector<Copy> copies;
  std::vector<std::pair<comm::DeviceLink*, uint64_t>> under_way;
  for (const Incoming& in : incoming_) {
    const Array row = comm::DeviceExchange::row_of(in.message, out, received);
    const uint64_t way = linked ? ways[in.sender] : 0;
    if (way == 0) {
      copies.push_back({staged_.view({in.message.count}, {1}, in.host_at), row});
      continue;
    }
    if (!in.link)
      fail_runtime("{}: a rank has sent from device to device, which HOLON_CUDA_LINKS=0 forbids {}. Set it to the same "
                   "value on all ranks.",
                   info.op, rank_text());
    const Array arrived = in.link->receive(info, way, row);
    under_way.emplace_back(in.link, way);
    if (arrived.bytes() != row.bytes()) copies.push_back({arrived, row});
  }
  for (auto [link, way] : under_way) link->join(way);
  for (Copy& c : copies) kernels::copy(c.from, c.to);
  if (own_.defined() && !(own_.device == out.device)) {
    Array here = Array::empty(own_.shape, own_.dtype, out.device);
    kernels::copy(own_, here);
    own_ = here;
  }
  exchange_->unpack(own_, received, out);
  own_ = {};
}

bool DeviceCrossing::try_release() {
  if (!object_) return true;
  if (own_.defined() || !object_->try_release()) return false;
  for (Outgoing& o : outgoing_)
    if (o.way && !o.link->done(o.way)) return o.link->check(), false;
  release();
  return true;
}

void DeviceCrossing::release() {
  if (!object_) return;
  if (own_.defined()) fail_runtime("transfer: {} releases what it has not received yet. Receive first.", rank_text());
  object_->release();
  for (Outgoing& o : outgoing_) {
    if (o.way) o.link->join(o.way);
    o.way = 0;
  }
  sent_ = {};
}

}  // namespace holon::boxing
