#include "holon/kernels/loss.h"

#include <algorithm>

#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/base/parallel.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/cpu/loops.h"
#include "holon/kernels/cpu/rows.h"
#include "holon/kernels/device.h"

namespace holon::kernels {

namespace {

constexpr int64_t kRowGrain = 8192;  // elements

struct Problem {
  DType compute;
  Rows rows;
  int64_t n, columns, classes, offset, ignore;
  double smoothing;
  const Array& target;

  Problem(const char* op, const Array& logits, const Array& t, const CrossEntropy& o)
      : compute(float_compute(logits.dtype, op)),
        rows(logits, 1, compute),
        n(rows.count()),
        columns(rows.length()),
        classes(o.num_classes < 0 ? columns : o.num_classes),
        offset(o.class_offset),
        ignore(o.ignore_index),
        smoothing(o.label_smoothing),
        target(t) {
    HOLON_CHECK(logits.ndim() == 2, "{}: logits of shape {}", op, logits.shape);
    HOLON_CHECK(t.numel() == n && t.is_contiguous() && (t.dtype == DType::kInt32 || t.dtype == DType::kInt64),
                "{}: targets of shape {} {} for {} rows", op, t.shape, name(t.dtype), n);
    if (t.dtype == DType::kInt64 && n > 0 && table().all_within(t.data<int64_t>(), n, classes)) return;
    for (int64_t i = 0; i < n; ++i) {
      const int64_t c = class_of(i);
      if ((c < 0 || c >= classes) && c != ignore)
        fail(ErrorKind::kIndex,
             "{}: target {} at row {} is outside [0, {}). Check the labels, or pass it as ignore_index (now {}).", op,
             c, i, classes, ignore);
    }
  }

  int64_t class_of(int64_t i) const {
    return target.dtype == DType::kInt64 ? target.data<int64_t>()[i] : int64_t{target.data<int32_t>()[i]};
  }
  int64_t grain() const { return std::max<int64_t>(1, kRowGrain / std::max<int64_t>(columns, 1)); }

  double at(const void* row, int64_t j) const {
    return compute == DType::kFloat64 ? static_cast<const double*>(row)[j]
                                      : static_cast<double>(static_cast<const float*>(row)[j]);
  }
  double picked(int64_t i, const void* row) const {
    const int64_t j = class_of(i) - offset;
    double v = j >= 0 && j < columns ? (1 - smoothing) * at(row, j) : 0;
    if (smoothing != 0) {
      Accumulator sum{0};
      table().reduce_row[static_cast<int>(ReduceOp::Sum)][compute == DType::kFloat64](row, columns, &sum);
      v += smoothing / static_cast<double>(classes) * sum.d;
    }
    return v;
  }

