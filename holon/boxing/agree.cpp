#include "holon/boxing/agree.h"

#include <cstring>

#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/base/settings.h"
#include "holon/boxing/exchange.h"
#include "holon/global/slice.h"
#include "holon/kernels/copy.h"

namespace holon::boxing {

namespace {

// The index of the rank whose value the one at `index` takes.
int source_of(const GlobalSpec& spec, int index) {
  const Dims &h = spec.placement.hierarchy(), at = spec.placement.coordinate(index);
  int64_t source = 0;
  for (int a = 0; a < at.size(); ++a) source = source * h[a] + (spec.nd_sbp[a].is_broadcast() ? 0 : at[a]);
  return static_cast<int>(source);
}

// What the rank at `index` takes from another, in elements.
int64_t taken_by(const GlobalSpec& spec, const Dims& shape, int index) {
  return source_of(spec, index) == index ? 0 : region_of(shape, spec.placement, spec.nd_sbp, index).shape.numel();
}

Array on_host(const Array& a) {
  if (a.device.is_host()) return a;
  Array copy = Array::empty(a.shape, a.dtype);
  kernels::copy(a, copy);
  return copy;
}

}  // namespace

Array agree_on_value(const Array& mine, const GlobalSpec* spec, const Dims& shape) {
  const Placement& p = spec->placement;
  bool any = false;
  for (int a = 0; a < spec->nd_sbp.size(); ++a) any |= spec->nd_sbp[a].is_broadcast() && p.hierarchy()[a] > 1;
  if (!any) return mine;

  const int index = p.index_of(Context::current().rank()), source = source_of(*spec, index);
  const comm::PullsByMember pulls(index, [&](int member) {
    std::vector<comm::Pull> all;
    if (const int64_t count = taken_by(*spec, shape, member))
      all.push_back(comm::row_pull({source_of(*spec, member)}, 0, 0, count));
    return all;
  });
  const bool takes = source != index;
  const Array own = kernels::contiguous(mine);
  const Array taken = takes ? Array::empty(own.shape, own.dtype, own.device) : Array{};
  exchange(p.ranks(), {"to_global", mine.dtype, mine.shape, 0}, pulls,
           mine.device.is_host() ? std::nullopt : std::optional(mine.device), own, taken);
  if (!takes) return own;
  if (settings::flag("HOLON_CHECK")) {
    const Array given = on_host(own), value = on_host(taken);
    if (std::memcmp(value.bytes(), given.bytes(), given.nbytes()) != 0)
      fail_runtime("to_global: the value passed as broadcast differs on {} from that of rank {} (shape {}). Pass the "
                   "same value on every rank, or use split or partial_sum.",
                   rank_text(), at_index(p.ranks(), source), mine.shape);
  }
  return taken;
}

std::vector<int64_t> agreed_bytes(const GlobalSpec& spec, const Dims& shape, DType dtype) {
  std::vector<int64_t> bytes;
  for (int i = 0; i < spec.placement.size(); ++i)
    bytes.push_back(taken_by(spec, shape, i) * static_cast<int64_t>(size_bytes(dtype)));
  return bytes;
}

}  // namespace holon::boxing
