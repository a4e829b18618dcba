#pragma once

#include <string>
#include <string_view>

namespace holon::checkpoint {

struct HostPort {
  std::string host;
  int port = 0;
};

// "host:port", "10.0.0.1:29600", "[fd00::1]:29600". Errors (ValueError), naming the call: it is something else.
HostPort parse_address(const char* op, std::string_view address);

}  // namespace holon::checkpoint
