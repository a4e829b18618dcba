// Optimizer steps and the clipping of gradients, in place and over many tensors at once: the elements of all of them
// are shared out to the threads as one range, and no temporary tensor is made.
//
// All arrays of a tensor have one shape and any strides; they are floating. Those of two bytes an element are computed
// in float32, a few at a time. Sums do not depend on the number of threads. The tensors of a call may be on several
// devices.
#pragma once

#include <span>
#include <vector>

#include "holon/array/array.h"
#include "holon/kernels/numbers.h"

namespace holon::kernels {

inline constexpr int kUpdateStates = 3;

struct UpdateTensor {
  Array parameter;  // what is updated: the master copy where there is one
  Array gradient;
  Array state[kUpdateStates];  // undefined where the rule has none: amsgrad, momentum and the mean are chosen by that
  Array rounded;               // gets the new parameter in its own dtype; undefined without a master copy
  UpdateNumbers numbers;
  Array gradient_scale{};  // float64, one element, on the parameter's device: what the gradient is multiplied by first,
                           // and rounded to the parameter's own dtype; undefined: 1
  Array ratio{};           // likewise, of trust_ratios(): Lamb's step is multiplied by it, Sgd has it for its scale
};

// States, in order: Sgd [momentum]; Adam mean, square [largest square]; Adagrad sum; Adadelta square, step; Rmsprop
// square [mean] [momentum]; Lamb mean, square, which update_norms() has updated already.
void update(UpdateRule rule, std::span<const UpdateTensor> tensors);

// An update that is one part of a recording (DeviceRuntime::begin_capture), whose numbers come from memory of the
// device: those of the step are put there before each launch.
struct RecordedUpdate {
  static constexpr size_t kMost = 8;     // launches
  const UpdateNumbers* there = nullptr;  // kMost of them
  bool only_numbers = false;             // nothing is launched
  // Made by update():
  std::vector<UpdateNumbers> numbers;  // of each launch
  uint64_t shape = 0;                  // a hash of the launches and their arrays; recordings are of one shape
  bool fits = true;                    // else it cannot be recorded
};
// For the update() that this thread calls in its scope.
class RecordedUpdateScope {
 public:
  explicit RecordedUpdateScope(RecordedUpdate& update);
  ~RecordedUpdateScope();
  RecordedUpdateScope(const RecordedUpdateScope&) = delete;
  RecordedUpdateScope& operator=(const RecordedUpdateScope&) = delete;
};
RecordedUpdate* recorded_update();  // nullptr outside of such scopes

// For the rules with norms (Sgd as LARS, Lamb): sums[2 i] of the squares of parameter i, sums[2 i + 1] of its gradient
// (Sgd) or direction (Lamb).
void update_norms(UpdateRule rule, std::span<const UpdateTensor> tensors, std::span<double> sums);

// The same into memory of the device that all tensors are on, where the host waits for nothing. sums: float64,
// contiguous.
void update_norms_into(UpdateRule rule, std::span<const UpdateTensor> tensors, Array& sums);
// ratios[i], float64 on the device of sums, from what update_norms() has found about tensor i, parameter p and gradient
// or direction d: Lamb p / d, Sgd coefficient p / (d + decay p + eps); 1 where p or d is 0.
void trust_ratios(UpdateRule rule, double coefficient, double decay, double eps, const Array& sums, Array& ratios);

// sums[i]: of array i alone, of the kind; p for kPowers. Nothing: 0, or inf for kSmallest.
void norms_of(NormKind kind, double p, std::span<const Array> arrays, std::span<double> sums);
// The same into memory of the device that all arrays are on, where the host waits for nothing. sums: float64,
// contiguous.
void norms_into(NormKind kind, double p, std::span<const Array> arrays, Array& sums);
// A clipping by norm, from what norms_into() has found. rows: float64 [ranks, tensors], contiguous: what each rank has
// found about each of some tensors, kMostNormRows at most. result: float64 [2] on the same device: the norm of all
// together, and what they are to be multiplied by, limit / (norm + 1e-6) where that is less than 1; else, and if the
// norm is NaN, 1. wide: the factor is made of the norm as it is; else of its float32, whose bits do not depend on the
// order of sums.
inline constexpr size_t kMostNormRows = 16;
void clip_factor(NormKind kind, double p, double limit, bool wide, std::span<const Array> rows, Array& result);
// a = a * factor for all. finite, if not null, gets whether every element was finite before: what a device must be
// waited for.
void scale_all(std::span<const Array> arrays, double factor, bool* finite = nullptr);
// The same with a factor in memory, float64 of one element, of the device that all arrays are on; 1 changes nothing.
void scale_by(std::span<const Array> arrays, const Array& factor);
// a = min(max(a, low), high) for all; a NaN stays.
void clamp_all(std::span<const Array> arrays, double low, double high);

// The sum of the squares of all elements, in float64.
double squared_norm(const Array& a);

}  // namespace holon::kernels
