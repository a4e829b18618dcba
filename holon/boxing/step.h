// One step of a plan.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "holon/global/spec.h"

namespace holon::boxing {

enum class StepKind : uint8_t {
  kSlice,           // each rank has what it needs: a view
  kZeroFill,        // to partial_sum: the part, or zeros, or the part among zeros; no rank communicates
  kAllGather,       // S -> B along one axis
  kAllToAll,        // S -> S along one axis
  kReduceScatter,   // P -> S along one axis
  kAllReduce,       // P -> B along one or more axes
  kExchange,        // anything without addends
  kReduceExchange,  // anything with addends: each rank sums its slice over them
};
const char* name(StepKind kind);

struct Step {
  StepKind kind;
  const GlobalSpec* from;
  const GlobalSpec* to;
  bool two_phase = false;  // all_reduce: each rank sums a piece, then all gather the sums
  double predicted_s = 0;
  int64_t out_bytes = 0;            // the largest new part that any rank allocates
  std::vector<int64_t> read_bytes;  // from peers, by place in to->placement
  uint64_t fingerprint = 0;         // alike on all ranks that do the same step
  std::string label;                // "all_gather S(0) -> B"
  int64_t host_bytes = 0;           // what must come into the host that takes the most from other hosts
  bool communicates() const { return kind != StepKind::kSlice && kind != StepKind::kZeroFill; }
};

}  // namespace holon::boxing
