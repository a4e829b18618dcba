#include "holon/kernels/norm.h"

#include <algorithm>

#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/base/parallel.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/cpu/loops.h"
#include "holon/kernels/cpu/rows.h"
#include "holon/kernels/cpu/tree_column.h"
#include "holon/kernels/device.h"
#include "holon/kernels/tree.h"

namespace holon::kernels {

namespace {

constexpr int64_t kRowGrain = 8192;    // elements
constexpr int64_t kRowsPerBlock = 64;  // rows whose gradients of the weight are added up in the compute type
constexpr int64_t kMaxBlocks = 16;

// A contiguous array of the given dtype, or an undefined one.
Array as_row(const Array& a, DType dtype, int64_t n) {
  if (!a.defined()) return a;
  HOLON_CHECK(a.numel() == n, "norm: a weight of shape {} for rows of {} elements", a.shape, n);
  if (a.dtype == dtype && a.is_contiguous()) return a;
  Array b = Array::empty(a.shape, dtype, a.device);
  copy(a, b);
  return b;
}
const void* data(const Array& a) { return a.defined() ? a.bytes() : nullptr; }

void put(Array& a, int64_t i, double v) {
  if (a.dtype == DType::kFloat64)
    a.data<double>()[i] = v;
  else
    a.data<float>()[i] = static_cast<float>(v);
}
double get(const Array& a, int64_t i) {
  return a.dtype == DType::kFloat64 ? a.data<double>()[i] : static_cast<double>(a.data<float>()[i]);
}
void check_statistic(const Array& a, int64_t rows, DType compute) {
  HOLON_CHECK(a.numel() == rows && a.dtype == compute && a.is_contiguous(),
              "norm: a statistic of shape {} {} for {} rows", a.shape, name(a.dtype), rows);
}
// A rank's part of a statistic may be a window on the whole.
Array statistic_of(const Array& a, int64_t rows, DType compute) {
  Array packed = contiguous(a);
  check_statistic(packed, rows, compute);
  return packed;
}

void check_operand(const char* op, const Array& a, const Array& like, DType compute) {
  HOLON_CHECK(a.shape == like.shape && float_compute(a.dtype, op) <= compute, "{}: {} {} with {} {}", op, name(a.dtype),
              a.shape, name(like.dtype), like.shape);
}

using tree::RowTree;

constexpr Number kNoNumbers[3] = {};  // of functions that take none: they are read all the same

RowFn add_of(DType compute) {
  const Compute c = compute == DType::kFloat64 ? Compute::kF64 : Compute::kF32;
  return table().binary[static_cast<int>(BinaryOp::Add)][static_cast<int>(c)][static_cast<int>(Variant::kVectorVector)];
}

// Rows that are added to those of x before they are normalised, and where the sums go.
struct Addend {
  const Array& other;
  Array& sum;
};

void forward(const char* op, const Array& x, int axes, const Array& weight, const Array& bias, double eps, Array& y,
             Array* mean, Array& rstd, const Addend* addend = nullptr) {
  const Array& normed = addend ? addend->sum : x;
  const DType compute = float_compute(normed.dtype, op);
  HOLON_CHECK(addend || x.dtype == y.dtype, "{}: {} into {}", op, name(x.dtype), name(y.dtype));
  check_operand(op, x, normed, compute);
  check_operand(op, y, normed, compute);
  if (addend) check_operand(op, addend->other, normed, compute);
  const Array in = with_rows(x, axes), more = addend ? with_rows(addend->other, axes) : Array();
  Array out = with_rows(y, axes), sum = addend ? with_rows(addend->sum, axes) : Array();
  const Rows from = Rows::along_last(in, axes, compute), to = Rows::along_last(out, axes, compute);
  const int64_t n = from.length();
  check_statistic(rstd, from.count(), compute);
  if (mean) check_statistic(*mean, from.count(), compute);
  if (x.numel() == 0) return;
  const Array w = as_row(weight, compute, n), b = as_row(bias, compute, n);
  const NormFn run = (mean ? table().layer_norm : table().rms_norm)[compute == DType::kFloat64];
  const RowFn add = add_of(compute);
  const Rows others = addend ? Rows::along_last(more, axes, compute) : from,
             sums = addend ? Rows::along_last(sum, axes, compute) : from;
  parallel_for(from.count(), std::max<int64_t>(1, kRowGrain / n), [&](int64_t begin, int64_t end) {
    RowBuffer source(from.direct() ? 0 : n), target(to.direct() ? 0 : n), other(others.direct() || !addend ? 0 : n),
        total(sums.direct() || !addend ? 0 : n);
    for (int64_t i = begin; i < end; ++i) {
      const void* row = from.read(i, source);
      if (addend) {
        const void* both[] = {row, others.read(i, other)};
        add(both, sums.target(i, total), n, kNoNumbers);
        sums.write(i, total);
        row = sums.read(i, total);  // as it was rounded
      }
      double m, r;
      run(row, data(w), data(b), eps, to.target(i, target), n, &m, &r);
      to.write(i, target);
      if (mean) put(*mean, i, m);
      put(rstd, i, r);
    }
  });
  if (out.storage.get() != y.storage.get()) copy(out, y);
  if (addend && sum.storage.get() != addend->sum.storage.get()) copy(sum, addend->sum);
}

template <class T>
void add_up(const void* part, double* total, int64_t n) {
  for (int64_t j = 0; j < n; ++j) total[j] += static_cast<double>(static_cast<const T*>(part)[j]);
}

void backward(const char* op, const Array& dy, const Array& x, int axes, const Array& weight, const Array* mean,
              const Array& rstd, Array& dx, Array* dweight, Array* dbias, const Array* other = nullptr) {
  const DType compute = float_compute(x.dtype, op);
  HOLON_CHECK(x.shape == dx.shape && x.dtype == dx.dtype, "{}: {} {} into {} {}", op, name(x.dtype), x.shape,
              name(dx.dtype), dx.shape);
  HOLON_CHECK(other || x.dtype == dy.dtype, "{}: {} and {}", op, name(x.dtype), name(dy.dtype));
  check_operand(op, dy, x, compute);
  if (other) check_operand(op, *other, x, compute);
  const Array in = with_rows(x, axes), gradient = with_rows(dy, axes), more = other ? with_rows(*other, axes) : Array();
  Array out = with_rows(dx, axes);
  const Rows xs = Rows::along_last(in, axes, compute), dys = Rows::along_last(gradient, axes, compute),
             dxs = Rows::along_last(out, axes, compute), others = other ? Rows::along_last(more, axes, compute) : xs;
  const int64_t n = xs.length(), rows = xs.count(), width = static_cast<int64_t>(size_bytes(compute));
  const Array r = statistic_of(rstd, rows, compute), m = mean ? statistic_of(*mean, rows, compute) : Array();
  const Array w = as_row(weight, compute, n);
  const NormBackwardFn run =
      (mean ? table().layer_norm_backward : table().rms_norm_backward)[compute == DType::kFloat64];
  const bool sums = dweight || dbias;
  if (sums && adds_in_tree(dx)) {
    RowTree tree(rows, 2 * n);
    tree.run(std::max<int64_t>(1, kRowGrain / std::max<int64_t>(n, 1)), [&](auto&& each_leaf) {
      RowBuffer a(xs.direct() ? 0 : n), b(dys.direct() ? 0 : n), c(dxs.direct() ? 0 : n),
          d(others.direct() || !other ? 0 : n);
      each_leaf([&](int64_t begin, int64_t end, float* part) {
        for (int64_t i = begin; i < end; ++i) {
          run(dys.read(i, b), xs.read(i, a), data(w), mean ? get(m, i) : 0.0, get(r, i),
              other ? others.read(i, d) : nullptr, dxs.target(i, c), dweight ? part : nullptr,
              dbias ? part + n : nullptr, n);
          dxs.write(i, c);
        }
      });
    });
    if (out.storage.get() != dx.storage.get()) copy(out, dx);
    for (int k = 0; k < 2; ++k)
      if (Array* to = k ? dbias : dweight) {
        HOLON_CHECK(to->numel() == n, "{}: a gradient of shape {} for rows of {} elements", op, to->shape, n);
        Array sum = Array::empty(to->shape, DType::kFloat32, to->device);
        std::copy_n(tree.sums() + k * n, n, sum.data<float>());
        copy(sum, *to);
      }
    return;
  }
  // Blocks of rows do not depend on the number of threads, so neither do the sums.
  const int64_t blocks = std::clamp<int64_t>(rows / kRowsPerBlock, 1, sums ? kMaxBlocks : std::max<int64_t>(rows, 1));
  std::vector<double> totals(sums ? to_size(blocks * 2 * n) : 0);
  parallel_for(blocks, std::max<int64_t>(1, kRowGrain * blocks / std::max<int64_t>(n * rows, 1)),
               [&](int64_t first, int64_t last) {
                 RowBuffer a(xs.direct() ? 0 : n), b(dys.direct() ? 0 : n), c(dxs.direct() ? 0 : n),
                     d(others.direct() || !other ? 0 : n);
                 std::vector<std::byte> part(sums ? to_size(2 * n * width) : 0);
                 for (int64_t block = first; block < last; ++block) {
                   const int64_t begin = rows * block / blocks, end = rows * (block + 1) / blocks;
                   for (int64_t at = begin; at < end; at += kRowsPerBlock) {
                     std::fill(part.begin(), part.end(), std::byte{0});
                     void* dw = dweight ? part.data() : nullptr;
                     void* db = dbias ? part.data() + n * width : nullptr;
                     for (int64_t i = at; i < std::min(at + kRowsPerBlock, end); ++i) {
                       run(dys.read(i, b), xs.read(i, a), data(w), mean ? get(m, i) : 0.0, get(r, i),
                           other ? others.read(i, d) : nullptr, dxs.target(i, c), dw, db, n);
                       dxs.write(i, c);
                     }
                     if (!sums) continue;
                     double* total = totals.data() + block * 2 * n;
                     compute == DType::kFloat64 ? add_up<double>(part.data(), total, 2 * n)
                                                : add_up<float>(part.data(), total, 2 * n);
                   }
                 }
               });
  if (out.storage.get() != dx.storage.get()) copy(out, dx);
  if (!sums) return;
  for (int64_t block = 1; block < blocks; ++block) add_up<double>(totals.data() + block * 2 * n, totals.data(), 2 * n);
  for (int k = 0; k < 2; ++k)
    if (Array* d = k ? dbias : dweight) {
      HOLON_CHECK(d->numel() == n, "{}: a gradient of shape {} for rows of {} elements", op, d->shape, n);
      Array sum = Array::empty(d->shape, DType::kFloat64, d->device);
      std::copy_n(totals.data() + k * n, n, sum.data<double>());
      copy(sum, *d);
    }
}

}  // namespace

void layer_norm(const Array& x, int axes, const Array& weight, const Array& bias, double eps, Array& y, Array& mean,
                Array& rstd) {
  HOLON_ON_DEVICE(y, layer_norm, x, axes, weight, bias, eps, y, mean, rstd);
  forward("layer_norm", x, axes, weight, bias, eps, y, &mean, rstd);
}

void layer_norm_backward(const Array& dy, const Array& x, int axes, const Array& weight, const Array& mean,
                         const Array& rstd, Array& dx, Array* dweight, Array* dbias) {
  HOLON_ON_DEVICE(dx, layer_norm_backward, dy, x, axes, weight, mean, rstd, dx, dweight, dbias);
  backward("layer_norm_backward", dy, x, axes, weight, &mean, rstd, dx, dweight, dbias);
}

void add_layer_norm(const Array& x, const Array& other, int axes, const Array& weight, const Array& bias, double eps,
                    Array& sum, Array& y, Array& mean, Array& rstd) {
  HOLON_ON_DEVICE(sum, add_layer_norm, x, other, axes, weight, bias, eps, sum, y, mean, rstd);
  const Addend addend{other, sum};
  forward("add_layer_norm", x, axes, weight, bias, eps, y, &mean, rstd, &addend);
}

void layer_norm_backward_add(const Array& dy, const Array& x, int axes, const Array& weight, const Array& mean,
                             const Array& rstd, const Array& other, Array& dx, Array* dweight, Array* dbias) {
  HOLON_ON_DEVICE(dx, layer_norm_backward_add, dy, x, axes, weight, mean, rstd, other, dx, dweight, dbias);
  backward("layer_norm_backward_add", dy, x, axes, weight, &mean, rstd, dx, dweight, dbias, &other);
}

void rms_norm(const Array& x, int axes, const Array& weight, double eps, Array& y, Array& rstd) {
  HOLON_ON_DEVICE(y, rms_norm, x, axes, weight, eps, y, rstd);
  forward("rms_norm", x, axes, weight, Array(), eps, y, nullptr, rstd);
}

void rms_norm_backward(const Array& dy, const Array& x, int axes, const Array& weight, const Array& rstd, Array& dx,
                       Array* dweight) {
  HOLON_ON_DEVICE(dx, rms_norm_backward, dy, x, axes, weight, rstd, dx, dweight);
  backward("rms_norm_backward", dy, x, axes, weight, nullptr, rstd, dx, dweight, nullptr);
}

void add_rms_norm(const Array& x, const Array& other, int axes, const Array& weight, double eps, Array& sum, Array& y,
                  Array& rstd) {
  HOLON_ON_DEVICE(sum, add_rms_norm, x, other, axes, weight, eps, sum, y, rstd);
  const Addend addend{other, sum};
  forward("add_rms_norm", x, axes, weight, Array(), eps, y, nullptr, rstd, &addend);
}

void rms_norm_backward_add(const Array& dy, const Array& x, int axes, const Array& weight, const Array& rstd,
                           const Array& other, Array& dx, Array* dweight) {
  HOLON_ON_DEVICE(dx, rms_norm_backward_add, dy, x, axes, weight, rstd, other, dx, dweight);
  backward("rms_norm_backward_add", dy, x, axes, weight, nullptr, rstd, dx, dweight, nullptr, &other);
}

}  // namespace holon::kernels
