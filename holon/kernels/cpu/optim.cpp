#include "holon/kernels/cpu/optim.h"

#include <cmath>

#include "holon/base/error.h"
#include "holon/base/parallel.h"
#include "holon/kernels/cpu/elementwise.h"
#include "holon/kernels/cpu/loops.h"
#include "holon/kernels/cpu/reduce.h"
#include "holon/kernels/cpu/rows.h"

namespace holon::kernels {

namespace {

constexpr int64_t kBlock = 512;
constexpr int kMost = 5;

// Runs step(pointers, elements) over the arrays together: directly where all are laid out alike in the compute type, else
// in blocks. Undefined arrays are null; array 1, the gradient, is only read.
template <class F>
void over(const Array* const (&arrays)[kMost], DType compute, F&& step) {
  const Array& first = *arrays[0];
  const int64_t n = first.numel(), width = static_cast<int64_t>(size_bytes(compute));
  bool alike = first.is_dense();
  for (const Array* a : arrays) {
    if (!a->defined()) continue;
    HOLON_CHECK(a->shape == first.shape && is_floating(a->dtype), "optimizer: a parameter of shape {} with a {} of shape {}",
                first.shape, name(a->dtype), a->shape);
    alike &= a->dtype == compute && a->strides == first.strides;
  }
  if (n == 0) return;
  if (alike) {
    parallel_for(n, kGrain, [&](int64_t begin, int64_t end) {
      void* p[kMost];
      for (int k = 0; k < kMost; ++k) p[k] = arrays[k]->defined() ? arrays[k]->bytes() + begin * width : nullptr;
      step(p, end - begin);
    });
    return;
  }
  // Rows along the last axis, in blocks.
  const int axis = first.ndim() - 1;
  Dims lead = first.shape;
  if (axis >= 0) lead.erase(axis);
  const int64_t length = axis >= 0 ? first.shape[axis] : 1;
  parallel_for(lead.numel(), std::max<int64_t>(1, kGrain / length), [&](int64_t begin, int64_t end) {
    alignas(64) std::byte blocks[kMost][kBlock * 8], scratch[kBlock * 8];
    for (int64_t row = begin; row < end; ++row)
      for (int64_t at = 0; at < length; at += kBlock) {
        const int64_t m = std::min(kBlock, length - at);
        std::byte* where[kMost] = {};
        int64_t strides[kMost] = {};
        void* p[kMost] = {};
        for (int k = 0; k < kMost; ++k) {
          const Array& a = *arrays[k];
          if (!a.defined()) continue;
          const int64_t size = static_cast<int64_t>(size_bytes(a.dtype));
          int64_t offset = 0, rest = row;
          for (int i = axis - 1; i >= 0; --i) {
            offset += rest % a.shape[i] * a.strides[i];
            rest /= a.shape[i];
          }
          strides[k] = axis >= 0 ? a.strides[axis] * size : size;
          where[k] = a.bytes() + offset * size + at * strides[k];
          load_elements(where[k], strides[k], a.dtype, compute, blocks[k], m, scratch);
          p[k] = blocks[k];
        }
        step(p, m);
        for (int k = 0; k < kMost; ++k)
          if (p[k] && k != 1) store_elements(blocks[k], compute, arrays[k]->dtype, where[k], strides[k], m, scratch);
      }
  });
}

}  // namespace

void sgd(const Sgd& options, std::span<const SgdTensor> tensors) {
  const Array none{};
  for (const SgdTensor& t : tensors) {
    const DType compute = float_compute(t.parameter.dtype, "sgd");
    HOLON_CHECK(t.momentum.defined() || options.momentum == 0, "sgd: momentum {} without a buffer", options.momentum);
    const SgdNumbers c = {options.lr, options.momentum, options.dampening, options.weight_decay,
                          options.nesterov, options.maximize, t.first_step};
    const SgdFn run = table().sgd[compute == DType::kFloat64];
    over({&t.parameter, &t.gradient, options.momentum != 0 ? &t.momentum : &none, &none, &none}, compute,
         [&](void* const* p, int64_t n) { run(p[0], p[1], p[2], n, c); });
  }
}

void adam(const Adam& options, std::span<const AdamTensor> tensors) {
  for (const AdamTensor& t : tensors) {
    const DType compute = float_compute(t.parameter.dtype, "adam");
    HOLON_CHECK(t.mean.defined() && t.square.defined() && t.step >= 1, "adam: step {} without its state", t.step);
    const double step = static_cast<double>(t.step);
    const double c1 = options.bias_correction ? 1 - std::pow(options.beta1, step) : 1;
    const double c2 = options.bias_correction ? 1 - std::pow(options.beta2, step) : 1;
    const AdamNumbers c = {options.lr / c1, options.beta1, options.beta2, options.eps,
                           options.decoupled ? 0 : options.weight_decay,
                           options.decoupled ? 1 - options.lr * options.weight_decay : 1, 1 / std::sqrt(c2), options.maximize};
    const AdamFn run = table().adam[compute == DType::kFloat64];
    over({&t.parameter, &t.gradient, &t.mean, &t.square, &t.largest_square}, compute,
         [&](void* const* p, int64_t n) { run(p[0], p[1], p[2], p[3], p[4], n, c); });
  }
}

double squared_norm(const Array& a) {
  Array out = Array::empty({}, DType::kFloat64);
  reduce(ReduceOp::SumSquares, a, ~0u, out);
  return *out.data<double>();
}

void scale(Array& a, double factor) { binary_scalar(BinaryOp::Mul, a, factor, a); }

}  // namespace holon::kernels
