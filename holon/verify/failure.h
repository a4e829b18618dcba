// Of runs in which not all ranks come to the end of the program.
#pragma once

#include <string>
#include <vector>

#include "holon/verify/fault.h"

namespace holon::verify {

// The first place at which ranks did different things. sites: what each did next, "" if nothing is recorded.
struct Divergence {
  bool diverged = false;
  std::vector<std::string> sites;
};
Divergence divergence_of(const std::vector<const Recording*>& ranks);

// The errors that ranks have raised, and where. A rank-dependent branch if those are several lines: its own is the
// first of them in the program, since what is inside of a branch comes before what follows it. Pre: a rank has not
// ended.
Fault failure_of(const std::vector<const Recording*>& ranks);

}  // namespace holon::verify
