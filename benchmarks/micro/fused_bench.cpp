// Fused chains and epilogues against the ops one after the other, in the same run. One JSON object per line; ratio is
// the time of the ops one by one over that of the fused form (above 1: fusion pays). Set OMP_NUM_THREADS=1 for one
// thread.
#include <omp.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "holon/base/fmt.h"
#include "holon/graph/program/fused.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/elementwise.h"
#include "holon/kernels/epilogue.h"
#include "holon/kernels/gemm.h"
#include "holon/kernels/norm.h"

namespace {

using namespace holon;
using graph::FusedBody;
using graph::FusedChain;

double now_us() {
  timespec t;
  clock_gettime(omp_get_max_threads() == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) * 1e6 + static_cast<double>(t.tv_nsec) / 1e3;
}

double once(const std::function<void()>& f, int64_t count) {
  const double start = now_us();
  for (int64_t i = 0; i < count; ++i) f();
  return (now_us() - start) / static_cast<double>(count);
}

// Medians of interleaved runs.
void compare(const std::string& name, const std::function<void()>& fused, const std::function<void()>& apart) {
  fused(), apart();
  const int64_t count = std::clamp<int64_t>(static_cast<int64_t>(5000 / (once(apart, 1) + 0.01)), 1, 200000);
  std::vector<double> a, b;
  for (int i = 0; i < 9; ++i) a.push_back(once(fused, count)), b.push_back(once(apart, count));
  std::sort(a.begin(), a.end()), std::sort(b.begin(), b.end());
  std::printf(
      "{\"name\": \"%s\", \"value\": %.4g, \"unit\": \"us\", \"against\": \"ops one by one\", \"ratio\": %.3f}\n",
      name.c_str(), a[4], b[4] / a[4]);
  std::fflush(stdout);
}

Array random(const Dims& shape, DType dtype = float32) {
  Array x = Array::empty(shape, dtype);
  for (int64_t i = 0; i < x.numel(); ++i) {
    const float v = static_cast<float>(i * 7919 % 1013) / 1013 - 0.5f;
    if (dtype == boolean)
      x.data<bool>()[i] = v > 0;
    else if (dtype == bfloat16)
      x.data<BFloat16>()[i] = BFloat16(v);
    else
      x.data<float>()[i] = v;
  }
  return x;
}

struct PartOf {
  const char* op;
  std::vector<int> in;
  std::vector<NamedAttr> attrs;
};

// The chain on these inputs, with the last part's result or those of `results`, against the kernels on whole arrays.
void chain(const std::string& name, const std::vector<Array>& in, const std::vector<PartOf>& parts,
           std::vector<int16_t> results = {}) {
  FusedBody body;
  std::vector<Array> made;
  std::vector<const Array*> operands;
  for (auto& x : in) operands.push_back(&x);
  made.reserve(parts.size());
  for (auto& p : parts) {
    const OpDef& op = find_op(p.op);
    graph::FusedPart part{&op, make_attrs(op.schema, p.attrs), {}};
    SmallVec<Meta, 3> metas;
    for (int i : p.in) {
      part.in.push_back(static_cast<int16_t>(i));
      metas.push_back({operands[static_cast<size_t>(i)]->shape, operands[static_cast<size_t>(i)]->dtype});
    }
    Infer infer(op, part.attrs, metas, ~0u);
    op.infer(infer);
    made.push_back(Array::empty(infer.out_[0].shape, infer.out_[0].dtype));
    operands.push_back(&made.back());
    body.parts.push_back(std::move(part));
  }
  if (results.empty()) results.push_back(static_cast<int16_t>(parts.size() - 1));
  std::vector<FusedChain::Operand> layouts, out_layouts;
  for (auto& x : in) layouts.push_back({x.shape, x.strides, x.dtype});
  std::vector<Array> outputs;
  std::vector<Array*> outs;
  for (int16_t r : results) {
    body.results.push_back(r);
    const Array& like = made[static_cast<size_t>(r)];
    outputs.push_back(Array::empty(like.shape, like.dtype));
    out_layouts.push_back({like.shape, like.strides, like.dtype});
  }
  for (auto& x : outputs) outs.push_back(&x);
  FusedChain fused(body, layouts, out_layouts);
  compare(
      name, [&] { fused.run(std::span<const Array* const>(operands.data(), in.size()), outs); },
      [&] {
        for (size_t p = 0; p < parts.size(); ++p) {
          SmallVec<const Array*, 3> from;
          for (int i : parts[p].in) from.push_back(operands[static_cast<size_t>(i)]);
          Array* to[] = {&made[p]};
          KernelCall call(*body.parts[p].op, body.parts[p].attrs, from, to);
          body.parts[p].op->kernel(call);
        }
      });
}

// Products with what follows them, of an MLP's and a GPT's sizes.
void epilogues() {
  using namespace kernels;
  for (auto [m, n, k] : {std::array<int64_t, 3>{256, 512, 784},
                         {256, 512, 512},
                         {1024, 1024, 256},
                         {1024, 256, 1024},
                         {1024, 256, 256}}) {
    const std::string at = " " + std::to_string(m) + "x" + std::to_string(n) + "x" + std::to_string(k);
    Array x = random({m, k}), w = random({n, k}), b = random({k, n}), bias = random({n}), other = random({m, n});
    Array y = random({m, n}), z = random({m, n}), slope = random({m, n}), dw = random({n, k}), db = random({n});
    compare(
        "linear, relu" + at, [&] { linear_then(x, w, &bias, Then::kRelu, nullptr, z); },
        [&] { linear(x, w, &bias, y), unary(UnaryOp::Relu, y, z); });
    compare(
        "linear, add" + at, [&] { linear_then(x, w, &bias, Then::kAdd, &other, z); },
        [&] { linear(x, w, &bias, y), binary(BinaryOp::Add, y, other, z); });
    compare(
        "product, relu_backward" + at, [&] { matmul_then(x, b, Then::kReluBackward, &other, z); },
        [&] { matmul(x, b, y), binary(BinaryOp::ReluBackward, y, other, z); });
    compare(
        "linear, gelu; product, gelu_backward" + at,
        [&] {
          linear_gelu(x, w, &bias, false, z, slope);
          matmul_then(x, b, Then::kMul, &slope, y);
        },
        [&] {
          linear(x, w, &bias, y), unary(UnaryOp::Gelu, y, z);
          matmul(x, b, slope), binary(BinaryOp::GeluBackward, slope, y, z);
        });
    compare(
        "gradients of weight and bias" + at, [&] { linear_weight_grad(other, x, dw, &db); },
        [&] { linear_weight_grad(other, x, dw), column_sums(other, db); });
  }
}

void chains() {
  for (int64_t rows : {1, 16, 256, 4096}) {
    const Dims s{rows, 1024};
    const std::string at = " [" + std::to_string(rows) + ", 1024]";
    Array a = random(s), b = random(s), c = random(s), row = random({1024}), column = random({rows, 1}),
          one = random({}), mask = random(s, boolean);
    chain("two adds" + at, {a, b, c}, {{"add", {0, 1}, {}}, {"add", {3, 2}, {}}});
    chain("scale, add" + at, {a, b}, {{"mul_scalar", {0}, {{"value", 0.5}}}, {"add", {2, 1}, {}}});
    chain("bias, gelu" + at, {a, row}, {{"add", {0, 1}, {}}, {"gelu", {2}, {{"approximate", std::string("tanh")}}}});
    chain("gelu_backward, mask" + at, {a, b, mask},
          {{"gelu_tanh_backward", {0, 1}, {}}, {"masked_fill", {3, 2}, {{"value", 0.0}}}});
    chain("column and number" + at, {a, column, one}, {{"sub", {0, 1}, {}}, {"mul", {3, 2}, {}}, {"square", {4}, {}}});
    chain("lstm cell" + at, {a, b, c, a},
          {{"sigmoid", {0}, {}},
           {"sigmoid", {1}, {}},
           {"tanh", {2}, {}},
           {"mul", {4, 3}, {}},
           {"mul", {5, 6}, {}},
           {"add", {7, 8}, {}},
           {"tanh", {9}, {}}});
    Array h = random(s, bfloat16);
    chain("bfloat16: scale, add, relu" + at, {h, h},
          {{"mul_scalar", {0}, {{"value", 0.5}}}, {"add", {2, 1}, {}}, {"relu", {3}, {}}});
  }
  Array scores = random({8, 4, 128, 128}), mask = random({128, 128});
  chain("scores: scale, mask [8, 4, 128, 128]", {scores, mask},
        {{"mul_scalar", {0}, {{"value", 0.125}}}, {"add", {2, 1}, {}}});
  Array mask_of_bools = random({128, 128}, boolean);
  chain("scores: scale, masked_fill [8, 4, 128, 128]", {scores, mask_of_bools},
        {{"mul_scalar", {0}, {{"value", 0.125}}}, {"masked_fill", {2, 1}, {{"value", -1e9}}}});
}

// Attention of 8 rows, 4 heads of 64: one head after the other against product after product.
void attention() {
  const Dims s{8, 4, 128, 64};
  const Dims heads{128 * 256, 64, 256, 1};
  auto head = [&](bool turned) {
    Array x = random({8, 128, 256}).view(s, heads);
    if (turned) std::swap(x.shape[2], x.shape[3]), std::swap(x.strides[2], x.strides[3]);
    return x;
  };
  Array p = random({8, 4, 128, 128}), pt = p;
  std::swap(pt.strides[2], pt.strides[3]);
  chain("attention [8, 4, 128, 64]", {head(false), head(true), random({128, 128}), head(false)},
        {{"matmul_scaled", {0, 1}, {{"alpha", 0.125}}},
         {"add", {4, 2}, {}},
         {"softmax", {5}, {}},
         {"matmul", {6, 3}, {}}},
        {2, 3});
  chain("attention, backward [8, 4, 128, 64]", {head(false), head(true), p, pt, head(false), head(true)},
        {{"matmul", {0, 1}, {}},
         {"matmul", {3, 0}, {}},
         {"softmax_backward", {6, 2}, {{"dim", int64_t{-1}}}},
         {"matmul_scaled", {8, 4}, {{"alpha", 0.125}}},
         {"matmul_scaled", {5, 8}, {{"alpha", 0.125}}}},
        {1, 3, 4});
}

// A residual and the norm behind it, forward and backward, in rows of a GPT's width; and with products in bfloat16, as
// autocast has it.
void norms() {
  using namespace kernels;
  for (auto [rows, n] : {std::array<int64_t, 2>{1024, 256}, {1024, 1024}, {4096, 1024}})
    for (DType narrow : {float32, bfloat16}) {
      const Dims s{rows, n};
      const std::string at = fmt::format(" [{}, {}]{}", rows, n, narrow == bfloat16 ? ", bfloat16 beside it" : "");
      const bool mixed = narrow != float32;
      Array f = random(s, narrow), x = random(s), w = random({n}), b = random({n}), wide = random(s), sum = random(s);
      Array y = random(s), small = random(s, narrow), mean = random({rows}), rstd = random({rows}), dx = random(s);
      Array dw = random({n}), db = random({n});
      auto widened = [&](const Array& a) -> const Array& { return mixed ? copy(a, wide), wide : a; };
      compare(
          "add, layer_norm" + at, [&] { add_layer_norm(f, x, 1, w, b, 1e-5, sum, mixed ? small : y, mean, rstd); },
          [&] {
            binary(BinaryOp::Add, widened(f), x, sum), layer_norm(sum, 1, w, b, 1e-5, y, mean, rstd);
            if (mixed) copy(y, small);
          });
      compare(
          "layer_norm_backward, add" + at, [&] { layer_norm_backward_add(f, sum, 1, w, mean, rstd, x, dx, &dw, &db); },
          [&] {
            layer_norm_backward(widened(f), sum, 1, w, mean, rstd, y, &dw, &db);
            binary(BinaryOp::Add, y, x, dx);
          });
      compare(
          "add, rms_norm" + at, [&] { add_rms_norm(f, x, 1, w, 1e-5, sum, mixed ? small : y, rstd); },
          [&] {
            binary(BinaryOp::Add, widened(f), x, sum), rms_norm(sum, 1, w, 1e-5, y, rstd);
            if (mixed) copy(y, small);
          });
    }
}

}  // namespace

int main() {
  norms();
  chains();
  epilogues();
  attention();
}
