#include "holon/comm/bootstrap/liveness.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>

#include "holon/base/error.h"
#include "holon/base/settings.h"

namespace holon::comm {

namespace {
constexpr int kProbes = 3;
}

double heartbeat_limit_s() {
  const double limit_s = settings::number("HOLON_HEARTBEAT_S");
  if (!(limit_s >= 1)) fail_value("HOLON_HEARTBEAT_S={} is too short: give at least 1 second.", limit_s);
  return limit_s;
}

void keep_alive(int socket, double limit_s, bool closes) {
  constexpr int kMostProbes = 127, kLongest = 32'767;  // that the system takes
  const int probes = closes ? kProbes : kMostProbes;
  const int on = 1, limit = static_cast<int>(std::min(limit_s, 1.0 * kLongest));
  const int between = std::max(1, limit / (2 * kProbes)), idle = std::max(1, limit - kProbes * between);
  setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
  setsockopt(socket, IPPROTO_TCP, TCP_KEEPINTVL, &between, sizeof between);
  setsockopt(socket, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
  setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
}

bool is_silent(int socket, double limit_s) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return false;
  return info.tcpi_probes > kProbes ||
      (info.tcpi_unacked > 0 && info.tcpi_retransmits > 0 &&
       static_cast<double>(info.tcpi_last_ack_recv) > limit_s * 1000);
}

}  // namespace holon::comm
