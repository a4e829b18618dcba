// The one model of what work costs: latencies, and a rate per kind of byte that depends on how much a core touches. The
// same figures on every rank give the same decisions on every rank, so nothing here depends on where it runs.
#pragma once

#include <cstdint>

namespace holon {

// Bytes per second where what a core touches is in its own cache, in the cache of all cores, or in memory.
struct Rates {
  double near, mid, far;
  bool operator==(const Rates&) const = default;
};

struct MachineCosts {
  double sync_s = 4e-7;             // two ranks of a host synchronize
  double sync_rank_s = 1e-7;        // every further rank
  double step_s = 8e-7;             // finding out what to do, and memory for it, where ranks communicate
  double view_s = 1e-7;             // a new window on memory that is there
  double row_s = 5e-9;              // a further stretch of memory in a copy or a sum
  double pull_s = 2e-8;             // a further peer that is read
  Rates copy{40e9, 12e9, 8e9};      // bytes written by a copy, from own memory or a peer's
  Rates reduce{60e9, 16e9, 9e9};    // bytes of addends that are summed
  Rates fill{50e9, 25e9, 12e9};     // bytes set to zero
  double cache_bytes = 2 << 20;     // a core's own
  double shared_cache_bytes = 0;    // of all cores together; 0: unknown
  double cores = 0;                 // that the ranks of a host share; 0: one each
  double memory_bytes_per_s = 0;    // bytes that all cores of a host together copy; 0: as many as the cores can
  double net_latency_s = 3e-5;      // two hosts synchronize
  double net_bytes_per_s = 1.2e9;   // into a host, or out of it
  double net_both_bytes_per_s = 0;  // into a host and out of it at once, together; 0: as many as each way alone
  bool operator==(const MachineCosts&) const = default;
};

// What one step of a boxing has its ranks do: for each kind of work the most that any one rank does, and what all ranks
// of the busiest host do together.
struct Work {
  struct Bytes {
    double most = 0, all = 0;
    void add(double bytes) {
      most = bytes > most ? bytes : most;
      all += bytes;
    }
  };
  bool step = false;   // ranks communicate
  bool fresh = false;  // what is copied has just been written by other cores, so it is in no cache of this one
  int views = 0;
  int syncs = 0, members = 0;  // how often the ranks wait for each other, and how many do
  Bytes copy, reduce, fill;
  int addends = 2;   // of which `reduce` makes one
  Bytes rows;        // stretches of memory that are copied or summed, beyond one
  double pulls = 0;  // peers that the busiest rank reads, beyond one
  int net_syncs = 0;
  double net_bytes = 0;       // into the busiest host, or out of it
  double net_both_bytes = 0;  // into it and out of it
};

double seconds(const Work& work, const MachineCosts& costs);

// How fast a core works that touches so many bytes, next to others that share the cache: so many cores in all.
double rate(const Rates& rates, double touched_bytes, const MachineCosts& costs, double sharing = 1);

}  // namespace holon
