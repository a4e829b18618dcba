// What of a step crosses from host to host: each region once for each host that wants it, addends of a host summed
// before they leave. Exactly, from what all ranks pull; and for the search an estimate, from what some hosts want.
// Pure.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "holon/boxing/regions.h"
#include "holon/cost/machine.h"
#include "holon/global/spec.h"

namespace holon::boxing {

struct HostLoad {
  int64_t in_elements = 0;      // into the host that takes the most
  int64_t out_elements = 0;     // out of the host that gives the most
  int64_t summed_elements = 0;  // addends that the busiest host sums before they leave
  bool crosses() const { return in_elements > 0; }
};

// Of a step with these transfers, one for each rank that takes part: its schedules send what this counts.
HostLoad host_load(std::span<const Transfer> transfers, bool two_phase, const HostMap& hosts);

// Estimates steps between layouts on two placements, which may be the same: three hosts of the placement that a step
// leads to represent all, in placements of more than 64 ranks its first one.
class HostTraffic {
 public:
  HostTraffic(const Placement& source, const Placement& target, const Dims& shape, const HostMap& hosts);
  ~HostTraffic();

  void add(const GlobalSpec& layout, bool on_target);  // numbered from 0
  // Pre: one_move(). fixed: fixed_axes() of the two.
  HostLoad estimate(int from, int to, unsigned fixed, bool two_phase);
  // No more than the estimate's in_elements, and found in less time.
  int64_t into_first_host(int from, int to, unsigned fixed, bool two_phase);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace holon::boxing
