#include "holon/comm/core/row_pulls.h"

#include <algorithm>
#include <numeric>

#include "holon/base/hash.h"
#include "holon/base/index.h"
#include "holon/base/small_vec.h"
#include "holon/comm/core/communicator.h"
#include "holon/kernels/add_n.h"
#include "holon/kernels/cpu/stream.h"

namespace holon::comm {

RowPulls::RowPulls(Kind kind, int members, int me, std::span<const int64_t> counts, DType dtype)
    : kind_(kind), members_(members), counts_(counts.begin(), counts.end()), dtype_(dtype) {
  if (kind == Kind::kAllReduce && members > 1 && to_size(counts[0]) * size_bytes(dtype) > Communicator::kInlineBytes)
    phases_ = 2;
  if (kind != Kind::kAllToAll) {  // whose counts differ from call to call
    Hasher h;
    h.add(kind).add(dtype).add(counts_.size());
    for (int64_t c : counts_) h.add(c);
    key_ = h.value() | 1;
  }
  for (int phase = 0; phase < phases_; ++phase) {
    my_rows_[phase] = rows_of(me, phase);
    mine_[phase] = of(me, phase);
  }
  elements_read_ = GroupPulls::elements_read(me);
}

Collective RowPulls::collective() const {
  return kind_ == Kind::kAllReduce ? Collective::kAllReduce : Collective::kNone;
}

// Stretches end at cache lines.
int64_t RowPulls::stretch_begin(int member) const {
  const auto line = static_cast<int64_t>(64 / size_bytes(dtype_));
  const int64_t lines = (counts_[0] + line - 1) / line;
  return std::min(counts_[0], lines * member / members_ * line);
}

std::vector<RowPulls::Row> RowPulls::rows_of(int member, int phase) const {
  std::vector<Row> rows;
  auto add = [&](int owner, int64_t src, int64_t dst, int64_t count) {
    if (count > 0) rows.push_back({owner, src, dst, count});
  };
  // Starting with itself, or behind itself, the members read from different places at a time.
  auto nth = [&](int i) { return (member + i) % members_; };
  switch (kind_) {
    case Kind::kAllReduce: {
      if (phases_ == 1) {
        add(kSum, 0, 0, counts_[0]);
        break;
      }
      auto size = [&](int k) { return stretch_begin(k + 1) - stretch_begin(k); };
      if (phase == 0) {
        add(kSum, stretch_begin(member), stretch_begin(member), size(member));
        break;
      }
      for (int i = 1; i < members_; ++i) add(nth(i), stretch_begin(nth(i)), stretch_begin(nth(i)), size(nth(i)));
      break;
    }
    case Kind::kReduceScatter: {
      const int64_t begin = std::accumulate(counts_.begin(), counts_.begin() + member, int64_t{0});
      add(kSum, begin, 0, at_index(counts_, member));
      break;
    }
    case Kind::kAllGather: {
      std::vector<int64_t> begin(counts_.size());
      std::exclusive_scan(counts_.begin(), counts_.end(), begin.begin(), int64_t{0});
      for (int i = 0; i < members_; ++i) add(nth(i), 0, at_index(begin, nth(i)), at_index(counts_, nth(i)));
      break;
    }
    case Kind::kAllToAll: {
      auto sent = [&](int from) { return counts_.begin() + static_cast<int64_t>(from) * members_; };
      std::vector<int64_t> begin(to_size(members_));
      for (int k = 1; k < members_; ++k) at_index(begin, k) = at_index(begin, k - 1) + sent(k - 1)[member];
      for (int i = 0; i < members_; ++i) {
        const int k = nth(i);
        add(k, std::accumulate(sent(k), sent(k) + member, int64_t{0}), at_index(begin, k), sent(k)[member]);
      }
      break;
    }
    case Kind::kBroadcast:
      if (const auto root = static_cast<int>(counts_[1]); member != root) add(root, 0, 0, counts_[0]);
      break;
  }
  return rows;
}

std::vector<Pull> RowPulls::of(int member, int phase) const {
  Owners everybody(to_size(members_));
  std::iota(everybody.begin(), everybody.end(), 0);
  std::vector<Pull> pulls;
  for (const Row& r : rows_of(member, phase))
    pulls.push_back(row_pull(r.owner == kSum ? everybody : Owners{r.owner}, r.src, r.dst, r.count));
  return pulls;
}

void RowPulls::run(int phase, DType dtype, std::span<const std::byte* const> parts, std::byte* dst,
                   size_t dst_bytes) const {
  const auto item = static_cast<int64_t>(size_bytes(dtype));
  for (const Row& r : my_rows_[phase]) {
    std::byte* to = dst + r.dst * item;
    if (r.owner == kSum && members_ > 1) {
      SmallVec<const void*, 64> rows;
      for (const std::byte* part : parts) rows.push_back(part + r.src * item);
      kernels::add_n(to, rows, r.count, dtype);
      continue;
    }
    const std::byte* from = at_index(parts, std::max(r.owner, 0)) + r.src * item;
    if (to != from) kernels::copy_bytes(to, from, to_size(r.count * item), dst_bytes);  // else gathered in place
  }
}

}  // namespace holon::comm
