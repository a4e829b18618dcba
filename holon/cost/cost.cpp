#include "holon/cost/cost.h"

namespace holon {

const MachineCosts& machine_costs() {
  static const MachineCosts costs;
  return costs;
}

double seconds(const Work& w, const MachineCosts& c) {
  return w.syncs * c.sync_s + w.views * c.view_s + static_cast<double>(w.copy_bytes) / c.copy_bytes_per_s +
      static_cast<double>(w.reduce_bytes) / c.reduce_bytes_per_s +
      static_cast<double>(w.fill_bytes) / c.fill_bytes_per_s;
}

}  // namespace holon
