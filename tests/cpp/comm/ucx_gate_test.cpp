// Who gets through to a port of UCX's: here a listening socket of this process, and no UCX.
#include <gtest/gtest.h>
#include <poll.h>

#include <chrono>
#include <string>
#include <thread>

#include "holon/base/error.h"
#include "holon/comm/hosts/net/ucx/gate.h"

namespace holon::comm {
namespace {

Address loopback(bool ipv6, int port) {
  std::string why;
  return resolve(ipv6 ? "::1" : "127.0.0.1", port, &why).at(0);
}

Fd connected(const Address& to) {
  Fd fd = start_connect(to);
  pollfd p{fd.get(), POLLOUT, 0};
  EXPECT_EQ(poll(&p, 1, 5000), 1);
  EXPECT_EQ(connect_error(fd.get()), 0);
  EXPECT_EQ(send(fd.get(), "hello", 5, MSG_NOSIGNAL), 5);
  return fd;
}

std::string place_of(const Address& a) { return a.ip() + " " + std::to_string(a.port()); }

// What has come to the listener within that time: "" if nobody has.
std::string heard(int listener, int limit_ms) {
  pollfd p{listener, POLLIN, 0};
  if (poll(&p, 1, limit_ms) != 1) return "";
  Fd fd(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
  char text[16] = "";
  return recv(fd.get(), text, sizeof text - 1, 0) > 0 ? text : "";
}

class UcxGate : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(IPv, UcxGate, testing::Values(false, true), [](auto& ipv6) { return ipv6.param ? "6" : "4"; });

TEST_P(UcxGate, OnlyWhoIsAdmittedGetsThrough) {
  const auto before = listening_sockets();
  const Fd listener = listen_tcp(loopback(GetParam(), 0));
  ASSERT_TRUE(listener) << strerror(errno);
  Gate gate(before);
  const Address at = local_address(listener.get());
  ASSERT_EQ(gate.places(), std::vector<std::string>{place_of(at)});
  const Fd stranger = connected(at);
  for (int rank : {1, 2}) {
    // TCP sends again what the filter has dropped, after twice the time each time: who waits for long comes late.
    const Fd friendly = connected(at);
    EXPECT_EQ(heard(listener.get(), 300), "") << "nobody else is admitted yet";
    gate.admit(rank, place_of(local_address(friendly.get())));
    EXPECT_EQ(heard(listener.get(), 60'000), "hello");
  }
  EXPECT_EQ(heard(listener.get(), 300), "") << "the stranger has not got through";
  gate.close();
  Fd late = start_connect(at);
  pollfd p{late.get(), POLLOUT, 0};
  EXPECT_TRUE(!late || (poll(&p, 1, 5000) == 1 && connect_error(late.get()) != 0)) << "the port is closed";
}

TEST_P(UcxGate, WhoHasComeBeforeIsDropped) {
  const auto before = listening_sockets();
  const Fd listener = listen_tcp(loopback(GetParam(), 0));
  ASSERT_TRUE(listener);
  const Fd early = connected(local_address(listener.get()));
  pollfd p{listener.get(), POLLIN, 0};
  ASSERT_EQ(poll(&p, 1, 5000), 1);
  const Fd accepted(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  ASSERT_TRUE(accepted);
  Gate gate(before);
  char c;
  EXPECT_FALSE(peer_address(accepted.get()).is_ip()) << "its descriptor is of nothing now";
  EXPECT_LE(recv(accepted.get(), &c, 1, MSG_DONTWAIT), 0);
}

TEST_P(UcxGate, ConnectionsAreFoundWithTheirRanks) {
  const Fd theirs = listen_tcp(loopback(GetParam(), 0));
  const auto before = listening_sockets();
  const Fd listener = listen_tcp(loopback(GetParam(), 0));
  ASSERT_TRUE(theirs && listener);
  Gate gate(before);
  gate.expect(7, place_of(local_address(theirs.get())));
  EXPECT_TRUE(gate.find_outgoing().empty());
  const Fd out = connected(local_address(theirs.get()));
  const auto found = gate.find_outgoing();
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].first, 7);
  EXPECT_EQ(found[0].second, place_of(local_address(out.get())));
  EXPECT_TRUE(gate.find_outgoing().empty()) << "each is told once";
  const auto connections = gate.connections();
  ASSERT_EQ(connections.size(), 1u);
  EXPECT_EQ(connections[0].rank, 7);
  EXPECT_EQ(connections[0].fd, out.get());
  EXPECT_FALSE(connections[0].is_over());
  {
    const Fd end(accept4(theirs.get(), nullptr, nullptr, SOCK_CLOEXEC));
    EXPECT_EQ(send(end.get(), "x", 1, MSG_NOSIGNAL), 1);
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_FALSE(connections[0].is_over()) << "it is closed, and there is something to be read";
  char c;
  EXPECT_EQ(recv(out.get(), &c, 1, 0), 1);
  EXPECT_TRUE(connections[0].is_over());
  connections[0].drop();
  EXPECT_FALSE(connections[0].is_open());
}

}  // namespace
}  // namespace holon::comm
