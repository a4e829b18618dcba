// Cross-entropy and its kin. The logits are read once for the loss, and once for the gradient.
#include "holon/kernels/loss.h"

#include "holon/base/error.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/compute_type.h"
#include "holon/kernels/cuda/online_softmax.h"
#include "holon/kernels/variants.h"

namespace holon::kernels::cuda {
namespace {

constexpr int kMost = 512;  // threads

// The rows' classes, and where a wrong one is noted.
struct Targets {
  const void* data;
  bool wide;  // int64, else int32
  int64_t rows, columns, classes, offset, ignore;
  double smoothing;
  FaultReport* report_to;
  const char* op;

  Targets(const Array& target, int64_t rows, int64_t columns, const CrossEntropy& o)
      : data(target.bytes()),
        wide(target.dtype == DType::kInt64),
        rows(rows),
        columns(columns),
        classes(o.num_classes < 0 ? columns : o.num_classes),
        offset(o.class_offset),
        ignore(o.ignore_index),
        smoothing(o.label_smoothing),
        report_to(fault_report()),
        op(current_op()) {
    HOLON_CHECK(target.numel() == rows && target.is_contiguous() && (wide || target.dtype == DType::kInt32),
                "cross_entropy: targets of shape {} {} for {} rows", target.shape, name(target.dtype), rows);
  }

