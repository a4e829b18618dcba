#include "holon/kernels/index.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "holon/base/error.h"
#include "holon/base/parallel.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/cpu/loops.h"
#include "holon/kernels/device.h"
#include "holon/kernels/elementwise.h"

namespace holon::kernels {

namespace {

int64_t bytes_of(DType dtype) { return static_cast<int64_t>(size_bytes(dtype)); }

// Visits an array's elements in row-major order: f(number, byte offset in each of the arrays), all of the first's shape
// (the others at least as large along each axis).
template <size_t n, class F>
void walk(const Array* const (&arrays)[n], F&& f) {
  const Dims& shape = arrays[0]->shape;
  const int64_t total = shape.numel();
  int64_t at[n] = {}, index[kMaxAxes] = {};
  for (int64_t i = 0; i < total; ++i) {
    f(i, at);
    for (int a = shape.size() - 1; a >= 0; --a) {
      for (size_t k = 0; k < n; ++k) at[k] += arrays[k]->strides[a] * bytes_of(arrays[k]->dtype);
      if (++index[a] < shape[a]) break;
      for (size_t k = 0; k < n; ++k) at[k] -= arrays[k]->strides[a] * bytes_of(arrays[k]->dtype) * shape[a];
      index[a] = 0;
    }
  }
}

void check_index_dtype(const char* op, const Array& indices) {
  if (indices.dtype != DType::kInt32 && indices.dtype != DType::kInt64)
    fail_type("{}: indices are {}. They must be int32 or int64.", op, name(indices.dtype));
}

[[noreturn]] void fail_index(const char* op, int64_t value, int64_t low, int64_t high, int64_t position,
                             const Dims& shape) {
  fail(ErrorKind::kIndex, "{}: index {} at position {} of indices {} is outside [{}, {}).", op, value, position, shape,
       low, high);
}

// The indices in row-major order, checked to lie in [low, high). int64 ones without gaps are read where they lie.
class Indices {
 public:
  Indices(const char* op, const Array& indices, int64_t low, int64_t high)
      : size_(static_cast<size_t>(indices.numel())) {
    check_index_dtype(op, indices);
    if (indices.dtype == DType::kInt64 && indices.is_contiguous()) {
      data_ = size_ ? indices.data<int64_t>() : nullptr;
    } else {
      copy_.resize(size_);
      walk({&indices}, [&](int64_t i, const int64_t* at) {
        const std::byte* p = indices.bytes() + at[0];
        copy_[static_cast<size_t>(i)] = indices.dtype == DType::kInt64 ? *reinterpret_cast<const int64_t*>(p)
                                                                       : *reinterpret_cast<const int32_t*>(p);
      });
      data_ = copy_.data();
    }
    const uint64_t range = static_cast<uint64_t>(high - low);
    bool bad = false;
    for (size_t i = 0; i < size_; ++i) bad |= static_cast<uint64_t>(data_[i] - low) >= range;
    if (!bad) return;
    for (size_t i = 0; i < size_; ++i)
      if (data_[i] < low || data_[i] >= high)
        fail_index(op, data_[i], low, high, static_cast<int64_t>(i), indices.shape);
  }
  Indices(const Indices&) = delete;
  Indices& operator=(const Indices&) = delete;
  size_t size() const { return size_; }
  int64_t operator[](size_t i) const { return data_[i]; }
  const int64_t* data() const { return data_; }

