#include "holon/base/log.h"

#include <memory>

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include "holon/base/context.h"
#include "holon/base/settings.h"

namespace holon::log {

namespace {

constexpr const char* kNames[] = {"boxing", "dispatch", "comm"};

unsigned read_mask() {
  std::string text = "," + settings::text("HOLON_LOG") + ",";
  unsigned mask = 0;
  for (unsigned i = 0; i < std::size(kNames); ++i)
    if (text.find("," + std::string(kNames[i]) + ",") != std::string::npos || text.find(",all,") != std::string::npos)
      mask |= 1u << i;
  return mask;
}

spdlog::logger& logger() {
  static auto* l = [] {
    auto* made = new spdlog::logger("holon", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern("holon %H:%M:%S.%e %v");
    return made;
  }();
  return *l;
}

}  // namespace

bool enabled(Channel channel) {
  static const unsigned mask = read_mask();
  return mask >> static_cast<unsigned>(channel) & 1;
}

void line(Channel channel, std::string_view text) {
  logger().info("[{}] {}: {}", Context::current().rank(), kNames[static_cast<int>(channel)], text);
}

void warn(std::string_view text) { logger().warn("[{}] warning: {}", Context::current().rank(), text); }

}  // namespace holon::log
