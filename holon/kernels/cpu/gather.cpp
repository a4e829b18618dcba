// Looking up and scattering along an axis, each element with an index of its own.
#include <algorithm>

#include "holon/base/error.h"
#include "holon/base/parallel.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/cpu/indices.h"
#include "holon/kernels/cpu/loops.h"
#include "holon/kernels/device.h"
#include "holon/kernels/index.h"

namespace holon::kernels {

namespace {

// a + b in T's own rules: halves in float32, bools by "or".
template <class T>
T combine(ScatterOp op, T a, T b) {
  if constexpr (std::is_same_v<T, bool>) {
    return op == ScatterOp::kSet ? b : op == ScatterOp::kAdd ? (a || b) : (a && b);
  } else if constexpr (std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>) {
    const float x = a, y = b;
    return op == ScatterOp::kSet ? b : T(op == ScatterOp::kAdd ? x + y : x * y);
  } else {
    return op == ScatterOp::kSet ? b : static_cast<T>(op == ScatterOp::kAdd ? a + b : a * b);
  }
}

// The byte offsets of the rows of two arrays of one shape along their last axis, one row after the other in row-major
// order.
class RowPairs {
 public:
  RowPairs(const Array& a, const Array& b) {
    const int64_t size_a = bytes_of(a.dtype), size_b = bytes_of(b.dtype);
    for (int i = 0; i + 1 < a.ndim(); ++i) {
      const int64_t n = a.shape[i], step_a = a.strides[i] * size_a, step_b = b.strides[i] * size_b;
      if (n == 1) continue;
      if (axes_ > 0 && steps_a_[axes_ - 1] == n * step_a && steps_b_[axes_ - 1] == n * step_b) {
        shape_[axes_ - 1] *= n;
        steps_a_[axes_ - 1] = step_a;
        steps_b_[axes_ - 1] = step_b;
      } else {
        shape_[axes_] = n;
        steps_a_[axes_] = step_a;
        steps_b_[axes_++] = step_b;
      }
    }
  }
  void go_to(int64_t row) {
    a = b = 0;
    for (int i = axes_ - 1; i >= 0; --i) {
      at_[i] = row % shape_[i];
      row /= shape_[i];
      a += at_[i] * steps_a_[i];
      b += at_[i] * steps_b_[i];
    }
  }
  void next() {
    for (int i = axes_ - 1; i >= 0; --i) {
      a += steps_a_[i];
      b += steps_b_[i];
      if (++at_[i] < shape_[i]) return;
      a -= steps_a_[i] * shape_[i];
      b -= steps_b_[i] * shape_[i];
      at_[i] = 0;
    }
  }

  int64_t a = 0, b = 0;

