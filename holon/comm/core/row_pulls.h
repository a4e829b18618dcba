// The collectives over rows of elements (communicator.h), as pulls.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "holon/array/dtype.h"
#include "holon/comm/core/pull.h"

namespace holon::comm {

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
  RowPulls(Kind kind, int members, int me, std::span<const int64_t> counts, DType dtype);

  bool is(Kind kind, std::span<const int64_t> counts, DType dtype) const {
    if (kind != kind_ || dtype != dtype_ || counts.size() != counts_.size()) return false;
    for (size_t i = 0; i < counts.size(); ++i)  // a few: a loop is faster than memcmp's call
      if (counts[i] != counts_[i]) return false;
    return true;
  }

  // A large all_reduce has two: each member sums one stretch, then copies the others'. Of a small one each member sums
  // everything.
  int phases() const override { return phases_; }
  std::span<const Pull> mine(int phase) const override { return mine_[phase]; }
  std::vector<Pull> of(int member, int phase) const override;
  uint64_t key() const override { return key_; }
  Collective collective() const override;
  int64_t elements_read(int) const override { return elements_read_; }
  void run(int phase, DType dtype, std::span<const std::byte* const> parts, std::byte* dst,
           size_t dst_bytes) const override;

 private:
  // A pull in an eighth of its memory: where ranks share a core, their caches are cold at each call.
  struct Row {
    int owner;  // kSum: the sum of everybody's
    int64_t src, dst, count;
  };
  static constexpr int kSum = -1;

  int64_t stretch_begin(int member) const;
  std::vector<Row> rows_of(int member, int phase) const;

  const Kind kind_;
  const int members_;
  const std::vector<int64_t> counts_;
  const DType dtype_;
  int phases_ = 1;
  uint64_t key_ = 0;
  int64_t elements_read_ = 0;
  std::vector<Row> my_rows_[2];
  std::vector<Pull> mine_[2];
};

}  // namespace holon::comm
