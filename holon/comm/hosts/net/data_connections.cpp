#include "holon/comm/hosts/net/data_connections.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <list>
#include <vector>

#include "holon/base/blocking.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/index.h"
#include "holon/comm/bootstrap/handshake.h"

namespace holon::comm {

namespace {

using Clock = std::chrono::steady_clock;
using State = Handshake::State;

constexpr size_t kMaxUnknown = 256;  // connections that have not shown who they are
constexpr auto kHelloTime = std::chrono::seconds(10);
constexpr int kTogether = 1000;  // ranks' places in one value of the store
constexpr auto kPause = std::chrono::milliseconds(50);

// What a rank tells the others: where it listens, why there, and a number that nobody else's port has.
struct Place {
  std::string ip, id, why;
  int port = 0;
  std::string str() const { return fmt::format("{} {} {} {}", ip, port, id, why); }
  explicit Place(const std::string& text) {
    const size_t a = text.find(' '), b = text.find(' ', a + 1), c = text.find(' ', b + 1);
    if (c == std::string::npos) fail_runtime("the store holds no address of a rank: \"{}\".", text);
    ip = text.substr(0, a), port = std::atoi(text.c_str() + a + 1), id = text.substr(b + 1, c - b - 1);
    why = text.substr(c + 1);
  }
  Place(std::string ip_, int port_, std::string id_, std::string why_)
      : ip(std::move(ip_)), id(std::move(id_)), why(std::move(why_)), port(port_) {}
};

// A conversation that may lead to a connection.
struct Talk {
  Fd fd;
  Handshake handshake;
  Clock::time_point until;
  bool connecting = false;
  std::string out;

  // What poll() is to wait for.
  short events() const { return connecting || !out.empty() ? POLLOUT : POLLIN; }

  // Goes on as far as it can. kStranger also where the other side is gone; *why then says how.
  State advance(std::string* why) {
    if (connecting) {
      if (int error = connect_error(fd.get())) {
        *why = strerror(error);
        return State::kStranger;
      }
      connecting = false;
    }
    for (;;) {
      while (!out.empty()) {
        ssize_t n = send(fd.get(), out.data(), out.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) return State::kGoesOn;
        if (n < 0) {
          *why = strerror(errno);
          return State::kStranger;
        }
        out.erase(0, to_size(n));
      }
      if (handshake.state() != State::kGoesOn) return handshake.state();
      char buffer[64];
      ssize_t n = recv(fd.get(), buffer, std::min(sizeof buffer, handshake.wanted()), MSG_DONTWAIT);
      if (n < 0 && (errno == EAGAIN || errno == EINTR)) return State::kGoesOn;
      if (n <= 0) {
        *why = n == 0 ? "it closed the connection" : strerror(errno);
        return State::kStranger;
      }
      if (handshake.take(buffer, to_size(n), &out) == State::kStranger) *why = "it is not a rank of Holon";
    }
  }
};

class Connecting {
 public:
  Connecting(int rank, const Rendezvous& rendezvous, double timeout_s, const std::function<std::string()>& trouble)
      : rank_(rank),
        rendezvous_(rendezvous),
        timeout_s_(timeout_s),
        trouble_(trouble),
        end_(Clock::now() + seconds(timeout_s)) {}

  std::map<int, Fd> run() {
    listen();
    exchange_places();
    for (int r = 0; r < static_cast<int>(places_.size()); ++r) {
      if (host(r) == host(rank_)) continue;
      if (r < rank_)
        outgoing_[r];
      else
        missing_.push_back(r);
    }
    while (!outgoing_.empty() || !missing_.empty()) {
      step();
      if (const std::string why = trouble_(); !why.empty()) fail_runtime("{}", why);
      if (Clock::now() >= end_) give_up();
    }
    return std::move(connected_);
  }

 private:
  struct Outgoing {
    std::list<Talk> talk;                 // one, or none between two tries
    Clock::time_point at = Clock::now();  // of the next try
    std::string why = "it has not answered";
    bool refused = false;
  };

