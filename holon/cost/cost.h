// The one model of what work costs: a latency per synchronisation and a rate per kind of byte. The same figures on
// every rank give the same decisions on every rank, so nothing here depends on where it runs.
#pragma once

#include <cstdint>

namespace holon {

struct MachineCosts {
  double sync_s = 1e-6;             // all members of a group meet once
  double view_s = 1e-7;             // a new window on memory that is there
  double copy_bytes_per_s = 10e9;   // bytes written by a copy, from own memory or a peer's
  double reduce_bytes_per_s = 5e9;  // bytes of addends that are summed
  double fill_bytes_per_s = 10e9;   // bytes set to zero
};

// The machine that is planned for: two cores of a server.
const MachineCosts& machine_costs();

// The most that any one rank does in a step.
struct Work {
  int syncs = 0;
  int views = 0;
  int64_t copy_bytes = 0;
  int64_t reduce_bytes = 0;
  int64_t fill_bytes = 0;
};

double seconds(const Work& work, const MachineCosts& costs = machine_costs());

}  // namespace holon