 private:
  size_t size_;
  const int64_t* data_ = nullptr;
  std::vector<int64_t> copy_;
};

// x without its last axis: the byte offsets of its rows, in row-major order.
std::vector<int64_t> row_offsets(const Array& x) {
  Array lead = x;
  lead.shape.erase(x.ndim() - 1);
  lead.strides.erase(x.ndim() - 1);
  std::vector<int64_t> out(static_cast<size_t>(lead.numel()));
  walk({&lead}, [&](int64_t i, const int64_t* at) { out[static_cast<size_t>(i)] = at[0]; });
  return out;
}

template <class F>
void visit_size(DType dtype, F&& f) {
  switch (size_bytes(dtype)) {
    case 1: return f(TypeTag<uint8_t>{});
    case 2: return f(TypeTag<uint16_t>{});
    case 4: return f(TypeTag<uint32_t>{});
    default: return f(TypeTag<uint64_t>{});
  }
}

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

}  // namespace

void embedding(const Array& weight, const Array& indices, int64_t row_offset, int64_t v_logical, Array& out) {
  HOLON_ON_DEVICE(out, embedding, weight, indices, row_offset, v_logical, out);
  HOLON_CHECK(weight.ndim() == 2 && out.ndim() == indices.ndim() + 1 && out.shape.back() == weight.shape[1] &&
                  weight.dtype == out.dtype && out.numel() == indices.numel() * weight.shape[1],
              "embedding: {} of {} into {}", indices.shape, weight.shape, out.shape);
  const Indices rows("embedding", indices, 0, v_logical);
  const int64_t d = weight.shape[1], local = weight.shape[0], size = bytes_of(out.dtype);
  const int64_t in_step = weight.strides[1] * size, out_step = out.strides.back() * size;
  if (d == 0) return;
  if (in_step == size && out.is_contiguous()) {
    const auto bytes = static_cast<size_t>(d * size);
    parallel_for(static_cast<int64_t>(rows.size()), std::max<int64_t>(1, kGrain / d), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t r = rows[static_cast<size_t>(i)] - row_offset;
        std::byte* dst = out.bytes() + i * d * size;
        if (r >= 0 && r < local)
          std::memcpy(dst, weight.bytes() + r * weight.strides[0] * size, bytes);
        else
          std::memset(dst, 0, bytes);
      }
    });
    return;
  }
  const std::vector<int64_t> to = row_offsets(out);
  parallel_for(static_cast<int64_t>(rows.size()), std::max<int64_t>(1, kGrain / d), [&](int64_t begin, int64_t end) {
    const int64_t zero = 0;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t r = rows[static_cast<size_t>(i)] - row_offset;
      const bool here = r >= 0 && r < local;
      const std::byte* src =
          here ? weight.bytes() + r * weight.strides[0] * size : reinterpret_cast<const std::byte*>(&zero);
      std::byte* dst = out.bytes() + to[static_cast<size_t>(i)];
      if (out_step == size)
        gather_elements(src, here ? in_step : 0, static_cast<size_t>(size), dst, d);
      else
        for (int64_t j = 0; j < d; ++j)
          std::memcpy(dst + j * out_step, src + (here ? j * in_step : 0), static_cast<size_t>(size));
    }
  });
}

