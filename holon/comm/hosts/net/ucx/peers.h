// The ranks of other hosts as UCX knows them.
#pragma once

#include <sys/types.h>
#include <ucp/api/ucp.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "holon/comm/bootstrap/socket.h"
#include "holon/comm/hosts/net/network_module.h"
#include "holon/comm/hosts/net/ucx/gate.h"

namespace holon::comm {

struct UcxPeer {
  // 16 random bytes that one end has drawn and told the other where both had shown that they know the token. UCX sees a
  // message's tag under the receiver's key: who does not know that cannot send one that is received.
  using Key = std::array<unsigned char, 16>;

  int rank = -1;
  Fd connection;  // stays open: it shows whether the other end's process and system are there
  ucp_ep_h endpoint = nullptr;
  ucs_status_t lost = UCS_OK;                                   // why the endpoint can no longer be used
  std::optional<std::chrono::steady_clock::time_point> closed;  // when the other end's process was found to be gone
  std::vector<UcxSocket> sockets;                               // of UCX's, over TCP
  Key sends{}, receives{};

  static uint64_t tag(const Key& key, uint64_t tag);
};

// tcp: TCP is all that UCX uses here. Connects the worker with the ranks at the other ends of start.connections, each
// of which has sent a message under the key that it was told when this returns; the gate is closed then. Errors: they
// do not within start.timeout_s, or what start.trouble says.
std::map<int, std::unique_ptr<UcxPeer>> connect_peers(NetworkStart& start, ucp_worker_h worker, Gate& gate, bool tcp);

}  // namespace holon::comm
