#include "holon/kernels/indexing.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "holon/base/ceil_div.h"
#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/device.h"

namespace holon::kernels {

namespace {

struct Joined {
  Dims shape;                   // of the indices together
  std::vector<int64_t> places;  // for each of them the offset in x in elements; kElsewhere
};
constexpr int64_t kElsewhere = INT64_MIN;

Joined join(const Array& x, int axis, std::span<const Array* const> indices, std::span<const AxisPart> parts, bool wrap,
            std::string_view prefix) {
  Joined j;
  for (auto* a : indices) {
    if (a->dtype != DType::kInt32 && a->dtype != DType::kInt64)
      fail_type("{}an index is {}. It must be int32 or int64.", prefix, name(a->dtype));
    j.shape = broadcast_shapes(j.shape, a->shape, "index");
  }
  const int64_t n = j.shape.numel();
  j.places.assign(to_size(n), 0);
  for (size_t k = 0; k < indices.size(); ++k) {
    const Array& a = *indices[k];
    const int d = axis + static_cast<int>(k);
    const int64_t size = parts[k].size < 0 ? x.shape[d] : parts[k].size, stride = x.strides[d];
    // The index's strides in the common shape.
    int64_t step[kMaxAxes] = {}, at[kMaxAxes] = {}, from = 0;
    const int lead = j.shape.size() - a.ndim();
    for (int i = 0; i < a.ndim(); ++i) step[lead + i] = a.shape[i] == 1 ? 0 : a.strides[i];
    for (int64_t i = 0; i < n; ++i) {
      const int64_t given = a.dtype == DType::kInt64 ? a.data<int64_t>()[from] : a.data<int32_t>()[from];
      if (given >= size || given < (wrap ? -size : 0))
        fail(ErrorKind::kIndex, "{}index {} is out of range for axis {} of size {} (at position {} of indices {}).",
             prefix, given, d, size, i, j.shape);
      const int64_t local = (given < 0 ? given + size : given) - parts[k].offset;
      int64_t& place = at_index(j.places, i);
      if (local < 0 || local >= x.shape[d])
        place = kElsewhere;
      else if (place != kElsewhere)
        place += local * stride;
      for (int b = j.shape.size() - 1; b >= 0; --b) {
        from += step[b];
        if (++at[b] < j.shape[b]) break;
        from -= step[b] * j.shape[b];
        at[b] = 0;
      }
    }
  }
  return j;
}

// f(offset in x of a block's begin or kElsewhere, its offset in y) for every index and every element of the axes before
// the indexed ones: a block is the axes behind them. y: [pre..., b..., post...].
template <class F>
void each_block(const Array& x, int axis, size_t n_indices, const Joined& j, const Array& y, F&& f) {
  const int nb = j.shape.size();
  HOLON_CHECK(y.ndim() == x.ndim() - static_cast<int>(n_indices) + nb, "index: {} of {} and {}", j.shape, x.shape,
              y.shape);
  for (int d = 0; d < y.ndim(); ++d) {
    const int64_t want = d < axis ? x.shape[d]
        : d < axis + nb           ? j.shape[d - axis]
                                  : x.shape[d - nb + static_cast<int>(n_indices)];
    HOLON_CHECK(y.shape[d] == want, "index: {} of {} and {}", j.shape, x.shape, y.shape);
  }
  if (y.numel() == 0) return;
  std::vector<int64_t> to(j.places.size());
  {
    int64_t at[kMaxAxes] = {}, offset = 0;
    for (auto& t : to) {
      t = offset;
      for (int b = nb - 1; b >= 0; --b) {
        offset += y.strides[axis + b];
        if (++at[b] < j.shape[b]) break;
        offset -= y.strides[axis + b] * j.shape[b];
        at[b] = 0;
      }
    }
  }
  int64_t n_pre = 1, at[kMaxAxes] = {}, in_x = 0, in_y = 0;
  for (int d = 0; d < axis; ++d) n_pre *= x.shape[d];
  for (int64_t p = 0; p < n_pre; ++p) {
    for (size_t i = 0; i < to.size(); ++i) f(j.places[i] == kElsewhere ? kElsewhere : in_x + j.places[i], in_y + to[i]);
    for (int d = axis - 1; d >= 0; --d) {
      in_x += x.strides[d];
      in_y += y.strides[d];
      if (++at[d] < x.shape[d]) break;
      in_x -= x.strides[d] * x.shape[d];
      in_y -= y.strides[d] * x.shape[d];
      at[d] = 0;
    }
  }
}

// The axes behind the indexed ones, as a window of its own at the array's first element.
Array block_of(const Array& a, int n) {
  Array b = a;
  b.shape = b.strides = {};
  for (int d = a.ndim() - n; d < a.ndim(); ++d) {
    b.shape.push_back(a.shape[d]);
    b.strides.push_back(a.strides[d]);
  }
  return b;
}

template <class T>
T sum_of(T a, T b) {
  if constexpr (std::is_same_v<T, bool>)
    return a || b;
  else if constexpr (std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>)
    return T(static_cast<float>(a) + static_cast<float>(b));
  else
    return static_cast<T>(a + b);
}

}  // namespace

void index_axes(const Array& x, int axis, std::span<const Array* const> indices, std::span<const AxisPart> parts,
                bool wrap, Array& out, std::string_view prefix) {
  HOLON_ON_DEVICE(out, index_axes, x, axis, indices, parts, wrap, out, prefix);
  HOLON_CHECK(x.dtype == out.dtype, "index: {} into {}", name(x.dtype), name(out.dtype));
  const Joined j = join(x, axis, indices, parts, wrap, prefix);
  const int n_post = x.ndim() - axis - static_cast<int>(indices.size());
  Array from = block_of(x, n_post), to = block_of(out, n_post);
  const auto size = static_cast<int64_t>(size_bytes(x.dtype));
  const bool flat = from.is_contiguous() && to.is_contiguous();
  const size_t bytes = to_size(from.numel() * size);
  each_block(x, axis, indices.size(), j, out, [&](int64_t in_x, int64_t in_y) {
    std::byte* dst = out.bytes() + in_y * size;
    if (flat) {
      if (in_x == kElsewhere)
        std::memset(dst, 0, bytes);
      else
        std::memcpy(dst, x.bytes() + in_x * size, bytes);
      return;
    }
    to.offset = out.offset + in_y;
    if (in_x == kElsewhere) return fill(to, 0);
    from.offset = x.offset + in_x;
    copy(from, to);
  });
}

void index_put_axes(Array& x, int axis, std::span<const Array* const> indices, std::span<const AxisPart> parts,
                    bool wrap, bool accumulate, const Array& value, std::string_view prefix) {
  HOLON_ON_DEVICE(x, index_put_axes, x, axis, indices, parts, wrap, accumulate, value, prefix);
  HOLON_CHECK(x.dtype == value.dtype, "index_put: {} into {}", name(value.dtype), name(x.dtype));
  const Joined j = join(x, axis, indices, parts, wrap, prefix);
  const int n_post = x.ndim() - axis - static_cast<int>(indices.size());
  Array to = block_of(x, n_post), from = block_of(value, n_post);
  const auto size = static_cast<int64_t>(size_bytes(x.dtype));
  const bool flat = from.is_contiguous() && to.is_contiguous();
  const int64_t n = from.numel();
  visit_dtype(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    each_block(x, axis, indices.size(), j, value, [&](int64_t in_x, int64_t in_y) {
      if (in_x == kElsewhere) return;
      if (flat && !accumulate) {
        std::memcpy(x.bytes() + in_x * size, value.bytes() + in_y * size, to_size(n * size));
        return;
      }
      if (flat) {
        T* p = x.data<T>() + in_x;
        const T* q = value.data<T>() + in_y;
        for (int64_t i = 0; i < n; ++i) p[i] = sum_of(p[i], q[i]);
        return;
      }
      to.offset = x.offset + in_x;
      from.offset = value.offset + in_y;
      if (!accumulate) return copy(from, to);
      int64_t at[kMaxAxes] = {}, a = 0, b = 0;
      for (int64_t i = 0; i < n; ++i) {
        T& p = to.data<T>()[a];
        p = sum_of(p, from.data<T>()[b]);
        for (int d = n_post - 1; d >= 0; --d) {
          a += to.strides[d];
          b += from.strides[d];
          if (++at[d] < to.shape[d]) break;
          a -= to.strides[d] * to.shape[d];
          b -= from.strides[d] * to.shape[d];
          at[d] = 0;
        }
      }
    });
  });
}

void window_put(Array& x, const Dims& offset, std::span<const int64_t> starts, std::span<const int64_t> steps,
                std::span<const int64_t> sizes, const Array& value, const Dims& value_offset) {
  Array to = x, from = value;
  for (int d = 0; d < x.ndim(); ++d) {
    const auto a = to_size(d);
    // Those of the window's elements that both hold: first <= i < last.
    const int64_t begin = offset[d], end = begin + x.shape[d];
    auto reach = [&](int64_t bound) { return bound <= starts[a] ? 0 : ceil_div(bound - starts[a], steps[a]); };
    const int64_t first = std::max(reach(begin), value_offset[d]);
    const int64_t last = std::min({sizes[a], reach(end), value_offset[d] + value.shape[d]});
    if (last <= first) return;
    to.offset += (starts[a] + first * steps[a] - begin) * x.strides[d];
    to.strides[d] = x.strides[d] * steps[a];
    from.offset += (first - value_offset[d]) * value.strides[d];
    to.shape[d] = from.shape[d] = last - first;
  }
  copy(from, to);
}

}  // namespace holon::kernels
