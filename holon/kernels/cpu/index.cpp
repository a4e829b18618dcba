#include "holon/kernels/index.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/base/parallel.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/cpu/indices.h"
#include "holon/kernels/cpu/loops.h"
#include "holon/kernels/device.h"
#include "holon/kernels/elementwise.h"
#include "holon/kernels/tree.h"

namespace holon::kernels {

namespace {

// x without its last axis: the byte offsets of its rows, in row-major order.
std::vector<int64_t> row_offsets(const Array& x) {
  Array lead = x;
  lead.shape.erase(x.ndim() - 1);
  lead.strides.erase(x.ndim() - 1);
  std::vector<int64_t> out(to_size(lead.numel()));
  walk({&lead}, [&](int64_t i, const int64_t* at) { at_index(out, i) = at[0]; });
  return out;
}

}  // namespace

void embedding(const Array& weight, const Array& indices, int64_t row_offset, int64_t v_logical, Array& out) {
  HOLON_ON_DEVICE(out, embedding, weight, indices, row_offset, v_logical, out);
  HOLON_CHECK(weight.ndim() == 2 && out.ndim() == indices.ndim() + 1 && out.shape.back() == weight.shape[1] &&
                  weight.dtype == out.dtype && out.numel() == indices.numel() * weight.shape[1],
              "embedding: {} of {} into {}", indices.shape, weight.shape, out.shape);
  const Indices rows("embedding", indices, v_logical);
  const int64_t d = weight.shape[1], local = weight.shape[0], size = bytes_of(out.dtype);
  const int64_t in_step = weight.strides[1] * size, out_step = out.strides.back() * size;
  if (d == 0) return;
  if (in_step == size && out.is_contiguous()) {
    const auto bytes = to_size(d * size);
    parallel_for(static_cast<int64_t>(rows.size()), std::max<int64_t>(1, kGrain / d), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t r = at_index(rows, i) - row_offset;
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
      const int64_t r = at_index(rows, i) - row_offset;
      const bool here = r >= 0 && r < local;
      const std::byte* src =
          here ? weight.bytes() + r * weight.strides[0] * size : reinterpret_cast<const std::byte*>(&zero);
      std::byte* dst = out.bytes() + at_index(to, i);
      if (out_step == size)
        gather_elements(src, here ? in_step : 0, to_size(size), dst, d);
      else
        for (int64_t j = 0; j < d; ++j) std::memcpy(dst + j * out_step, src + (here ? j * in_step : 0), to_size(size));
    }
  });
}

void embedding_backward(const Array& dy, const Array& indices, int64_t row_offset, int64_t v_logical, Array& dweight,
                        bool adds) {
  HOLON_ON_DEVICE(dweight, embedding_backward, dy, indices, row_offset, v_logical, dweight, adds);
  HOLON_CHECK(dweight.ndim() == 2 && dy.ndim() == indices.ndim() + 1 && dy.shape.back() == dweight.shape[1] &&
                  dy.numel() == indices.numel() * dweight.shape[1],
              "embedding_backward: {} of {} into {}", dy.shape, indices.shape, dweight.shape);
  const Indices rows("embedding_backward", indices, v_logical);
  const std::vector<int64_t> from = row_offsets(dy);
  if (adds_in_tree(dweight) && dy.dtype == DType::kFloat32) {
    std::vector<int64_t> to;
    for (size_t i = 0; i < rows.size(); ++i) to.push_back(rows[i] - row_offset);
    return tree::add_rows(dy, from, to, dweight, adds);
  }
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
  const Indices rows("index_select", indices, part.size < 0 ? n : part.size);
  Array from = x, to = out;
  from.shape[axis] = to.shape[axis] = 1;
  HOLON_CHECK(from.shape == to.shape, "index_select: {} into {}", x.shape, out.shape);
  int64_t inner = 1;  // elements behind the axis, if they are together in both
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
      std::vector<int64_t> out_of(to_size(a.numel()));
      walk({&a}, [&](int64_t i, const int64_t* at) { at_index(out_of, i) = at[0]; });
      return out_of;
    };
    const std::vector<int64_t> in_x = places(x), in_out = places(out);
    const int64_t size = bytes_of(x.dtype), k = static_cast<int64_t>(rows.size()), x_step = x.strides[axis],
                  out_step = out.strides[axis];
    parallel_for(static_cast<int64_t>(in_x.size()) * k, std::max<int64_t>(1, kGrain / inner),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t at = begin; at < end;) {
                     const auto place = to_size(at / k);
                     const int64_t first = at % k, last = std::min(k, first + end - at);
                     const std::byte* src = x.bytes() + in_x[place];
                     std::byte* dst = out.bytes() + in_out[place];
                     if (inner == 1)
                       visit_size(x.dtype, [&](auto tag) {
                         using T = typename decltype(tag)::type;
                         const T* s = reinterpret_cast<const T*>(src);
                         T* d = reinterpret_cast<T*>(dst);
                         for (int64_t i = first; i < last; ++i) {
                           const int64_t r = at_index(rows, i) - part.offset;
                           d[i * out_step] = r >= 0 && r < n ? s[r * x_step] : T{};
                         }
                       });
                     else
                       for (int64_t i = first; i < last; ++i) {
                         const int64_t r = at_index(rows, i) - part.offset;
                         std::byte* to_row = dst + i * out_step * size;
                         if (r >= 0 && r < n)
                           std::memcpy(to_row, src + r * x_step * size, to_size(inner * size));
                         else
                           std::memset(to_row, 0, to_size(inner * size));
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
  const Indices rows("index_add", indices, part.size < 0 ? n : part.size);
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
  const Indices columns("one_hot", indices, classes);
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
                           to_size(size));
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