  // Whether the row counts; its column, which other ranks may have: any that is not in [0, columns). first: this thread
  // reports.
  __device__ __forceinline__ bool find(int64_t row, bool first, int64_t* column) const {
    const int64_t c = wide ? static_cast<const int64_t*>(data)[row] : int64_t{static_cast<const int32_t*>(data)[row]};
    *column = c - offset;
    if (c == ignore) return false;
    if (c >= 0 && c < classes) return true;
    if (first) report(report_to, Fault::kTarget, op, c, row, 0, classes);
    return false;
  }
  __device__ __forceinline__ bool here(int64_t column) const { return column >= 0 && column < columns; }
};

// With a loss: it and lse; otherwise picked.
template <class C, bool kUnits>
__global__ void __launch_bounds__(kMost, kRowBlocks<C>)
    cross_entropy_rows(RowSet<1> set, Targets targets, C* loss, C* lse, C* picked) {
  constexpr int kN = 16;
  const Group g(set.group, set.columns);
  const bool sums = targets.smoothing != 0;
  for (int64_t row0 = int64_t{blockIdx.x} * g.count; row0 < set.rows.count; row0 += int64_t{gridDim.x} * g.count) {
    const int64_t row = row0 + g.index;
    const bool live = row < set.rows.count;
    const auto at = set.rows.at(live ? row : 0);
    OnlineSum<C> sum = OnlineSum<C>::empty();
    C plain = 0;
    if (loss || sums) {
      for (int64_t first = 0; first < set.length; first += int64_t{g.size} * kN) {
        C v[kN];
        const Part<kN, kUnits> part(g, first);
        const int end = part.limit(live ? set.length : 0);
        part.load(v, set.array[0], at.v[0], end, lowest<C>());
        if (loss) sum.take(v, C(1));
        if (!sums) continue;
#pragma unroll
        for (int e = 0; e < kN; ++e) plain += part.offset(e) < end ? v[e] : C(0);
      }
      if (loss) sum = g.reduce(sum, typename OnlineSum<C>::Merge{C(1)});
      if (sums) plain = g.reduce(plain, Add());
    }
    if (!live || g.rank != 0) continue;
    int64_t column;
    const bool counts = targets.find(row, true, &column);
    C v = 0;
    if (counts) {
      if (targets.here(column))
        v = static_cast<C>(1 - targets.smoothing) * load_one<C>(set.array[0], at.v[0] + column * set.array[0].step);
      if (sums) v += static_cast<C>(targets.smoothing / static_cast<double>(targets.classes)) * plain;
    }
    if (loss) {
      const C l = sum.log();
      lse[row] = l;
      loss[row] = counts ? l - v : C(0);
    } else {
      picked[row] = v;
    }
  }
}

template <class C, bool kUnits>
__global__ void __launch_bounds__(kMost, kRowBlocks<C>)
    cross_entropy_rows_backward(RowSet<2> set, Targets targets, const C* lse, const C* dloss) {
  constexpr int kN = 8;
  const Group g(set.group, set.columns);
  const C even = static_cast<C>(targets.smoothing / static_cast<double>(targets.classes)),
          one = static_cast<C>(1 - targets.smoothing);
  for (int64_t row = int64_t{blockIdx.x} * g.count + g.index; row < set.rows.count;
       row += int64_t{gridDim.x} * g.count) {
    const auto at = set.rows.at(row);
    int64_t column;
    const bool counts = targets.find(row, g.rank == 0, &column);
    const C l = lse[row], k = dloss[row];
    for (int64_t first = 0; first < set.length; first += int64_t{g.size} * kN) {
      C v[kN];
      const Part<kN, kUnits> part(g, first);
      const int end = part.limit(set.length);
      if (counts) part.load(v, set.array[0], at.v[0], end, C(0));
      const int64_t hit = column - part.begin();
#pragma unroll
      for (int e = 0; e < kN; ++e) {
        v[e] = counts ? k * (f::exp_nonpositive(v[e] - l) - even) : C(0);
        if (counts && hit == part.offset(e)) v[e] -= k * one;
      }
      part.store(v, set.array[1], at.v[1], end);
    }
  }
}

template <class C>
__global__ void nll_rows(RowArray x, int64_t row_step, Targets targets, C* loss) {
  for (int64_t row = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; row < targets.rows;
       row += int64_t{gridDim.x} * blockDim.x) {
    int64_t column;
    const bool counts = targets.find(row, true, &column) && targets.here(column);
    loss[row] = counts ? -load_one<C>(x, row * row_step + column * x.step) : -C(0);
  }
}

template <class C>
__global__ void nll_rows_backward(RowArray dx, int64_t row_step, Targets targets, const C* dloss) {
  for (int64_t row = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; row < targets.rows;
       row += int64_t{gridDim.x} * blockDim.x) {
    int64_t column;
    if (targets.find(row, true, &column) && targets.here(column))
      store_one<C>(dx, row * row_step + column * dx.step, -dloss[row]);
  }
}

DType check_logits(const char* op, const Array& logits) {
  HOLON_CHECK(logits.ndim() == 2, "{}: logits of shape {}", op, logits.shape);
  return float_compute(logits.dtype, op);
}
void check_row(const char* what, const Array& a, const Array& logits, DType compute) {
  HOLON_CHECK(a.numel() == logits.shape[0] && a.dtype == compute && a.is_contiguous(),
              "cross_entropy: {} of shape {} {} for {} rows", what, a.shape, name(a.dtype), logits.shape[0]);
}

void run_forward(const Array& logits, const Targets& targets, DType compute, Array* loss, Array* lse, Array* picked) {
  if (targets.rows == 0) return;
  RowSet<1> set({&logits}, 1, 1, true);
  set.choose_group(16, kMost);
  auto run = [&]<class C, bool kUnits>() {
    launch(cross_entropy_rows<C, kUnits>, set.blocks(), set.threads(), 0, set, targets,
           loss ? loss->data<C>() : nullptr, lse ? lse->data<C>() : nullptr, picked ? picked->data<C>() : nullptr);
  };
  if (compute == DType::kFloat64)
    run.operator()<double, false>();
  else
    set.units ? run.operator()<float, true>() : run.operator()<float, false>();
}

void cross_entropy(const Array& logits, const Array& target, const CrossEntropy& options, Array& loss, Array& lse) {
  const DType compute = check_logits("cross_entropy", logits);
  use_device_of(loss);
  const Targets targets(target, logits.shape[0], logits.shape[1], options);
  HOLON_CHECK(targets.columns == targets.classes, "cross_entropy: {} of {} classes; a part needs cross_entropy_picked",
              targets.columns, targets.classes);
  check_row("loss", loss, logits, compute);
  check_row("lse", lse, logits, compute);
  run_forward(logits, targets, compute, &loss, &lse, nullptr);
}

void cross_entropy_picked(const Array& logits, const Array& target, const CrossEntropy& options, Array& picked) {
  const DType compute = check_logits("cross_entropy", logits);
  use_device_of(picked);
  check_row("picked", picked, logits, compute);
  run_forward(logits, Targets(target, logits.shape[0], logits.shape[1], options), compute, nullptr, nullptr, &picked);
}

void cross_entropy_backward(const Array& logits, const Array& target, const CrossEntropy& options, const Array& lse,
                            const Array& dloss, Array& dlogits) {
  const DType compute = check_logits("cross_entropy_backward", logits);
  use_device_of(dlogits);
  const Targets targets(target, logits.shape[0], logits.shape[1], options);
  check_row("lse", lse, logits, compute);
  check_row("dloss", dloss, logits, compute);
  HOLON_CHECK(dlogits.shape == logits.shape && dlogits.dtype == logits.dtype, "cross_entropy_backward: {} into {}",
              logits.shape, dlogits.shape);
  if (logits.numel() == 0) return;
  RowSet<2> set({&logits, &dlogits}, 1, 1, true);
  set.choose_group(8, kMost);
  if (compute == DType::kFloat64)
    launch(cross_entropy_rows_backward<double, false>, set.blocks(), set.threads(), 0, set, targets, lse.data<double>(),
           dloss.data<double>());
  else
    launch(set.units ? cross_entropy_rows_backward<float, true> : cross_entropy_rows_backward<float, false>,
           set.blocks(), set.threads(), 0, set, targets, lse.data<float>(), dloss.data<float>());
}

void nll(const Array& x, const Array& target, const CrossEntropy& options, Array& loss) {
  const DType compute = check_logits("nll_loss", x);
  use_device_of(loss);
  const Targets targets(target, x.shape[0], x.shape[1], options);
  check_row("loss", loss, x, compute);
  const RowArray from(x, x.strides[1]);
  if (compute == DType::kFloat64)
    launch(nll_rows<double>, blocks_for(targets.rows, 256), 256, 0, from, x.strides[0], targets, loss.data<double>());
  else
    launch(nll_rows<float>, blocks_for(targets.rows, 256), 256, 0, from, x.strides[0], targets, loss.data<float>());
}

void nll_backward(const Array& target, const CrossEntropy& options, const Array& dloss, Array& dx) {
  const DType compute = check_logits("nll_loss_backward", dx);
  fill(dx, 0);
  use_device_of(dx);
  const Targets targets(target, dx.shape[0], dx.shape[1], options);
  check_row("dloss", dloss, dx, compute);
  const RowArray to(dx, dx.strides[1]);
  if (compute == DType::kFloat64)
    launch(nll_rows_backward<double>, blocks_for(targets.rows, 256), 256, 0, to, dx.strides[0], targets,
           dloss.data<double>());
  else
    launch(nll_rows_backward<float>, blocks_for(targets.rows, 256), 256, 0, to, dx.strides[0], targets,
           dloss.data<float>());
}

HOLON_DEVICE_KERNEL(cross_entropy, cross_entropy);
HOLON_DEVICE_KERNEL(cross_entropy_picked, cross_entropy_picked);
HOLON_DEVICE_KERNEL(cross_entropy_backward, cross_entropy_backward);
HOLON_DEVICE_KERNEL(nll, nll);
HOLON_DEVICE_KERNEL(nll_backward, nll_backward);

}  // namespace
}  // namespace holon::kernels::cuda
