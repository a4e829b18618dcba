// Where an array's bytes live. The types of devices are registered while the program runs (device_backend.h).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace holon {

// The CPU is the first; the others have the numbers that follow, in the order of their registration.
enum class DeviceType : uint8_t { kCpu };
inline constexpr int kMaxDeviceTypes = 8;
// What every process knows next to the CPU.
inline constexpr auto kFirstDeviceType = static_cast<DeviceType>(1);

// A device: its type, and its number among those of the host.
struct Device {
  DeviceType type = DeviceType::kCpu;
  int16_t index = 0;
  // A device that is simulated on the CPU (HOLON_SIMULATE): its bytes are host memory.
  bool simulated = false;

  // Its memory is the host's.
  bool is_host() const { return type == DeviceType::kCpu || simulated; }

  // "cpu", "cuda", "cuda:1", "gpu". A type alone is the rank's own device of it. Errors: another type; one of which
  // there is neither a device nor the simulation; an index that no device has.
  static Device parse(std::string_view text);
  std::string str() const;
  bool operator==(const Device& o) const { return type == o.type && index == o.index; }
};

// The check of Device::parse for a type alone; returns true if the type is simulated. Warns once when it is.
bool check_device_type(DeviceType type);
// By a name of the type. Where it is not known yet, the libraries of HOLON_DEVICE_LIBRARIES are loaded first.
DeviceType parse_device_type(std::string_view text);
const char* name(DeviceType type);
// The device of that type which the current rank works on: its local rank's, counted round where ranks outnumber
// devices.
Device device_of_rank(DeviceType type, bool simulated);

}  // namespace holon
