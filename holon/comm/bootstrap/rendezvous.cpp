#include "holon/comm/bootstrap/rendezvous.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/index.h"
#include "holon/base/settings.h"
#include "holon/comm/bootstrap/address.h"
#include "holon/comm/bootstrap/scheduler.h"
#include "holon/comm/bootstrap/token.h"
#include "holon/comm/core/control.h"
#include "holon/comm/core/cores.h"

namespace holon::comm {

namespace {

// What ranks of one world must have in common, to share memory.
std::string layout_text() {
  return fmt::format("2 {} {} {}", sizeof(MemberSlot), sizeof(GroupHeader), ControlBlock::kRegionBytes);
}

// Ranks share a host if they can hand each other memory: the same running system, and the same namespaces of networks
// (of Unix sockets, too) and of processes. HOLON_HOST tells apart, or puts a name to, what looks alike.
std::string host_identity() {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  std::string given = settings::text("HOLON_HOST"), boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  for (const char* space : {"/proc/self/ns/net", "/proc/self/ns/pid"}) {
    std::error_code error;
    boot += "," + std::filesystem::read_symlink(space, error).string();
  }
  return boot + "," + given + "/" + (given.empty() ? name : given);
}

// The token, and the store's address. A world without a token stays within this machine: what it listens at are
// loopback addresses.
RendezvousAddress address_for_ranks(const Context& context, bool several, double limit_s, std::string* token) {
  RendezvousAddress place = rendezvous_address();
  *token = store_token(context.rank() == 0, limit_s);
  if (!token->empty() || names_this_machine(place.host)) return place;
  constexpr char kHowTo[] =
      "Set HOLON_STORE_TOKEN to the same secret on all ranks, e.g. what `openssl rand -hex 16` prints, or "
      "HOLON_STORE_TOKEN_FILE to a file that all hosts see.";
  if (several)
    fail_value("rank {} of {}: ranks on several hosts need a token, so that no other program joins them. {}",
               context.rank(), context.world_size(), kHowTo);
  if (!is_this_host(place.host, limit_s))
    fail_value("rank {} of {}: MASTER_ADDR \"{}\" is not an address of this host (it has {}), and ranks on several "
               "hosts need a token, so that no other program joins them. {}",
               context.rank(), context.world_size(), place.host, list_interfaces(), kHowTo);
  place.host = "127.0.0.1";
  return place;
}

std::string encode(const RankInfo& info) {
  return fmt::format("{}\n{}\n{}\n{}\n{}\n{}", layout_text(), info.pid, info.host, info.cores, info.socket,
                     info.address);
}

RankInfo decode(const std::string& text, std::string* layout) {
  std::vector<std::string> lines(1);
  for (char c : text)
    if (c == '\n')
      lines.emplace_back();
    else
      lines.back() += c;
  lines.resize(6);
  *layout = lines[0];
  return {std::atoi(lines[1].c_str()), lines[2], lines[3], lines[4], lines[5]};
}

std::string machine(const std::string& host) { return host.substr(host.find('/') + 1); }

}  // namespace

Rendezvous rendezvous(const Context& context, const std::string& socket_name) {
  const double limit_s = settings::number("HOLON_RENDEZVOUS_TIMEOUT_S");
  const auto start = std::chrono::steady_clock::now();
  auto left_s = [&] {
    return std::max(0.0, limit_s - std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  };
  const int rank = context.rank(), size = context.world_size();
  const bool several = context.local_world_size() < size && !names_this_machine(rendezvous_address().host);
  std::string token;
  const auto [host, port] = address_for_ranks(context, several, left_s(), &token);
  const std::string where = place_text(host, port);

  Rendezvous m;
  m.store_host = host, m.store_port = port, m.token = token;
  if (rank == 0 && !settings::flag("HOLON_STORE_HOSTED"))
    m.server = std::make_unique<StoreServer>(store_addresses(host, port, several, left_s()), token);
  m.client = std::make_unique<StoreClient>(host, port, token, left_s());
  const NetworkAddress address = network_address(m.client->local_address(), several);
  RankInfo me{static_cast<int>(getpid()), host_identity(), CoreSet::of_this_process().str(), socket_name, address.ip};
  auto g = m.client->gather(kRanksKey, rank, size, encode(me), left_s());

  using Outcome = StoreClient::Gathered::Outcome;
  std::string layout;
  if (g.outcome == Outcome::kTimeout) {
    std::string list;
    for (int r : g.missing) list += (list.empty() ? "" : ", ") + std::to_string(r);
    fail_runtime(
        "the world of {} ranks did not form at {} within {:g} s: rank {} waited, missing: {}. Start {} with the same "
        "MASTER_ADDR, MASTER_PORT and WORLD_SIZE and their own RANK{}; HOLON_RENDEZVOUS_TIMEOUT_S raises the limit.",
        size, where, limit_s, rank, list, g.missing.size() > 1 ? "them" : "it",
        token.empty() ? ", and on other hosts LOCAL_WORLD_SIZE and HOLON_STORE_TOKEN" : "");
  }
  if (g.outcome == Outcome::kTaken) {
    RankInfo other = decode(g.values.at(0), &layout);
    fail_runtime("rank {} of {} is at {} already: process {} on {}. Give each process its own RANK; if that is another "
                 "program, choose "
                 "another MASTER_PORT.",
                 rank, size, where, other.pid, machine(other.host));
  }
  if (g.outcome == Outcome::kOtherCount)
    fail_runtime("the ranks at {} disagree on WORLD_SIZE: {} and {} have connected (this is rank {} of {}). Set the "
                 "same WORLD_SIZE on all ranks; if two programs use this port, choose another MASTER_PORT.",
                 where, g.counts.at(0), g.counts.at(1), rank, size);

  if (g.outcome == Outcome::kLeft)
    fail_runtime("the world of {} ranks cannot form at {}: rank {} {} before it joined the others. All ranks must "
                 "join: see which calls rank {} leaves out, and read its output first.",
                 size, where, g.left, g.values.empty() ? "has ended" : g.values[0], g.left);

  std::vector<std::string> known;
  for (int r = 0; r < size; ++r) {
    m.ranks.push_back(decode(at_index(g.values, r), &layout));
    if (layout != layout_text())
      fail_runtime("rank {} runs a different build of Holon from rank {}. Start all ranks from the same installation.",
                   r, rank);
    auto at = std::find(known.begin(), known.end(), m.ranks.back().host);
    m.hosts.of_rank.push_back(static_cast<int>(at - known.begin()));
    if (at != known.end()) continue;
    known.push_back(m.ranks.back().host);
    m.hosts.names.push_back(fmt::format("{} ({})", machine(known.back()), m.ranks.back().address));
  }
  if (known.size() == 1) {
    m.hosts = {};
    return m;
  }
  m.address = address;
  // By now every rank has reached the store, those of other hosts at the address that they reach this one by.
  if (!address.sure)
    if (auto reached = m.client->find(kStoreReachedAt, 0))
      m.address = {*reached, "at which other hosts have reached the store", true};
  return m;
}

}  // namespace holon::comm
