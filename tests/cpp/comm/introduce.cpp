#include "tests/cpp/comm/introduce.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "holon/base/error.h"

namespace holon::comm::test {

Fd introduce(const std::string& leader, int place, long size_bytes) {
  Fd s(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  const Fd memory(memfd_create("memory", MFD_CLOEXEC));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  leader.copy(address.sun_path + 1, sizeof address.sun_path - 1);
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + leader.size());
  if (!s || ftruncate(memory.get(), size_bytes) != 0 ||
      connect(s.get(), reinterpret_cast<sockaddr*>(&address), size) != 0)
    fail_runtime("the leader is not reached: {}", strerror(errno));
  int32_t note[] = {0x484c6664, place};  // as holon/comm/local/fd_exchange.cpp identifies the sender
  iovec io{note, sizeof note};
  const int fd = memory.get();
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof fd)] = {};
  msghdr message{};
  message.msg_iov = &io, message.msg_iovlen = 1;
  message.msg_control = control, message.msg_controllen = sizeof control;
  cmsghdr* c = CMSG_FIRSTHDR(&message);
  c->cmsg_level = SOL_SOCKET, c->cmsg_type = SCM_RIGHTS, c->cmsg_len = CMSG_LEN(sizeof fd);
  std::memcpy(CMSG_DATA(c), &fd, sizeof fd);
  if (sendmsg(s.get(), &message, 0) != static_cast<ssize_t>(sizeof note))
    fail_runtime("the leader does not listen: {}", strerror(errno));
  return s;
}

}  // namespace holon::comm::test
