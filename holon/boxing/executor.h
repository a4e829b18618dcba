// Carries out plans: brings a tensor's parts from one (placement, nd_sbp) to another over comm/ and kernels/.
//
// Peers read each other's memory directly, one copy per element. Sums are taken in the order of the source's ranks, and
// float16 and bfloat16 in float32, so that every rank which gets an element gets the same bits.
#pragma once

#include "holon/array/array.h"
#include "holon/boxing/planner.h"

namespace holon::boxing {

// Collective: every rank of the plan's placements calls it in the same order; a rank outside gets an undefined array at
// once. `in` is this rank's part (strides as they may be), undefined outside the source's placement; the result is this
// rank's part under the target, undefined outside its placement. Where the rank has all it needs (B to S, an equal
// part) the result is a view of `in`.
Array execute(const Plan& plan, const Array& in);

// Plans and executes.
Array redistribute(const GlobalSpec* from, const GlobalSpec* to, const Dims& shape, DType dtype, const Array& in);

}  // namespace holon::boxing
