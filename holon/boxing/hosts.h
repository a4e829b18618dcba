// Steps whose ranks are on several hosts.
#pragma once

#include "holon/boxing/planner.h"
#include "holon/comm/hosts/hosts_communicator.h"

namespace holon::boxing {

// Collective among the members of the step, whose transfer on this rank is `t`. `in` is this rank's part, row-major, or
// null; out receives its new part. Where that is a region of its own part on the same device, nothing is written to
// out.
void run_across_hosts(const Plan& plan, size_t step, const Transfer& t, comm::HostsCommunicator& group,
                      const std::byte* in, size_t in_bytes, std::byte* out);

}  // namespace holon::boxing
