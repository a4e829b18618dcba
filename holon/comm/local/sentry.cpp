#include "holon/comm/local/sentry.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "holon/base/blocking.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/index.h"
#include "holon/comm/bootstrap/liveness.h"

namespace holon::comm {

namespace {

constexpr double kConnectSeconds = 10, kTellSeconds = 0.4, kForEver = 1e9;
constexpr int kLookMs = 500;

std::string ended_text(const std::string& what, const std::string& host) {
  return fmt::format("it {} on {}; read its output first", what, host);
}

}  // namespace

struct Sentry::State {
  ControlBlock block;
  int rank = 0;
  std::vector<int> local;
  std::vector<Watched> processes;  // of the local ranks
  Hosts hosts;
  std::string store_host, token;
  int store_port = 0;
  double heartbeat_s = 0;
  std::atomic<Network*> network{nullptr};
  bool listening = false;

  const std::string& host_of(int r) const { return at_index(hosts.names, at_index(hosts.of_rank, r)); }
  bool finished(int r) const { return block.rank_entry(r).finished.load() != 0; }
  bool over(size_t i) const { return finished(local[i]) || processes[i].gone(); }

  void fail(int who, const std::string& why) const {
    if (block.aborted().set(who, 0, why)) block.wake_all();
  }

  void tell_other_hosts(int who, const std::string& why) const {
    try {
      StoreClient store(store_host, store_port, token, kTellSeconds);
      if (store.add("aborts", 1, kTellSeconds) == 1)
        store.set(kAbortedKey, fmt::format("{} {}", who, why), kTellSeconds);
    } catch (const std::exception&) {
      // They see for themselves that a connection is silent.
    }
  }

  void listen() const {
    std::unique_ptr<StoreClient> store;
    try {
      store = std::make_unique<StoreClient>(store_host, store_port, token, kConnectSeconds);
    } catch (const std::exception&) {
      return;  // it has ended since the ranks connected, and who heard of that has ended too
    }
    try {
      const auto text = store->find(kAbortedKey, kForEver);
      if (!text) return;  // it has ended in order
      const size_t cut = std::min(text->find(' '), text->size());
      fail(std::atoi(text->substr(0, cut).c_str()), text->substr(std::min(cut + 1, text->size())));
    } catch (const std::exception&) {
      if (!finished(rank))
        fail(0,
             fmt::format(
                 "the store at {}:{} has ended without a message, or cannot be reached any more: its launcher or "
                 "rank 0 on {} was killed or has crashed, or that host is disconnected",
                 store_host, store_port, host_of(0)));
    }
  }

  void look_at_connections() const {
    Network* n = network.load();
    const int silent = n ? n->silent_rank(heartbeat_s) : -1;
    if (silent < 0 || block.aborted().state.load() != 0) return;
    const std::string why = fmt::format(
        "its host {} has not answered {} for {:g} s: it is disconnected, or down (HOLON_HEARTBEAT_S raises the limit)",
        host_of(silent), host_of(rank), heartbeat_s);
    fail(silent, why);
    tell_other_hosts(silent, why);
  }

  static void run(std::shared_ptr<State> s) {
    leave_host_language();
    while (!s->finished(s->rank)) {
      size_t first = 0;
      while (s->local[first] != s->rank && s->over(first)) ++first;
      if (s->local[first] == s->rank && !s->listening) {
        s->listening = true;
        std::thread([s] {
          leave_host_language();
          s->listen();
        }).detach();
      }
      std::vector<pollfd> polled;
      for (size_t i = 0; i < s->local.size(); ++i) {
        if (s->local[i] == s->rank || s->finished(s->local[i])) continue;
        if (!s->processes[i].gone()) {
          if (s->processes[i].pidfd) polled.push_back({s->processes[i].pidfd.get(), POLLIN, 0});
        } else if (!s->finished(s->local[i])) {  // it may have said so just before
          s->fail(s->local[i], ended_text("was killed or has crashed", s->host_of(s->rank)));
        }
      }
      poll(polled.data(), polled.size(), kLookMs);
      s->look_at_connections();
    }
  }
};

Sentry::Sentry(ControlBlock block, int rank, std::vector<int> local, const std::vector<Watched>& processes,
               const Rendezvous& rendezvous)
    : state_(std::make_shared<State>()) {
  State& s = *state_;
  s.block = block;
  s.rank = rank;
  s.local = std::move(local);
  for (int r : s.local) {
    const Watched& w = at_index(processes, r);
    s.processes.push_back({w.pid, Fd(w.pidfd ? fcntl(w.pidfd.get(), F_DUPFD_CLOEXEC, 0) : -1), r});
  }
  s.hosts = rendezvous.hosts;
  s.store_host = rendezvous.store_host, s.store_port = rendezvous.store_port, s.token = rendezvous.token;
  s.heartbeat_s = heartbeat_limit_s();
  std::thread(&State::run, state_).detach();
}

void Sentry::leave_will(const Rendezvous& rendezvous, int rank, const std::string& what) {
  const auto& host = at_index(rendezvous.hosts.names, at_index(rendezvous.hosts.of_rank, rank));
  rendezvous.client->will(kAbortedKey, fmt::format("{} {}", rank, ended_text(what, host)));
}

void Sentry::look_after(Network& network) { state_->network.store(&network); }

std::string Sentry::trouble() const {
  auto& aborted = state_->block.aborted();
  if (!aborted.is_set()) return {};
  return fmt::format("the ranks have joined, but rank {} has failed before all hosts were connected: {}", aborted.rank,
                     aborted.text);
}

void Sentry::leave(StoreClient& store) const {
  try {
    store.will("", "", kTellSeconds);
  } catch (const std::exception&) {
    // The store has gone, and the will with it.
  }
}

}  // namespace holon::comm
