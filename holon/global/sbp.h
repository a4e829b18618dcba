// How one tensor is distributed along one axis of a placement's hierarchy: split along a tensor axis, the same
// everywhere (broadcast), or as addends of which the value is the sum (partial_sum).
#pragma once

#include <cstdint>
#include <string>

namespace holon {

struct Sbp {
  enum class Kind : uint8_t { kSplit, kBroadcast, kPartial };
  Kind kind = Kind::kBroadcast;
  int8_t axis = 0;  // the tensor's axis; meant for kSplit only

  // Which of the three it is; of_axis: and along which axis it is split.
  bool is_split() const { return kind == Kind::kSplit; }
  bool is_split(int of_axis) const { return kind == Kind::kSplit && axis == of_axis; }
  bool is_broadcast() const { return kind == Kind::kBroadcast; }
  bool is_partial() const { return kind == Kind::kPartial; }
  bool operator==(const Sbp& o) const { return kind == o.kind && (kind != Kind::kSplit || axis == o.axis); }

  std::string str() const;       // "S(0)", "B", "P"
  std::string long_str() const;  // "split(dim=0)", "broadcast", "partial_sum"
};

namespace sbp {
// Errors: a negative axis (RuntimeError): the tensor is not known here, so there is no end to count from.
Sbp split(int axis);
inline Sbp broadcast() { return {}; }
inline Sbp partial_sum() { return {Sbp::Kind::kPartial, 0}; }
}  // namespace sbp

}  // namespace holon
