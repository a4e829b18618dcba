// Counter-based random numbers: the value of an element is a function of the seed, the number of the call and the
// element's index in the logical tensor. It depends neither on how the tensor is split, nor on threads, nor on the
// instruction set: the bits are the same everywhere. Generator: Philox4x32-10; one draw of 32 bits for an element (64
// for float64 and for integers).
#pragma once

#include "holon/array/array.h"
#include "holon/kernels/functors.h"
#include "holon/kernels/numbers.h"

namespace holon::kernels {

// Which slice of a logical tensor `out` is: out.shape from `offset` on.
struct RandomPart {
  uint64_t seed = 0, counter = 0;
  Dims logical_shape, offset;

  // The whole of a tensor of this shape.
  static RandomPart whole(uint64_t seed, uint64_t counter, const Dims& shape) {
    return {seed, counter, shape, Dims::filled(shape.size(), 0)};
  }
};

// A part as runs of elements that are neighbours in the logical tensor: its last axes merged as far as the part has all
// of them.
struct Runs {
  int n = 0;
  int64_t shape[kMaxAxes], logical[kMaxAxes], offset[kMaxAxes];  // the last one is the run

  Runs(const RandomPart& part, const Array& out);
  // The logical number of the local element `linear`.
  HOLON_FN uint64_t logical_index(int64_t linear) const {
    uint64_t index = 0, step = 1;
    for (int i = n - 1; i >= 0; --i) {
      index += static_cast<uint64_t>(linear % shape[i] + offset[i]) * step;
      step *= static_cast<uint64_t>(logical[i]);
      linear /= shape[i];
    }
    return index;
  }
};

// What most of the functions below come down to, with checked numbers (see their definitions for which); the form of
// devices. kIntegers: from `from` on, `threshold` of them. x: the input of kDropout, the probabilities of kBernoulliOf.
enum class Distribution : uint8_t {
  kUniform,
  kNormal,
  kTruncatedNormal,
  kIntegers,
  kBernoulli,
  kBernoulliOf,
  kDropout
};
void draw(Distribution distribution, const RandomPart& part, const RandomNumbers& numbers, const Array* x, Array& out);

// out has any strides; a floating dtype except where said.
void uniform(const RandomPart& part, double low, double high, Array& out);  // [low, high)
void normal(const RandomPart& part, double mean, double deviation, Array& out);
// A normal distribution's values within [low, high], by its inverse distribution function. low < high.
void truncated_normal(const RandomPart& part, double mean, double deviation, double low, double high, Array& out);
// [low, high), any dtype. Errors: an empty range (ValueError).
void randint(const RandomPart& part, int64_t low, int64_t high, Array& out);
// 1 with probability p, else 0; any dtype. Errors: p outside [0, 1] (ValueError).
void bernoulli(const RandomPart& part, double p, Array& out);
// The same with a probability for each element; p (floating) has out's shape.
void bernoulli(const RandomPart& part, const Array& p, Array& out);
// out = x / (1 - p), or 0 with probability p. The gradient is the same call on dy. x and out have one shape and dtype
// and may be one. Errors: p outside [0, 1].
void dropout(const RandomPart& part, const Array& x, double p, Array& out);
// Rows of indices (int64) drawn with probabilities in proportion to rows of weights [rows, classes] or [classes]; the
// rows are those from first_row on of `rows`. out: [rows, draws] or [draws]. Without replacement no index is drawn
// twice. Errors: a weight that is negative or not finite, or too few that are above 0 (ValueError).
void multinomial(uint64_t seed, uint64_t counter, const Array& weights, int64_t first_row, int64_t rows,
                 bool replacement, Array& out);
// This part of a random permutation of 0 .. n - 1, n = logical_shape[0]; one axis, any dtype.
void randperm(const RandomPart& part, Array& out);

}  // namespace holon::kernels
