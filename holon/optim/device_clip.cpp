#include "holon/optim/device_clip.h"

#include <algorithm>

#include "holon/base/context.h"
#include "holon/base/index.h"
#include "holon/kernels/on_device.h"
#include "holon/kernels/optim.h"
#include "holon/optim/over_ranks.h"

namespace holon::optim {

Device clip_device(std::span<const GlobalSpec* const> specs, std::span<const Device> devices) {
  const bool global = std::any_of(specs.begin(), specs.end(), [](auto* s) { return s != nullptr; });
  Device found;
  std::vector<const Placement*> placements;
  for (size_t i = 0; i < specs.size(); ++i) {
    if (global && !specs[i]) continue;  // what is local may differ from rank to rank
    const Device device = global ? specs[i]->placement.device() : devices[i];
    if (device.is_host() || (i > 0 && !found.is_host() && !(device == found))) return {};
    found = device;
    if (!global) continue;
    if (specs[i]->placement.size() != Context::current().world_size()) return {};
    if (std::none_of(placements.begin(), placements.end(), [&](auto* p) { return *p == specs[i]->placement; }))
      placements.push_back(&specs[i]->placement);
  }
  return placements.size() < kernels::kMostNormRows ? found : Device();
}

DeviceClipping::DeviceClipping(const Clip& clip, std::span<const GlobalSpec* const> specs, bool wide, Device device)
    : clip_(clip), wide_(wide), device_(device) {
  const int rank = Context::current().rank();
  std::vector<const GlobalSpec*> split;  // one of each placement
  for (size_t i = 0; i < specs.size(); ++i) {
    if (!specs[i] || specs[i]->nd_sbp.is_broadcast()) {
      order_.push_back(i);
      counts_.push_back(true);
    } else if (std::none_of(split.begin(), split.end(), [&](auto* s) { return s->placement == specs[i]->placement; })) {
      split.push_back(specs[i]);
    }
  }
  alone_ = order_.size();
  for (const GlobalSpec* of : split) {
    const Placement& p = of->placement;
    const size_t first = order_.size();
    for (size_t i = 0; i < specs.size(); ++i) {
      if (!specs[i] || specs[i]->nd_sbp.is_broadcast() || !(specs[i]->placement == p)) continue;
      order_.push_back(i);
      counts_.push_back(counts_once(*specs[i], p.index_of(rank)));
    }
    const Placement row(name(p.device_type()), std::vector<int64_t>(p.ranks().begin(), p.ranks().end()));
    const Dims shape{p.size(), static_cast<int64_t>(order_.size() - first)};
    rows_.push_back({first, order_.size(),
                     boxing::Prepared::prepare(intern_spec(row, sbp::split(0)), intern_spec(row, sbp::broadcast()),
                                               shape, DType::kFloat64)});
  }
}

void DeviceClipping::run(std::span<const Array> parts, const Array& result) const {
  if (!found_.defined()) {
    found_ = Array::empty({static_cast<int64_t>(order_.size())}, DType::kFloat64, device_);
    for (const Row& row : rows_) all_.push_back(Array::empty(row.gather.out_shape(), DType::kFloat64, device_));
  }
  const Array nothing = Array::empty({0}, DType::kFloat32, device_);
  std::vector<Array> own;
  own.reserve(order_.size());
  for (size_t k = 0; k < order_.size(); ++k) {
    const Array& part = parts[order_[k]];
    own.push_back(counts_[k] && part.defined() ? kernels::on_device(part, device_) : nothing);
  }
  Array written = result;
  const kernels::NormKind kind = norm_kind(clip_.norm_type);
  kernels::norms_into(kind, clip_.norm_type, own, found_);
  auto of_rank = [&](size_t first, size_t end) {
    const auto n = static_cast<int64_t>(end - first);
    return found_.view({1, n}, contiguous_strides({1, n}), static_cast<int64_t>(first));
  };
  std::vector<Array> rows;
  if (alone_ > 0) rows.push_back(of_rank(0, alone_));
  for (size_t r = 0; r < rows_.size(); ++r) {
    rows_[r].gather.run(of_rank(rows_[r].first, rows_[r].end), all_[r], {});
    rows.push_back(all_[r]);
  }
  kernels::clip_factor(kind, clip_.norm_type, clip_.limit, wide_, rows, written);
}

std::vector<std::span<const int>> DeviceClipping::collectives() const {
  std::vector<std::span<const int>> all;
  for (const Row& row : rows_)
    for (std::span<const int> group : row.gather.collectives()) all.push_back(group);
  return all;
}

bool DeviceClipping::communicates_on_devices() const {
  return std::all_of(rows_.begin(), rows_.end(),
                     [](const Row& row) { return !row.gather.communicates() || row.gather.communicates_on_devices(); });
}

void DeviceClipping::bind() const {
  for (const Row& row : rows_) row.gather.bind();
}

}  // namespace holon::optim
