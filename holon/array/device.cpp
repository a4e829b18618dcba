#include "holon/array/device.h"

#include <atomic>
#include <charconv>
#include <cstdio>

#include "holon/array/device_backend.h"
#include "holon/array/device_runtime.h"
#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"

namespace holon {

bool check_device_type(DeviceType type) {
  if (type == DeviceType::kCpu) return false;
  const char* const text = name(type);
  if (!is_simulated(type)) {
    if (device_runtime(type)) return false;
    const std::string simulation = may_be_simulated(type)
        ? fmt::format(
              ", or set HOLON_SIMULATE={0} (the launcher's --simulate {0}) to run \"{0}\" placements on the CPU", text)
        : "";
    fail_runtime("a {} device was requested and there is none: {}. Use \"cpu\"{}.", text, why_no_device(type),
                 simulation);
  }
  static std::atomic<bool> warned{false};
  if (!warned.exchange(true) && Context::current().rank() == 0)
    std::fprintf(stderr, "holon: HOLON_SIMULATE=%s: \"%s\" devices are simulated on the CPU.\n", text, text);
  return true;
}

Device Device::parse(std::string_view text) {
  auto colon = text.find(':');
  Device d;
  d.type = parse_device_type(text.substr(0, colon));
  if (colon != std::string_view::npos) {
    auto digits = text.substr(colon + 1);
    auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), d.index);
    if (error != std::errc() || end != digits.data() + digits.size() || d.index < 0)
      fail_runtime("device \"{}\" has no index after its colon; write e.g. cuda:0.", text);
  }
  d.simulated = check_device_type(d.type);
  if (!d.is_host() && d.index >= device_runtime(d)->device_count())
    fail_runtime("device \"{}\": this host has {} {} device(s), counted from 0.", text,
                 device_runtime(d)->device_count(), name(d.type));
  return colon == std::string_view::npos ? device_of_rank(d.type, d.simulated) : d;
}

Device device_of_rank(DeviceType type, bool simulated) {
  Device d{type, 0, simulated};
  if (type == DeviceType::kCpu) return d;
  const int local = Context::current().local_rank();
  d.index = static_cast<int16_t>(d.is_host() ? local : local % device_runtime(d)->device_count());
  return d;
}

std::string Device::str() const {
  return type == DeviceType::kCpu ? "cpu" : std::string(name(type)) + ":" + std::to_string(index);
}

}  // namespace holon
