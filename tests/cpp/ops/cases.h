// Samples of the registered ops: calls that conformance, signature and gradient tests all run. An op without a sample
// fails the suite, unless it stands among the exempt ones.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "holon/global/slice.h"
#include "holon/registry/op_def.h"

namespace holon::testing {

using Value = AttrValue;

struct Input {
  enum class Fill { kGrid, kDistinct, kInts, kBools, kAbsent };
  Dims shape;
  Fill fill = Fill::kGrid;
  double low = -2, high = 2;
  DType dtype = DType::kFloat32;
};

struct Case {
  std::string op;
  std::vector<Input> in;
  std::vector<std::pair<std::string, Value>> attrs;
  bool differences = true;   // its gradient can be compared with finite differences
  std::string name() const;  // "sum [5, 3]; dim=[0]"
};

struct Exempt {
  const char* op;
  const char* reason;
};

const std::vector<Case>& cases();
const std::vector<Exempt>& exempt_ops();

// Whether an op can be differentiated; others are there for gradients alone.
inline bool has_gradient(const OpDef& op) { return op.grad || op.body; }

// Whether the call is made of others, and reaches no kernel of its own.
bool is_composed(const Case& c);

// The attributes in the schema's order. placement and sbp: for ops that take them, if they are given.
Attrs make_attrs(const Case& c, Placement placement = {}, NdSbp sbp = {});

// The elements of input i. Floating ones are odd multiples of 1/64 plus i/256: exact sums of addends, away from the
// points where functions have steps or kinks, and never equal between inputs.
// Each variant is another set of values.
std::vector<double> input_values(const Case& c, size_t i, uint64_t variant = 0);

std::vector<double> values_of(const Array& a);
Array array_of(const std::vector<double>& values, const Dims& shape, DType dtype);

// A row-major copy there.
Array on_device(const Array& a, Device device);
// What the conformance table runs on: "cpu", or what HOLON_TEST_DEVICE says.
const char* test_device();

// The part of a tensor that a rank holds, on the placement's device. Addends of partial sums are uneven and add up to
// the value exactly.
Array part_of(const std::vector<double>& values, const Dims& shape, DType dtype, const Placement& placement,
              const NdSbp& sbp, int index);

// A reproducible number for anything.
uint64_t mix(uint64_t a, uint64_t b = 0, uint64_t c = 0);

// Empty if the values agree to rtol; otherwise what differs first. Integers must be equal.
std::string differs(const std::vector<double>& got, const std::vector<double>& want, double rtol);
double tolerance(DType dtype);

}  // namespace holon::testing
