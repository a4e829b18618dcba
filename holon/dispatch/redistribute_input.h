// The implicit boxing of an op's input.
#pragma once

#include "holon/tensor/tensor.h"

namespace holon {

// t under another spec of its placement: the same logical tensor in another form, whose gradient goes to where that of
// t goes. Recorded as an event of the op, of a
// parameter if it is one. Collective over the placement.
Tensor redistribute_input(const char* op, const Tensor& t, const GlobalSpec* to, bool parameter = false);

}  // namespace holon
