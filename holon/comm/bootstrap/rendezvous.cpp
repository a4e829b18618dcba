#include "holon/comm/bootstrap/rendezvous.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <map>

#include "holon/base/error.h"
#include "holon/base/settings.h"
#include "holon/comm/control.h"
#include "holon/comm/cores.h"

namespace holon::comm {

namespace {

// What ranks of one world must have in common, to share memory.
std::string layout_text() {
  return fmt::format("1 {} {} {}", sizeof(MemberSlot), sizeof(GroupHeader), ControlBlock::kRegionBytes);
}

std::string host_identity() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  return boot + "/" + name;
}

std::string encode(const RankInfo& info) {
  return fmt::format("{}\n{}\n{}\n{}\n{}", layout_text(), info.pid, info.host, info.cores, info.socket);
}

RankInfo decode(const std::string& text, std::string* layout) {
  std::vector<std::string> lines(1);
  for (char c : text)
    if (c == '\n')
      lines.emplace_back();
    else
      lines.back() += c;
  lines.resize(5);
  *layout = lines[0];
  return {std::atoi(lines[1].c_str()), lines[2], lines[3], lines[4]};
}

std::string machine(const std::string& host) { return host.substr(host.find('/') + 1); }

std::string env_or(const char* name, const char* fallback) {
  const char* value = std::getenv(name);
  return value && *value ? value : fallback;
}

}  // namespace

Meeting meet(const Context& context, const std::string& socket_name) {
  const double limit_s = settings::number("HOLON_RENDEZVOUS_TIMEOUT_S");
  const auto start = std::chrono::steady_clock::now();
  auto left_s = [&] {
    return std::max(0.0, limit_s - std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  };
  const std::string host = env_or("MASTER_ADDR", "127.0.0.1"), port_text = env_or("MASTER_PORT", "29500");
  char* end = nullptr;
  const long port = std::strtol(port_text.c_str(), &end, 10);
  if (*end || port < 1 || port > 65535)
    fail_value("MASTER_PORT=\"{}\" is not a port; set it to a number from 1 to 65535, the same on all ranks.",
               port_text);
  const std::string token = settings::text("HOLON_STORE_TOKEN"), where = fmt::format("{}:{}", host, port);
  const int rank = context.rank(), size = context.world_size();

  Meeting m;
  if (rank == 0 && !settings::flag("HOLON_STORE_HOSTED"))
    m.server = std::make_unique<StoreServer>(host, static_cast<int>(port), token);
  m.client = std::make_unique<StoreClient>(host, static_cast<int>(port), token, left_s());
  RankInfo me{static_cast<int>(getpid()), host_identity(), CoreSet::of_this_process().str(), socket_name};
  auto g = m.client->gather("ranks", rank, size, encode(me), left_s());

  using Outcome = StoreClient::Gathered::Outcome;
  std::string layout;
  if (g.outcome == Outcome::kTimeout) {
    std::string list;
    for (int r : g.missing) list += (list.empty() ? "" : ", ") + std::to_string(r);
    fail_runtime(
        "the world of {} ranks did not come together at {} within {:g} s: rank {} waited, missing: {}. Start {} with "
        "the same "
        "MASTER_ADDR, MASTER_PORT and WORLD_SIZE and their own RANK; HOLON_RENDEZVOUS_TIMEOUT_S raises the limit.",
        size, where, limit_s, rank, list, g.missing.size() > 1 ? "them" : "it");
  }
  if (g.outcome == Outcome::kTaken) {
    RankInfo other = decode(g.values.at(0), &layout);
    fail_runtime("rank {} of {} is at {} already: process {} on {}. Give each process its own RANK; if that is another "
                 "program, choose "
                 "another MASTER_PORT.",
                 rank, size, where, other.pid, machine(other.host));
  }
  if (g.outcome == Outcome::kOtherCount)
    fail_runtime("the ranks at {} disagree on WORLD_SIZE: {} and {} have come (this is rank {} of {}). Set the same "
                 "WORLD_SIZE on all "
                 "ranks; if two programs meet here, choose another MASTER_PORT.",
                 where, g.counts.at(0), g.counts.at(1), rank, size);

  std::map<std::string, std::vector<int>> by_host;
  for (int r = 0; r < size; ++r) {
    m.ranks.push_back(decode(g.values[static_cast<size_t>(r)], &layout));
    if (layout != layout_text())
      fail_runtime("rank {} runs another build of Holon than rank {}. Start all ranks from the same installation.", r,
                   rank);
    by_host[m.ranks.back().host].push_back(r);
  }
  if (by_host.size() > 1) {
    std::string list;
    for (auto& [h, ranks] : by_host)
      list += fmt::format("{}{} on {}", list.empty() ? "" : "; ", ranks_text(ranks), machine(h));
    fail_runtime("the ranks of this world are on {} hosts ({}). Worlds of several hosts come with a later release; "
                 "start all ranks on one.",
                 by_host.size(), list);
  }
  return m;
}

}  // namespace holon::comm
