// The clocks of several hosts, for traces that show their ranks next to each other.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "holon/comm/bootstrap/store.h"
#include "holon/comm/core/network.h"
#include "holon/comm/core/world.h"

namespace holon::comm {

// Nanoseconds to add to this host's monotonic clock (which begins when a host does) to have rank 0's: by the quickest
// of some round trips, so off by half of it at most. Collective over the world. Errors: an answer does not come within
// limit_s; what trouble, which is asked now and then, says.
int64_t clock_offset_ns(Network& network, const Hosts& hosts, int rank, StoreClient& store, double limit_s,
                        const std::function<std::string()>& trouble);

}  // namespace holon::comm
