#include "holon/dispatch/local_call.h"

#include <algorithm>

namespace holon {

namespace {

// Dense strides for a's shape with its axes in the order in which a has them.
Dims dense_in_order_of(const Array& a) {
  int order[kMaxAxes] = {}, n = 0;
  for (int i = 0; i < a.ndim(); ++i) {
    if (a.shape[i] == 1) continue;
    if (a.strides[i] == 0) return contiguous_strides(a.shape);
    order[n++] = i;
  }
  std::stable_sort(order, order + n, [&](int x, int y) { return a.strides[x] > a.strides[y]; });
  Dims strides = contiguous_strides(a.shape);
  if (std::is_sorted(order, order + n)) return strides;
  int64_t step = 1;
  for (int i = n - 1; i >= 0; --i) {
    strides[order[i]] = step;
    step *= std::max<int64_t>(a.shape[order[i]], 1);
  }
  return strides;
}

}  // namespace

LocalCall local_call(std::span<const Meta> in, std::span<const GlobalSpec* const> in_specs, std::span<const Meta> out,
                     std::span<const GlobalSpec* const> out_specs, int rank) {
  LocalCall c;
  const Placement& placement = out_specs[0]->placement;
  const int index = placement.index_of(rank);
  c.member = index >= 0;
  if (!c.member) return c;
  Dims coordinate = placement.coordinate(index);
  for (size_t o = 0; o < out.size(); ++o) {
    const NdSbp& sbp = out_specs[o]->nd_sbp;
    Region s = region_of(out[o].shape, placement, sbp, index);
    c.out_shape.push_back(s.shape);
    c.part.out_shape.push_back(out[o].shape);
    c.part.out_offset.push_back(s.offset);
    for (int a = 0; o == 0 && a < sbp.size(); ++a)
      if (sbp[a].is_partial() && coordinate[a] != 0) c.part.counts_once = false;
  }
  for (size_t i = 0; i < in.size(); ++i) {
    Region s = in_specs[i] ? region_of(in[i].shape, placement, in_specs[i]->nd_sbp, index) : Region{};
    c.part.in_shape.push_back(in[i].shape);
    c.part.in_offset.push_back(s.offset);
    c.part.in_spec.push_back(in_specs[i]);
  }
  return c;
}

Dims output_strides(const OpDef& op, const Dims& shape, std::span<const Array* const> in) {
  if (op.layout == Layout::kLikeInput) {
    for (auto* a : in)
      if (a->defined() && a->shape == shape) {
        if (a->is_contiguous()) return contiguous_strides(shape);
        return a->is_dense() ? a->strides : dense_in_order_of(*a);
      }
    // Images of another size keep their channels where they were.
    if (shape.size() == 4)
      for (auto* a : in)
        if (a->defined() && a->ndim() == 4 && !a->is_contiguous() && a->strides == channels_last_strides(a->shape))
          return channels_last_strides(shape);
  } else if (op.layout == Layout::kChannelsLast && shape.size() >= 4) {
    return channels_last_strides(shape);
  }
  return contiguous_strides(shape);
}

}  // namespace holon
