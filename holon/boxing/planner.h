// Finds the steps that bring a tensor from one (placement, nd_sbp) to another. Pure: the same arguments give the same
// plan on every rank. Works for every pair and every shape.
//
// The cheapest path of steps by the model in cost/ is taken, among those whose intermediate parts are no larger than
// the larger of source and target. Where there are too many states to try every step between any two, steps change one
// axis of the hierarchy, or are an exchange to the target.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "holon/array/dtype.h"
#include "holon/boxing/regions.h"
#include "holon/cost/cost.h"
#include "holon/global/spec.h"

namespace holon::boxing {

enum class StepKind : uint8_t {
  kSlice,           // each rank has what it needs: a view
  kZeroFill,        // to partial_sum: the part, or zeros, or the part among zeros; no rank meets another
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
  bool meets() const { return kind != StepKind::kSlice && kind != StepKind::kZeroFill; }
};

// A cheap handle to an immutable plan; it stays valid when the cache lets go of it.
class Plan {
 public:
  const GlobalSpec* from() const;
  const GlobalSpec* to() const;
  const Dims& shape() const;
  DType dtype() const;
  const std::vector<Step>& steps() const;
  // What a rank reads from its peers in all steps; 0 outside the placements.
  int64_t read_bytes(int rank) const;
  int64_t max_read_bytes() const;  // the most of any rank, so the same on all
  double predicted_s() const;
  // The most that the steps hold at once on a rank beside the input: a step's result, and the one before it.
  int64_t peak_bytes() const;
  std::string str() const;

  // What a rank of a step's placements pulls in it; worked out on first use. Thread-safe.
  const Transfer& transfer(size_t step, int rank) const;

  struct Data;
  explicit Plan(std::shared_ptr<const Data> data) : data_(std::move(data)) {}

 private:
  std::shared_ptr<const Data> data_;
};

// The plan, from a bounded cache of the process. Errors: an nd_sbp that fits its placement or the shape not.
Plan plan(const GlobalSpec* from, const GlobalSpec* to, const Dims& shape, DType dtype);

// The same without the cache, for a machine of one's own.
Plan find_plan(const GlobalSpec* from, const GlobalSpec* to, const Dims& shape, DType dtype, const MachineCosts& costs);

// Predicted seconds of the plan; 0 where nothing changes, a small positive number for a mere view.
double cost(const GlobalSpec* from, const GlobalSpec* to, const Dims& shape, DType dtype);

// The plan in words: its steps with bytes per rank and predicted time.
std::string explain(const GlobalSpec* from, const GlobalSpec* to, const Dims& shape, DType dtype);

// Below this an all_reduce has every rank sum everything: one meeting less weighs more than the bytes.
inline constexpr int64_t kSmallAllReduceBytes = 8 << 10;

}  // namespace holon::boxing
