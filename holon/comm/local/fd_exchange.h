// Hands file descriptors round among the processes of one host: each sends its own to the leader, which sends all to
// each.
#pragma once

#include <string>
#include <vector>

#include "holon/comm/bootstrap/socket.h"

namespace holon::comm {

// A Unix socket at which others can connect; its name is not in any file system and cannot be guessed.
class FdListener {
 public:
  FdListener();
  const std::string& name() const { return name_; }
  int fd() const { return fd_.get(); }

 private:
  std::string name_;
  Fd fd_;
};

// A rank's process, watched: its pidfd becomes readable when it ends.
struct Watched {
  int pid = 0;
  Fd pidfd;
  int rank = 0;
  static Watched open(int pid, int rank);
  bool gone() const;
};

// Leader (the first of the list): takes a descriptor of every other process and sends `extra` and all of them back, a
// few at a time. Returns the ranks' descriptors, its own among them. Errors: a process ends or does not come before the
// time is over; there are not enough descriptors.
std::vector<Fd> lead_exchange(const FdListener& listener, int my_fd, int extra, const std::vector<Watched>& ranks,
                              double timeout_s);
// The others. place: in the list. *extra receives the leader's.
std::vector<Fd> join_exchange(const std::string& leader_name, int place, int my_fd, const std::vector<Watched>& ranks,
                              Fd* extra, double timeout_s);

}  // namespace holon::comm
