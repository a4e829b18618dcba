#include "holon/comm/device/device_exchange.h"

#include <algorithm>

#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/comm/device/device_communicator.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/regions.h"

namespace holon::comm {

namespace {

bool is_row_major(const Dims& shape, const Dims& strides) {
  int64_t step = 1;
  for (int i = shape.size() - 1; i >= 0; --i) {
    if (shape[i] != 1 && strides[i] != step) return false;
    step *= shape[i];
  }
  return true;
}

Array window(const Array& whole, const Dims& shape, const Dims& strides, int64_t start) {
  return whole.view(shape, strides, start);
}

}  // namespace

DeviceExchange::DeviceExchange(int members, int me, const GroupPulls& pulls) {
  const auto all = to_size(members);
  // Every member finds the same: they pull alike.
  if (pulls.collective() == Collective::kAllReduce) {
    collective_ = Collective::kAllReduce;
    return;
  }
  HOLON_CHECK(pulls.phases() == 1, "an exchange between devices in {} phases", pulls.phases());
  const std::span<const Pull> mine = pulls.mine(0);
  if (pulls.collective() == Collective::kAllGather && mine.size() == all) {
    std::vector<Region> places(all);
    std::vector<bool> seen(all);
    bool even = true;
    for (const Pull& p : mine) {
      even &= p.owners.size() == 1 && p.shape == mine[0].shape && p.src_start == 0 &&
          is_row_major(p.shape, p.src_strides) && !at_index(seen, p.owners[0]);
      if (!even) break;
      at_index(seen, p.owners[0]) = true;
      at_index(places, p.owners[0]) = {p.dst_start, p.dst_strides, p.shape, 0};
    }
    if (even) {
      collective_ = Collective::kAllGather;
      pieces_ = std::move(places);
    }
  }
  if (pulls.collective() == Collective::kReduceScatter) {
    bool even = true;
    for (int m = 0; m < members && even; ++m) {
      const std::vector<Pull> theirs = pulls.of(m, 0);
      even = theirs.size() == 1 && theirs[0].owners.size() == all && (m == 0 || theirs[0].shape == pieces_[0].shape);
      if (even) pieces_.push_back({theirs[0].src_start, theirs[0].src_strides, theirs[0].shape, 0});
    }
    if (even) collective_ = Collective::kReduceScatter;
  }
  if (collective_ != Collective::kNone) {
    in_order_ = true;
    for (size_t k = 0; k < all; ++k) {
      pieces_[k].at = static_cast<int64_t>(k) * pieces_[k].shape.numel();
      in_order_ &= pieces_[k].start == pieces_[k].at && is_row_major(pieces_[k].shape, pieces_[k].strides);
    }
    return;
  }
  pieces_.clear();

  for (int m = 0; m < members; ++m) {
    if (m == me) continue;
    std::vector<Region> regions;
    int64_t count = 0;
    for (const Pull& p : pulls.of(m, 0)) {
      if (std::find(p.owners.begin(), p.owners.end(), me) == p.owners.end() || p.shape.numel() == 0) continue;
      regions.push_back({p.src_start, p.src_strides, p.shape, send_elements_ + count});
      count += p.shape.numel();
    }
    if (count == 0) continue;
    const bool direct = regions.size() == 1 && is_row_major(regions[0].shape, regions[0].strides);
    sends_.push_back({m, send_elements_, count, direct, regions[0].start});
    if (direct) continue;
    send_elements_ += count;
    packed_.insert(packed_.end(), regions.begin(), regions.end());
  }

  std::vector<int64_t> counts(all, 0), starts(all, 0);
  std::vector<const Pull*> only(all, nullptr);  // the pull of a member's one region, if nothing is added to it
  std::vector<int> regions(all, 0);
  for (const Pull& p : mine)
    for (int owner : p.owners) {
      at_index(counts, owner) += p.shape.numel();
      ++at_index(regions, owner);
      at_index(only, owner) = p.owners.size() == 1 ? &p : nullptr;
    }
  for (int m = 0; m < members; ++m) {
    const auto k = to_size(m);
    if (m == me || counts[k] == 0) continue;
    const bool direct = regions[k] == 1 && only[k] && is_row_major(only[k]->shape, only[k]->dst_strides);
    receives_.push_back({m, receive_elements_, counts[k], direct, direct ? only[k]->dst_start : 0});
    starts[k] = receive_elements_;
    if (!direct) receive_elements_ += counts[k], only[k] = nullptr;
  }
  for (const Pull& p : mine) {
    Taken t{p.src_strides, p.dst_start, p.dst_strides, p.shape, {}};
    if (t.shape.numel() == 0) continue;
    for (int owner : p.owners) {
      const auto k = to_size(owner);
      if (owner == me) {
        t.addends.push_back({true, p.src_start});
        continue;
      }
      t.direct = only[k] == &p;
      t.addends.push_back({false, starts[k]});
      starts[k] += t.shape.numel();
    }
    if (!t.direct) taken_.push_back(std::move(t));
  }
}

void DeviceExchange::run(DeviceCommunicator& group, const CallInfo& info, const Array& in, const Array& out) const {
  if (collective_ == Collective::kAllReduce) {
    const int64_t count = in.defined() ? in.numel() : 0;
    return group.all_reduce(info, count ? in.bytes() : nullptr, count ? out.bytes() : nullptr, count, info.dtype);
  }
  if (collective_ == Collective::kAllGather) return run_gather(group, info, in, out);
  if (collective_ == Collective::kReduceScatter) return run_scatter(group, info, in, out);

  const Array packed = pack(in), received = make_received(info.dtype, in.defined() ? in.device : out.device);
  auto messages = [](std::span<const Message> list, const Array& part, const Array& others) {
    std::vector<DeviceMessage> all;
    for (const Message& m : list) {
      const Array row = row_of(m, part, others);
      all.push_back({m.peer, row.bytes(), row.nbytes()});
    }
    return all;
  };
  group.exchange(info, messages(sends_, in, packed), messages(receives_, out, received));
  if (!taken_.empty()) group.join();
  unpack(in, received, out);
}

Array DeviceExchange::pack(const Array& in) const {
  if (send_elements_ == 0) return {};
  const Array packed = Array::empty({send_elements_}, in.dtype, in.device);
  for (const Region& b : packed_) {
    Array to = window(packed, b.shape, contiguous_strides(b.shape), b.at);
    kernels::copy(window(in, b.shape, b.strides, b.start), to);
  }
  return packed;
}

Array DeviceExchange::make_received(DType dtype, Device device) const {
  return receive_elements_ ? Array::empty({receive_elements_}, dtype, device) : Array{};
}

Array DeviceExchange::row_of(const Message& m, const Array& part, const Array& others) {
  return m.direct ? part.view({m.count}, {1}, m.start) : others.view({m.count}, {1}, m.at);
}

bool DeviceExchange::reads_own() const {
  for (const Taken& t : taken_)
    for (const Addend& a : t.addends)
      if (a.own) return true;
  return false;
}

void DeviceExchange::unpack(const Array& in, const Array& received, const Array& out) const {
  for (const Taken& t : taken_) {
    Array to = window(out, t.shape, t.dst_strides, t.dst_start);
    std::vector<Array> addends;
    for (const Addend& a : t.addends)
      addends.push_back(a.own ? window(in, t.shape, t.src_strides, a.at)
                              : window(received, t.shape, contiguous_strides(t.shape), a.at));
    if (addends.size() == 1) {
      kernels::copy(addends[0], to);
      continue;
    }
    std::vector<const Array*> pointers;
    for (const Array& a : addends) pointers.push_back(&a);
    kernels::sum_arrays(pointers, to);
  }
}

void DeviceExchange::run_gather(DeviceCommunicator& group, const CallInfo& info, const Array& in,
                                const Array& out) const {
  Array gathered = in_order_ ? out : Array::empty({out.numel()}, out.dtype, out.device);
  group.all_gather(info, in.bytes(), gathered.bytes(), in.numel(), in.dtype);
  if (in_order_) return;
  group.join();
  for (const Region& b : pieces_) {
    Array to = window(out, b.shape, b.strides, b.start);
    kernels::copy(window(gathered, b.shape, contiguous_strides(b.shape), b.at), to);
  }
}

void DeviceExchange::run_scatter(DeviceCommunicator& group, const CallInfo& info, const Array& in,
                                 const Array& out) const {
  Array pieces = in;
  if (!in_order_) {
    pieces = Array::empty({in.numel()}, in.dtype, in.device);
    for (const Region& b : pieces_) {
      Array to = window(pieces, b.shape, contiguous_strides(b.shape), b.at);
      kernels::copy(window(in, b.shape, b.strides, b.start), to);
    }
  }
  group.reduce_scatter(info, pieces.bytes(), out.bytes(), out.numel(), in.dtype);
}

}  // namespace holon::comm
