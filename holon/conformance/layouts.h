// Whether a call gives the same on global tensors as on local ones, under every layout of its inputs.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "holon/boxing/events.h"
#include "holon/conformance/subject.h"

namespace holon::conformance {

// A world of ranks that are threads, and the placement in it that a call runs on.
struct World {
  const char* name;
  int ranks;
  Dims hierarchy;
  std::vector<int64_t> members;
  size_t most;  // layouts of the inputs; a sample of them where there are more
};

// One rank, two, three, two of three, and 2 x 2.
std::span<const World> worlds();

// The layouts under which values, gradients or what the in-place form leaves differ from those of the local call,
// or whose specs are not as they should be: "S(0), B: output 0 as S(0): element 3 is 1.5, not 2". Gradients of outputs
// come in layouts of their own. parameters: the ranks' policy for inputs that gradients are asked of; under kGather
// nothing is told of their being redistributed. Errors: the local call's.
std::vector<std::string> differing_layouts(const Subject& s, const World& world, const char* device = "cpu",
                                           boxing::ParameterPolicy parameters = boxing::ParameterPolicy::kKeep);

}  // namespace holon::conformance
