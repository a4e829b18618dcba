// How a room's samples are declared: one file each here, collected by CMake.
#pragma once

#include "../cases.h"

namespace holon::testing {

using Fill = Input::Fill;
using Attributes = std::vector<std::pair<std::string, Value>>;

// Odd multiples of 1/64 in [low, high): away from the points where functions have steps or kinks.
inline Input x(Dims shape, double low = -2, double high = 2, DType dtype = float32) {
  return {shape, Fill::kGrid, low, high, dtype};
}
inline Input distinct(Dims shape) { return {shape, Fill::kDistinct, 0, 0, float32}; }  // no two elements are equal
inline Input ints(Dims shape, double low, double high, DType dtype = int64) {
  return {shape, Fill::kInts, low, high, dtype};
}
inline Input mask(Dims shape) { return {shape, Fill::kBools, 0, 1, boolean}; }
inline Input none() { return {{}, Fill::kAbsent, 0, 0, float32}; }  // of an optional input

class Samples {
 public:
  // add(op, inputs, attributes, differences): differences = false if its gradient cannot be compared with finite
  // differences.
  struct Add {
    void (*push)(std::string, std::vector<Input>, Attributes, bool);
    void operator()(std::string op, std::vector<Input> in, Attributes attrs = {}, bool differences = true) const {
      push(std::move(op), std::move(in), std::move(attrs), differences);
    }
  };
  explicit Samples(void (*declare)(const Add&));
  static std::vector<Case>& all();
};

}  // namespace holon::testing
