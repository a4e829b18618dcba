#include "holon/dispatch/stretch.h"

namespace holon {

std::optional<Stretch> stretch_of(const AttrReader& call, const Dims& whole) {
  if (call.i("step"_attr) != 1) return std::nullopt;
  auto given = [&](AttrName name) { return call.has(name) ? std::optional(call.i(name)) : std::nullopt; };
  const int axis = normalize_axis(call.i("dim"_attr), whole.size(), call.op().name());
  const SliceRange range = slice_range(given("start"_attr), given("end"_attr), 1, whole[axis]);
  if (range.count == 0) return std::nullopt;
  return Stretch{axis, range.start, range.start + range.count, whole[axis]};
}

Stretch element_of(const AttrReader& call, const Dims& whole) {
  const int axis = normalize_axis(call.i("dim"_attr), whole.size(), call.op().name());
  const int64_t at = call.i("index"_attr), from = at < 0 ? at + whole[axis] : at;
  return {axis, from, from + 1, whole[axis], true};
}

}  // namespace holon
