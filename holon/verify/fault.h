// What a fault looks like, by the values.
#pragma once

#include <string>
#include <string_view>

#include "holon/verify/compare.h"

namespace holon::verify {

enum class FaultKind : uint8_t {
  kMissingSum,       // an addend, or what one rank has, is used as the sum
  kSumTwice,         // what was whole is summed over the ranks again
  kWrongScale,       // a multiple of what it should be
  kWrongSlice,       // another part of the tensor, or its rows in another order
  kStaleReplica,     // the value from before an update, on some ranks or on all
  kRandomNumbers,    // ranks draw different numbers, or those of their parts
  kDriftedReplicas,  // copies of a broadcast tensor differ
  kRankBranch,       // ranks do not run the same ops
  kData,             // samples are read twice or never
  kLocalOp,          // an op on the parts is not the op on the whole
  kDroppedGradient,  // a result has no gradient, and has one on one rank
  kFails,            // the program raises an error under this layout alone
  kOther,
};
// "missing sum".
std::string_view name(FaultKind kind);

struct Fault {
  FaultKind kind = FaultKind::kOther;
  std::string site;  // "train.py:31"
  std::string op;    // "matmul", "backward of matmul"
  std::string what;  // both values, and why it looks like that
  std::string seen;  // where it first shows: "the gradient of parameter 0 [4, 8] in Adam, train.py:40"
  std::string str() const;
};

// The fault that shows in an outcome that does not agree.
Fault fault_of(const Comparison& c, int outcome);

}  // namespace holon::verify
