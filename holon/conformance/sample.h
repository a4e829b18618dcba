// A sample call of an op, which the checks of this folder run: of an op of Holon's or of a library of a user's.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "holon/registry/op_def.h"

namespace holon::conformance {

struct Input {
  // Odd multiples of 1/64 in [low, high), away from the points where functions have steps or kinks; numbers of which no
  // two are equal; integers in [low, high]; bools; an optional input that is left out.
  enum class Fill : uint8_t { kGrid, kDistinct, kInts, kBools, kAbsent };
  Dims shape;
  Fill fill = Fill::kGrid;
  double low = -2, high = 2;
  DType dtype = DType::kFloat32;
};

struct Sample {
  std::string op;
  std::vector<Input> in;
  std::vector<NamedAttr> attrs;
  bool differences = true;   // its gradient can be compared with finite differences
  std::string name() const;  // "sum [5, 3]; dim=[0]"
};

// Reads such a name. Attributes are read as the schema's types. Errors (ValueError): there is no such op; another
// number of tensors than it takes; other text.
Sample parse_sample(std::string_view text);
// The inputs alone: "[5, 3] int64[5](0, 2) none". A range in parentheses is what values are drawn from: [low, high) of
// floating numbers, [low, high] of integers.
std::vector<Input> parse_inputs(std::string_view text);

// Calls of the op that its shape inference and kernel take, of several shapes each, with attributes by their defaults
// (an integer without one is 1, a float 0.5). None if no combination of a few small shapes is taken.
std::vector<Sample> draw_samples(const OpDef& op);

// Whether an op can be differentiated; others are there for gradients alone.
inline bool has_gradient(const OpDef& op) { return op.grad || op.body; }

// Whether the call is made of others, and reaches no kernel of its own.
bool is_composed(const Sample& s);

// The attributes in the schema's order. placement and sbp: for ops that take them, if they are given.
Attrs make_attrs(const Sample& s, Placement placement = {}, NdSbp sbp = {});

}  // namespace holon::conformance
