#include "holon/comm/hosts/net/ucx/peers.h"

#include <poll.h>
#include <sodium.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "holon/base/blocking.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/comm/bootstrap/handshake.h"

namespace holon::comm {

namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kHello = 0x68656c6c6f;  // no tag of the ranks' calls, under no key of theirs but by chance
constexpr size_t kMostBytes = 1 << 20;     // of one thing told
constexpr auto kLook = std::chrono::milliseconds(5), kAsk = std::chrono::milliseconds(50);

// What the ends of a connection tell each other: 4 bytes of length, 1 of what it is, and that.
enum class Told : char {
  kPlace = 'p',    // an address and port at which UCX listens here
  kKey = 'k',      // for messages to this end
  kTcp = 't',      // this end uses nothing but TCP
  kAddress = 'a',  // UCX's own, after all that
  kFrom = 'f',     // an address and port from which UCX connects to the other end
  kDone = 'd',     // this end has received the other's hello, and its own has left
};

class Connecting {
 public:
  Connecting(NetworkStart& start, ucp_worker_h worker, Gate& gate, bool tcp)
      : start_(start), worker_(worker), gate_(gate), tcp_(tcp), end_(Clock::now() + seconds(start.timeout_s)) {}

  std::map<int, std::unique_ptr<UcxPeer>> run() {
    begin();
    auto asked = Clock::now(), looked = asked - kLook;
    while (!std::all_of(talks_.begin(), talks_.end(), [](auto& t) { return t.second.done(); })) {
      for (auto& [rank, talk] : talks_) advance(rank, talk);
      if (Clock::now() - looked >= kLook) {
        for (auto& [rank, from] : gate_.find_outgoing()) tell(talks_.at(rank), Told::kFrom, from);
        looked = Clock::now();
      }
      if (ucp_worker_progress(worker_) == 0) wait();
      if (Clock::now() - asked < kAsk) continue;
      asked = Clock::now();
      if (auto poll = blocking_hooks().poll) poll();
      if (const std::string why = start_.trouble(); !why.empty()) fail_runtime("{}", why);
      if (asked > end_) give_up();
    }
    gate_.close();
    for (const UcxSocket& s : gate_.connections()) peers_.at(s.rank)->sockets.push_back(s);
    return std::move(peers_);
  }

 private:
  struct Talk {
    UcxPeer* peer;
    std::string in, out;
    std::string address;
    uint32_t hello_out = 0, hello_in = 0;
    bool tcp = false;  // both ends
    bool left = false, came = false, flushed = false, told_done = false, heard_done = false;
    bool done() const { return told_done && heard_done && out.empty(); }
  };

  static Clock::duration seconds(double s) {
    return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(std::min(s, 1e8)));
  }

  void begin() {
    ucp_address_t* address = nullptr;
    size_t bytes = 0;
    check(ucp_worker_get_address(worker_, &address, &bytes), "has no address");
    const std::string mine(reinterpret_cast<const char*>(address), bytes);
    ucp_worker_release_address(worker_, address);
    for (auto& [rank, connection] : start_.connections) {
      auto& peer = peers_[rank] = std::make_unique<UcxPeer>();
      peer->rank = rank;
      peer->connection = std::move(connection);
      const std::string key = random_bytes(peer->receives.size());
      std::memcpy(peer->receives.data(), key.data(), key.size());
      Talk& talk = talks_[rank];
      talk.peer = peer.get();
      for (const std::string& place : gate_.places()) tell(talk, Told::kPlace, place);
      tell(talk, Told::kKey, key);
      if (tcp_) tell(talk, Told::kTcp, "");
      tell(talk, Told::kAddress, mine);
    }
  }

  static void tell(Talk& talk, Told what, const std::string& text) {
    put_u32(talk.out, static_cast<uint32_t>(text.size()));
    talk.out += static_cast<char>(what);
    talk.out += text;
  }

