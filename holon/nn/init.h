// Initialisers: each writes new values into a tensor, local or global, and records nothing for backward. Element i of a
// draw depends on the seed, the draw's number and i alone: a parameter has the same values under every placement and
// sbp.
#pragma once

#include "holon/tensor/tensor.h"

namespace holon::nn::init {

// One value; uniform draws from low to high; normal draws.
void constant_(Tensor t, double value);
void uniform_(Tensor t, double low = 0, double high = 1);
void normal_(Tensor t, double mean = 0, double std = 1);
// A normal draw held within [low, high].
void trunc_normal_(Tensor t, double mean = 0, double std = 1, double low = -2, double high = 2);

// The numbers of inputs and outputs that one element of a weight [out, in, window...] is connected to.
// Errors: fewer than two axes.
struct Fan {
  int64_t in, out;
};
Fan fan_of(const Dims& shape);

// Uniform within gain * sqrt(3 / fan.in), where gain is that of a leaky rectifier with negative slope a.
void kaiming_uniform_(Tensor t, double a = 0);
// Normal with deviation gain / sqrt(fan.in), likewise.
void kaiming_normal_(Tensor t, double a = 0);
// Uniform within gain * sqrt(6 / (fan.in + fan.out)).
void xavier_uniform_(Tensor t, double gain = 1);
void xavier_normal_(Tensor t, double gain = 1);

// While one exists, initialisers on this thread's rank leave tensors as they are, whatever that is: for modules whose
// values will all be replaced, as by those of a checkpoint. Nothing is drawn.
class SkipGuard {
 public:
  SkipGuard();
  ~SkipGuard();
  SkipGuard(const SkipGuard&) = delete;
  SkipGuard& operator=(const SkipGuard&) = delete;

 private:
  bool before_;
};

}  // namespace holon::nn::init
