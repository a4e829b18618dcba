// Backends: libraries that bring a type of devices each. A backend is written against device_runtime.h and the kernels'
// contracts (holon/kernels/), and says once
//
//   HOLON_DEVICE_BACKEND("toy", start)
//
// docs/guides/adding-a-device.md has a whole one. The CUDA backend is known by name: it is loaded when a device of its
// type is first requested, so that one build serves machines with and without. Others are loaded by
// load_device_library(), or those that HOLON_DEVICE_LIBRARIES lists when an unknown type is requested.
#pragma once

#include <string>
#include <vector>

#include "holon/array/device.h"
#include "holon/version.h"

namespace holon {

class DeviceRuntime;

// Loads a backend and returns the name of its type, which devices and placements may be of from then on; a library that
// is loaded already gives its name again. Not collective: every process loads it by itself, all of them in the same
// order. Errors (RuntimeError): no such file, no backend, one of another version of Holon, a name that is taken, two
// variants of one kernel.
std::string load_device_library(const std::string& path);

// The names of all types, the CPU first, after the libraries of HOLON_DEVICE_LIBRARIES are loaded; of a type there need
// not be a device.
std::vector<std::string> device_types();

// Whether a type's library is there and cannot be used: it cannot be loaded, or is of another version.
// why_no_device() says which.
bool device_backend_broken(DeviceType type);

// Whether devices of the type may be simulated on the CPU by HOLON_SIMULATE, and whether they are.
bool may_be_simulated(DeviceType type);
bool is_simulated(DeviceType type);

// For static initialisers of a backend: install() is called with the number of the backend's type as soon as that has
// one. Returns true.
bool on_device_registration(void (*install)(DeviceType type));

}  // namespace holon

// names: of the type, "toy", or "toy plaything" with further ones that mean the same. start: what makes the runtime,
// DeviceRuntime* start(DeviceType type, std::string* why_not), nullptr with the reason where there is no device. The
// runtime is never destroyed. Of a library that cannot be loaded, the version is looked for in the file.
#define HOLON_DEVICE_BACKEND(names, start)                                                             \
  extern "C" __attribute__((visibility("default"))) const char* holon_device_version() {               \
    return "holon_device_version=" HOLON_VERSION;                                                      \
  }                                                                                                    \
  extern "C" __attribute__((visibility("default"))) const char* holon_device_names() { return names; } \
  extern "C" __attribute__((visibility("default"))) ::holon::DeviceRuntime* holon_device_start(        \
      ::holon::DeviceType type, std::string* why_not) {                                                \
    return start(type, why_not);                                                                       \
  }
