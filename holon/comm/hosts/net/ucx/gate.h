// UCX takes whoever connects to its TCP port for a peer, and lets him write to its memory. So the system is told, by a
// filter of the listening socket, to let through only what comes from addresses and ports that peers have named on
// connections where they have shown that they know the token; and when all are connected the port is closed.
#pragma once

#include <sys/types.h>

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "holon/comm/bootstrap/tcp.h"

namespace holon::comm {

// A connection of UCX's, which it may close at any time.
struct UcxSocket {
  int rank, fd;
  ino_t inode;

  bool is_open() const;
  // Whether nothing comes any more: the other end has closed it or is gone, and what it sent before has been read.
  bool is_over() const;
  // UCX keeps the descriptor, of nothing, and its event queue forgets it: no memory is read or written for it any more.
  void drop() const;
};

// The listening sockets of this process, by inode.
std::set<ino_t> listening_sockets();

class Gate {
 public:
  // Closes all ports at which this process has begun to listen since `before`: to connect is possible, but nothing that
  // a stranger sends arrives, and who came before the filter did is dropped. Errors: the system takes no filter.
  explicit Gate(const std::set<ino_t>& before);

  // "10.0.0.1 40123": where a peer connects to.
  const std::vector<std::string>& places() const { return places_; }
  // What comes from there is let through: the rank has announced on an authenticated connection that it is at that end.
  void admit(int rank, const std::string& place);
  // Where that rank listens.
  void expect(int rank, const std::string& place);
  // Connections of this process to places that are expected, each returned once: the rank, and this end's place, which
  // the other side is to admit.
  std::vector<std::pair<int, std::string>> find_outgoing();
  // UCX's connections with peers.
  std::vector<UcxSocket> connections() const;
  // Nobody can connect any more. Connections that have come from anywhere else than from admitted places are dropped.
  void close();

 private:
  struct Listener {
    int fd;
    Address at;
  };
  void attach(const Listener& listener) const;
  void drop_strangers() const;
  static std::string place_of(const Address& a);

  std::vector<Listener> listeners_;
  std::vector<std::string> places_;
  struct Admitted {
    int rank;
    Address from;
  };
  std::map<std::string, Admitted> admitted_;
  std::map<std::string, int> expected_;
  std::set<std::string> found_;
};

}  // namespace holon::comm
