// The check of a program: its recordings on one rank and under a layout, and what they say.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "holon/verify/fault.h"

namespace holon::verify {

struct Report {
  std::optional<Fault> fault;  // the first; what follows from it is not told
  int compared = 0;            // values
  std::vector<std::string> notes{};
  bool is_sound() const { return !fault && compared > 0; }
};

// reference: the recording on one rank; perturbed: the same with other rounding, at least one; ranks: those under the
// layout, one for each rank. Errors (RuntimeError): a file that is none of them; the program fails on one rank.
Report check_recordings(const std::string& reference, const std::vector<std::string>& perturbed,
                        const std::vector<std::string>& ranks);

}  // namespace holon::verify
