// What of a move crosses from host to host: in a group, each host receives each element that it lacks once,
// however many of them need it, and sums the addends that it has before it gives them away. Pure.
#pragma once

#include <cstdint>

#include "holon/cost/machine.h"
#include "holon/global/slice.h"
#include "holon/global/spec.h"

namespace holon::boxing {

struct HostLoad {
  bool crosses = false;         // anything crosses
  int64_t in_elements = 0;      // into the host that takes the most
  int64_t out_elements = 0;     // out of the host that gives the most
  int64_t summed_elements = 0;  // addends that the busiest host sums before they leave
};

// The same for the first host of the target alone: for the search in large placements.
HostLoad load_of_first_host(const GlobalSpec& from, const GlobalSpec& to, unsigned fixed, const Dims& shape,
                            const HostMap& hosts);

// Pre: one_move(from, to). two_phase: an all_reduce in which each rank sums a piece. In very large placements three
// hosts represent all.
HostLoad host_load(const GlobalSpec& from, const GlobalSpec& to, unsigned fixed, const Dims& shape, bool two_phase,
                   const HostMap& hosts);

}  // namespace holon::boxing
