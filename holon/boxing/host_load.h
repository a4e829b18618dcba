// What of a move crosses from host to host, if each host takes each element, and each addend, that it lacks once, however
// many of its ranks need it. (A path that sums inside the hosts first is a path of its own, which the search finds.) Pure.
#pragma once

#include <cstdint>

#include "holon/cost/machine.h"
#include "holon/global/slice.h"
#include "holon/global/spec.h"

namespace holon::boxing {

struct HostLoad {
  bool meet = false;         // anything crosses
  int64_t in_elements = 0;   // into the host that takes the most
  int64_t out_elements = 0;  // out of the host that gives the most
};

// Pre: one_move(from, to). two_phase: an all_reduce in which each rank sums a piece.
HostLoad host_load(const GlobalSpec& from, const GlobalSpec& to, unsigned fixed, const Dims& shape, bool two_phase,
                   const HostMap& hosts);

}  // namespace holon::boxing
