// What the families with rules by function share, and what hidden ops ask of their inputs.
#pragma once

#include "holon/base/index.h"
#include "holon/registry/op_def.h"

namespace holon::ops {

// Adds a signature: the named inputs and outputs are partial sums, the others whole.
inline void pass_partial(RuleCall& r, std::initializer_list<int> in, std::initializer_list<int> out) {
  Signature s;
  for (size_t i = 0; i < r.in.size(); ++i) s.in.push_back(sbp::broadcast());
  for (size_t o = 0; o < r.out.size(); ++o) s.out.push_back(sbp::broadcast());
  for (int i : in) at_index(s.in, i) = sbp::partial_sum();
  for (int o : out) at_index(s.out, o) = sbp::partial_sum();
  r.rule.add(s);
}

// Whether an optional input that has axes was given.
inline bool given(const RuleCall& r, size_t i) { return i < r.in.size() && r.in[i].shape.size() > 0; }

// Hidden ops are given what other ops have made, and their kernels rely on its shape. An absent input is in order.
inline void require_shape(const Infer& c, size_t i, const Dims& shape) {
  c.require(!c.present(i) || c.shape(i) == shape, "the shapes do not match",
            "It is internal to another op: call that one.");
}

}  // namespace holon::ops
