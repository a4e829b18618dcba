// Reading by index.
#include <algorithm>

#include "holon/base/error.h"
#include "holon/kernels/cuda/lookup.h"
#include "holon/kernels/cuda/types.h"
#include "holon/kernels/variants.h"

namespace holon::kernels::cuda {

Lookup::Lookup(const Array& array, int64_t size, int64_t offset, int64_t held, int64_t step, int64_t behind)
    : indices(array.bytes()),
      wide(array.dtype == DType::kInt64),
      size(size),
      offset(offset),
      held(held),
      step(step),
      behind(std::max<int64_t>(behind, 1)),
      count(std::max<int64_t>(array.numel(), 1)),
      faults(fault_report()),
      op(current_op()) {
  if (array.dtype != DType::kInt32 && array.dtype != DType::kInt64)
    fail_type("{}: indices are {}. They must be int32 or int64.", op, name(array.dtype));
}

namespace {

constexpr int kThreads = 256;

// Rows of `width` V's each; `behind` elements to a row. Strides and places are in V's, of 2^shift elements.
template <class V>
__global__ void __launch_bounds__(kThreads)
    take_rows(const V* x, V* out, Strided<3> rows, int64_t width, Divider by_width, int64_t count, int64_t row_elements,
              Lookup lookup, int shift) {
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < count; i += int64_t{kThreads} * gridDim.x) {
    int64_t row = i, column = 0;
    if (width > 1) {
      row = count < (int64_t{1} << 31) ? by_width.quotient(static_cast<uint32_t>(i)) : i / width;
      column = i - row * width;
    }
    const auto at = rows.at(row);
    const int64_t place = lookup.place(at.v[2], row * row_elements, shift);
    V v{};
    if (place != kElsewhere) v = x[at.v[0] + place + column];
    out[at.v[1] + column] = v;
  }
}

template <class V>
void run_take(const Array& x, const Array& out, const Dims& shape, Dims x_strides, Dims out_strides,
              const Dims& index_strides, int64_t inner, const Lookup& lookup, int shift) {
  for (int d = 0; d < shape.size(); ++d) x_strides[d] >>= shift, out_strides[d] >>= shift;
  const Strided<3> rows(shape, {x_strides, out_strides, index_strides});
  const int64_t width = inner >> shift, count = rows.count * width;
  launch(take_rows<V>, blocks_for(count, kThreads), kThreads, 0, x.data<V>(), out.data<V>(), rows, width,
         width > 1 && count < (int64_t{1} << 31) ? Divider(static_cast<uint32_t>(width)) : Divider(), count, inner,
         lookup, shift);
}

}  // namespace

void take(const Array& x, const Dims& x_strides, const Lookup& lookup, const Dims& index_strides, Array& out) {
  if (out.numel() == 0) return;
  use_device_of(out);
  // The last axes, as far as elements are adjacent in both and belong to one index.
  Dims shape = out.shape, in_x = x_strides, in_out = out.strides, in_index = index_strides;
  int64_t inner = 1;
  while (shape.size()) {
    const int d = shape.size() - 1;
    if (shape[d] != 1) {
      if (in_x[d] != inner || in_out[d] != inner || in_index[d] != 0) break;
      inner *= shape[d];
    }
    for (Dims* dims : {&shape, &in_x, &in_out, &in_index}) dims->erase(d);
  }
  // As wide as everything allows.
  const auto size = static_cast<int64_t>(size_bytes(x.dtype));
  auto fits = [&](int64_t bytes) {
    const int64_t n = bytes / size;
    bool ok = inner % n == 0 && reinterpret_cast<uintptr_t>(x.bytes()) % bytes == 0 &&
        reinterpret_cast<uintptr_t>(out.bytes()) % bytes == 0;
    ok = ok && lookup.step % n == 0;
    for (int d = 0; d < shape.size(); ++d) ok = ok && (shape[d] == 1 || (in_x[d] % n == 0 && in_out[d] % n == 0));
    return ok;
  };
  int64_t bytes = size;
  while (bytes < 16 && fits(bytes * 2)) bytes *= 2;
  int shift = 0;
  while (size << shift < bytes) ++shift;
  switch (bytes) {
    case 1: return run_take<uint8_t>(x, out, shape, in_x, in_out, in_index, inner, lookup, shift);
    case 2: return run_take<uint16_t>(x, out, shape, in_x, in_out, in_index, inner, lookup, shift);
    case 4: return run_take<uint32_t>(x, out, shape, in_x, in_out, in_index, inner, lookup, shift);
    case 8: return run_take<uint64_t>(x, out, shape, in_x, in_out, in_index, inner, lookup, shift);
    default: return run_take<Pack<uint64_t, 2>>(x, out, shape, in_x, in_out, in_index, inner, lookup, shift);
  }
}

namespace {

void embedding(const Array& weight, const Array& indices, int64_t row_offset, int64_t v_logical, Array& out) {
  HOLON_CHECK(weight.ndim() == 2 && out.ndim() == indices.ndim() + 1 && out.shape.back() == weight.shape[1] &&
                  weight.dtype == out.dtype && out.numel() == indices.numel() * weight.shape[1],
              "embedding: {} of {} into {}", indices.shape, weight.shape, out.shape);
  use_device_of(out);
  Dims in_weight = Dims::filled(out.ndim(), 0), in_indices = indices.strides;
  in_weight[out.ndim() - 1] = weight.strides[1];
  in_indices.push_back(0);
  take(weight, in_weight, Lookup(indices, v_logical, row_offset, weight.shape[0], weight.strides[0], weight.shape[1]),
       in_indices, out);
}

void index_select(const Array& x, int axis, const Array& indices, Array& out, AxisPart part) {
  HOLON_CHECK(x.dtype == out.dtype && x.ndim() == out.ndim() && indices.ndim() <= 1 &&
                  out.shape[axis] == indices.numel(),
              "index_select: {} of {} along axis {} into {}", indices.shape, x.shape, axis, out.shape);
  use_device_of(out);
  int64_t behind = 1;
  for (int d = axis + 1; d < x.ndim(); ++d) behind *= x.shape[d];
  Dims in_x = x.strides, in_indices = Dims::filled(x.ndim(), 0);
  in_x[axis] = 0;
  in_indices[axis] = indices.ndim() ? indices.strides[0] : 0;
  take(x, in_x,
       Lookup(indices, part.size < 0 ? x.shape[axis] : part.size, part.offset, x.shape[axis], x.strides[axis], behind),
       in_indices, out);
}

void gather(const Array& x, int axis, const Array& index, Array& out, AxisPart part) {
  HOLON_CHECK(x.dtype == out.dtype && index.shape == out.shape && index.ndim() == x.ndim(), "gather: {} of {} into {}",
              index.shape, x.shape, out.shape);
  use_device_of(out);
  const bool single = x.ndim() == 0;
  Dims in_x = x.strides;
  if (!single) in_x[axis] = 0;
  const int64_t held = single ? 1 : x.shape[axis];
  take(x, in_x, Lookup(index, part.size < 0 ? held : part.size, part.offset, held, single ? 0 : x.strides[axis], 1),
       index.strides, out);
}

HOLON_DEVICE_KERNEL(embedding, embedding);
HOLON_DEVICE_KERNEL(index_select, index_select);
HOLON_DEVICE_KERNEL(gather, gather);

}  // namespace
}  // namespace holon::kernels::cuda