  void advance(int rank, Talk& talk) {
    const int fd = talk.peer->connection.get();
    while (!talk.out.empty()) {
      const ssize_t n = send(fd, talk.out.data(), talk.out.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n < 0 && (errno == EAGAIN || errno == EINTR)) break;
      if (n < 0) gone(rank, strerror(errno));
      talk.out.erase(0, static_cast<size_t>(n));
    }
    char buffer[4096];
    // The other end may have gone on, and speak no more, when both have said that they are done.
    while (!talk.heard_done) {
      const ssize_t n = recv(fd, buffer, sizeof buffer, MSG_DONTWAIT);
      if (n < 0 && (errno == EAGAIN || errno == EINTR)) break;
      if (n <= 0) gone(rank, n == 0 ? "it has closed its connection" : strerror(errno));
      talk.in.append(buffer, static_cast<size_t>(n));
      while (hear(rank, talk)) {
      }
    }
    if (talk.peer->endpoint == nullptr || talk.told_done) return;
    if (talk.peer->lost != UCS_OK) gone(rank, ucs_status_string(talk.peer->lost));
    if (!talk.left || !talk.came || !talk.flushed) return;
    if (talk.hello_in != static_cast<uint32_t>(rank)) gone(rank, "it takes itself for another rank");
    tell(talk, Told::kDone, "");
    talk.told_done = true;
  }

  // False: there is no whole message.
  bool hear(int rank, Talk& talk) {
    constexpr size_t kHead = 5;
    if (talk.in.size() < kHead) return false;
    const size_t bytes = get_u32(talk.in.data());
    if (bytes > kMostBytes) gone(rank, "it sends what this version does not understand");
    if (talk.in.size() < kHead + bytes) return false;
    const std::string text = talk.in.substr(kHead, bytes);
    const char what = talk.in[4];
    talk.in.erase(0, kHead + bytes);
    switch (static_cast<Told>(what)) {
      case Told::kPlace: gate_.expect(rank, text); break;
      case Told::kKey:
        if (text.size() != talk.peer->sends.size()) gone(rank, "its key has another length");
        std::memcpy(talk.peer->sends.data(), text.data(), text.size());
        break;
      case Told::kTcp: talk.tcp = tcp_; break;
      case Told::kAddress: connect(talk, text); break;
      case Told::kFrom: gate_.admit(rank, text); break;
      case Told::kDone: talk.heard_done = true; break;
      default: gone(rank, "it sends what this version does not understand");
    }
    return true;
  }

  void connect(Talk& talk, const std::string& address) {
    UcxPeer& peer = *talk.peer;
    talk.address = address;
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
        UCP_EP_PARAM_FIELD_ERR_HANDLER | UCP_EP_PARAM_FIELD_USER_DATA;
    params.address = reinterpret_cast<const ucp_address_t*>(talk.address.data());
    // Where UCX is to handle errors, it copies all that comes over TCP once more. Sockets show as well that a peer is
    // gone, and can be taken from it.
    params.err_mode = talk.tcp ? UCP_ERR_HANDLING_MODE_NONE : UCP_ERR_HANDLING_MODE_PEER;
    params.err_handler.cb = [](void* p, ucp_ep_h, ucs_status_t status) { static_cast<UcxPeer*>(p)->lost = status; };
    params.err_handler.arg = &peer;
    params.user_data = &peer;
    check(ucp_ep_create(worker_, &params, &peer.endpoint), "cannot connect");

    talk.hello_out = static_cast<uint32_t>(start_.rank);
    ucp_request_param_t params_of_request{};
    params_of_request.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    auto follow = [&](bool* done, bool receives) {
      params_of_request.user_data = done;
      if (receives)
        params_of_request.cb.recv = [](void* request, ucs_status_t status, const ucp_tag_recv_info_t*, void* flag) {
          *static_cast<bool*>(flag) = status == UCS_OK;
          ucp_request_free(request);
        };
      else
        params_of_request.cb.send = [](void* request, ucs_status_t status, void* flag) {
          *static_cast<bool*>(flag) = status == UCS_OK;
          ucp_request_free(request);
        };
      return &params_of_request;
    };
    auto begun = [&](bool* done, ucs_status_ptr_t request) {
      check(UCS_PTR_STATUS(request), "cannot start a message");
      if (!request) *done = true;
    };
    begun(&talk.came,
          ucp_tag_recv_nbx(worker_, &talk.hello_in, sizeof talk.hello_in, UcxPeer::tag(peer.receives, kHello),
                           ~uint64_t{0}, follow(&talk.came, true)));
    begun(&talk.left,
          ucp_tag_send_nbx(peer.endpoint, &talk.hello_out, sizeof talk.hello_out, UcxPeer::tag(peer.sends, kHello),
                           follow(&talk.left, false)));
    begun(&talk.flushed, ucp_ep_flush_nbx(peer.endpoint, follow(&talk.flushed, false)));
  }

