#include "holon/kernels/reduce.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/base/parallel.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/cpu/loops.h"
#include "holon/kernels/device.h"
#include "holon/kernels/tree.h"

namespace holon::kernels {

namespace {

constexpr int64_t kBlock = 512;        // elements that are gathered or converted at a time
constexpr int64_t kTile = 1024;        // kept columns that are accumulated at a time
constexpr int64_t kPiece = 64 * 1024;  // elements of a full reduction that one work item covers

struct Plan {
  ReduceOp op;    // one of the table
  DType compute;  // what the rows are computed in
  Accumulator start;
  double divisor = 1;
  ReduceRowFn row;
  ReduceColumnsFn columns;
  bool floating;
};

Plan plan_of(ReduceOp op, const Array& a, int64_t count) {
  Plan p;
  const bool truth = op == ReduceOp::Any || op == ReduceOp::All;
  p.compute = truth ? DType::kBool : dtype_of(compute_type(a.dtype));
  p.op = op == ReduceOp::Any ? ReduceOp::Max
      : op == ReduceOp::All  ? ReduceOp::Min
      : op == ReduceOp::Mean ? ReduceOp::Sum
                             : op;
  // Truth values are computed as int32 0 and 1.
  const Compute compute = truth ? Compute::kI32 : compute_type(a.dtype);
  p.row = table().reduce_row[static_cast<int>(p.op)][static_cast<int>(compute)];
  p.columns = table().reduce_columns[static_cast<int>(p.op)][static_cast<int>(compute)];
  p.floating = compute == Compute::kF32 || compute == Compute::kF64;
  if (op == ReduceOp::Mean) p.divisor = static_cast<double>(count);
  const bool extreme = op == ReduceOp::Max || op == ReduceOp::Min || op == ReduceOp::AbsMax;
  if (extreme && count == 0)
    fail_value("the largest or smallest of no elements was requested (shape {}). Reduce over axes that are not empty.",
               a.shape);
  const double inf = std::numeric_limits<double>::infinity();
  double d = 0;
  int64_t i = 0;
  switch (op) {
    case ReduceOp::Prod: d = 1, i = 1; break;
    case ReduceOp::Max: d = -inf, i = INT64_MIN; break;
    case ReduceOp::Min: d = inf, i = INT64_MAX; break;
    case ReduceOp::All: i = 1; break;
    default: break;
  }
  if (p.floating)
    p.start.d = d;
  else
    p.start.i = i;
  return p;
}

void merge(const Plan& p, Accumulator part, Accumulator* total) {
  // The row function of the accumulator's own type; squares and absolute values were taken already.
  ReduceOp op = p.op == ReduceOp::SumSquares || p.op == ReduceOp::SumAbs ? ReduceOp::Sum : p.op;
  table().reduce_row[static_cast<int>(op)][static_cast<int>(p.floating ? Compute::kF64 : Compute::kI64)](&part, 1,
                                                                                                         total);
}

// Writes n accumulators to elements `stride` bytes apart.
void store(const Plan& p, Accumulator* acc, int64_t n, DType dtype, std::byte* dst, int64_t stride) {
  alignas(64) std::byte scratch[kBlock * 8];
  DType from = p.floating ? DType::kFloat64 : DType::kInt64;
  if (p.divisor != 1) {
    for (int64_t i = 0; i < n; ++i) acc[i].d = (p.floating ? acc[i].d : static_cast<double>(acc[i].i)) / p.divisor;
    from = DType::kFloat64;
  }
  for (int64_t at = 0; at < n; at += kBlock)
    store_elements(acc + at, from, dtype, dst + at * stride, stride, std::min(kBlock, n - at), scratch);
}

// Rows of a that are folded into one accumulator.
void fold_row(const Plan& p, const std::byte* src, int64_t stride, DType dtype, int64_t n, Accumulator* acc) {
  const DType compute = p.compute == DType::kBool ? DType::kInt32 : p.compute;
  if (dtype == compute && p.compute != DType::kBool && stride == static_cast<int64_t>(size_bytes(dtype))) {
    p.row(src, n, acc);
    return;
  }
  alignas(64) std::byte block[kBlock * 8], scratch[kBlock * 8], truth[kBlock];
  for (int64_t at = 0; at < n; at += kBlock) {
    const int64_t m = std::min(kBlock, n - at);
    if (p.compute == DType::kBool) {
      load_elements(src + at * stride, stride, dtype, DType::kBool, truth, m, scratch);
      load_elements(truth, 1, DType::kBool, compute, block, m, nullptr);
    } else {
      load_elements(src + at * stride, stride, dtype, compute, block, m, scratch);
    }
    p.row(block, m, acc);
  }
}

// `rows` rows of n <= kTile kept elements are folded into n accumulators.
void fold_columns(const Plan& p, const std::byte* src, int64_t row_stride, int64_t stride, DType dtype, int64_t rows,
                  int64_t n, Accumulator* acc) {
  const DType compute = p.compute == DType::kBool ? DType::kInt32 : p.compute;
  const int64_t size = static_cast<int64_t>(size_bytes(dtype));
  if (dtype == compute && p.compute != DType::kBool && (stride == size || n == 1) && row_stride % size == 0) {
    p.columns(src, row_stride / size, rows, n, acc);
    return;
  }
  constexpr int64_t kRows = 8;
  alignas(64) std::byte block[kRows * kBlock * 8], scratch[kBlock * 8], truth[kBlock];
  const int64_t width = static_cast<int64_t>(size_bytes(compute));
  for (int64_t at = 0; at < n; at += kBlock) {
    const int64_t m = std::min(kBlock, n - at);
    for (int64_t r = 0; r < rows; r += kRows) {
      const int64_t k = std::min(kRows, rows - r);
      for (int64_t i = 0; i < k; ++i) {
        const std::byte* from = src + (r + i) * row_stride + at * stride;
        if (p.compute == DType::kBool) {
          load_elements(from, stride, dtype, DType::kBool, truth, m, scratch);
          load_elements(truth, 1, DType::kBool, compute, block + i * m * width, m, nullptr);
        } else {
          load_elements(from, stride, dtype, compute, block + i * m * width, m, scratch);
        }
      }
      p.columns(block, m, k, m, acc + at);
    }
  }
}

// The axes of a, kept ones with the output's strides (bytes), reduced ones apart.
struct Split {
  LoopAxes kept;     // operand 0: a, 1: out
  LoopAxes reduced;  // operand 0: a
};

Split split_axes(const Array& a, uint32_t axes, const Array& out) {
  Split s;
  s.kept.operands = 2;
  s.reduced.operands = 1;
  int kept = 0;
  for (int i = 0; i < a.ndim(); ++i) kept += !(axes >> i & 1u);
  const bool keeps_axes = out.ndim() == a.ndim();
  HOLON_CHECK(keeps_axes || out.ndim() == kept, "reduce: {} into {}", a.shape, out.shape);
  const int64_t in_size = static_cast<int64_t>(size_bytes(a.dtype)),
                out_size = static_cast<int64_t>(size_bytes(out.dtype));
  int at = 0;
  for (int i = 0; i < a.ndim(); ++i) {
    if (axes >> i & 1u) {
      HOLON_CHECK(!keeps_axes || out.shape[i] == 1, "reduce: {} into {}", a.shape, out.shape);
      const int64_t stride[] = {a.strides[i] * in_size};
      s.reduced.add(a.shape[i], stride);
    } else {
      const int j = keeps_axes ? i : at;
      HOLON_CHECK(out.shape[j] == a.shape[i], "reduce: {} into {}", a.shape, out.shape);
      const int64_t stride[] = {a.strides[i] * in_size, out.strides[j] * out_size};
      s.kept.add(a.shape[i], stride);
      ++at;
    }
  }
  s.kept.simplify();
  s.reduced.simplify();
  return s;
}

// Calls f(byte offset of operand 0) for each index of the first n axes.
template <class F>
void for_each_offset(const LoopAxes& axes, int n, F&& f) {
  int64_t index[kMaxAxes] = {}, at = 0;
  for (;;) {
    f(at);
    int i = n - 1;
    for (; i >= 0; --i) {
      at += axes.strides[i][0];
      if (++index[i] < axes.shape[i]) break;
      at -= axes.strides[i][0] * axes.shape[i];
      index[i] = 0;
    }
    if (i < 0) return;
  }
}

int64_t offset_of(const LoopAxes& axes, int n, int64_t linear, int operand) {
  int64_t at = 0;
  for (int i = n - 1; i >= 0; --i) {
    at += linear % axes.shape[i] * axes.strides[i][operand];
    linear /= axes.shape[i];
  }
  return at;
}

// Everything into one element: pieces of a fixed size, put together in their order.
void reduce_flat(const Plan& p, const Array& a, int64_t n, Array& out) {
  const int64_t size = static_cast<int64_t>(size_bytes(a.dtype));
  const int64_t pieces = (n + kPiece - 1) / kPiece;
  Accumulator total = p.start;
  if (pieces <= 1) {
    fold_row(p, a.bytes(), size, a.dtype, n, &total);
  } else {
    std::vector<Accumulator> parts(to_size(pieces), p.start);
    parallel_for(pieces, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        fold_row(p, a.bytes() + i * kPiece * size, size, a.dtype, std::min(kPiece, n - i * kPiece),
                 &at_index(parts, i));
    });
    for (const Accumulator& part : parts) merge(p, part, &total);
  }
  store(p, &total, 1, out.dtype, out.bytes(), 0);
}

}  // namespace

