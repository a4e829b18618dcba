#include <algorithm>
#include <cmath>
#include <vector>

#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/base/parallel.h"
#include "holon/kernels/cpu/loops.h"
#include "holon/kernels/cpu/tree_column.h"
#include "holon/kernels/tree.h"

namespace holon::kernels::tree {

namespace {

constexpr int64_t kColumns = 256;       // kept elements that are added up at a time
constexpr int64_t kPart = 4096;         // terms that are worth a part of their own
constexpr int64_t kScalarsAtOnce = 16;  // kept elements that are not adjacent
constexpr int64_t kGroup = 8;           // leaves of one term that are added up at a time

// The reduced axes in their order, neighbours merged where their terms follow each other in memory.
struct Terms {
  Dims shape, strides;
  void add(int64_t size, int64_t stride) {
    if (size == 1) return;
    if (!shape.empty() && strides.back() == stride * size) {
      shape.back() *= size;
      strides.back() = stride;
      return;
    }
    shape.push_back(size);
    strides.push_back(stride);
  }
  // Calls f(offset) for the terms [begin, end) in order.
  template <class F>
  void each(int64_t begin, int64_t end, F&& f) const {
    if (shape.empty()) {
      if (begin < end) f(int64_t{0});
      return;
    }
    const int last = shape.size() - 1;
    while (begin < end) {
      int64_t at = 0, rest = begin;
      for (int a = last; a >= 0; --a) {
        at += rest % shape[a] * strides[a];
        rest /= shape[a];
      }
      const int64_t run = std::min(end - begin, shape[last] - begin % shape[last]), stride = strides[last];
      for (int64_t i = 0; i < run; ++i, at += stride) f(at);
      begin += run;
    }
  }
};

// What is added up of an element.
struct Itself {
  float operator()(float x) const { return x; }
};
struct Square {
  float operator()(float x) const { return x * x; }
};
struct Magnitude {
  float operator()(float x) const { return std::abs(x); }
};

// sums = the sum of a group of 2^k <= kGroup rows in pairs.
template <class Of>
void add_group(const float* const* rows, int64_t group, int64_t stride, int64_t m, float* sums) {
  constexpr Of of;
  auto all = [&](auto at) {
    switch (group) {
      case 1:
        for (int64_t j = 0; j < m; ++j) sums[j] = at(0, j);
        break;
      case 2:
        for (int64_t j = 0; j < m; ++j) sums[j] = at(0, j) + at(1, j);
        break;
      case 4:
        for (int64_t j = 0; j < m; ++j) sums[j] = (at(0, j) + at(1, j)) + (at(2, j) + at(3, j));
        break;
      default:
        for (int64_t j = 0; j < m; ++j)
          sums[j] = ((at(0, j) + at(1, j)) + (at(2, j) + at(3, j))) + ((at(4, j) + at(5, j)) + (at(6, j) + at(7, j)));
    }
  };
  if (stride == 1)
    all([&](int r, int64_t j) { return of(rows[r][j]); });
  else
    all([&](int r, int64_t j) { return of(rows[r][j * stride]); });
}

// A reduction: what is kept, and the terms of each.
struct Reduction {
  Terms terms;
  int64_t n = 1;  // terms
  std::vector<int> kept;
  bool keeps_axes;

