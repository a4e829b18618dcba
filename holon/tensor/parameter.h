// The mark of tensors that are parameters, for those that do not show it by requires_grad: frozen ones, and what is
// made of a parameter without recording, as a window on it or in another dtype. A parameter's layout is the user's word
// about memory, so that ops redistribute it last (boxing/events.h).
#pragma once

#include "holon/tensor/tensor.h"

namespace holon {

// In output_index(), which has no other meaning where there is no grad_fn().
inline constexpr uint32_t kParameterMark = ~0u;

inline bool is_marked_parameter(const Tensor& t) {
  return !t.impl()->grad_fn() && t.impl()->output_index() == kParameterMark;
}

void mark_parameter(const Tensor& t);

}  // namespace holon
