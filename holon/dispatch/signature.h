// Which sbp signature a global call takes: the one whose total boxing, there and back, is the cheapest, of those that
// leave parameters where they are.
#pragma once

#include "holon/registry/op_def.h"

namespace holon {

struct ChosenSignature {
  SmallVec<const GlobalSpec*, 4> in;  // what each input is redistributed to
  SmallVec<const GlobalSpec*, 3> out;
  // See read_as(): where the kernel exchanges data itself.
  SmallVec<const GlobalSpec*, 4> read_as;
};

// What the inputs of a call are, apart from their layouts; bit masks.
struct InputRoles {
  uint32_t parameters = 0;  // split ones, which are to stay as they are
  uint32_t grads = 0;       // backward will bring a gradient to each
  uint32_t leaves = 0;      // of those, the ones whose gradient ends there, in the leaf's own layout
  bool operator==(const InputRoles&) const = default;
};

// in_specs[i] is nullptr for an absent input. As few parameters are moved as the op can do with. Deterministic: the
// same on every rank.
ChosenSignature choose_signature(const OpDef& op, const Attrs& attrs, std::span<const Meta> in,
                                 std::span<const Meta> out, std::span<const GlobalSpec* const> in_specs,
                                 const InputRoles& roles = {});

// Whether a signature takes the inputs in the layouts that they have, apart from axes of one rank.
bool takes_without_moving(const OpDef& op, const Attrs& attrs, std::span<const Meta> in, std::span<const Meta> out,
                          std::span<const GlobalSpec* const> in_specs);

// The layouts in which a kernel reads its inputs of in_specs, with a signature along each axis of the ranks: what it
// brings together itself is broadcast there (Signature::reads). Empty where that is none.
SmallVec<const GlobalSpec*, 4> read_as(std::span<const Signature* const> along,
                                       std::span<const GlobalSpec* const> in_specs);
// The same of a call with the layouts, which have one of the signatures along each axis.
SmallVec<const GlobalSpec*, 4> read_as(std::span<const Signature> signatures,
                                       std::span<const GlobalSpec* const> in_specs,
                                       std::span<const GlobalSpec* const> out_specs);

// The op's signatures for one axis of ranks, for the given shapes.
std::vector<Signature> signatures_of(const OpDef& op, const Attrs& attrs, std::span<const Meta> in,
                                     std::span<const Meta> out);

// The same for a call of the op with these inputs, local or global; runs nothing. None for an op without inputs, which
// makes what is requested. Errors: what dispatch() refuses; an op with a body, which has the signatures of the ops
// in it (RuntimeError).
std::vector<Signature> signatures_of_call(const OpDef& op, TensorVec inputs, const Attrs& attrs);

}  // namespace holon