void embedding_backward(const Array& dy, const Array& indices, int64_t row_offset, int64_t v_logical, Array& dweight,
                        bool adds) {
  HOLON_ON_DEVICE(dweight, embedding_backward, dy, indices, row_offset, v_logical, dweight, adds);
  HOLON_CHECK(dweight.ndim() == 2 && dy.ndim() == indices.ndim() + 1 && dy.shape.back() == dweight.shape[1] &&
                  dy.numel() == indices.numel() * dweight.shape[1],
              "embedding_backward: {} of {} into {}", dy.shape, indices.shape, dweight.shape);
  const Indices rows("embedding_backward", indices, 0, v_logical);
  const std::vector<int64_t> from = row_offsets(dy);
  const int64_t d = dweight.shape[1], local = dweight.shape[0];
  // Halves are added up in float32 and rounded once.
  const DType wide = dtype_of(compute_type(dweight.dtype));
  const bool direct = dweight.dtype == wide && dweight.is_contiguous();
  Array sum = direct ? dweight : Array::empty(dweight.shape, wide, dweight.device);
  if (!adds)
    fill(sum, 0);
  else if (!direct)
    copy(dweight, sum);
  const int64_t size = bytes_of(dy.dtype), width = bytes_of(wide);
  const RowFn add = table().binary[static_cast<int>(BinaryOp::Add)][static_cast<int>(compute_type(wide))][0];
  const Number none[3] = {};
  // Threads take columns, so that the order of the additions does not depend on their number.
  parallel_for(d, std::max<int64_t>(16, kGrain / std::max<int64_t>(static_cast<int64_t>(rows.size()), 1)),
               [&](int64_t begin, int64_t end) {
                 constexpr int64_t kBlock = 512;
                 alignas(64) std::byte block[kBlock * 8], scratch[kBlock * 8];
                 for (size_t i = 0; i < rows.size(); ++i) {
                   const int64_t r = rows[i] - row_offset;
                   if (r < 0 || r >= local) continue;
                   for (int64_t j = begin; j < end; j += kBlock) {
                     const int64_t m = std::min(kBlock, end - j), stride = dy.strides.back() * size;
                     const std::byte* src = dy.bytes() + from[i] + j * stride;
                     if (dy.dtype != wide || stride != size) {
                       load_elements(src, stride, dy.dtype, wide, block, m, scratch);
                       src = block;
                     }
                     std::byte* dst = sum.bytes() + (r * d + j) * width;
                     const void* in[] = {dst, src};
                     add(in, dst, m, none);
                   }
                 }
               });
  if (!direct) copy(sum, dweight);
}

void index_select(const Array& x, int axis, const Array& indices, Array& out, AxisPart part) {
  HOLON_ON_DEVICE(out, index_select, x, axis, indices, out, part);
  HOLON_CHECK(x.dtype == out.dtype && x.ndim() == out.ndim() && indices.ndim() <= 1 &&
                  out.shape[axis] == indices.numel(),
              "index_select: {} of {} along axis {} into {}", indices.shape, x.shape, axis, out.shape);
  const int64_t n = x.shape[axis];
  const Indices rows("index_select", indices, 0, part.size < 0 ? n : part.size);
  Array from = x, to = out;
  from.shape[axis] = to.shape[axis] = 1;
  HOLON_CHECK(from.shape == to.shape, "index_select: {} into {}", x.shape, out.shape);
  int64_t inner = 1;  // elements behind the axis, if they lie together in both
  for (int a = x.ndim() - 1; a > axis && inner > 0; --a) {
    const bool together = x.shape[a] == 1 || (x.strides[a] == inner && out.strides[a] == inner);
    inner = together ? inner * x.shape[a] : 0;
  }
  if (inner > 0 && rows.size() > 0) {
    // A block of `inner` elements for each index, in each of the places that the axes before it make.
    auto places = [&](Array a) {
      while (a.ndim() > axis) {
        a.shape.erase(a.ndim() - 1);
        a.strides.erase(a.strides.size() - 1);
      }
      std::vector<int64_t> out_of(static_cast<size_t>(a.numel()));
      walk({&a}, [&](int64_t i, const int64_t* at) { out_of[static_cast<size_t>(i)] = at[0]; });
      return out_of;
    };
    const std::vector<int64_t> in_x = places(x), in_out = places(out);
    const int64_t size = bytes_of(x.dtype), k = static_cast<int64_t>(rows.size()), x_step = x.strides[axis],
                  out_step = out.strides[axis];
    parallel_for(static_cast<int64_t>(in_x.size()) * k, std::max<int64_t>(1, kGrain / inner),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t at = begin; at < end;) {
                     const auto place = static_cast<size_t>(at / k);
                     const int64_t first = at % k, last = std::min(k, first + end - at);
                     const std::byte* src = x.bytes() + in_x[place];
                     std::byte* dst = out.bytes() + in_out[place];
                     if (inner == 1)
                       visit_size(x.dtype, [&](auto tag) {
                         using T = typename decltype(tag)::type;
                         const T* s = reinterpret_cast<const T*>(src);
                         T* d = reinterpret_cast<T*>(dst);
                         for (int64_t i = first; i < last; ++i) {
                           const int64_t r = rows[static_cast<size_t>(i)] - part.offset;
                           d[i * out_step] = r >= 0 && r < n ? s[r * x_step] : T{};
                         }
                       });
                     else
                       for (int64_t i = first; i < last; ++i) {
                         const int64_t r = rows[static_cast<size_t>(i)] - part.offset;
                         std::byte* to_row = dst + i * out_step * size;
                         if (r >= 0 && r < n)
                           std::memcpy(to_row, src + r * x_step * size, static_cast<size_t>(inner * size));
                         else
                           std::memset(to_row, 0, static_cast<size_t>(inner * size));
                       }
                     at += last - first;
                   }
                 });
    return;
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    const int64_t row = rows[i] - part.offset;
    to.offset = out.offset + static_cast<int64_t>(i) * out.strides[axis];
    if (row < 0 || row >= n) {
      fill(to, 0);
      continue;
    }
    from.offset = x.offset + row * x.strides[axis];
    copy(from, to);
  }
}

