#include "holon/comm/hosts/net/clock.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>

#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/index.h"

namespace holon::comm {

namespace {

// Few are all slow on a busy host, which puts the clocks off by a millisecond; many take long on a slow cable.
constexpr int kLeast = 5, kRounds = 25;
constexpr int64_t kEnoughNs = 200'000'000;

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

uint64_t tag(int host, int round, bool answer) {
  return 0x636c6f636b000000u + static_cast<uint64_t>((host * kRounds + round) * 2 + answer);
}

}  // namespace

int64_t clock_offset_ns(Network& network, const Hosts& hosts, int rank, StoreClient& store, double limit_s,
                        const std::function<std::string()>& failed) {
  const int my_host = at_index(hosts.of_rank, rank), count = static_cast<int>(hosts.names.size());
  auto leader = [&](int host) {
    return static_cast<int>(std::find(hosts.of_rank.begin(), hosts.of_rank.end(), host) - hosts.of_rank.begin());
  };
  const int64_t give_up = now_ns() + static_cast<int64_t>(limit_s * 1e9);
  auto finish = [&](Network::Transit& t, int other) {
    auto trouble = [&] {
      if (const std::string why = failed(); !why.empty()) fail_runtime("{}", why);
      return now_ns() > give_up ? std::string("does not answer") : std::string();
    };
    auto failure = t.wait_received(trouble);
    if (!failure) failure = t.wait_sent(trouble);
    // It may have been told why before it went; the word arrives by another way.
    for (int i = 0; failure && i < 20; ++i) {
      if (const std::string why = failed(); !why.empty()) fail_runtime("{}", why);
      std::this_thread::sleep_for(std::chrono::milliseconds(25));
    }
    if (failure)
      fail_runtime(
          "rank {}: rank {} on another host {}, though it has connected. Check that the hosts reach each other.", rank,
          other, failure.how);
  };
  if (rank == 0) {
    for (int host = 1; host < count; ++host)
      for (int round = 0; round < kRounds; ++round) {
        const int other = leader(host);
        int64_t ask = 0;
        Network::Message from{other, tag(host, round, false), &ask, sizeof ask};
        finish(*network.start({}, {&from, 1}), other);
        int64_t now = now_ns();
        Network::Message to{other, tag(host, round, true), &now, sizeof now};
        finish(*network.start({&to, 1}, {}), other);
        if (!ask) break;
      }
    return 0;
  }
  if (my_host == 0) return 0;
  const std::string key = fmt::format("clock/{}", my_host);
  if (rank != leader(my_host)) return std::stoll(store.get(key, limit_s, failed));
  int64_t offset = 0, quickest = INT64_MAX, ask = 1;  // 0: for the last time
  int64_t enough = INT64_MAX;                         // rank 0 may have others to answer first
  for (int round = 0; ask; ++round) {
    ask = round + 1 < kRounds && (round + 1 < kLeast || now_ns() < enough);
    int64_t theirs = 0;
    Network::Message to{0, tag(my_host, round, false), &ask, sizeof ask},
        from{0, tag(my_host, round, true), &theirs, sizeof theirs};
    const int64_t start = now_ns();
    finish(*network.start({&to, 1}, {&from, 1}), 0);
    const int64_t end = now_ns();
    if (round == 0) enough = end + kEnoughNs;
    if (end - start < quickest) quickest = end - start, offset = theirs - (start + (end - start) / 2);
  }
  store.set(key, std::to_string(offset));
  return offset;
}

}  // namespace holon::comm
