// Finds the steps that bring a tensor from one (placement, nd_sbp) to another. Pure: the same arguments give the same
// plan on every rank. Works for every pair and every shape.
//
// The cheapest path of steps by the model in cost/ is taken (search.h), among those whose intermediate parts take no
// more memory than the larger of source and target.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "holon/array/dtype.h"
#include "holon/boxing/regions.h"
#include "holon/boxing/step.h"
#include "holon/cost/machine.h"
#include "holon/global/spec.h"

namespace holon::boxing {

// What one rank reads of another in a step, or in a plan.
struct Link {
  int from, to;  // ranks: `to` reads memory of `from`
  int64_t messages = 0, bytes = 0;
  bool operator==(const Link&) const = default;
};

struct RankPlan;

// A cheap handle to an immutable plan; it stays valid when the cache lets go of it.
class Plan {
 public:
  // What the plan is for, and its steps in order.
  const GlobalSpec* from() const;
  const GlobalSpec* to() const;
  const Dims& shape() const;
  DType dtype() const;
  const std::vector<Step>& steps() const&;
  void steps() const&& = delete;  // they live as long as a handle
  // What a rank reads from its peers in all steps; 0 outside the placements.
  int64_t read_bytes(int rank) const;
  int64_t max_read_bytes() const;  // the most of any rank, so the same on all
  // By the cost model.
  double predicted_s() const;
  // The most that the steps hold at once on a rank in addition to the input: a step's result, and the one before it.
  int64_t peak_bytes() const;
  // The most that the specs between the ends take on a rank at once.
  int64_t between_bytes() const;
  // Who reads how much of whom: in all steps, or in one. Sorted by `from`, then `to`; pairs of ranks that read nothing
  // of each other are left out. Takes every rank's transfers, so it is for words and tests.
  std::vector<Link> links() const;
  std::vector<Link> links(size_t step) const;
  const HostMap& hosts() const;  // that it was made for
  std::string str() const;

  // What a rank of a step's placements pulls in it; worked out on first use. Thread-safe.
  const Transfer& transfer(size_t step, int rank) const;
  // The plan as a rank of its placements does it (rank_step.h); worked out on first use. Thread-safe.
  const RankPlan& of_rank(int rank) const;

  struct Data;
  explicit Plan(std::shared_ptr<const Data> data) : data_(std::move(data)) {}

 private:
  std::shared_ptr<const Data> data_;
};

// The plan for the current rank's machine, from a bounded cache of the process. Errors: an nd_sbp that fits its
// placement or the shape not.
Plan plan(const GlobalSpec* from, const GlobalSpec* to, const Dims& shape, DType dtype);

// The same without the cache, for a machine of one's own.
Plan find_plan(const GlobalSpec* from, const GlobalSpec* to, const Dims& shape, DType dtype, const Machine& machine);
inline Plan find_plan(const GlobalSpec* from, const GlobalSpec* to, const Dims& shape, DType dtype,
                      const MachineCosts& costs) {
  return find_plan(from, to, shape, dtype, Machine{costs, {}});
}

// The plan of a single move, whatever it costs: no rank reads an element that it has, or one twice. Errors as above;
// Pre: `to` has no partial sums.
Plan direct_plan(const GlobalSpec* from, const GlobalSpec* to, const Dims& shape, DType dtype);

// One step of a path: where it leads, and whether an all_reduce goes in two phases.
struct PathStep {
  const GlobalSpec* to;
  bool two_phase = false;
  bool operator==(const PathStep&) const = default;
};
// The plan that takes this path, priced for the machine; no search. Errors: as above; a path that does not end at `to`,
// or has a step that is not one (ValueError).
Plan plan_along(const GlobalSpec* from, const GlobalSpec* to, const Dims& shape, DType dtype,
                std::span<const PathStep> path, const Machine& machine);
// The path that a plan takes.
std::vector<PathStep> path_of(const Plan& plan);

// What plan() and cost() look into before they ask the planner, on the rank that has set it.
class PlanSource {
 public:
  virtual ~PlanSource() = default;
  // The plan to take; nullopt: the planner's.
  virtual std::optional<Plan> find(const GlobalSpec* from, const GlobalSpec* to, const Dims& shape, DType dtype) = 0;
  // What the planner has answered.
  virtual void planned(const Plan& plan) = 0;
};
// Sets the source of the current rank, nullptr for none, and returns the one before.
PlanSource* exchange_plan_source(PlanSource* source);

// How often this rank has asked the planner: plan(), cost() and find_plan(), whether the answer was cached or not.
int64_t planner_calls();

// Predicted seconds of the plan; 0 where nothing changes, a small positive number for a mere view.
double cost(const GlobalSpec* from, const GlobalSpec* to, const Dims& shape, DType dtype);
// The most bytes that a rank reads from others in the plan. Neither this nor cost() asks the planner where one rank has
// all.
int64_t max_read_bytes(const GlobalSpec* from, const GlobalSpec* to, const Dims& shape, DType dtype);

// The plan in words: its steps with bytes per rank and per link, the memory it takes, and predicted time. Not
// collective.
std::string explain(const GlobalSpec* from, const GlobalSpec* to, const Dims& shape, DType dtype);

}  // namespace holon::boxing
