// One eager call: check and promote the inputs -> infer -> (global: choose a signature, redistribute the inputs) ->
// kernel -> wrap -> record for backward. What a global call needs beyond the kernel is looked up in a cache per rank,
// so that a repeated call infers nothing.
#pragma once

#include "holon/dispatch/call.h"
#include "holon/dispatch/random_state.h"
#include "holon/registry/op_def.h"

namespace holon {

// Runs an op. Errors: what the op's inference refuses; local and global inputs mixed; inputs on different placements.
// Collective over the placement where inputs must be redistributed.
TensorVec dispatch(const OpDef& op, TensorVec inputs, const Attrs& attrs);

// The same for an op with one output.
Tensor dispatch_one(const OpDef& op, TensorVec inputs, const Attrs& attrs);

// Runs the op and puts its result into input 0, which keeps its shape, dtype, placement and sbp. Errors: a result of
// another shape; a leaf that requires grad, or a view of one, while ops are recorded.
Tensor dispatch_in_place(const OpDef& op, TensorVec inputs, const Attrs& attrs);

// The dtype that an op that promotes casts its inputs to. As in PyTorch, tensors without axes and numbers only lift the
// category (bool < integer < floating point) of tensors with axes, and numbers that of all tensors.
DType common_dtype(const OpDef& op, std::span<const Tensor> inputs, const Attrs& attrs);
// The parts of it, for results that several ops make: the error of a tensor that should be a view but is a copy, those
// of one that cannot be changed while ops are recorded, and self = result, which takes its place on the tape too.
void check_shows_input(const char* op, const Tensor& self);
void check_in_place(const char* op, const Tensor& self);
void write_in_place(const char* op, const Tensor& self, const Tensor& result);

}  // namespace holon
