// Where an array's bytes live.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace holon {

enum class DeviceType : uint8_t { kCpu, kCuda };

struct Device {
  DeviceType type = DeviceType::kCpu;
  int16_t index = 0;
  // A "cuda" device that is simulated on the CPU (HOLON_SIMULATE=cuda): its bytes are host memory.
  bool simulated = false;

  // Its memory is not the host's.
  bool is_cuda() const { return type == DeviceType::kCuda && !simulated; }

  // "cpu", "cuda", "cuda:1", "gpu". "cuda" alone is the rank's own. Errors: another type; cuda where there is neither a
  // device nor the simulation; an index that no device has.
  static Device parse(std::string_view text);
  std::string str() const;
  bool operator==(const Device& o) const { return type == o.type && index == o.index; }
};

// The check of Device::parse for a type alone; returns true if the type is simulated. Warns once when it is.
bool check_device_type(DeviceType type);
DeviceType parse_device_type(std::string_view text);
const char* name(DeviceType type);
// The device of that type which the current rank works on: its local rank's, counted round where ranks outnumber
// devices.
Device device_of_rank(DeviceType type, bool simulated);

}  // namespace holon
