#include "holon/comm/net/connect.h"

#include <dlfcn.h>

#include <filesystem>

#include "holon/base/blocking.h"
#include "holon/base/error.h"

namespace holon::comm {

namespace {

using Connect = Network*(int rank, const Hosts* hosts, const char* address, StoreClient* store, double timeout_s,
                         const std::function<std::string()>* trouble);

// What net/gloo_network.cpp is compiled to lies beside this library.
Connect* load_gloo() {
  Dl_info here;
  std::filesystem::path path = "libholon_gloo.so";
  if (dladdr(reinterpret_cast<void*>(&load_gloo), &here) && here.dli_fname)
    path = std::filesystem::path(here.dli_fname).parent_path() / path;
  void* module = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  void* found = module ? dlsym(module, "holon_connect_gloo") : nullptr;
  if (!found)
    fail_runtime("ranks on several hosts need Gloo, but {} cannot be loaded: {}. Build Holon where Gloo is installed "
                 "(Debian: libgloo-dev), or start all ranks on one host.",
                 path.string(), dlerror());
  return reinterpret_cast<Connect*>(found);
}

}  // namespace

std::unique_ptr<Network> connect_network(int rank, const Hosts& hosts, const std::string& address, StoreClient& store,
                                         double timeout_s, const std::function<std::string()>& trouble) {
  BlockingScope unlocked;
  return std::unique_ptr<Network>(load_gloo()(rank, &hosts, address.c_str(), &store, timeout_s, &trouble));
}

}  // namespace holon::comm
