// Whether an op's sharding rule is right and complete, for a sample.
#pragma once

#include <string>
#include <vector>

#include "holon/conformance/sample.h"

namespace holon::conformance {

// Whether the kernel of a sample can be run on parts: not if the call is made of other ops, draws numbers, has no
// inputs, or converts them first.
bool runs_on_parts(const Sample& s);

// The signatures that the rule gives, of which the kernel on the parts does not give the parts of its result, on 2, 3
// and 4 ranks, each with what differs: "S(0) B -> S(0) on 2 ranks: output 0: element 3 is 1.5, not 2". Kernels that
// communicate are left to redistributing_signatures() and layouts.h. checked, if not nullptr, is raised by how many
// were.
std::vector<std::string> wrong_signatures(const Sample& s, int* checked = nullptr);

// Those under which dispatch moves inputs that already have the signature's layout, or gives outputs another layout, on
// 2 and 3 ranks.
std::vector<std::string> redistributing_signatures(const Sample& s);

// Those that need no communication and that the rule lacks, as "S(1) -> S(1)". None if some axis of an input has a size
// of 0 or 1, which is split by chance in many ways.
std::vector<std::string> missing_signatures(const Sample& s);

}  // namespace holon::conformance