void reduce(ReduceOp op, const Array& a, uint32_t axes, Array& out) {
  HOLON_ON_DEVICE(out, reduce, op, a, axes, out);
  const bool rounds =
      op == ReduceOp::Sum || op == ReduceOp::SumSquares || op == ReduceOp::SumAbs || op == ReduceOp::Prod;
  if (rounds && a.dtype == DType::kFloat32 && adds_in_tree(out)) return tree::reduce(op, a, axes, out);
  int64_t count = 1;
  for (int i = 0; i < a.ndim(); ++i)
    if (axes >> i & 1u) count *= a.shape[i];
  Split s = split_axes(a, axes, out);
  if (out.numel() == 0) return;
  const Plan p = plan_of(op, a, count);
  if (out.numel() == 1 && a.is_dense()) return reduce_flat(p, a, count, out);

  const int64_t kept = s.kept.numel();
  const int k_last = s.kept.n - 1, r_last = s.reduced.n - 1;
  const int64_t k_stride = s.kept.strides[k_last][0], r_stride = s.reduced.strides[r_last][0];
  // Rows run along whichever innermost axis is the denser one in memory.
  const bool along_reduced =
      s.kept.shape[k_last] == 1 || (s.reduced.shape[r_last] > 1 && std::llabs(r_stride) < std::llabs(k_stride));
  if (along_reduced) {
    const int64_t n = s.reduced.shape[r_last];
    parallel_for(kept, std::max<int64_t>(1, kGrain / std::max<int64_t>(count, 1)), [&](int64_t begin, int64_t end) {
      Accumulator accs[64];
      for (int64_t at = begin; at < end;) {
        // Neighbours along the last kept axis are stored together.
        const int64_t in_row = s.kept.shape[k_last] - at % s.kept.shape[k_last];
        const int64_t m = std::min({end - at, int64_t{64}, in_row});
        const int64_t from = offset_of(s.kept, s.kept.n, at, 0), to = offset_of(s.kept, s.kept.n, at, 1);
        for (int64_t i = 0; i < m; ++i) {
          accs[i] = p.start;
          if (count != 0)
            for_each_offset(s.reduced, r_last, [&](int64_t offset) {
              fold_row(p, a.bytes() + from + i * k_stride + offset, r_stride, a.dtype, n, &accs[i]);
            });
        }
        store(p, accs, m, out.dtype, out.bytes() + to, s.kept.strides[k_last][1]);
        at += m;
      }
    });
    return;
  }
  // Columns: the last kept axis is adjacent in memory; tiles of it, for every index of the other kept axes.
  const int64_t length = s.kept.shape[k_last], rows = s.reduced.shape[r_last];
  const int64_t per_row = kept / length;
  int64_t tile = std::min(kTile, length);
  // With few tiles there would be threads without work: narrower ones, of whole cache lines.
  while (tile > 64 && count * length * per_row > 4 * kGrain && per_row * ((length + tile - 1) / tile) < num_threads())
    tile /= 2;
  const int64_t tiles = (length + tile - 1) / tile;
  parallel_for(per_row * tiles, std::max<int64_t>(1, kGrain / std::max<int64_t>(tile * count, 1)),
               [&](int64_t begin, int64_t end) {
                 Accumulator acc[kTile];
                 for (int64_t item = begin; item < end; ++item) {
                   const int64_t j = item % tiles * tile, m = std::min(tile, length - j);
                   const int64_t from = offset_of(s.kept, k_last, item / tiles, 0) + j * k_stride;
                   const int64_t to = offset_of(s.kept, k_last, item / tiles, 1) + j * s.kept.strides[k_last][1];
                   std::fill_n(acc, m, p.start);
                   if (count != 0)
                     for_each_offset(s.reduced, r_last, [&](int64_t offset) {
                       fold_columns(p, a.bytes() + from + offset, r_stride, k_stride, a.dtype, rows, m, acc);
                     });
                   store(p, acc, m, out.dtype, out.bytes() + to, s.kept.strides[k_last][1]);
                 }
               });
}

