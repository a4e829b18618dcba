// Recording of ops for backward.
#pragma once

#include "holon/registry/op_def.h"

namespace holon {

// Makes a node for the call and ties the outputs to it, if any input requires grad. inputs: the logical inputs with the
// values that the kernel saw. saved: what backward reads in their place, where that is another form of them; empty:
// they themselves. Pre: ops are recorded, and the op has a gradient.
void record(const OpDef& op, const Attrs& attrs, std::span<const Tensor> inputs, std::span<Tensor> outputs,
            std::span<const Tensor> saved = {});

// A parameter (frozen ones too), or a window on one, or one in another dtype.
bool is_parameter(const Tensor& t);
// Whether a recorded op has made it as a view.
bool is_recorded_view(const Tensor& t);
// The op makes such a thing of its first input.
bool shows_parameter(const OpDef& op);

// For an op without a gradient that others' gradients are made of: a derivative that would pass through it raises,
// where it would be left out in silence otherwise.
void record_without_gradient(const OpDef& op, std::span<const Tensor> inputs, std::span<Tensor> outputs);

// Ties outputs to a node that is not a registered op (to_global, a user's function).
void record_node(const Ref<Node>& node, std::span<const Tensor> inputs, std::span<Tensor> outputs);

}  // namespace holon
