// Arrays brought to another device.
#pragma once

#include "holon/array/array.h"

namespace holon::kernels {

// a in the memory of a device: a itself, as lying there, or a copy where that is another memory.
Array on_device(const Array& a, Device device);

}  // namespace holon::kernels