  Reduction(const Array& a, uint32_t axes, const Array& out) {
    HOLON_CHECK(a.dtype == DType::kFloat32 && out.dtype == DType::kFloat32, "a sum in a tree of {} into {}",
                name(a.dtype), name(out.dtype));
    for (int i = 0; i < a.ndim(); ++i) {
      if (axes >> i & 1u) {
        n *= a.shape[i];
        terms.add(a.shape[i], a.strides[i]);
      } else {
        kept.push_back(i);
      }
    }
    keeps_axes = out.ndim() == a.ndim();
    HOLON_CHECK(keeps_axes || out.ndim() == static_cast<int>(kept.size()), "sum: {} into {}", a.shape, out.shape);
    for (size_t k = 0; k < kept.size(); ++k)
      HOLON_CHECK(out.shape[out_axis(k)] == a.shape[kept[k]], "sum: {} into {}", a.shape, out.shape);
  }
  int out_axis(size_t k) const { return keeps_axes ? kept[k] : static_cast<int>(k); }
};

void product(const Reduction& r, const Array& a, Array& out) {
  const int64_t count = out.numel();
  parallel_for(count, std::max<int64_t>(1, kGrain / std::max<int64_t>(r.n, 1)), [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; ++item) {
      int64_t from = 0, to = 0, rest = item;
      for (size_t k = r.kept.size(); k-- > 0;) {
        const int64_t size = a.shape[r.kept[k]], at = rest % size;
        from += at * a.strides[r.kept[k]], to += at * out.strides[r.out_axis(k)];
        rest /= size;
      }
      double product = 1;
      r.terms.each(0, r.n, [&](int64_t at) { product *= static_cast<double>(a.data<float>()[from + at]); });
      out.data<float>()[to] = static_cast<float>(product);
    }
  });
}

template <class Of>
void sum_of(const Reduction& r, const Array& a, Array& out) {
  const int64_t count = out.numel(), n = r.n;
  const std::vector<int>& kept = r.kept;
  const Terms& terms = r.terms;
  auto out_axis = [&](size_t k) { return r.out_axis(k); };

  // Runs of the last kept axis, which are vectors where its elements are adjacent.
  const int64_t width = kept.empty() ? 1 : a.shape[kept.back()], stride = kept.empty() ? 1 : a.strides[kept.back()];
  const int64_t out_stride = kept.empty() ? 1 : out.strides[out_axis(kept.size() - 1)];
  const int64_t tile = std::min(width, stride == 1 ? kColumns : kScalarsAtOnce), tiles = (width + tile - 1) / tile;
  const int64_t items = count / width * tiles;
  const int64_t leaves = n & -n, leaf = n > 0 ? n / leaves : 1;
  const int64_t group = leaf == 1 ? std::min(leaves, kGroup) : leaf;
  int64_t parts = 1;
  while (parts * 2 * kGroup <= leaves && items * parts < 2 * num_threads() && n / parts >= 2 * kPart) parts *= 2;
  std::vector<float> of_parts(parts > 1 ? to_size(parts * items * tile) : 0);

  auto one = [&](int64_t item, int64_t part, TreeColumn& column, float* to) {
    int64_t from = 0, rest = item / tiles;
    for (size_t k = kept.size(); k-- > 1;) {
      from += rest % a.shape[kept[k - 1]] * a.strides[kept[k - 1]];
      rest /= a.shape[kept[k - 1]];
    }
    const int64_t first = item % tiles * tile, m = std::min(tile, width - first);
    const float* src = a.data<float>() + from + first * stride;
    column.begin(m, to);
    const int64_t begin = n / parts * part, end = begin + n / parts;
    const float* rows[kGroup];
    for (int64_t t = begin; t < end; t += group) {
      if (leaf == 1) {
        const float** row = rows;
        terms.each(t, t + group, [&](int64_t at) { *row++ = src + at; });
        add_group<Of>(rows, group, stride, m, column.unset());
      } else {
        float* sums = column.leaf();
        terms.each(t, t + leaf, [&](int64_t at) {
          for (int64_t j = 0; j < m; ++j) sums[j] += Of()(src[at + j * stride]);
        });
      }
      column.push();
    }
    column.end();
  };
  auto store = [&](int64_t item, const float* sums) {
    int64_t to = 0, rest = item / tiles;
    for (size_t k = kept.size(); k-- > 1;) {
      to += rest % a.shape[kept[k - 1]] * out.strides[out_axis(k - 1)];
      rest /= a.shape[kept[k - 1]];
    }
    const int64_t first = item % tiles * tile, m = std::min(tile, width - first);
    float* dst = out.data<float>() + to + first * out_stride;
    for (int64_t j = 0; j < m; ++j) dst[j * out_stride] = sums[j];
  };
  const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(n / parts * tile, 1));
  parallel_for(items * parts, grain, [&](int64_t begin, int64_t end) {
    TreeColumn column(tile);
    float sums[kColumns];
    for (int64_t i = begin; i < end; ++i) {
      if (parts == 1) {
        one(i, 0, column, sums);
        store(i, sums);
      } else {
        one(i / parts, i % parts, column, of_parts.data() + i * tile);
      }
    }
  });
  if (parts == 1) return;
  for (int64_t item = 0; item < items; ++item) {
    float* first = of_parts.data() + item * parts * tile;
    for (int64_t step = 1; step < parts; step *= 2)
      for (int64_t p = 0; p + step < parts; p += 2 * step)
        for (int64_t j = 0; j < tile; ++j) first[p * tile + j] += first[(p + step) * tile + j];
    store(item, first);
  }
}

}  // namespace

void reduce(ReduceOp op, const Array& a, uint32_t axes, Array& out) {
  const Reduction r(a, axes, out);
  if (out.numel() == 0) return;
  switch (op) {
    case ReduceOp::Sum: return sum_of<Itself>(r, a, out);
    case ReduceOp::SumSquares: return sum_of<Square>(r, a, out);
    case ReduceOp::SumAbs: return sum_of<Magnitude>(r, a, out);
    case ReduceOp::Prod: return product(r, a, out);
    default: HOLON_CHECK(false, "reduction {} has no tree", static_cast<int>(op));
  }
}

}  // namespace holon::kernels::tree
