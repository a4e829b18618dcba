// Whether a call's gradient is that of its values.
#pragma once

#include <string>

#include "holon/conformance/subject.h"

namespace holon::conformance {

// Compares the gradients of all inputs with central differences, in float64, for a weighted sum of the outputs: "" if
// they agree, else where they do not, "input 1, element 3: 0.5, but differences give 0.25". checked, if not nullptr,
// becomes whether there was a gradient to compare. Errors: the call's.
std::string gradient_error(const Subject& s, bool* checked = nullptr);

}  // namespace holon::conformance
