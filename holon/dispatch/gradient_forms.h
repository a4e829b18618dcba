// One move for all that a node makes of a gradient: what an op of its backward has redistributed is taken in that
// layout by the ops after it, if they then move nothing. A linear layer that gathers the gradient of its result for
// that of its input makes the gradients of its weight and bias of the gathered one too.
#pragma once

#include <optional>
#include <span>

#include "holon/tensor/tensor.h"

namespace holon {

// Of the calling thread, while it exists.
class GradientForms {
 public:
  // incoming: the gradients of a node's outputs, which outlive this.
  explicit GradientForms(std::span<const Tensor> incoming);
  ~GradientForms();
  GradientForms(const GradientForms&) = delete;
  GradientForms& operator=(const GradientForms&) = delete;

  // That of the innermost node, or nullptr.
  static GradientForms* current();

  // The inputs with what has been redistributed in its new layout; nothing if none of them has been.
  std::optional<TensorVec> redistributed(const TensorVec& inputs) const;
  // An op has moved t. Counts if it is an incoming gradient.
  void note(const Tensor& t, const Tensor& moved);
  // A tensor has been changed in place: it may be an incoming gradient, or a view of one's part, so that nothing counts
  // any more, on any rank.
  static void forget();

 private:
  std::span<const Tensor> incoming_;
  TensorVec forms_;  // of incoming_; undefined: as it came
  bool any_ = false;
  GradientForms* outer_;
};

}  // namespace holon
