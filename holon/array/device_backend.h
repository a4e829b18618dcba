// The file that a device runtime (device_runtime.h) is loaded from.
#pragma once

namespace holon {

// Whether it is there and cannot be used: it cannot be loaded, or is of another version. why_no_device() says which.
bool device_backend_broken();

}  // namespace holon
