// What one rank does of a call whose signature is settled: for dispatch, and for graphs that are compiled once.
#pragma once

#include "holon/registry/op_def.h"

namespace holon {

struct LocalCall {
  bool member = false;          // this rank is in the placement; the rest is empty otherwise
  SmallVec<Dims, 3> out_shape;  // of this rank's parts
  KernelCall::GlobalPart part;
};

// in, out: logical; in_specs[i] is nullptr for an absent input. Pre: the specs are of one placement.
LocalCall local_call(std::span<const Meta> in, std::span<const GlobalSpec* const> in_specs, std::span<const Meta> out,
                     std::span<const GlobalSpec* const> out_specs, int rank);

// The strides that an op's output of this local shape gets with these inputs.
Dims output_strides(const OpDef& op, const Dims& shape, std::span<const Array* const> in);

}  // namespace holon
