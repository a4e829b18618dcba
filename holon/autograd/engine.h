// Backward: walks the tape from roots to leaves. Nodes run in falling order of their number, which is the same on every
// rank, so that ranks call the same collectives.
#pragma once

#include "holon/tensor/tensor.h"

namespace holon::autograd {

// Adds the gradients of all leaves below the roots to their grad. gradients[i] may be undefined for a scalar root
// (one). Errors: a root that requires no grad; a root of several elements without a gradient; a gradient of another
// shape. Collective where the roots are global.
void backward(TensorList roots, TensorList gradients, bool retain_graph, bool create_graph);

// Returns d(roots)/d(inputs) and leaves every grad as it is. Errors: as backward(); an input that the roots do not
// depend on, unless allow_unused (its gradient is then undefined). With create_graph, a gradient that is the same
// everywhere has the derivative zero.
std::vector<Tensor> grad(TensorList roots, TensorList inputs, TensorList gradients, bool retain_graph,
                         bool create_graph, bool allow_unused);

}  // namespace holon::autograd
