// Channels of log lines on stderr, chosen by HOLON_LOG (comma-separated: boxing, dispatch, comm, all).
#pragma once

#include <string>
#include <string_view>

namespace holon::log {

enum class Channel { kBoxing, kDispatch, kComm };

// Cheap: one load. Ask before building a line.
bool enabled(Channel channel);
void line(Channel channel, std::string_view text);
// Always printed, whatever the channels.
void warn(std::string_view text);

}  // namespace holon::log