  static Clock::duration seconds(double s) {
    return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(std::min(s, 1e8)));
  }
  int host(int r) const { return at_index(rendezvous_.hosts.of_rank, r); }
  std::string purpose(const Place& listener, int listening_rank) const {
    return fmt::format("data of rank {} {}", listening_rank, listener.id);
  }
  const Place& place(int r) const { return at_index(places_, r); }

  void listen() {
    std::string why;
    const auto at = resolve(rendezvous_.address.ip, 0, &why);
    if (!at.empty()) listener_ = listen_tcp(at[0]);
    if (!listener_)
      fail_runtime("rank {} cannot listen at {} ({}) for ranks of other hosts: {}. HOLON_NET_INTERFACE names another "
                   "interface; this host has {}.",
                   rank_, rendezvous_.address.ip, rendezvous_.address.why, at.empty() ? why : strerror(errno),
                   list_interfaces());
  }

  void exchange_places() {
    const Place mine(rendezvous_.address.ip, local_address(listener_.get()).port(), random_token(),
                     rendezvous_.address.why);
    const int size = static_cast<int>(rendezvous_.ranks.size());
    // Rank 0 collects and hands out: each rank asks for all of them with a few requests.
    StoreClient& store = *rendezvous_.client;
    auto left_s = [&] { return std::max(0.0, std::chrono::duration<double>(end_ - Clock::now()).count()); };
    store.set(fmt::format("net/{}", rank_), mine.str());
    for (int first = 0; first < size; first += kTogether) {
      const std::string key = fmt::format("net/from {}", first);
      if (rank_ == 0) {
        std::string some;
        for (int r = first; r < std::min(size, first + kTogether); ++r)
          some += store.get(fmt::format("net/{}", r), left_s(), trouble_) + "\n";
        store.set(key, some);
      }
      const std::string some = store.get(key, left_s(), trouble_);
      for (size_t at = 0, end; (end = some.find('\n', at)) != std::string::npos; at = end + 1)
        places_.emplace_back(some.substr(at, end - at));
    }
    if (static_cast<int>(places_.size()) != size)
      fail_runtime("the store holds the addresses of {} ranks of {}.", places_.size(), size);
  }

  void step() {
    const auto now = Clock::now();
    auto next = std::min(end_, now + std::chrono::milliseconds(100));
    for (auto& [r, o] : outgoing_) {
      if (o.talk.empty() && o.at <= now) begin(r, o);
      if (o.talk.empty()) next = std::min(next, o.at);
    }
    std::vector<pollfd> polled = {{listener_.get(), POLLIN, 0}};
    for (auto& [r, o] : outgoing_)
      for (Talk& t : o.talk) polled.push_back({t.fd.get(), t.events(), 0});
    for (Talk& t : incoming_) polled.push_back({t.fd.get(), t.events(), 0});
    const auto ms = std::chrono::ceil<std::chrono::milliseconds>(next - now).count();
    ::poll(polled.data(), polled.size(), static_cast<int>(std::max<int64_t>(ms, 0)));
    if (auto poll = blocking_hooks().poll) poll();
    size_t i = 1;
    for (auto o = outgoing_.begin(); o != outgoing_.end();) {
      const bool has = !o->second.talk.empty();
      const bool done = has && serve(o->first, o->second, polled[i++].revents != 0);
      o = done ? outgoing_.erase(o) : std::next(o);
    }
    for (auto t = incoming_.begin(); t != incoming_.end();) {
      const bool over = serve(*t, polled[i++].revents != 0);
      t = over ? incoming_.erase(t) : std::next(t);
    }
    if (polled[0].revents)
      for (int n = 0; n < 64 && accept_one(); ++n) {
      }
  }

  void begin(int r, Outgoing& o) {
    std::string why;
    const auto to = resolve(place(r).ip, place(r).port, &why);
    Fd fd = to.empty() ? Fd() : start_connect(to[0]);
    if (!fd) {
      o.why = to.empty() ? why : strerror(errno);
      o.at = Clock::now() + kPause;
      return;
    }
    Handshake handshake(Handshake::Side::kConnects, rendezvous_.token, purpose(place(r), r),
                        static_cast<uint32_t>(rank_));
    std::string hello = handshake.begin();
    o.talk.push_back({std::move(fd), std::move(handshake), Clock::now() + kHelloTime, true, std::move(hello)});
  }

