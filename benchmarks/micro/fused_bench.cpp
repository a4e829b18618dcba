// Fused chains and epilogues against the ops one after the other, in the same run. One JSON object per line; ratio is
// the time of the ops one by one over that of the fused form (above 1: fusion pays). Set OMP_NUM_THREADS=1 for one
// thread.
#include <omp.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "holon/graph/program/fused.h"

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

// The chain on these inputs, its last result being its output, against the kernels on whole arrays.
void chain(const std::string& name, const Dims& shape, const std::vector<Array>& in, const std::vector<PartOf>& parts) {
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
    made.push_back(Array::empty(shape, infer.out_[0].dtype));
    operands.push_back(&made.back());
    body.parts.push_back(std::move(part));
  }
  body.results.push_back(static_cast<int16_t>(parts.size()) - 1);
  std::vector<FusedChain::Operand> layouts;
  for (auto& x : in) layouts.push_back({x.shape, x.strides, x.dtype});
  Array out = Array::empty(shape, made.back().dtype);
  FusedChain::Operand result{out.shape, out.strides, out.dtype};
  FusedChain fused(body, layouts, {&result, 1});
  Array* outs[] = {&out};
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

void chains() {
  for (int64_t rows : {1, 16, 256, 4096}) {
    const Dims s{rows, 1024};
    const std::string at = " [" + std::to_string(rows) + ", 1024]";
    Array a = random(s), b = random(s), c = random(s), row = random({1024}), column = random({rows, 1}),
          one = random({}), mask = random(s, boolean);
    chain("two adds" + at, s, {a, b, c}, {{"add", {0, 1}, {}}, {"add", {3, 2}, {}}});
    chain("scale, add" + at, s, {a, b}, {{"mul_scalar", {0}, {{"value", 0.5}}}, {"add", {2, 1}, {}}});
    chain("bias, gelu" + at, s, {a, row}, {{"add", {0, 1}, {}}, {"gelu", {2}, {{"approximate", std::string("tanh")}}}});
    chain("gelu_backward, mask" + at, s, {a, b, mask},
          {{"gelu_tanh_backward", {0, 1}, {}}, {"masked_fill", {3, 2}, {{"value", 0.0}}}});
    chain("column and number" + at, s, {a, column, one},
          {{"sub", {0, 1}, {}}, {"mul", {3, 2}, {}}, {"square", {4}, {}}});
    chain("lstm cell" + at, s, {a, b, c, a},
          {{"sigmoid", {0}, {}},
           {"sigmoid", {1}, {}},
           {"tanh", {2}, {}},
           {"mul", {4, 3}, {}},
           {"mul", {5, 6}, {}},
           {"add", {7, 8}, {}},
           {"tanh", {9}, {}}});
    Array h = random(s, bfloat16);
    chain("bfloat16: scale, add, relu" + at, s, {h, h},
          {{"mul_scalar", {0}, {{"value", 0.5}}}, {"add", {2, 1}, {}}, {"relu", {3}, {}}});
  }
  Array scores = random({8, 4, 128, 128}), mask = random({128, 128});
  chain("scores: scale, mask [8, 4, 128, 128]", scores.shape, {scores, mask},
        {{"mul_scalar", {0}, {{"value", 0.125}}}, {"add", {2, 1}, {}}});
  Array mask_of_bools = random({128, 128}, boolean);
  chain("scores: scale, masked_fill [8, 4, 128, 128]", scores.shape, {scores, mask_of_bools},
        {{"mul_scalar", {0}, {{"value", 0.125}}}, {"masked_fill", {2, 1}, {{"value", -1e9}}}});
}

}  // namespace

int main() { chains(); }
