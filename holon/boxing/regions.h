// Which elements a rank takes from whom when a tensor changes from one (placement, nd_sbp) to another in one move.
// Pure.
//
// A move is correct for every pair whose target has no P but where the source has it along the same axis of the same
// hierarchy: every rank of the target gets each element of its slice once from an owner, or the sum of it over the
// addends of the source. Hierarchy axes along which a rank and its sources have the same index are *fixed*: ranks that
// differ there do not communicate.
#pragma once

#include <cstdint>
#include <vector>

#include "holon/comm/core/pull.h"
#include "holon/cost/machine.h"
#include "holon/global/slice.h"
#include "holon/global/spec.h"

namespace holon::boxing {

// The fixed axes of a move, as a bit mask.
unsigned fixed_axes(const GlobalSpec& from, const GlobalSpec& to);

// No P appears in `to` that is not fixed, so one move does it.
bool one_move(const GlobalSpec& from, const GlobalSpec& to);

// How many addends each element of the target is the sum of; 1 if nothing is summed.
int64_t addends(const GlobalSpec& from, unsigned fixed);

// The ranks of both, sorted.
std::vector<int> ranks_of(const GlobalSpec& from, const GlobalSpec& to);

// The ranks that communicate with the given one in the step, sorted. Without fixed axes: all ranks of both placements.
std::vector<int> members(const GlobalSpec& from, const GlobalSpec& to, unsigned fixed, int rank);

using comm::Pull;

struct Transfer {
  std::vector<int> members;  // sorted ranks
  int me = -1;               // my position there
  Dims shape;                // of my part of the target
  std::vector<Pull> pulls;   // they cover my part, and no element twice; empty outside the target's placement
  bool whole_own = false;    // my part of the target is a region in my part of the source: pulls.size() == 1
  // Of an all_reduce in two phases (split_in_phases): what I sum, and what I then copy from those who have summed it.
  std::vector<Pull> sums, shares;
};

// Pre: one_move(from, to); rank is in one of the placements. A rank prefers its own data; among the owners of equal
// data the one with the fewest bytes to give so far is taken, which all ranks work out alike.
// On several hosts, copies on its own come first, and ranks of one host that want the same from another ask the same
// owner.
Transfer transfer_of(const GlobalSpec& from, const GlobalSpec& to, const Dims& shape, int rank,
                     const HostMap& hosts = {});

// Those of all ranks of both placements, in the order of the ranks, found in one go.
std::vector<Transfer> transfers_of(const GlobalSpec& from, const GlobalSpec& to, const Dims& shape,
                                   const HostMap& hosts);

// Works out sums and shares. Pre: all members sum the same elements, as transfer_of() has found.
void split_in_phases(Transfer& t);

// The common region of two slices, false if it is empty.
bool intersect(const Region& a, const Region& b, Region* out);

}  // namespace holon::boxing
