// Where in the program the nodes of the tape were recorded, for the messages of boxing_policy("raise"): what backward
// redistributes is converted on the line of the forward pass. Belongs to the rank of the current thread.
#pragma once

#include <string>

#include "holon/boxing/events.h"
#include "holon/tensor/node.h"

namespace holon {

namespace detail {
void keep_recorded_site(const Node& node);
}
// Keeps the node's line, if the policy is "raise" or has been before; of the last 65536 nodes.
inline void keep_recorded_site(const Node& node) {
  if (boxing::was_strict()) [[unlikely]]
    detail::keep_recorded_site(node);
}
// "layer_norm, recorded at train.py:31"; without the line where it is not known.
std::string recorded_text(const Node& node);

}  // namespace holon
