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

// sums[i]: of array i alone, of the kind; p for kPowers. Nothing: 0, or inf for kSmallest.
void norms_of(NormKind kind, double p, std::span<const Array> arrays, std::span<double> sums);
// a = a * factor for all. finite, if not null, gets whether every element was finite before: what a device must be
// waited for.
void scale_all(std::span<const Array> arrays, double factor, bool* finite = nullptr);
// a = min(max(a, low), high) for all; a NaN stays.
void clamp_all(std::span<const Array> arrays, double low, double high);

// The sum of the squares of all elements, in float64.
double squared_norm(const Array& a);

}  // namespace holon::kernels
