// Values that every rank has alike, as global tensors.
#pragma once

#include "holon/tensor/tensor.h"

namespace holon::data {

// The global tensor whose whole value is `alike`, a local tensor with the same values on every rank: each keeps a copy of its
// part, and nothing is sent. As a partial sum the value lies on the first rank. Errors: a global tensor; an nd_sbp that does
// not fit.
Tensor place(const Tensor& alike, const Placement& placement, const NdSbp& nd_sbp);

}  // namespace holon::data
