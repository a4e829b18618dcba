// The machine that this rank plans for. All ranks of a world have the same one: rank 0 measures, and the others take
// its figures, as text, when the world connects. A world of threads has what its process has measured; a world of one
// rank, where nothing moves, the built-in figures.
//
// HOLON_MACHINE_COSTS (rank 0's counts) sets figures by hand: "sync=1e-6,copy=4e10/1.2e10/8e9,net=1e9". The others are
// measured, or built in where the text begins with "fixed". One figure for a rate holds for all sizes.
#pragma once

#include <string>
#include <vector>

#include "holon/base/index.h"
#include "holon/cost/cost.h"

namespace holon {

// On which host each rank of the world is; empty: all on one.
struct HostMap {
  std::vector<int> host_of_rank;
  int host(int rank) const {
    return rank >= 0 && to_size(rank) < host_of_rank.size() ? at_index(host_of_rank, rank) : 0;
  }
  bool one_host() const;
  bool operator==(const HostMap&) const = default;
};

struct Machine {
  MachineCosts costs;
  HostMap hosts;
  bool operator==(const Machine&) const = default;
};

// Of the current rank. Equal machines are one pointer, which lives as long as the process. In a world of processes the
// first call connects to the other ranks (comm::join_world). Errors: HOLON_MACHINE_COSTS says nothing that can be read.
const Machine* machine();
inline const MachineCosts& machine_costs() { return machine()->costs; }

// The same without communication: the built-in figures where the world is not connected yet, *final = false then.
const Machine* machine_so_far(bool* final);

// For the current rank, instead of what would be measured. Plans that were made stay. All ranks of a world must call it
// alike and at the same place of the program.
void set_machine(const Machine& machine);
void set_machine_costs(const MachineCosts& costs);

// "sync=1e-06,...": every figure, in a form that gives the same bits when it is read.
std::string text_of(const MachineCosts& costs);
// `base` with the figures that the text names. Errors (ValueError): an unknown name, no number, a number below 0.
MachineCosts parse_costs(const std::string& text, const MachineCosts& base);

}  // namespace holon
