// A window and documents as a mask, for devices whose kernels of attention know only masks.
#pragma once

#include "holon/kernels/attention.h"

namespace holon::kernels {

// The options with both as a part of the mask, which is made on the host and copied to q's device. Pre: they go with
// q [b, h, t, d] and k [b, g, s, d].
Attention limits_as_mask(const Attention& options, const Array& q, const Array& k);

}  // namespace holon::kernels
