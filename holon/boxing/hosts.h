// Steps whose ranks are on several hosts.
#pragma once

#include "holon/array/array.h"
#include "holon/boxing/planner.h"
#include "holon/comm/hosts/hosts_communicator.h"

namespace holon::boxing {

// Collective among the members of the step. `in` is this rank's part, row-major, or undefined; the result is its new
// part, undefined outside the step's target.
Array meet_across_hosts(const Plan& plan, size_t step, int rank, comm::HostsCommunicator& group, const Array& in);

}  // namespace holon::boxing
