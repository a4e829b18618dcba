// What one step between two layouts of a tensor costs. Pure.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "holon/array/dtype.h"
#include "holon/boxing/regions.h"
#include "holon/boxing/step.h"
#include "holon/cost/machine.h"

namespace holon::boxing {

struct Edge {
  StepKind kind = StepKind::kExchange;
  bool two_phase = false;
  double predicted_s = 0;
  int64_t out_bytes = 0;   // the largest new part that any rank allocates
  int64_t read_bytes = 0;  // the most that any rank reads from its peers
  int64_t host_bytes = 0;  // the most that comes into any host
};

// What an exact price has looked at.
struct EdgeDetails {
  std::vector<int64_t> read_bytes;  // from peers, by place in the target's placement
  // Of all ranks of the step, where they were needed (several hosts): Plan::transfer() has them at hand.
  std::vector<Transfer> transfers;
};

// Where in its plan a step is. What one step has written is in its writer's cache, not in that of those who read it in
// the next; and a view that goes on is copied, to be in a row.
struct InPlan {
  bool first = true, last = true;
};

// Prices steps between layouts (nd_sbp on one of two placements) of one tensor.
class Pricer {
 public:
  // `cut`: the tensor axes that layouts split. With `every_rank` the figures are exact; without it, in large
  // placements, some ranks represent the others: those at the ends and in the middle of each axis of the hierarchy.
  Pricer(const Placement& source, const Placement& target, const Dims& shape, DType dtype, const Machine& machine,
         std::vector<int> cut, bool every_rank);
  ~Pricer();

  // A layout's number. Source and target may be the same placement; then on_target is of no account.
  int add(bool on_target, const NdSbp& nd_sbp);
  const GlobalSpec& spec(int layout) const;
  // The largest part of any rank.
  int64_t part_bytes(int layout) const;
  // No step leads there: nullopt. details want every_rank.
  std::optional<Edge> price(int from, int to, InPlan where, EdgeDetails* details = nullptr);
  // No step from a to b is cheaper.
  double at_least(int from, int to) const;
  // The same with what must come into one host, which takes longer to find.
  double at_least_between_hosts(int from, int to);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The exact price of one step. nullopt: one step does not lead there.
std::optional<Edge> price_step(const GlobalSpec& from, const GlobalSpec& to, const Dims& shape, DType dtype,
                               const Machine& machine, InPlan where = {});

}  // namespace holon::boxing
