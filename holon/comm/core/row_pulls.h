// The collectives over rows of elements (communicator.h), as pulls.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "holon/array/dtype.h"
#include "holon/base/index.h"
#include "holon/base/small_vec.h"
#include "holon/comm/core/communicator.h"
#include "holon/comm/core/pull.h"
#include "holon/kernels/add_n.h"
#include "holon/kernels/cpu/stream.h"

namespace holon::comm {

// Made for each call, and not kept: what a member pulls follows from a few counts in no more time than it takes to find
// it in memory, which is cold where ranks share a core.
class RowPulls final : public GroupPulls {
 public:
  // What `counts` has.
  enum class Kind : uint8_t {
    kAllReduce,      // all elements
    kReduceScatter,  // those that each member gets
    kAllGather,      // those of each member
    kAllToAll,       // what each member sends to each: one row of the matrix after the other
    kBroadcast,      // all elements, and the root
  };
  // Pre: the counts outlive it.
  RowPulls(Kind kind, int members, int me, std::span<const int64_t> counts, DType dtype)
      : kind_(kind),
        members_(members),
        me_(me),
        counts_(counts),
        dtype_(dtype),
        phases_(kind == Kind::kAllReduce && members > 1 &&
                        static_cast<size_t>(counts[0]) * size_bytes(dtype) > Communicator::kInlineBytes
                    ? 2
                    : 1) {}

  // A large all_reduce has two: each member sums one stretch, then copies the others'. Of a small one each member sums
  // everything.
  int phases() const override { return phases_; }
  std::span<const Pull> mine(int phase) const override;
  std::vector<Pull> of(int member, int phase) const override;
  uint64_t key() const override;
  Collective collective() const override;
  int64_t elements_read(int me) const override;
  void run(int phase, DType dtype, std::span<const std::byte* const> parts, std::byte* dst,
           size_t dst_bytes) const override;

 private:
  // Calls sum(src, dst, count) and copy(owner, src, dst, count) for the rows that a member pulls: sums are everybody's.
  template <class Sum, class Copy>
  void each_row(int member, int phase, Sum sum, Copy copy) const;
  // Of the first n counts. They are a few: a plain loop is the fastest.
  static int64_t total(const int64_t* counts, int n) {
    int64_t sum = 0;
    for (int i = 0; i < n; ++i) sum += counts[i];
    return sum;
  }
  // Stretches end at cache lines.
  int64_t stretch_begin(int member) const {
    const auto line = static_cast<int64_t>(64 / size_bytes(dtype_));
    const int64_t lines = (counts_[0] + line - 1) / line;
    return std::min(counts_[0], lines * member / members_ * line);
  }
  int64_t stretch_size(int member) const { return stretch_begin(member + 1) - stretch_begin(member); }

  const Kind kind_;
  const int members_, me_;
  const std::span<const int64_t> counts_;
  const DType dtype_;
  const int phases_;
  mutable std::optional<std::vector<Pull>> mine_[2];  // for transports that ask
};

// Here, so that a collective, which knows its kind, runs the loop of that kind alone.
template <class Sum, class Copy>
[[gnu::always_inline]] inline void RowPulls::each_row(int member, int phase, Sum sum, Copy copy) const {
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

[[gnu::always_inline]] inline int64_t RowPulls::elements_read(int me) const {
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

[[gnu::always_inline]] inline void RowPulls::run(int phase, DType dtype, std::span<const std::byte* const> parts,
                                                 std::byte* dst, size_t dst_bytes) const {
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
