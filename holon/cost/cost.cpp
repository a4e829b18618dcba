#include "holon/cost/cost.h"

#include <algorithm>
#include <cmath>

namespace holon {

double rate(const Rates& r, double touched, const MachineCosts& c) {
  // Between the three measured points the rate falls with the logarithm of the size.
  const double near = c.cache_bytes / 2, mid = 2 * c.cache_bytes, far = 16 * c.cache_bytes;
  if (touched <= near) return r.near;
  if (touched >= far) return r.far;
  auto between = [&](double a, double b, double at_a, double at_b) {
    return at_a + (at_b - at_a) * std::log2(touched / a) / std::log2(b / a);
  };
  return touched <= mid ? between(near, mid, r.near, r.mid) : between(mid, far, r.mid, r.far);
}

double seconds(const Work& w, const MachineCosts& c) {
  // Ranks beyond the cores wait for each other.
  auto busiest = [&](const Work::Bytes& b) { return c.cores > 0 ? std::max(b.most, b.all / c.cores) : b.most; };
  const double copy = busiest(w.copy), reduce = busiest(w.reduce), fill = busiest(w.fill);
  const double sums = 1 + 1.0 / std::max(1, w.addends);  // a sum writes one part for all its addends
  double touched = 2 * copy + sums * reduce + fill;
  if (w.fresh) touched = std::max(touched, 2 * c.cache_bytes);

  double s = w.views * c.view_s + (w.step ? c.step_s : 0);
  s += w.syncs * (c.sync_s + c.sync_rank_s * std::max(0, w.members - 2));
  s += c.row_s * busiest(w.rows) + c.pull_s * w.pulls;
  double memory = 0;
  if (copy > 0) memory += copy / rate(c.copy, touched, c);
  if (reduce > 0) memory += reduce / rate(c.reduce, touched, c);
  if (fill > 0) memory += fill / rate(c.fill, touched, c);
  if (c.memory_bytes_per_s > 0 && touched > 2 * c.cache_bytes)
    memory = std::max(memory, (w.copy.all + sums / 2 * w.reduce.all + w.fill.all / 2) / c.memory_bytes_per_s);
  s += memory;
  if (w.net_syncs || w.net_bytes > 0) s += w.net_syncs * c.net_latency_s + w.net_bytes / c.net_bytes_per_s;
  return s;
}

}  // namespace holon