void index_add(Array& out, int axis, const Array& indices, const Array& src, AxisPart part) {
  HOLON_ON_DEVICE(out, index_add, out, axis, indices, src, part);
  HOLON_CHECK(src.dtype == out.dtype && src.ndim() == out.ndim() && src.shape[axis] == indices.numel(),
              "index_add: {} of {} along axis {} into {}", indices.shape, src.shape, axis, out.shape);
  const int64_t n = out.shape[axis];
  const Indices rows("index_add", indices, 0, part.size < 0 ? n : part.size);
  Array from = src, to = out;
  from.shape[axis] = to.shape[axis] = 1;
  for (size_t i = 0; i < rows.size(); ++i) {
    const int64_t row = rows[i] - part.offset;
    if (row < 0 || row >= n) continue;
    to.offset = out.offset + row * out.strides[axis];
    from.offset = src.offset + static_cast<int64_t>(i) * src.strides[axis];
    binary(BinaryOp::Add, to, from, to);
  }
}

namespace {

// Rows of index along its last axis, by threads if kParallel: f(byte offset in x of the row's first element but for the
// indexed axis, that in other, the row's indices).
template <bool kParallel, class F>
void for_each_indexed_row(const char* op, const Array& x, int axis, const Array& index, const Array& other,
                          AxisPart part, F&& f) {
  HOLON_CHECK(index.ndim() == x.ndim() && other.ndim() == x.ndim(), "{}: {} with indices {} and {}", op, x.shape,
              index.shape, other.shape);
  for (int i = 0; i < x.ndim(); ++i)
    HOLON_CHECK(index.shape[i] <= other.shape[i] && (i == axis || index.shape[i] <= x.shape[i]),
                "{}: {} with indices {} and {}", op, x.shape, index.shape, other.shape);
  const Indices indices(op, index, 0, part.size >= 0 ? part.size : x.ndim() == 0 ? 1 : x.shape[axis]);
  if (indices.size() == 0) return;
  if (x.ndim() == 0) return f(0, 0, indices.data());
  Array others = x, like = other;  // x without a step along the axis, in the shape of index
  others.strides[axis] = 0;
  others.shape = like.shape = index.shape;
  const std::vector<int64_t> in_x = row_offsets(others), in_other = row_offsets(like);
  const int64_t m = index.shape.back(), rows = static_cast<int64_t>(in_x.size());
  parallel_for(rows, kParallel ? std::max<int64_t>(1, kGrain / m) : rows, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      f(in_x[static_cast<size_t>(r)], in_other[static_cast<size_t>(r)], indices.data() + r * m);
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
};

}  // namespace

void gather(const Array& x, int axis, const Array& index, Array& out, AxisPart part) {
  HOLON_ON_DEVICE(out, gather, x, axis, index, out, part);
  HOLON_CHECK(x.dtype == out.dtype && index.shape == out.shape, "gather: {} into {}", index.shape, out.shape);
  const RowSteps step(x, axis, index, out);
  visit_size(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for_each_indexed_row<true>("gather", x, axis, index, out, part, [&](int64_t from, int64_t to, const int64_t* at) {
      const T* src = reinterpret_cast<const T*>(x.bytes() + from);
      T* dst = reinterpret_cast<T*>(out.bytes() + to);
      if (part.size >= 0)
        for (int64_t j = 0; j < step.n; ++j) {
          const int64_t v = at[j] - part.offset;
          dst[j * step.other] = v >= 0 && v < step.held ? src[j * step.x + v * step.index] : T{};
        }
      else if (step.x == 0 && step.index == 1 && step.other == 1)
        for (int64_t j = 0; j < step.n; ++j) dst[j] = src[at[j]];
      else
        for (int64_t j = 0; j < step.n; ++j) dst[j * step.other] = src[j * step.x + at[j] * step.index];
    });
  });
}

