// What a global call needs beyond its kernel. Kept per rank, so that a repeated call infers nothing.
#pragma once

#include <span>

#include "holon/dispatch/local_call.h"
#include "holon/dispatch/signature.h"

namespace holon {

struct PlannedCall {
  ChosenSignature signature;
  uint32_t redistributed = 0;  // inputs that must move
  uint32_t cut = 0;            // of those, the ones that are but windows on what each rank has
  SmallVec<Meta, 3> out;
  LocalCall local;
};

// present: the inputs that are defined; grad: one of them requires grad. Errors: what the op's inference refuses. Valid
// until the next call.
const PlannedCall& planned_call(const OpDef& op, const Attrs& attrs, std::span<const Tensor> inputs, uint32_t present,
                                bool grad);

// Whether the op takes all of the inputs in the layouts that they have, apart from axes of one rank.
bool takes_without_moving(const OpDef& op, const Attrs& attrs, std::span<const Tensor> inputs, uint32_t present);

}  // namespace holon
