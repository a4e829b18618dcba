#include "holon/comm/hosts/net/connect.h"

#include <dlfcn.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <string_view>

#include "holon/base/blocking.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/settings.h"
#include "holon/comm/hosts/net/data_connections.h"
#include "holon/comm/hosts/net/network_module.h"

namespace holon::comm {

namespace {

struct NetworkLibrary {
  const char* name;    // for HOLON_NETWORK
  const char* module;  // next to this library; nothing is loaded before a world of several hosts needs it
  const char* entry;   // a NetworkEntry
  const char* needs;
  const char* package;  // Debian's
};

constexpr NetworkLibrary kNetworks[] = {
    {"gloo", "libholon_gloo.so", "holon_gloo_network", "Gloo", "libgloo-dev"},
    {"ucx", "libholon_ucx.so", "holon_ucx_network", "UCX", "libucx-dev"},
};

std::filesystem::path path_of(const NetworkLibrary& library) {
  Dl_info here;
  if (dladdr(reinterpret_cast<void*>(&path_of), &here) && here.dli_fname)
    return std::filesystem::path(here.dli_fname).parent_path() / library.module;
  return library.module;
}

template <class Which>
std::string names_of(const Which& which) {
  std::string names;
  for (const NetworkLibrary& n : kNetworks)
    if (which(n)) names += fmt::format("{}{}", names.empty() ? "" : ", ", n.name);
  return names;
}

const NetworkLibrary& asked_for() {
  const std::string name = settings::text("HOLON_NETWORK");
  for (const NetworkLibrary& n : kNetworks)
    if (name == n.name) return n;
  fail_value("HOLON_NETWORK=\"{}\" is not a network between hosts. There are: {}.", name,
             names_of([](const NetworkLibrary&) { return true; }));
}

NetworkEntry* load(const NetworkLibrary& library) {
  const std::filesystem::path path = path_of(library);
  void* module = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  void* found = module ? dlsym(module, library.entry) : nullptr;
  if (found) return reinterpret_cast<NetworkEntry*>(found);
  const std::string why = dlerror();
  const std::string others = names_of([](const NetworkLibrary& n) { return std::filesystem::exists(path_of(n)); });
  fail_runtime(
      "ranks on several hosts need {}, but {} cannot be loaded: {}. Build Holon where {} is installed (Debian: "
      "{}), set HOLON_NETWORK to another network ({}), or start all ranks on one host.",
      library.needs, path.string(), why, library.needs, library.package,
      others.empty() ? "this build has none" : "this build has " + others);
}

// Ranks of different networks would wait for each other until the time is over.
void compare(int rank, const char* name, const Rendezvous& rendezvous, double timeout_s,
             const std::function<std::string()>& trouble) {
  StoreClient& store = *rendezvous.client;
  auto key = [](int r) { return fmt::format("network/{}", r); };
  store.set(key(rank), name);
  std::string verdict;
  if (rank == 0) {
    std::map<std::string, std::string> ranks_by_name;
    for (size_t r = 0; r < rendezvous.ranks.size(); ++r) {
      std::string& ranks = ranks_by_name[store.get(key(static_cast<int>(r)), timeout_s, trouble)];
      ranks += fmt::format("{}{}", ranks.empty() ? "" : ", ", r);
    }
    for (auto& [n, ranks] : ranks_by_name)
      if (ranks_by_name.size() > 1)
        verdict += fmt::format("{}rank{} {}: {}", verdict.empty() ? "" : "; ",
                               ranks.find(',') == std::string::npos ? "" : "s", ranks, n);
    store.set("network", verdict);
  } else {
    // Who has heard it may have ended since.
    verdict = store.get("network", timeout_s, [&]() -> std::string {
      const std::string why = trouble();
      return why.empty() || store.find("network", 0) ? "" : why;
    });
  }
  if (verdict.empty()) return;
  // The store may end with rank 0.
  constexpr double kHeardSeconds = 2;
  auto heard = [](size_t r) { return fmt::format("network/{} heard", r); };
  if (rank != 0) store.set(heard(static_cast<size_t>(rank)), "");
  for (size_t r = 1; rank == 0 && r < rendezvous.ranks.size(); ++r)
    if (!store.find(heard(r), kHeardSeconds)) break;
  fail_runtime("the ranks ask for different networks between hosts: {}. Set HOLON_NETWORK alike on all of them.",
               verdict);
}

}  // namespace

std::unique_ptr<Network> connect_network(int rank, const Rendezvous& rendezvous, double timeout_s,
                                         const std::function<std::string()>& trouble) {
  BlockingScope unlocked;
  const NetworkLibrary& library = asked_for();
  NetworkEntry* network = load(library);
  compare(rank, library.name, rendezvous, timeout_s, trouble);
  NetworkStart start{rank, static_cast<int>(rendezvous.ranks.size()), rendezvous.address.ip, {}, timeout_s, trouble};
  start.connections = connect_hosts(rank, rendezvous, timeout_s, trouble);
  return std::unique_ptr<Network>(network(&start));
}

}  // namespace holon::comm
