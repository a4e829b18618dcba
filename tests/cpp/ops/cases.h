// Samples of the registered ops: calls that conformance, signature and gradient tests all run. An op without a sample
// fails the suite, unless it stands among the exempt ones.
#pragma once

#include <vector>

#include "holon/conformance/subject.h"
#include "holon/conformance/values.h"

namespace holon::testing {

using namespace conformance;
using Value = AttrValue;
using Case = Sample;

struct Exempt {
  const char* op;
  const char* reason;
};

const std::vector<Case>& cases();
const std::vector<Exempt>& exempt_ops();

// The elements of input i of a sample.
inline std::vector<double> input_values(const Case& c, size_t i, uint64_t variant = 0) {
  return Subject(c).values(i, variant);
}

// What the conformance table runs on: "cpu", or what HOLON_TEST_DEVICE says.
const char* test_device();

}  // namespace holon::testing
