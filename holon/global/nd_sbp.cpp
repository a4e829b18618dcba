#include "holon/global/nd_sbp.h"

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "holon/array/dims.h"
#include "holon/base/error.h"
#include "holon/base/fork.h"
#include "holon/base/index.h"

namespace holon {

// The usual lists have one entry, and are found without a lock.
NdSbp::NdSbp(Sbp sbp) {
  static constinit std::array<std::atomic<const Data*>, 2 + 256> known{};
  auto& slot = known[sbp.is_broadcast() ? 0 : sbp.is_partial() ? 1 : 2u + static_cast<uint8_t>(sbp.axis)];
  data_ = slot.load(std::memory_order_acquire);
  if (data_) [[likely]]
    return;
  data_ = intern({&sbp, 1});
  slot.store(data_, std::memory_order_release);
}

NdSbp::NdSbp(std::span<const Sbp> list) {
  if (list.empty()) fail_value("an sbp list is empty; give one sbp for each axis of the placement's hierarchy.");
  if (list.size() > to_size(kMaxAxes))
    fail_value("an sbp list has {} entries; a placement's hierarchy has at most {} axes.", list.size(), kMaxAxes);
  data_ = list.size() == 1 ? NdSbp(list[0]).data_ : intern(list);
}

const NdSbp::Data* NdSbp::intern(std::span<const Sbp> list) {
  std::string key;
  for (Sbp s : list) {
    key += static_cast<char>(s.kind);
    key += static_cast<char>(s.is_split() ? s.axis : 0);
  }
  // Both are never destroyed: handles may outlive main().
  static auto* mutex = new ProcessMutex;
  static auto* table = new std::unordered_map<std::string, std::unique_ptr<Data>>;
  std::lock_guard lock(*mutex);
  auto& slot = (*table)[key];
  if (!slot) {
    slot = std::make_unique<Data>();
    slot->has_partial = slot->has_split = false;
    for (Sbp s : list) {
      slot->list.push_back(s);
      slot->has_partial |= s.is_partial();
      slot->has_split |= s.is_split();
    }
  }
  return slot.get();
}

NdSbp NdSbp::filled(int axes, Sbp sbp) { return NdSbp(std::vector<Sbp>(to_size(axes), sbp)); }

NdSbp NdSbp::with(int rank_dim, Sbp sbp) const {
  if (rank_dim < 0 || rank_dim >= size()) fail_axis(rank_dim);
  std::vector<Sbp> list(begin(), end());
  at_index(list, rank_dim) = sbp;
  return NdSbp(list);
}

void NdSbp::fail_axis(int rank_dim) const {
  if (!data_)
    fail_runtime("an undefined sbp was read. Make one, e.g. sbp::split(0), or a list with one for each axis.");
  fail(ErrorKind::kIndex, "the sbp {} has {} entries; there is no entry {}.", str(), size(), rank_dim);
}

std::string NdSbp::str() const {
  if (size() == 1) return (*this)[0].str();
  std::string text = "(";
  for (int i = 0; i < size(); ++i) text += (i ? ", " : "") + (*this)[i].str();
  return text + ")";
}

}  // namespace holon
