// Where in the program the nodes of the tape were recorded, for the messages of a strict boxing policy: what backward
// redistributes is changed on the line of the forward pass. Belongs to the rank of the current thread.
#pragma once

#include <string>

#include "holon/tensor/node.h"

namespace holon {

// Under boxing_policy("raise") the node's line is kept; the last 65536 are.
void keep_recorded_site(const Node& node);
// "layer_norm, recorded at train.py:31"; without the line where it is not known.
std::string recorded_text(const Node& node);

}  // namespace holon
