#include "holon/array/device.h"

#include <atomic>
#include <charconv>
#include <cstdio>

#include "holon/array/device_runtime.h"
#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/settings.h"

namespace holon {

const char* name(DeviceType type) { return type == DeviceType::kCpu ? "cpu" : "cuda"; }

DeviceType parse_device_type(std::string_view text) {
  if (text == "cpu") return DeviceType::kCpu;
  if (text == "cuda" || text == "gpu") return DeviceType::kCuda;
  fail_runtime("Expected one of cpu, cuda device type at start of device string: {}", text);
}

bool check_device_type(DeviceType type) {
  if (type == DeviceType::kCpu) return false;
  if (settings::text("HOLON_SIMULATE") != "cuda") {
    if (device_runtime()) return false;
    fail_runtime(
        "a cuda device was asked for and there is none: {}. Use \"cpu\", or set HOLON_SIMULATE=cuda (the launcher's "
        "--simulate cuda) to run \"cuda\" placements on the CPU.",
        why_no_device());
  }
  static std::atomic<bool> warned{false};
  if (!warned.exchange(true) && Context::current().rank() == 0)
    std::fprintf(stderr, "holon: HOLON_SIMULATE=cuda: \"cuda\" devices are simulated on the CPU.\n");
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
  if (d.is_cuda() && d.index >= device_runtime()->device_count())
    fail_runtime("device \"{}\": this host has {} cuda device(s), counted from 0.", text,
                 device_runtime()->device_count());
  return colon == std::string_view::npos ? device_of_rank(d.type, d.simulated) : d;
}

Device device_of_rank(DeviceType type, bool simulated) {
  Device d{type, 0, simulated};
  if (type == DeviceType::kCpu) return d;
  const int local = Context::current().local_rank();
  d.index = static_cast<int16_t>(d.is_cuda() ? local % device_runtime()->device_count() : local);
  return d;
}

std::string Device::str() const { return type == DeviceType::kCpu ? "cpu" : "cuda:" + std::to_string(index); }

}  // namespace holon