  void check(const char* what, const Array& a) const {
    HOLON_CHECK(a.numel() == n && a.dtype == compute && a.is_contiguous(),
                "cross_entropy: {} of shape {} {} for {} rows", what, a.shape, name(a.dtype), n);
  }
};

void put(Array& a, int64_t i, double v) {
  if (a.dtype == DType::kFloat64)
    a.data<double>()[i] = v;
  else
    a.data<float>()[i] = static_cast<float>(v);
}
double get(const Array& a, int64_t i) {
  return a.dtype == DType::kFloat64 ? a.data<double>()[i] : static_cast<double>(a.data<float>()[i]);
}

}  // namespace

void cross_entropy(const Array& logits, const Array& target, const CrossEntropy& options, Array& loss, Array& lse) {
  HOLON_ON_DEVICE(loss, cross_entropy, logits, target, options, loss, lse);
  const Problem p("cross_entropy", logits, target, options);
  HOLON_CHECK(p.columns == p.classes, "cross_entropy: {} of {} classes; a part needs cross_entropy_picked", p.columns,
              p.classes);
  p.check("loss", loss);
  p.check("lse", lse);
  const SumExpFn sum_exp = table().sum_exp[p.compute == DType::kFloat64];
  const RowFn log = table().unary[static_cast<int>(UnaryOp::Log)][static_cast<int>(Compute::kF64)];
  parallel_for(p.n, p.grain(), [&](int64_t begin, int64_t end) {
    constexpr int64_t kBlock = 64;
    const Number none[3] = {};
    double most[kBlock], sums[kBlock], picked[kBlock];
    RowBuffer buffer(p.rows.direct() ? 0 : p.columns);
    for (int64_t at = begin; at < end; at += kBlock) {
      const int64_t count = std::min(kBlock, end - at);
      for (int64_t i = 0; i < count; ++i) {
        const void* row = p.rows.read(at + i, buffer);
        sum_exp(row, p.columns, &most[i], &sums[i]);
        picked[i] = p.class_of(at + i) == p.ignore ? 0 : p.picked(at + i, row);
      }
      const void* in[] = {sums};
      log(in, sums, count, none);
      for (int64_t i = 0; i < count; ++i) {
        const double l = most[i] + sums[i];
        put(lse, at + i, l);
        put(loss, at + i, p.class_of(at + i) == p.ignore ? 0 : l - picked[i]);
      }
    }
  });
}

void cross_entropy_picked(const Array& logits, const Array& target, const CrossEntropy& options, Array& picked) {
  HOLON_ON_DEVICE(picked, cross_entropy_picked, logits, target, options, picked);
  const Problem p("cross_entropy", logits, target, options);
  p.check("picked", picked);
  parallel_for(p.n, p.grain(), [&](int64_t begin, int64_t end) {
    RowBuffer buffer(p.rows.direct() ? 0 : p.columns);
    for (int64_t i = begin; i < end; ++i)
      put(picked, i, p.class_of(i) == p.ignore ? 0 : p.picked(i, p.rows.read(i, buffer)));
  });
}

void cross_entropy_backward(const Array& logits, const Array& target, const CrossEntropy& options, const Array& lse,
                            const Array& dloss, Array& dlogits) {
  HOLON_ON_DEVICE(dlogits, cross_entropy_backward, logits, target, options, lse, dloss, dlogits);
  const Problem p("cross_entropy_backward", logits, target, options);
  p.check("lse", lse);
  p.check("dloss", dloss);
  HOLON_CHECK(dlogits.shape == logits.shape && dlogits.dtype == logits.dtype, "cross_entropy_backward: {} into {}",
              logits.shape, dlogits.shape);
  const Rows to(dlogits, 1, p.compute);
  const CrossEntropyBackwardFn run = table().cross_entropy_backward[p.compute == DType::kFloat64];
  const double even = p.smoothing / static_cast<double>(p.classes);
  parallel_for(p.n, p.grain(), [&](int64_t begin, int64_t end) {
    RowBuffer a(p.rows.direct() ? 0 : p.columns), b(to.direct() ? 0 : p.columns);
    for (int64_t i = begin; i < end; ++i) {
      void* row = to.target(i, b);
      const int64_t c = p.class_of(i), j = c - p.offset;
      if (c == p.ignore) {
        std::fill_n(static_cast<std::byte*>(row), to_size(p.columns) * size_bytes(p.compute), std::byte{0});
      } else {
        const double g = get(dloss, i);
        run(p.rows.read(i, a), row, p.columns, get(lse, i), g, even);
        if (j >= 0 && j < p.columns) {
          if (p.compute == DType::kFloat64)
            static_cast<double*>(row)[j] -= g * (1 - p.smoothing);
          else
            static_cast<float*>(row)[j] -= static_cast<float>(g * (1 - p.smoothing));
        }
      }
      to.write(i, b);
    }
  });
}

void nll(const Array& log_probability, const Array& target, const CrossEntropy& options, Array& loss) {
  HOLON_ON_DEVICE(loss, nll, log_probability, target, options, loss);
  CrossEntropy plain = options;
  plain.label_smoothing = 0;
  const Problem p("nll_loss", log_probability, target, plain);
  p.check("loss", loss);
  const DType dtype = log_probability.dtype;
  for (int64_t i = 0; i < p.n; ++i) {
    const int64_t c = p.class_of(i), j = c - p.offset;
    double v = 0;
    if (c != p.ignore && j >= 0 && j < p.columns)
      load_elements(log_probability.bytes() +
                        (i * log_probability.strides[0] + j * log_probability.strides[1]) *
                            static_cast<int64_t>(size_bytes(dtype)),
                    static_cast<int64_t>(size_bytes(dtype)), dtype, DType::kFloat64, &v, 1, nullptr);
    put(loss, i, -v);
  }
}

void nll_backward(const Array& target, const CrossEntropy& options, const Array& dloss, Array& dlog_probability) {
  HOLON_ON_DEVICE(dlog_probability, nll_backward, target, options, dloss, dlog_probability);
  const Problem p("nll_loss_backward", dlog_probability, target, options);
  p.check("dloss", dloss);
  const DType dtype = dlog_probability.dtype;
  fill(dlog_probability, 0);
  for (int64_t i = 0; i < p.n; ++i) {
    const int64_t c = p.class_of(i), j = c - p.offset;
    if (c == p.ignore || j < 0 || j >= p.columns) continue;
    const double v = -get(dloss, i);
    alignas(8) std::byte scratch[8];
    store_elements(&v, DType::kFloat64, dtype,
                   dlog_probability.bytes() +
                       (i * dlog_probability.strides[0] + j * dlog_probability.strides[1]) *
                           static_cast<int64_t>(size_bytes(dtype)),
                   static_cast<int64_t>(size_bytes(dtype)), 1, scratch);
  }
}

}  // namespace holon::kernels
