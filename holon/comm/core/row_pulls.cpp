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

namespace {

// Of the first n counts. They are a few: a plain loop is the fastest.
int64_t total(const int64_t* counts, int n) {
  int64_t sum = 0;
  for (int i = 0; i < n; ++i) sum += counts[i];
  return sum;
}

}  // namespace

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

// Stretches end at cache lines.
int64_t RowPulls::stretch_begin(int member) const {
  const auto line = static_cast<int64_t>(64 / size_bytes(dtype_));
  const int64_t lines = (counts_[0] + line - 1) / line;
  return std::min(counts_[0], lines * member / members_ * line);
}

template <class Sum, class Copy>
void RowPulls::each_row(int member, int phase, Sum sum, Copy copy) const {
  // Starting with itself, or behind itself, the members read from different places at a time.
  auto next = [&](int k) { return k + 1 < members_ ? k + 1 : 0; };
  const int64_t* counts = counts_.data();
  switch (kind_) {
    case Kind::kAllReduce: {
      if (phases_ == 1) return sum(0, 0, counts[0]);
      if (phase == 0) return sum(stretch_begin(member), stretch_begin(member), stretch_size(member));
      for (int k = next(member); k != member; k = next(k)) copy(k, stretch_begin(k), stretch_begin(k), stretch_size(k));
      return;
    }
    case Kind::kReduceScatter: return sum(total(counts, member), 0, counts[member]);
    case Kind::kAllGather: {
      int64_t begin = total(counts, member);
      int k = member;
      do {
        copy(k, 0, begin, counts[k]);
        begin = k + 1 < members_ ? begin + counts[k] : 0;
      } while ((k = next(k)) != member);
      return;
    }
    case Kind::kAllToAll: {
      auto sent = [&](int from) { return counts + static_cast<int64_t>(from) * members_; };
      int64_t begin = 0;
      for (int k = 0; k < member; ++k) begin += sent(k)[member];
      int k = member;
      do {
        copy(k, total(sent(k), member), begin, sent(k)[member]);
        begin = k + 1 < members_ ? begin + sent(k)[member] : 0;
      } while ((k = next(k)) != member);
      return;
    }
    case Kind::kBroadcast:
      if (const auto root = static_cast<int>(counts[1]); member != root) copy(root, 0, 0, counts[0]);
      return;
  }
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

int64_t RowPulls::elements_read(int me) const {
  const int others = members_ - 1;
  switch (kind_) {
    case Kind::kAllReduce:
      if (phases_ == 1) return counts_[0] * others;
      return stretch_size(me) * others + counts_[0] - stretch_size(me);
    case Kind::kReduceScatter: return at_index(counts_, me) * others;
    case Kind::kAllGather: return total(counts_.data(), members_) - at_index(counts_, me);
    case Kind::kAllToAll: {
      int64_t elements = 0;
      for (int k = 0; k < members_; ++k) elements += k == me ? 0 : at_index(counts_, k * members_ + me);
      return elements;
    }
    case Kind::kBroadcast: return me == static_cast<int>(counts_[1]) ? 0 : counts_[0];
  }
  return 0;
}

void RowPulls::run(int phase, DType dtype, std::span<const std::byte* const> parts, std::byte* dst,
                   size_t dst_bytes) const {
  const auto item = static_cast<int64_t>(size_bytes(dtype));
  each_row(
      me_, phase,
      [&](int64_t src, int64_t at, int64_t count) {
        SmallVec<const void*, 64> rows;
        for (const std::byte* part : parts) rows.push_back(part + src * item);
        kernels::add_n(dst + at * item, rows, count, dtype);
      },
      // What is gathered in place has one address, and is left there.
      [&](int owner, int64_t src, int64_t at, int64_t count) {
        kernels::copy_bytes(dst + at * item, at_index(parts, owner) + src * item, to_size(count * item), dst_bytes);
      });
}

}  // namespace holon::comm
