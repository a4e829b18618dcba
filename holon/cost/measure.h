// The figures of this machine, measured in some milliseconds.
#pragma once

#include <functional>

#include "holon/cost/cost.h"

namespace holon {

// `base` with the rates of copies, sums and fills, by as many threads as this one may use, and what short rows cost.
// cores: that the ranks of this host share; as many at most work at once to see what the memory gives all of them.
MachineCosts measure_memory(const MachineCosts& base, int cores);

// How long it takes two ranks to synchronize, and each further one. Called by n ranks, the index-th being the caller,
// all of whom synchronize in all(), and each with at most one other in pair(). spinning: ranks that
// wait keep their cores.
struct SyncTimes {
  double pair_s = 0, rank_s = 0;
};
SyncTimes measure_syncs(int n, bool spinning, const std::function<void()>& pair, const std::function<void()>& all);

}  // namespace holon