  // True: it is connected.
  bool serve(int r, Outgoing& o, bool ready) {
    Talk& t = o.talk.front();
    std::string why;
    const State state = ready ? t.advance(&why) : State::kGoesOn;
    if (state == State::kDone) {
      connected_[r] = std::move(t.fd);
      return true;
    }
    if (state == State::kGoesOn && Clock::now() < t.until) return false;
    if (state == State::kGoesOn) why = "it does not answer";
    if (state == State::kRefused) why = "its token is different, or it is another program by now";
    // What it has said tells more than that it has given up since.
    if (!o.refused) o.why = why;
    o.refused |= state == State::kRefused;
    o.talk.clear();
    o.at = Clock::now() + kPause;
    return false;
  }

  // True: this conversation is over.
  bool serve(Talk& t, bool ready) {
    std::string why;
    const State state = ready ? t.advance(&why) : State::kGoesOn;
    if (state == State::kGoesOn) return Clock::now() >= t.until;
    const int from = static_cast<int>(std::min<uint32_t>(t.handshake.from(), INT32_MAX));
    if (state != State::kDone || from <= rank_ || from >= static_cast<int>(places_.size()) || host(from) == host(rank_))
      return true;
    // One that has connected before has lost that connection.
    connected_[from] = std::move(t.fd);
    std::erase(missing_, from);
    return true;
  }

  bool accept_one() {
    Fd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    const bool full = !fd && (errno == EMFILE || errno == ENFILE);
    // The oldest goes: whoever has just come is given the time in which as many others come.
    if ((full || incoming_.size() >= kMaxUnknown) && !incoming_.empty()) incoming_.pop_front();
    if (!fd) return false;
    int one = 1;
    setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    Handshake handshake(Handshake::Side::kListens, rendezvous_.token, purpose(place(rank_), rank_));
    incoming_.push_back({std::move(fd), std::move(handshake), Clock::now() + kHelloTime, false, ""});
    return true;
  }

  [[noreturn]] void give_up() const {
    std::string what;
    for (auto& [r, o] : outgoing_)
      what += fmt::format(" Rank {} on {}, which listens at {} ({}), cannot be reached: {}.", r, host_name(r),
                          place_text(place(r).ip, place(r).port), place(r).why, o.why);
    if (!missing_.empty())
      what += fmt::format(" Rank {} on {} has not connected to this rank, which listens at {} ({}).", missing_[0],
                          host_name(missing_[0]), place_text(place(rank_).ip, place(rank_).port), place(rank_).why);
    fail_runtime(
        "rank {} is not connected with {} rank{} of other hosts after {:.3g} s.{} See that the hosts reach each "
        "other on all ports of that network; HOLON_NET_INTERFACE names another interface on a host (this one has "
        "{}).",
        rank_, outgoing_.size() + missing_.size(), outgoing_.size() + missing_.size() == 1 ? "" : "s", timeout_s_, what,
        list_interfaces());
  }
  const std::string& host_name(int r) const { return at_index(rendezvous_.hosts.names, host(r)); }

  const int rank_;
  const Rendezvous& rendezvous_;
  const double timeout_s_;
  const std::function<std::string()>& trouble_;
  const Clock::time_point end_;
  Fd listener_;
  std::vector<Place> places_;
  std::map<int, Outgoing> outgoing_;
  std::vector<int> missing_;  // that are to connect to this one
  std::list<Talk> incoming_;
  std::map<int, Fd> connected_;
};

}  // namespace

std::map<int, Fd> connect_hosts(int rank, const Rendezvous& rendezvous, double timeout_s,
                                const std::function<std::string()>& trouble) {
  return Connecting(rank, rendezvous, timeout_s, trouble).run();
}

}  // namespace holon::comm
