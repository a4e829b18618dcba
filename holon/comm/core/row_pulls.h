// The collectives over rows of elements (communicator.h), as pulls.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "holon/array/dtype.h"
#include "holon/comm/core/communicator.h"
#include "holon/comm/core/pull.h"

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
  int64_t stretch_begin(int member) const;
  int64_t stretch_size(int member) const { return stretch_begin(member + 1) - stretch_begin(member); }

  const Kind kind_;
  const int members_, me_;
  const std::span<const int64_t> counts_;
  const DType dtype_;
  const int phases_;
  mutable std::optional<std::vector<Pull>> mine_[2];  // for transports that ask
};

}  // namespace holon::comm