 private:
  int axes_ = 0;
  int64_t shape_[kMaxAxes], steps_a_[kMaxAxes], steps_b_[kMaxAxes], at_[kMaxAxes] = {};
};

// Rows of index along its last axis, by threads if kParallel: f(byte offset in x of the row's first element except for
// the indexed axis, that in other, the row's indices). A row's indices are checked before f sees them.
template <bool kParallel, class F>
void for_each_indexed_row(const char* op, const Array& x, int axis, const Array& index, const Array& other,
                          AxisPart part, F&& f) {
  HOLON_CHECK(index.ndim() == x.ndim() && other.ndim() == x.ndim(), "{}: {} with indices {} and {}", op, x.shape,
              index.shape, other.shape);
  for (int i = 0; i < x.ndim(); ++i)
    HOLON_CHECK(index.shape[i] <= other.shape[i] && (i == axis || index.shape[i] <= x.shape[i]),
                "{}: {} with indices {} and {}", op, x.shape, index.shape, other.shape);
  const Indices indices(op, index, part.size >= 0 ? part.size : x.ndim() == 0 ? 1 : x.shape[axis], Check::kLater);
  if (indices.size() == 0) return;
  if (x.ndim() == 0) {
    indices.check(0, 1);
    return f(0, 0, indices.data());
  }
  Array others = x, like = other;  // x without a step along the axis, in the shape of index
  others.strides[axis] = 0;
  others.shape = like.shape = index.shape;
  const RowPairs pairs(others, like);
  constexpr int64_t kChecked = 1024;  // indices at a time
  const int64_t m = index.shape.back(), rows = index.numel() / m, block = std::max<int64_t>(1, kChecked / m);
  parallel_for(rows, kParallel ? std::max<int64_t>(1, kGrain / m) : rows, [&](int64_t begin, int64_t end) {
    RowPairs at = pairs;
    at.go_to(begin);
    for (int64_t r = begin; r < end;) {
      const int64_t stop = std::min(end, r + block);
      indices.check(r * m, stop * m);
      for (; r < stop; ++r, at.next()) f(at.a, at.b, indices.data() + r * m);
    }
  });
}

// Elements along the last axis: how many, the steps from one to the next in x, in other, and for each index, and how
// many of the indexed axis x holds.
struct RowSteps {
  int64_t n, x, other, index, held;
  RowSteps(const Array& x_, int axis, const Array& index_, const Array& other_) {
    const int last = x_.ndim() - 1;
    n = last < 0 ? 1 : index_.shape[last];
    x = last < 0 || axis == last ? 0 : x_.strides[last];
    other = last < 0 ? 0 : other_.strides[last];
    index = last < 0 ? 0 : x_.strides[axis];
    held = last < 0 ? 1 : x_.shape[axis];
  }
  // Whether indices may name what x does not hold.
  bool parted(AxisPart part) const { return part.size >= 0 && (part.offset != 0 || part.size != held); }
};

}  // namespace

void gather(const Array& x, int axis, const Array& index, Array& out, AxisPart part) {
  HOLON_ON_DEVICE(out, gather, x, axis, index, out, part);
  HOLON_CHECK(x.dtype == out.dtype && index.shape == out.shape, "gather: {} into {}", index.shape, out.shape);
  const RowSteps step(x, axis, index, out);
  const bool parted = step.parted(part);
  visit_size(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for_each_indexed_row<true>("gather", x, axis, index, out, part, [&](int64_t from, int64_t to, const int64_t* at) {
      const T* src = reinterpret_cast<const T*>(x.bytes() + from);
      T* dst = reinterpret_cast<T*>(out.bytes() + to);
      const int64_t n = step.n;
      if (parted)
        for (int64_t j = 0; j < n; ++j) {
          const int64_t v = at[j] - part.offset;
          dst[j * step.other] = v >= 0 && v < step.held ? src[j * step.x + v * step.index] : T{};
        }
      else if (step.x == 0 && step.index == 1 && step.other == 1)
        for (int64_t j = 0; j < n; ++j) dst[j] = src[at[j]];
      else
        for (int64_t j = 0; j < n; ++j) dst[j * step.other] = src[j * step.x + at[j] * step.index];
    });
  });
}

namespace {

template <ScatterOp op>
void scatter_rows(Array& out, int axis, const Array& index, const Array& src, AxisPart part, const char* shown) {
  const RowSteps step(out, axis, index, src);
  const bool parted = step.parted(part);
  visit_dtype(out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for_each_indexed_row<false>(shown, out, axis, index, src, part, [&](int64_t to, int64_t from, const int64_t* at) {
      T* dst = reinterpret_cast<T*>(out.bytes() + to);
      const T* p = reinterpret_cast<const T*>(src.bytes() + from);
      const int64_t n = step.n;
      auto put = [&](T& e, int64_t j) { e = combine(op, e, p[j * step.other]); };
      if (parted)
        for (int64_t j = 0; j < n; ++j) {
          const int64_t v = at[j] - part.offset;
          if (v >= 0 && v < step.held) put(dst[j * step.x + v * step.index], j);
        }
      else if (step.x == 0 && step.index == 1)
        for (int64_t j = 0; j < n; ++j) put(dst[at[j]], j);
      else
        for (int64_t j = 0; j < n; ++j) put(dst[j * step.x + at[j] * step.index], j);
    });
  });
}

}  // namespace

void scatter(ScatterOp op, Array& out, int axis, const Array& index, const Array& src, AxisPart part,
             const char* shown) {
  HOLON_ON_DEVICE(out, scatter, op, out, axis, index, src, part, shown);
  HOLON_CHECK(src.dtype == out.dtype, "scatter: {} into {}", name(src.dtype), name(out.dtype));
  switch (op) {
    case ScatterOp::kSet: return scatter_rows<ScatterOp::kSet>(out, axis, index, src, part, shown);
    case ScatterOp::kAdd: return scatter_rows<ScatterOp::kAdd>(out, axis, index, src, part, shown);
    case ScatterOp::kMultiply: return scatter_rows<ScatterOp::kMultiply>(out, axis, index, src, part, shown);
  }
}

void scatter_scalar(ScatterOp op, Array& out, int axis, const Array& index, Scalar value) {
  HOLON_ON_DEVICE(out, scatter_scalar, op, out, axis, index, value);
  Array one = Array::empty({}, out.dtype);
  fill(one, value);
  scatter(op, out, axis, index, one.view(index.shape, Dims::filled(index.ndim(), 0)));
}

}  // namespace holon::kernels