namespace {

// Lines along one axis: the others with operand 0 = a and 1 = out, and the byte strides of the axis.
struct Lines {
  LoopAxes others;
  int64_t n, in_stride, out_stride;
};

Lines lines_of(const Array& a, int axis, const Array& out, bool out_has_axis) {
  Lines l;
  l.others.operands = 2;
  const int64_t in_size = static_cast<int64_t>(size_bytes(a.dtype)),
                out_size = static_cast<int64_t>(size_bytes(out.dtype));
  for (int i = 0, j = 0; i < a.ndim(); ++i) {
    if (i == axis) {
      j += out.ndim() == a.ndim();
      continue;
    }
    HOLON_CHECK(out.shape[j] == a.shape[i], "shapes {} and {} do not belong together along axis {}", a.shape, out.shape,
                axis);
    const int64_t s[] = {a.strides[i] * in_size, out.strides[j++] * out_size};
    l.others.add(a.shape[i], s);
  }
  l.n = a.ndim() == 0 ? 1 : a.shape[axis];
  l.in_stride = a.ndim() == 0 ? 0 : a.strides[axis] * in_size;
  l.out_stride = a.ndim() == 0 || !out_has_axis ? 0 : out.strides[axis] * out_size;
  l.others.simplify();
  return l;
}

}  // namespace