void scatter(ScatterOp op, Array& out, int axis, const Array& index, const Array& src, AxisPart part,
             const char* shown) {
  HOLON_ON_DEVICE(out, scatter, op, out, axis, index, src, part, shown);
  HOLON_CHECK(src.dtype == out.dtype, "scatter: {} into {}", name(src.dtype), name(out.dtype));
  const RowSteps step(out, axis, index, src);
  visit_dtype(out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for_each_indexed_row<false>(shown, out, axis, index, src, part, [&](int64_t to, int64_t from, const int64_t* at) {
      T* dst = reinterpret_cast<T*>(out.bytes() + to);
      const T* p = reinterpret_cast<const T*>(src.bytes() + from);
      for (int64_t j = 0; j < step.n; ++j) {
        const int64_t v = at[j] - part.offset;
        if (v < 0 || v >= step.held) continue;
        T& e = dst[j * step.x + v * step.index];
        e = combine(op, e, p[j * step.other]);
      }
    });
  });
}

void scatter_scalar(ScatterOp op, Array& out, int axis, const Array& index, Scalar value) {
  HOLON_ON_DEVICE(out, scatter_scalar, op, out, axis, index, value);
  Array one = Array::empty({}, out.dtype);
  fill(one, value);
  scatter(op, out, axis, index, one.view(index.shape, Dims::filled(index.ndim(), 0)));
}

namespace {

// The truth of each element, in row-major order.
Array truth_of(const Array& x) {
  if (size_bytes(x.dtype) == 1 && x.is_contiguous()) return x;
  Array t = Array::empty(x.shape, DType::kBool);
  copy(x, t);
  return t;
}

}  // namespace

int64_t count_nonzero(const Array& x) {
  HOLON_ON_DEVICE(x, count_nonzero, x);
  const Array t = truth_of(x);
  const uint8_t* p = t.data<uint8_t>();
  const int64_t n = t.numel();
  int64_t count = 0;
  for (int64_t i = 0; i < n; ++i) count += p[i] != 0;
  return count;
}

void nonzero(const Array& x, Array& out) {
  HOLON_ON_DEVICE(out, nonzero, x, out);
  HOLON_CHECK(out.dtype == DType::kInt64 && out.ndim() == 2 && out.shape[1] == x.ndim(), "nonzero: {} into {} {}",
              x.shape, name(out.dtype), out.shape);
  const Array t = truth_of(x);
  const uint8_t* p = t.data<uint8_t>();
  const int64_t n = t.numel();
  int64_t row = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (p[i] == 0) continue;
    HOLON_CHECK(row < out.shape[0], "nonzero: more than the {} elements that were counted", out.shape[0]);
    int64_t rest = i;
    for (int a = x.ndim() - 1; a >= 0; --a) {
      out.data<int64_t>()[row * out.strides[0] + a * out.strides[1]] = rest % x.shape[a];
      rest /= x.shape[a];
    }
    ++row;
  }
  HOLON_CHECK(row == out.shape[0], "nonzero: {} elements where {} were counted", row, out.shape[0]);
}

