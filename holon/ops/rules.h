// What the rooms with rules by function share.
#pragma once

#include "holon/registry/op_def.h"

namespace holon::ops {

// Adds a signature: the named inputs and outputs are partial sums, the others whole.
inline void pass_partial(RuleCall& r, std::initializer_list<int> in, std::initializer_list<int> out) {
  Signature s;
  for (size_t i = 0; i < r.in.size(); ++i) s.in.push_back(sbp::broadcast());
  for (size_t o = 0; o < r.out.size(); ++o) s.out.push_back(sbp::broadcast());
  for (int i : in) s.in[static_cast<size_t>(i)] = sbp::partial_sum();
  for (int o : out) s.out[static_cast<size_t>(o)] = sbp::partial_sum();
  r.rule.add(s);
}

// Whether an optional input that has axes was given.
inline bool given(const RuleCall& r, size_t i) { return i < r.in.size() && r.in[i].shape.size() > 0; }

}  // namespace holon::ops
