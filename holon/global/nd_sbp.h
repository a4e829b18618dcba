// One sbp per axis of a placement's hierarchy, outermost first. Interned: a handle is one pointer, and comparing two is
// comparing pointers. Thread-safe; the lists live as long as the process.
#pragma once

#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "holon/base/index.h"
#include "holon/global/sbp.h"

namespace holon {

class NdSbp {
 public:
  NdSbp() = default;  // no list: false in a condition, size() 0
  NdSbp(Sbp sbp);
  NdSbp(std::initializer_list<Sbp> list) : NdSbp(std::span<const Sbp>(list.begin(), list.size())) {}
  // Errors: an empty list, or one longer than kMaxAxes.
  explicit NdSbp(std::span<const Sbp> list);
  NdSbp(const std::vector<Sbp>& list) : NdSbp(std::span<const Sbp>(list)) {}
  // The same sbp along each of `axes` axes.
  static NdSbp filled(int axes, Sbp sbp);
  // This list with one entry replaced. Errors: no such axis of ranks.
  NdSbp with(int rank_dim, Sbp sbp) const;

  explicit operator bool() const { return data_ != nullptr; }
  // The number of axes of ranks; 0 for none.
  int size() const { return data_ ? static_cast<int>(data_->list.size()) : 0; }
  // Errors: no such axis of ranks.
  Sbp operator[](int rank_dim) const {
    if (rank_dim < 0 || rank_dim >= size()) [[unlikely]]
      fail_axis(rank_dim);
    return at_index(data_->list, rank_dim);
  }
  const Sbp* begin() const { return data_ ? data_->list.data() : nullptr; }
  const Sbp* end() const { return begin() + size(); }
  bool operator==(const NdSbp& o) const { return data_ == o.data_; }
  // For hashing: equal for equal lists.
  const void* id() const { return data_; }

  // Whether some entry is a partial sum, or a split; or all are broadcast.
  bool has_partial() const { return data_ && data_->has_partial; }
  bool has_split() const { return data_ && data_->has_split; }
  bool is_broadcast() const { return data_ && !data_->has_partial && !data_->has_split; }

  std::string str() const;  // "S(0)" for one axis, "(S(0), B)" for more

 private:
  struct Data {
    std::vector<Sbp> list;
    bool has_partial, has_split;
  };
  static const Data* intern(std::span<const Sbp> list);
  [[noreturn]] void fail_axis(int rank_dim) const;
  const Data* data_ = nullptr;
};

}  // namespace holon