void masked_select(const Array& x, const Array& mask, Array& out) {
  HOLON_ON_DEVICE(out, masked_select, x, mask, out);
  HOLON_CHECK(x.shape == mask.shape && x.dtype == out.dtype && out.ndim() == 1 && size_bytes(mask.dtype) == 1,
              "masked_select: {} by {} into {}", x.shape, mask.shape, out.shape);
  int64_t row = 0;
  visit_size(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    walk({&x, &mask}, [&](int64_t, const int64_t* at) {
      if (mask.bytes()[at[1]] == std::byte{0}) return;
      HOLON_CHECK(row < out.shape[0], "masked_select: more than the {} elements that were counted", out.shape[0]);
      std::memcpy(out.bytes() + row++ * out.strides[0] * static_cast<int64_t>(sizeof(T)), x.bytes() + at[0], sizeof(T));
    });
  });
  HOLON_CHECK(row == out.shape[0], "masked_select: {} elements where {} were counted", row, out.shape[0]);
}

void one_hot(const Array& indices, int64_t classes, int64_t class_offset, Array& out) {
  HOLON_CHECK(out.ndim() == indices.ndim() + 1, "one_hot: {} into {}", indices.shape, out.shape);
  check_index_dtype("one_hot", indices);
  HOLON_ON_DEVICE(out, one_hot, indices, classes, class_offset, out);
  const Indices columns("one_hot", indices, 0, classes);
  const std::vector<int64_t> rows = row_offsets(out);
  HOLON_CHECK(rows.size() == columns.size(), "one_hot: {} into {}", indices.shape, out.shape);
  fill(out, 0);
  Array one = Array::empty({}, out.dtype);
  fill(one, 1);
  for (size_t i = 0; i < rows.size(); ++i) {
    const int64_t j = columns[i] - class_offset;
    if (j >= 0 && j < out.shape.back())
      std::memcpy(out.bytes() + rows[i] + j * out.strides.back() * bytes_of(out.dtype), one.bytes(),
                  size_bytes(out.dtype));
  }
}

namespace {

// Keeps columns [0, last] of each row (lower), or [last + 1, n), where last = row + diagonal in logical numbers.
void triangle(const char* op, const Array& x, int64_t diagonal, int64_t row_offset, int64_t col_offset, Array& out,
              bool lower) {
  HOLON_CHECK(x.shape == out.shape && x.dtype == out.dtype && x.ndim() >= 2, "{}: {} into {}", op, x.shape, out.shape);
  if (out.shape.numel() == 0) return;  // of rows without an element there may be more than memory counts
  const int64_t n = x.shape.back(), rows = x.shape[x.ndim() - 2], size = bytes_of(x.dtype);
  const std::vector<int64_t> from = row_offsets(x), to = row_offsets(out);
  const int64_t in_step = x.strides.back() * size, out_step = out.strides.back() * size;
  const int64_t zero = 0;
  for (size_t i = 0; i < from.size(); ++i) {
    const int64_t row = static_cast<int64_t>(i) % rows;
    // The first column that belongs to the other side.
    const int64_t edge = std::clamp<int64_t>(row + row_offset + diagonal - col_offset + (lower ? 1 : 0), 0, n);
    const std::byte* src = x.bytes() + from[i];
    std::byte* dst = out.bytes() + to[i];
    auto put = [&](int64_t begin, int64_t end, bool keep) {
      if (begin < end) {
        const int64_t shape[] = {end - begin}, ds[] = {out_step}, ss[] = {keep ? in_step : 0};
        copy_bytes_strided(dst + begin * out_step, ds,
                           keep ? src + begin * in_step : reinterpret_cast<const std::byte*>(&zero), ss, shape,
                           static_cast<size_t>(size));
      }
    };
    // In place the kept part stays where it is.
    if (src != dst || in_step != out_step) put(lower ? 0 : edge, lower ? edge : n, true);
    put(lower ? edge : 0, lower ? n : edge, false);
  }
}

}  // namespace

