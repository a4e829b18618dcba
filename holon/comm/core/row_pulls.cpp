#include "holon/comm/core/row_pulls.h"

#include <numeric>

#include "holon/base/hash.h"
#include "holon/base/index.h"

namespace holon::comm {

uint64_t RowPulls::key() const {
  if (kind_ == Kind::kAllToAll) return 0;  // its counts differ from call to call
  Hasher h;
  h.add(kind_).add(dtype_).add(counts_.size());
  for (int64_t c : counts_) h.add(c);
  return h.value() | 1;
}

Collective RowPulls::collective() const {
  return kind_ == Kind::kAllReduce ? Collective::kAllReduce : Collective::kNone;
}

std::span<const Pull> RowPulls::mine(int phase) const {
  auto& mine = mine_[phase];
  if (!mine) mine = of(me_, phase);
  return *mine;
}

std::vector<Pull> RowPulls::of(int member, int phase) const {
  std::vector<Pull> pulls;
  auto add = [&](Owners owners, int64_t src, int64_t dst, int64_t count) {
    if (count > 0) pulls.push_back(row_pull(std::move(owners), src, dst, count));
  };
  each_row(
      member, phase,
      [&](int64_t src, int64_t dst, int64_t count) {
        Owners everybody(to_size(members_));
        std::iota(everybody.begin(), everybody.end(), 0);
        add(std::move(everybody), src, dst, count);
      },
      [&](int owner, int64_t src, int64_t dst, int64_t count) { add({owner}, src, dst, count); });
  return pulls;
}

}  // namespace holon::comm
