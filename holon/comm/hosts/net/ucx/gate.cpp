#include "holon/comm/hosts/net/ucx/gate.h"

#include <linux/filter.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "holon/base/error.h"
#include "holon/base/fmt.h"

namespace holon::comm {

namespace {

template <class F>
void for_each_socket(F&& f) {
  for (auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::atoi(entry.path().filename().c_str());
    struct stat is {};
    if (fstat(fd, &is) == 0 && S_ISSOCK(is.st_mode)) f(fd, is.st_ino);
  }
}

bool listens(int fd) {
  int yes = 0;
  socklen_t size = sizeof yes;
  return getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &yes, &size) == 0 && yes && local_address(fd).is_ip();
}

void replace_by_nothing(int fd) {
  const Fd nothing(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!nothing || dup3(nothing.get(), fd, O_CLOEXEC) < 0)
    fail_runtime("cannot drop a connection of UCX: {}.", strerror(errno));
}

// Instructions of the system's filters, which see a segment from its TCP header on, and the IP header at SKF_NET_OFF.
void load(std::vector<sock_filter>& program, uint16_t size, uint32_t at) {
  program.push_back({static_cast<uint16_t>(BPF_LD | size | BPF_ABS), 0, 0, at});
}
void unless_equal_skip(std::vector<sock_filter>& program, uint32_t value, uint8_t count) {
  program.push_back({BPF_JMP | BPF_JEQ | BPF_K, 0, count, value});
}
void end(std::vector<sock_filter>& program, bool pass) {
  program.push_back({BPF_RET | BPF_K, 0, 0, pass ? 0xffffffffu : 0});
}

}  // namespace

bool UcxSocket::is_open() const {
  struct stat is {};
  return fstat(fd, &is) == 0 && S_ISSOCK(is.st_mode) && is.st_ino == inode;
}

bool UcxSocket::is_over() const {
  if (!is_open()) return true;
  tcp_info info{};
  socklen_t size = sizeof info;
  int unread = 0;
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0 || ioctl(fd, FIONREAD, &unread) != 0) return false;
  return info.tcpi_state != TCP_ESTABLISHED && unread == 0;
}

void UcxSocket::drop() const {
  if (is_open()) replace_by_nothing(fd);
}

std::set<ino_t> listening_sockets() {
  std::set<ino_t> found;
  for_each_socket([&](int fd, ino_t inode) {
    if (listens(fd)) found.insert(inode);
  });
  return found;
}

std::string Gate::place_of(const Address& a) { return fmt::format("{} {}", a.ip(), a.port()); }

Gate::Gate(const std::set<ino_t>& before) {
  for_each_socket([&](int fd, ino_t inode) {
    if (listens(fd) && !before.contains(inode)) listeners_.push_back({fd, local_address(fd)});
  });
  for (const Listener& l : listeners_) {
    attach(l);
    places_.push_back(place_of(l.at));
  }
  // Who has come before that waits to be accepted, by a thread of UCX's, which passes nothing on.
  auto waiting = [](const Listener& l) {
    tcp_info info{};
    socklen_t size = sizeof info;
    return getsockopt(l.fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 && info.tcpi_unacked > 0;
  };
  for (const Listener& l : listeners_) do {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    } while (waiting(l));
  drop_strangers();
}

void Gate::attach(const Listener& listener) const {
  constexpr uint32_t kFlags = 13, kSyn = 0x02, kAck = 0x10;
  std::vector<sock_filter> program;
  load(program, BPF_B, kFlags);
  program.push_back({BPF_ALU | BPF_AND | BPF_K, 0, 0, kSyn | kAck});
  unless_equal_skip(program, kSyn, 1);
  end(program, true);
  for (auto& [place, admitted] : admitted_) {
    const Address& from = admitted.from;
    if (from.storage.ss_family != listener.at.storage.ss_family) continue;
    std::vector<uint32_t> words;
    uint32_t at = 0;
    if (from.ipv4()) {
      words = {ntohl(reinterpret_cast<const sockaddr_in&>(from.storage).sin_addr.s_addr)};
      at = 12;
    } else {
      for (uint32_t word : reinterpret_cast<const sockaddr_in6&>(from.storage).sin6_addr.s6_addr32)
        words.push_back(ntohl(word));
      at = 8;
    }
    for (size_t i = 0; i < words.size(); ++i) {
      load(program, BPF_W, static_cast<uint32_t>(SKF_NET_OFF) + at + static_cast<uint32_t>(4 * i));
      unless_equal_skip(program, words[i], static_cast<uint8_t>(2 * (words.size() - i) + 1));  // to the next place
    }
    load(program, BPF_H, 0);  // the sender's port
    unless_equal_skip(program, static_cast<uint32_t>(from.port()), 1);
    end(program, true);
  }
  end(program, false);
  const sock_fprog filter{static_cast<uint16_t>(program.size()), program.data()};
  if (program.size() > BPF_MAXINSNS ||
      setsockopt(listener.fd, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter) != 0)
    fail_runtime("the port at {} cannot be closed to strangers, for {} ranks: {}. Set HOLON_NETWORK=gloo.",
                 listener.at.str(), admitted_.size(),
                 program.size() > BPF_MAXINSNS ? "the filter is too long" : strerror(errno));
}

void Gate::admit(int rank, const std::string& place) {
  const size_t cut = place.find(' ');
  std::string why = "no port";
  const auto at = cut == std::string::npos ? std::vector<Address>()
                                           : resolve(place.substr(0, cut), std::atoi(place.c_str() + cut + 1), &why);
  if (at.empty()) fail_runtime("a rank connects from \"{}\": {}.", place, why);
  admitted_.insert_or_assign(place_of(at[0]), Admitted{rank, at[0]});
  for (const Listener& l : listeners_) attach(l);
}

void Gate::expect(int rank, const std::string& place) { expected_[place] = rank; }

std::vector<std::pair<int, std::string>> Gate::find_outgoing() {
  std::vector<std::pair<int, std::string>> found;
  for_each_socket([&](int fd, ino_t) {
    const Address peer = peer_address(fd);
    if (!peer.is_ip()) return;
    const auto to = expected_.find(place_of(peer));
    if (to == expected_.end()) return;
    const std::string here = place_of(local_address(fd));
    if (found_.insert(here).second) found.emplace_back(to->second, here);
  });
  return found;
}

void Gate::drop_strangers() const {
  const std::set<std::string> ours(places_.begin(), places_.end());
  for_each_socket([&](int fd, ino_t) {
    const Address peer = peer_address(fd), here = local_address(fd);
    if (peer.is_ip() && here.is_ip() && ours.contains(place_of(here)) && !admitted_.contains(place_of(peer)))
      replace_by_nothing(fd);
  });
}

std::vector<UcxSocket> Gate::connections() const {
  const std::set<std::string> ours(places_.begin(), places_.end());
  std::vector<UcxSocket> found;
  for_each_socket([&](int fd, ino_t inode) {
    const Address peer = peer_address(fd);
    if (!peer.is_ip()) return;
    if (const auto to = expected_.find(place_of(peer)); to != expected_.end())
      found.push_back({to->second, fd, inode});
    else if (const auto from = admitted_.find(place_of(peer));
             from != admitted_.end() && ours.contains(place_of(local_address(fd))))
      found.push_back({from->second.rank, fd, inode});
  });
  return found;
}

void Gate::close() {
  for (const Listener& l : listeners_) replace_by_nothing(l.fd);
  drop_strangers();
  listeners_.clear();
}

}  // namespace holon::comm
