#include "holon/cost/cost.h"

#include <algorithm>
#include <cmath>

namespace holon {

namespace {

// In which cache what a core touches is. Between the sizes for which the rates hold they fall with the logarithm: from
// where its own cache is half full, and from where its share of the common one is filled by a quarter.
struct Level {
  double beyond_own = 0, beyond_shared = 0;  // 0: inside; 1: all of it outside
};
Level level(double touched, const MachineCosts& c, double sharing) {
  const double share = c.shared_cache_bytes / std::max(sharing, 1.0), mid = 2 * c.cache_bytes,
               full = std::max(share / 4, mid), far = share > 0 ? std::max(share, 2 * full) : 16 * c.cache_bytes;
  auto between = [&](double a, double b) {
    return touched <= a ? 0 : touched >= b ? 1 : std::log2(touched / a) / std::log2(b / a);
  };
  return {between(c.cache_bytes / 2, mid), between(full, far)};
}

double rate(const Rates& r, const Level& l) {
  return l.beyond_shared > 0 ? r.mid + (r.far - r.mid) * l.beyond_shared : r.near + (r.mid - r.near) * l.beyond_own;
}

}  // namespace

double rate(const Rates& r, double touched, const MachineCosts& c, double sharing) {
  return rate(r, level(touched, c, sharing));
}

double seconds(const Work& w, const MachineCosts& c) {
  // Ranks beyond the cores wait for each other.
  auto busiest = [&](const Work::Bytes& b) { return c.cores > 0 ? std::max(b.most, b.all / c.cores) : b.most; };
  const double copy = busiest(w.copy), reduce = busiest(w.reduce), fill = busiest(w.fill);
  const double sums = 1 + 1.0 / std::max(1, w.addends);  // a sum writes one part for all its addends
  double touched = 2 * copy + sums * reduce + fill;
  if (w.fresh) touched = std::max(touched, 2 * c.cache_bytes);
  // How many cores are at work, by how much all do compared with the busiest.
  const Work::Bytes& largest = w.copy.all >= w.reduce.all ? w.copy : w.reduce;
  double sharing = largest.most > 0 ? largest.all / largest.most : 1;
  if (c.cores > 0) sharing = std::min(sharing, c.cores);

  double s = w.views * c.view_s + (w.step ? c.step_s : 0);
  s += w.syncs * (c.sync_s + c.sync_rank_s * std::max(0, w.members - 2));
  s += c.row_s * busiest(w.rows) + c.pull_s * w.pulls;
  double memory = 0;
  const Level at = level(touched, c, sharing);
  if (copy > 0) memory += copy / rate(c.copy, at);
  if (reduce > 0) memory += reduce / rate(c.reduce, at);
  if (fill > 0) memory += fill / rate(c.fill, at);
  if (c.memory_bytes_per_s > 0)
    // A sum reads what it writes over, too; a copy of this size does not.
    memory =
        std::max(memory,
                 at.beyond_shared * (w.copy.all + (sums - 0.5) * w.reduce.all + w.fill.all / 2) / c.memory_bytes_per_s);
  s += memory;
  if (w.net_syncs || w.net_bytes > 0) {
    const double both = c.net_both_bytes_per_s > 0 ? w.net_both_bytes / c.net_both_bytes_per_s : 0;
    s += w.net_syncs * c.net_latency_s + std::max(w.net_bytes / c.net_bytes_per_s, both);
  }
  return s;
}

}  // namespace holon
