// Random programs on matrices, in random layouts.
#pragma once

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "tests/cpp/graph/small_graphs.h"

#include "holon/ops/activation.h"
#include "holon/ops/matmul.h"
#include "holon/ops/norm.h"
#include "holon/ops/random.h"
#include "holon/ops/reduce.h"
#include "holon/ops/shape.h"
#include "holon/ops/unary.h"

namespace holon::graph::testing {

class RandomProgram {
 public:
  // Every third is of a size that ranks do not divide.
  RandomProgram(const Placement& p, unsigned seed) : placement_(p), draw_(seed), size_(seed % 3 ? 8 : 7) {}

  Captured capture(int micro_batches) {
    Captured c;
    const int n_parameters = 2 + below(4);
    for (int i = 0; i < n_parameters; ++i) c.parameters.push_back(make_parameter(i));
    const NdSbp whole = placement_ ? NdSbp::filled(axes(), sbp::broadcast()) : NdSbp();
    // Micro-batches have to divide the rows of a rank.
    const NdSbp data = !placement_ || (size_ % 2 && micro_batches > 1) ? whole
        : below(2)                                                     ? whole.with(0, sbp::split(0))
                                                                       : any_sbp(false);
    c.inputs = {random(layout(), {size_ * micro_batches, size_}, data, 1000),
                random(layout(), {size_ * micro_batches, size_}, data, 1001)};
    Capture capture;
    capture.set_micro_batches(micro_batches);
    std::vector<Tensor> pool;
    for (auto& t : c.inputs) pool.push_back(capture.input_like(t));
    for (size_t i = 0; i < c.parameters.size(); ++i)
      capture.name_external(c.parameters[i], "p" + std::to_string(i), true);
    const int blocks = 1 + below(4);
    for (int b = 0; b < blocks; ++b) {
      capture.push_scope("model.block" + std::to_string(b));
      const int n = 2 + below(6);
      for (int k = 0; k < n; ++k) pool.push_back(op(pool, c.parameters));
      capture.pop_scope();
    }
    Tensor loss;
    for (auto& p : c.parameters) {  // each has a gradient
      Tensor term = mean(tanh(matmul(pool.back(), p)));
      loss = loss.defined() ? loss + term : term;
    }
    loss = loss + mean(pool[pool.size() - 2] * pool.back());
    loss.backward();
    optim::Rule rule;
    rule.lr = 0.1;
    rule.momentum = below(2) ? 0.9 : 0;
    capture.add_update(rule, c.parameters);
    std::vector<Tensor> outputs{loss};
    if (micro_batches == 1) outputs.push_back(pool[static_cast<size_t>(below(static_cast<int>(pool.size())))]);
    c.g = capture.finish(outputs);
    return c;
  }

 private:
  int below(int n) { return static_cast<int>(draw_() % static_cast<unsigned>(n)); }
  int axes() const { return placement_ ? placement_.hierarchy().size() : 0; }
  Layout layout() const { return {placement_}; }
  NdSbp any_sbp(bool partial) {
    if (!placement_) return {};
    std::vector<Sbp> list;
    for (int a = 0; a < axes(); ++a) {
      const int kind = below(partial ? 4 : 3);
      list.push_back(kind == 2 ? sbp::broadcast() : kind == 3 ? sbp::partial_sum() : sbp::split(kind));
    }
    return NdSbp(list);
  }
  Tensor make_parameter(int i) { return parameter(layout(), {size_, size_}, any_sbp(false), i, 0.4); }

  Tensor op(const std::vector<Tensor>& pool, const std::vector<Tensor>& parameters) {
    const Tensor x =
        pool[pool.size() - 1 - static_cast<size_t>(below(std::min<int>(3, static_cast<int>(pool.size()))))];
    const Tensor other = pool[static_cast<size_t>(below(static_cast<int>(pool.size())))];
    const Tensor w = parameters[static_cast<size_t>(below(static_cast<int>(parameters.size())))];
    switch (below(13)) {
      case 0:
      case 1: return tanh(matmul(x, w));
      case 2: return tanh(x) + other;
      case 3: return x * sigmoid(other);
      case 4: return transpose(x, 0, 1);
      case 5: return size_ % 2 ? neg(x) : reshape(reshape(x, {2, size_ / 2, size_}), {size_, size_});
      case 6: return dropout(x, 0.3);
      case 7: return softmax(x, 1);
      case 8: return x - mean(x, Dims{1}, true);
      case 9: return x.to(bfloat16).to(float32);
      case 10: return tanh(matmul(x, transpose(w, 0, 1)));
      case 11: return tanh(x) + w;
      default: return placement_ ? x.to_global(placement_, any_sbp(true)) : relu(x);
    }
  }

  Placement placement_;
  std::mt19937 draw_;
  const int64_t size_;
};

}  // namespace holon::graph::testing
