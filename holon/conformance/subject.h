// What a check calls: an op by a sample, or any function of tensors.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "holon/conformance/sample.h"
#include "holon/tensor/tensor.h"

namespace holon::conformance {

struct Subject {
  std::string name;
  std::vector<Input> in;
  // Of local tensors, or of global ones; undefined where an input is left out. placement and sbp: what a result without
  // inputs is to have.
  std::function<TensorVec(const TensorVec& in, const Placement& placement, const NdSbp& sbp)> call;
  bool differentiable = true;
  // Writes into in[0] and returns it; empty: there is no such form.
  std::function<Tensor(const TensorVec& in)> call_in_place = {};
  // Values have all the digits of float32: sums of them round, so that their order shows.
  bool all_digits = false;

  explicit Subject(const Sample& s);
  Subject(std::string name, std::vector<Input> in, std::function<TensorVec(const TensorVec& in)> f);

  // Whether input i is there, and is floating where it can have a gradient.
  bool has(size_t i) const { return in[i].fill != Input::Fill::kAbsent; }
  bool has_gradient(size_t i) const { return differentiable && has(i) && is_floating(in[i].dtype); }
  // The elements of input i: exact sums of addends, unless they have all digits, and never equal between inputs. The
  // same for the same name; each variant is another set of values.
  std::vector<double> values(size_t i, uint64_t variant = 0) const;
};

// The number that element e of output o counts with in a sum of all outputs: an eighth's multiple within [-2, 2].
double output_weight(size_t o, size_t e);

}  // namespace holon::conformance