void argreduce(bool max, const Array& a, int axis, Array& out) {
  HOLON_ON_DEVICE(out, argreduce, max, a, axis, out);
  HOLON_CHECK(out.dtype == DType::kInt64, "argreduce: the output is {}", name(out.dtype));
  if (out.numel() == 0) return;
  const Lines l = lines_of(a, axis, out, false);
  if (l.n == 0) fail_value("arg{}: axis {} of shape {} has no elements.", max ? "max" : "min", axis, a.shape);
  const Compute compute = compute_type(a.dtype);
  const DType row_type = dtype_of(compute);
  const ArgReduceFn find = (max ? table().argmax : table().argmin)[static_cast<int>(compute)];
  const int64_t size = static_cast<int64_t>(size_bytes(a.dtype));
  const bool direct = a.dtype == row_type && l.in_stride == size;
  const size_t width = size_bytes(row_type);
  // Other rows are converted block by block; the best so far and a block's best are next to each other for the
  // decision.
  auto find_converted = [&](const std::byte* src) {
    alignas(64) std::byte block[kBlock * 8], scratch[kBlock * 8], pair[16];
    int64_t best = -1;
    for (int64_t at = 0; at < l.n; at += kBlock) {
      const int64_t m = std::min(kBlock, l.n - at);
      load_elements(src + at * l.in_stride, l.in_stride, a.dtype, row_type, block, m, scratch);
      const int64_t j = find(block, m);
      std::memcpy(pair + width, block + to_size(j) * width, width);
      if (best >= 0 && find(pair, 2) == 0) continue;
      std::memcpy(pair, pair + width, width);
      best = at + j;
    }
    return best;
  };
  parallel_for(l.others.numel(), std::max<int64_t>(1, kGrain / l.n), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const std::byte* src = a.bytes() + offset_of(l.others, l.others.n, i, 0);
      *reinterpret_cast<int64_t*>(out.bytes() + offset_of(l.others, l.others.n, i, 1)) =
          direct ? find(src, l.n) : find_converted(src);
    }
  });
}

namespace {

template <class Acc, bool product>
void scan(const Array& a, int axis, Array& out, DType wide) {
  HOLON_CHECK(a.shape == out.shape, "scan: the shapes {} and {} differ", a.shape, out.shape);
  if (out.numel() == 0) return;
  const Lines l = lines_of(a, axis, out, true);
  parallel_for(l.others.numel(), std::max<int64_t>(1, kGrain / l.n), [&](int64_t begin, int64_t end) {
    Acc block[kBlock];
    alignas(64) std::byte scratch[kBlock * 8];
    for (int64_t i = begin; i < end; ++i) {
      const std::byte* src = a.bytes() + offset_of(l.others, l.others.n, i, 0);
      std::byte* dst = out.bytes() + offset_of(l.others, l.others.n, i, 1);
      Acc total = product ? Acc(1) : Acc(0);
      for (int64_t at = 0; at < l.n; at += kBlock) {
        const int64_t m = std::min(kBlock, l.n - at);
        load_elements(src + at * l.in_stride, l.in_stride, a.dtype, wide, block, m, scratch);
        for (int64_t j = 0; j < m; ++j) {
          if constexpr (product)
            total *= block[j];
          else
            total += block[j];
          block[j] = total;
        }
        store_elements(block, wide, out.dtype, dst + at * l.out_stride, l.out_stride, m, scratch);
      }
    }
  });
}

}  // namespace

void cumsum(const Array& a, int axis, Array& out) {
  HOLON_ON_DEVICE(out, cumsum, a, axis, out);
  if (is_floating(a.dtype))
    scan<double, false>(a, axis, out, DType::kFloat64);
  else
    scan<int64_t, false>(a, axis, out, DType::kInt64);
}

void cumprod(const Array& a, int axis, Array& out) {
  HOLON_ON_DEVICE(out, cumprod, a, axis, out);
  if (is_floating(a.dtype))
    scan<double, true>(a, axis, out, DType::kFloat64);
  else
    scan<int64_t, true>(a, axis, out, DType::kInt64);
}

}  // namespace holon::kernels
