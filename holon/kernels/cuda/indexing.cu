// Several index arrays at once: they are joined to one of places first.
#include "holon/kernels/indexing.h"

#include <algorithm>
#include <functional>
#include <mutex>
#include <numeric>
#include <set>
#include <string>

#include "holon/base/error.h"
#include "holon/kernels/cuda/lookup.h"
#include "holon/kernels/variants.h"

namespace holon::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// A caller's "name: " as a name that stays, for faults.
const char* caller(std::string_view prefix) {
  static std::mutex mutex;
  static auto* names = new std::set<std::string, std::less<>>;
  if (prefix.ends_with(": ")) prefix.remove_suffix(2);
  if (prefix.empty()) return "index";
  std::lock_guard lock(mutex);
  const auto found = names->find(prefix);
  return (found != names->end() ? found : names->emplace(prefix).first)->c_str();
}

template <int kN>
struct Lookups {
  Lookup of[kN];
};

// places [numel of the common shape]: in elements of x, or kElsewhere.
template <int kN>
__global__ void __launch_bounds__(kThreads)
    join_indices(Lookups<kN> lookups, int n, Strided<kN> index, int64_t* places) {
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < index.count; i += int64_t{kThreads} * gridDim.x) {
    const auto at = index.at(i);
    int64_t place = 0;
#pragma unroll
    for (int k = 0; k < kN; ++k) {
      if (k >= n) break;
      const int64_t p = lookups.of[k].place(at.v[k], i);
      place = place == kElsewhere || p == kElsewhere ? kElsewhere : place + p;
    }
    places[i] = place;
  }
}

template <int kN>
void run_join(std::span<const Lookup> lookups, std::span<const Dims> strides, const Dims& shape, int64_t* places) {
  Lookups<kN> all;
  Dims in[kN];
  for (int k = 0; k < kN; ++k)
    in[k] = static_cast<size_t>(k) < strides.size() ? strides[static_cast<size_t>(k)] : Dims::filled(shape.size(), 0);
  std::copy(lookups.begin(), lookups.end(), all.of);
  const Strided<kN> index(shape, in);
  launch(join_indices<kN>, blocks_for(index.count, kThreads), kThreads, 0, all, static_cast<int>(lookups.size()), index,
         places);
}

// The indices as one lookup along the common shape.
struct Joined {
  Dims shape, strides;
  Lookup lookup;
  int64_t unit = 0, low = 0, high = 0;  // what places are multiples of, and how far they reach
  std::vector<Scratch> memory;

  Joined(const Array& x, int axis, std::span<const Array* const> indices, std::span<const AxisPart> parts, bool wrap,
         int64_t behind, std::string_view prefix) {
    for (auto* a : indices) shape = broadcast_shapes(shape, a->shape, "index");
    std::vector<Lookup> lookups;
    std::vector<Dims> in;
    for (size_t k = 0; k < indices.size(); ++k) {
      const int d = axis + static_cast<int>(k);
      const int64_t held = x.shape[d], step = x.strides[d];
      Lookup& l =
          lookups.emplace_back(*indices[k], parts[k].size < 0 ? held : parts[k].size, parts[k].offset, held, step, 1);
      l.wrap = wrap;
      l.axis = d;
      l.op = caller(prefix);
      l.count = std::max<int64_t>(shape.numel(), 1);
      in.push_back(broadcast_strides(*indices[k], shape));
      if (held <= 1) continue;
      unit = std::gcd(unit, step);
      (step < 0 ? low : high) += (held - 1) * step;
    }
    if (unit == 0) unit = 1;
    if (indices.size() == 1) {
      lookup = lookups[0];
      strides = in[0];
    } else {
      const auto n = static_cast<size_t>(shape.numel());
      memory.emplace_back(n * sizeof(int64_t));
      auto* places = memory[0].data<int64_t>();
      if (n == 0) {
      } else if (indices.size() == 2) {
        run_join<2>(lookups, in, shape, places);
      } else if (indices.size() <= 4) {
        run_join<4>(lookups, in, shape, places);
      } else {
        run_join<kMaxAxes>(lookups, in, shape, places);
      }
      lookup.indices = places;
      lookup.joined = true;
      lookup.step = unit;
      strides = contiguous_strides(shape);
    }
    lookup.behind = std::max<int64_t>(behind, 1);
  }
};

int64_t elements_behind(const Array& x, int first) {
  int64_t n = 1;
  for (int d = first; d < x.ndim(); ++d) n *= x.shape[d];
  return n;
}

void index_axes(const Array& x, int axis, std::span<const Array* const> indices, std::span<const AxisPart> parts,
                bool wrap, Array& out, std::string_view prefix) {
  HOLON_CHECK(x.dtype == out.dtype, "index: {} into {}", name(x.dtype), name(out.dtype));
  use_device_of(out);
  const int k = static_cast<int>(indices.size());
  const Joined joined(x, axis, indices, parts, wrap, elements_behind(x, axis + k), prefix);
  HOLON_CHECK(out.ndim() == x.ndim() - k + joined.shape.size(), "index: {} of {} and {}", joined.shape, x.shape,
              out.shape);
  Dims in_x, in_index;
  for (int d = 0; d < axis; ++d) in_x.push_back(x.strides[d]), in_index.push_back(0);
  for (int64_t s : joined.strides) in_x.push_back(0), in_index.push_back(s);
  for (int d = axis + k; d < x.ndim(); ++d) in_x.push_back(x.strides[d]), in_index.push_back(0);
  take(x, in_x, joined.lookup, in_index, out);
}

void index_put_axes(Array& x, int axis, std::span<const Array* const> indices, std::span<const AxisPart> parts,
                    bool wrap, bool accumulate, const Array& value, std::string_view prefix) {
  HOLON_CHECK(x.dtype == value.dtype, "index_put: {} into {}", name(value.dtype), name(x.dtype));
  use_device_of(x);
  const int k = static_cast<int>(indices.size());
  const Joined joined(x, axis, indices, parts, wrap, 1, prefix);
  const int nb = joined.shape.size();
  HOLON_CHECK(value.ndim() == x.ndim() - k + nb, "index: {} of {} and {}", joined.shape, x.shape, value.shape);
  Puts p;
  p.entries = joined.shape;
  p.entry_x = Dims::filled(nb, 0);
  p.entry_index = joined.strides;
  for (int b = 0; b < nb; ++b) p.entry_source.push_back(value.strides[axis + b]);
  for (int d = 0; d < x.ndim(); ++d) {
    if (d >= axis && d < axis + k) continue;
    p.columns.push_back(x.shape[d]);
    p.column_x.push_back(x.strides[d]);
    p.column_source.push_back(value.strides[d < axis ? d : d - k + nb]);
  }
  p.unit = joined.unit;
  p.low = joined.low;
  p.high = joined.high;
  put(accumulate ? PutOp::kAdd : PutOp::kSet, x, value, joined.lookup, p);
}

HOLON_DEVICE_KERNEL(index_axes, index_axes);
HOLON_DEVICE_KERNEL(index_put_axes, index_put_axes);

}  // namespace
}  // namespace holon::kernels::cuda