  void wait() {
    if (ucp_worker_arm(worker_) != UCS_OK) return;
    int efd = -1;
    check(ucp_worker_get_efd(worker_, &efd), "cannot wait");
    std::vector<pollfd> polled = {{efd, POLLIN, 0}};
    for (auto& [rank, talk] : talks_) {
      const auto events = static_cast<short>((talk.heard_done ? 0 : POLLIN) | (talk.out.empty() ? 0 : POLLOUT));
      if (events) polled.push_back({talk.peer->connection.get(), events, 0});
    }
    ::poll(polled.data(), polled.size(), static_cast<int>(kLook.count()));
  }

  void check(ucs_status_t status, const char* what) const {
    if (UCS_STATUS_IS_ERR(status)) fail_runtime("UCX {}: {}", what, ucs_status_string(status));
  }

  [[noreturn]] void gone(int rank, const std::string& how) const {
    // It may have said why before it went; that comes by another way.
    for (int i = 0; i < 20; ++i) {
      if (const std::string why = start_.trouble(); !why.empty()) fail_runtime("{}", why);
      ::poll(nullptr, 0, 25);
    }
    fail_runtime("rank {} on another host is lost while UCX connects with it: {}", rank, how);
  }

  [[noreturn]] void give_up() const {
    std::string missing;
    for (auto& [rank, talk] : talks_)
      if (!talk.done()) missing += fmt::format("{}{}", missing.empty() ? "" : ", ", rank);
    fail_runtime("UCX is not connected with ranks {} after {:.3g} s. See that the hosts reach each other on all ports "
                 "of that network",
                 missing, start_.timeout_s);
  }

  NetworkStart& start_;
  const ucp_worker_h worker_;
  Gate& gate_;
  const bool tcp_;
  const Clock::time_point end_;
  std::map<int, std::unique_ptr<UcxPeer>> peers_;
  std::map<int, Talk> talks_;
};

}  // namespace

uint64_t UcxPeer::tag(const Key& key, uint64_t tag) {
  static_assert(crypto_shorthash_BYTES == sizeof tag && crypto_shorthash_KEYBYTES == sizeof(Key));
  uint64_t hidden;
  crypto_shorthash(reinterpret_cast<unsigned char*>(&hidden), reinterpret_cast<const unsigned char*>(&tag), sizeof tag,
                   key.data());
  return hidden;
}

std::map<int, std::unique_ptr<UcxPeer>> connect_peers(NetworkStart& start, ucp_worker_h worker, Gate& gate, bool tcp) {
  auto connecting = std::make_unique<Connecting>(start, worker, gate, tcp);
  try {
    return connecting->run();
  } catch (...) {
    // UCX still has messages that are its members, and is never called again: there is no world.
    [[maybe_unused]] auto* kept = connecting.release();
    throw;
  }
}

}  // namespace holon::comm
