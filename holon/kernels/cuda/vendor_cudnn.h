// cuDNN's graphs by its frontend, for vendor_cudnn_conv.cpp and vendor_cudnn_attention.cpp. Programs without cuDNN 9,
// and builds without the headers of both, run on the backend's own kernels: HOLON_CUDNN_GRAPHS is defined where they
// are.
#pragma once

#if __has_include(<cudnn.h>) && __has_include(<cudnn_frontend.h>)
#define HOLON_CUDNN_GRAPHS

#include <cudnn.h>

// The frontend looks its functions up by name. It finds these two before the C library's, so that cuDNN is the one that
// vendor_library() loads, and CUDA's runtime the one that this module is linked with.
namespace cudnn_frontend {
void* dlopen(const char* file, int mode);
void* dlsym(void* library, const char* name);
}  // namespace cudnn_frontend

#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>

#include "holon/array/dtype.h"
#include "holon/base/hash.h"
#include "holon/kernels/cuda/stream.h"

namespace holon::kernels::cuda::cudnn {

namespace fe = cudnn_frontend;
using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;

fe::DataType_t type_of(int64_t dtype);

// A graph of which cuDNN has made a plan, if it could.
struct Plan {
  std::shared_ptr<fe::graph::Graph> graph;  // nullptr: it could not
  int64_t workspace_bytes = 0;
};

// What a plan may be, besides giving the same bits in every run and adding in the precision that it is told.
struct Limits {
  bool exact = false;  // neither tensor cores nor transformed windows
  int64_t workspace_bytes = 0;
};

// False: cuDNN is not found, or a part of it is not, or it does not go with the driver.
bool available();
// A graph for the current device, without operations yet.
std::shared_ptr<fe::graph::Graph> new_graph();
// The best plan by cuDNN's heuristics, which need no run on the device. what: names it in the log.
Plan make_plan(std::shared_ptr<fe::graph::Graph> graph, const Limits& limits, const char* what);
// Puts it on the current stream. False, with a warning and never tried again: cuDNN refuses it, after all.
bool run(Plan& plan, std::initializer_list<std::pair<int64_t, const void*>> addresses, const char* what);

// The plan for a key on the current device, made by make(graph) in the first call of it: a graph's tensors and
// operations. nullptr: there is none. One cache for each thread and type of key, whose plans stay, since recordings may
// launch what they have loaded: when it is full, new keys have no plan.
template <class Key, class Make>
Plan* plan_of(const Key& key, const Limits& limits, const char* what, Make&& make) {
  constexpr size_t kMost = 1024;
  struct Place {
    Key key;
    int64_t device;
    bool operator==(const Place& o) const { return std::memcmp(this, &o, sizeof o) == 0; }
  };
  static_assert(std::has_unique_object_representations_v<Place>);
  struct PlaceHash {
    size_t operator()(const Place& p) const { return hash_bytes(&p, sizeof p); }
  };
  if (!available()) return nullptr;
  // Not given back when the thread ends: the driver may be gone then.
  thread_local auto& plans = *new std::unordered_map<Place, Plan, PlaceHash>;
  const Place place{key, device_index()};
  auto found = plans.find(place);
  if (found == plans.end()) {
    if (plans.size() >= kMost) return nullptr;
    auto graph = new_graph();
    make(*graph);
    found = plans.emplace(place, make_plan(std::move(graph), limits, what)).first;
  }
  return found->second.graph ? &found->second : nullptr;
}

}  // namespace holon::kernels::cuda::cudnn

#endif