void tril(const Array& x, int64_t diagonal, int64_t row_offset, int64_t col_offset, Array& out) {
  HOLON_ON_DEVICE(out, tril, x, diagonal, row_offset, col_offset, out);
  triangle("tril", x, diagonal, row_offset, col_offset, out, true);
}
void triu(const Array& x, int64_t diagonal, int64_t row_offset, int64_t col_offset, Array& out) {
  HOLON_ON_DEVICE(out, triu, x, diagonal, row_offset, col_offset, out);
  triangle("triu", x, diagonal, row_offset, col_offset, out, false);
}

void arange(Scalar start, Scalar step, int64_t offset, Array& out) {
  HOLON_CHECK(out.ndim() == 1, "arange: {}", out.shape);
  HOLON_ON_DEVICE(out, arange, start, step, offset, out);
  const int64_t n = out.shape[0], stride = out.strides[0] * bytes_of(out.dtype);
  const bool whole = !start.is_float() && !step.is_float();
  constexpr int64_t kBlock = 512;
  alignas(64) std::byte scratch[kBlock * 8];
  for (int64_t at = 0; at < n; at += kBlock) {
    const int64_t m = std::min(kBlock, n - at);
    int64_t integers[kBlock];
    double reals[kBlock];
    for (int64_t i = 0; i < m; ++i) {
      if (whole)
        integers[i] = start.as_int() + (offset + at + i) * step.as_int();
      else
        reals[i] = start.as_double() + static_cast<double>(offset + at + i) * step.as_double();
    }
    store_elements(whole ? static_cast<const void*>(integers) : reals, whole ? DType::kInt64 : DType::kFloat64,
                   out.dtype, out.bytes() + at * stride, stride, m, scratch);
  }
}

void linspace(double start, double end, int64_t steps, int64_t offset, Array& out) {
  HOLON_CHECK(out.ndim() == 1 && offset >= 0 && offset + out.shape[0] <= steps, "linspace: {} from {} of {}", out.shape,
              offset, steps);
  HOLON_ON_DEVICE(out, linspace, start, end, steps, offset, out);
  const double step = steps > 1 ? (end - start) / static_cast<double>(steps - 1) : 0;
  const int64_t stride = out.strides[0] * bytes_of(out.dtype);
  alignas(8) std::byte scratch[8];
  for (int64_t i = 0; i < out.shape[0]; ++i) {
    const int64_t k = offset + i;
    // From the nearer end, so that both ends are exact.
    const double v = k < steps / 2 ? start + step * static_cast<double>(k)
        : steps > 1                ? end - step * static_cast<double>(steps - 1 - k)
                                   : start;
    store_elements(&v, DType::kFloat64, out.dtype, out.bytes() + i * stride, stride, 1, scratch);
  }
}

void eye(int64_t row_offset, int64_t col_offset, Array& out) {
  HOLON_CHECK(out.ndim() == 2, "eye: {}", out.shape);
  fill(out, 0);
  const int64_t shift = row_offset - col_offset;  // the diagonal's column less its row
  const int64_t first = std::max<int64_t>(0, -shift), n = std::min(out.shape[0], out.shape[1] - shift) - first;
  if (n <= 0) return;
  Array ones =
      out.view({n}, {out.strides[0] + out.strides[1]}, first * out.strides[0] + (first + shift) * out.strides[1]);
  fill(ones, 1);
}

}  // namespace holon::kernels
