#include "holon/comm/net/connect.h"

#include <dlfcn.h>

#include <filesystem>

#include "holon/base/blocking.h"
#include "holon/base/error.h"
#include "holon/comm/net/data_connections.h"

namespace holon::comm {

namespace {

using OverGloo = Network*(int rank, int size, const char* address, std::map<int, Fd>* connections, double timeout_s);

// What net/gloo_network.cpp is compiled to lies beside this library.
OverGloo* load_gloo() {
  Dl_info here;
  std::filesystem::path path = "libholon_gloo.so";
  if (dladdr(reinterpret_cast<void*>(&load_gloo), &here) && here.dli_fname)
    path = std::filesystem::path(here.dli_fname).parent_path() / path;
  void* module = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  void* found = module ? dlsym(module, "holon_gloo_network") : nullptr;
  if (!found)
    fail_runtime("ranks on several hosts need Gloo, but {} cannot be loaded: {}. Build Holon where Gloo is installed "
                 "(Debian: libgloo-dev), or start all ranks on one host.",
                 path.string(), dlerror());
  return reinterpret_cast<OverGloo*>(found);
}

}  // namespace

std::unique_ptr<Network> connect_network(int rank, const Rendezvous& rendezvous, double timeout_s,
                                         const std::function<std::string()>& trouble) {
  BlockingScope unlocked;
  OverGloo* network = load_gloo();
  auto connections = connect_hosts(rank, rendezvous, timeout_s, trouble);
  return std::unique_ptr<Network>(
      network(rank, static_cast<int>(rendezvous.ranks.size()), rendezvous.address.ip.c_str(), &connections, timeout_s));
}

}  // namespace holon::comm
