// The kernels for boxes of elements, under the names of this layer.
#pragma once

#include "holon/kernels/cpu/boxes.h"
#include "holon/kernels/cpu/copy.h"

namespace holon::boxing {

using kernels::contiguous;
using kernels::copy_box;
using kernels::sum_box;

}  // namespace holon::boxing
