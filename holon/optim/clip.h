// The clipping of gradients: eagerly, and recorded where a graph is being captured.
#pragma once

#include <concepts>
#include <span>

#include "holon/kernels/numbers.h"
#include "holon/tensor/tensor.h"

namespace holon::optim {

// How some gradients are clipped.
struct Clip {
  enum class By : uint8_t { kNorm, kValue };
  By by = By::kNorm;
  double limit = 0;  // of the norm of all together; kValue: of each element's magnitude
  double norm_type = 2;
  bool error_if_nonfinite = false;
  bool operator==(const Clip&) const = default;
};

// Scales the gradients of params so that the norm of all of them together is at most max_norm. Returns the norm before,
// as a float32 tensor without axes: on the gradients' device if all of them are on one (of global ones, if its
// placement has all ranks), whose work the host does not wait for then, unless for error_if_nonfinite. norm_type is any
// number, 0 (how many gradients are not 0), inf or -inf (the largest, the smallest magnitude). Right for any mixture of
// sbps and placements: every element counts once. Collective where a parameter is global. In the build() of a graph it
// is part of the step: after the last micro-batch, on the sums over the micro-batches, after a division by the loss
// scale and before the updates. Errors: max_norm negative; with error_if_nonfinite, a norm that is not finite; in
// build(), before backward().
Tensor clip_grad_norm_(TensorList params, double max_norm, double norm_type = 2.0, bool error_if_nonfinite = false);
template <std::same_as<bool> B>
Tensor clip_grad_norm_(TensorList params, double max_norm, B error_if_nonfinite) = delete;  // norm_type comes first

// Brings every element of the gradients of params to at least -clip_value and at most clip_value; a NaN stays.
// Collective where a gradient is a partial sum, which is redistributed first. In build() as clip_grad_norm_(). Errors:
// clip_value negative.
void clip_grad_value(TensorList params, double clip_value);

// Errors: limits and types that are none.
void check(const Clip& clip);

// The norm of gradients, and by what they are to be multiplied: 1 where they stay.
struct Clipping {
  double norm, factor;
};
// parts[i] is this rank's part of a gradient of the layout specs[i] (nullptr: local); undefined where it has none. The
// layout decides in which order squares are summed, so that norms may differ in their last bits; the factor is made of
// the norm in float32, so that it does not. wide: some gradient is float64, and so is the factor. Collective. Pre: by
// norm; no layout has a partial sum. Errors: the norm is not finite, and must be.
Clipping clipping_of(const Clip& clip, std::span<const Array> parts, std::span<const GlobalSpec* const> specs,
                     bool wide);

// What a norm of this order is made of.
kernels::NormKind norm_kind(double norm_type);
// Errors: the norm is not finite, and must be.
void check_norm(const Clip& clip, double norm);

// A tracer (Context::tracer()) that records what is clipped.
class ClipRecorder {
 public:
  virtual ~ClipRecorder() = default;
  // Returns the norm; undefined for kValue.
  virtual Tensor clip_gradients(const Clip& clip, std::span<const Tensor> params) = 0;
};

}  // namespace holon::optim
