// Placement and nd_sbp together: the key of plans and dispatch caches. Interned and immortal: equal specs are one
// pointer.
#pragma once

#include <string>

#include "holon/global/nd_sbp.h"
#include "holon/global/placement.h"

namespace holon {

struct GlobalSpec {
  Placement placement;
  NdSbp nd_sbp;
  std::string str() const { return nd_sbp.str() + " on " + placement.str(); }
};

// Pre: neither is null. Whether they fit each other is check_nd_sbp's business.
const GlobalSpec* intern_spec(const Placement& placement, const NdSbp& nd_sbp);

}  // namespace holon
