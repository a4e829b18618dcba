#include "holon/kernels/cuda/vendor_cudnn.h"

#ifdef HOLON_CUDNN_GRAPHS
#include <cuda_runtime.h>
#include <dlfcn.h>

#include <cstring>
#include <exception>
#include <stdexcept>
#include <vector>

#include "holon/array/vendor_library.h"
#include "holon/base/fmt.h"
#include "holon/base/log.h"
#include "holon/kernels/cuda/capability.h"

namespace {

// The functions of CUDA's runtime that the frontend calls on the way to a plan and to its run.
#define HOLON_RUNTIME_FUNCTIONS(X) \
  X(cudaGetDevice) X(cudaDeviceGetAttribute) X(cudaGetErrorString) X(cudaMemcpyAsync) X(cudaMemsetAsync)

constexpr int kMajor = CUDART_VERSION / 1000;
char runtime_library;  // its address represents the runtime

}  // namespace

namespace cudnn_frontend {

void* cudnn_dlhandle = nullptr;

void* dlopen(const char* file, int) {
  return fmt::format("libcudart.so.{}", kMajor) == file ? &runtime_library : nullptr;
}

void* dlsym(void* library, const char* name) {
  if (library != &runtime_library) return library ? ::dlsym(library, name) : nullptr;
#define HOLON_RUNTIME_FIND(f) \
  if (std::strcmp(name, #f) == 0) return reinterpret_cast<void*>(static_cast<decltype(&::f)>(&::f));
  HOLON_RUNTIME_FUNCTIONS(HOLON_RUNTIME_FIND)
#undef HOLON_RUNTIME_FIND
  return nullptr;
}

}  // namespace cudnn_frontend

namespace holon::kernels::cuda::cudnn {
namespace {

bool load() {
  // cuDNN asks the loader for these by name, which knows what is loaded already.
  for (const char* part : {"libcublasLt", "libnvrtc"}) vendor_library(fmt::format("{}.so.{}", part, kMajor));
  return (fe::cudnn_dlhandle = vendor_library("libcudnn.so.9").handle) != nullptr;
}

// One for each thread and device, since its stream is the thread's. Never given back: the driver may be gone when
// threads end.
cudnnHandle_t find_handle() {
  static const bool loaded = load();
  if (!loaded) return nullptr;
  struct Entry {
    cudnnHandle_t handle = nullptr;
    bool tried = false;
  };
  thread_local std::unordered_map<int, Entry> entries;
  Entry& e = entries[device_index()];
  if (std::exchange(e.tried, true)) return e.handle;
  const OutsideOfRecording outside;
  try {
    if (fe::detail::create_handle(&e.handle) != CUDNN_STATUS_SUCCESS) e.handle = nullptr;
  } catch (const std::exception& error) {
    log::warn(fmt::format("cuDNN is not used: {}", error.what()));
    e.handle = nullptr;
  }
  return e.handle;
}

void require(fe::error_t error) {
  if (error.is_bad()) throw std::runtime_error(error.get_message());
}

}  // namespace

fe::DataType_t type_of(int64_t dtype) {
  switch (static_cast<DType>(dtype)) {
    case DType::kFloat16: return fe::DataType_t::HALF;
    case DType::kBFloat16: return fe::DataType_t::BFLOAT16;
    case DType::kFloat64: return fe::DataType_t::DOUBLE;
    default: return fe::DataType_t::FLOAT;
  }
}

bool available() { return find_handle() != nullptr; }

std::shared_ptr<fe::graph::Graph> new_graph() {
  auto graph = std::make_shared<fe::graph::Graph>();
  graph->set_sm_version(compute_capability());
  graph->set_cuda_graph_retention(fe::CudaGraphRetention_t::NONE);  // plan_of() keeps it
  return graph;
}

Plan make_plan(std::shared_ptr<fe::graph::Graph> graph, const Limits& limits, const char* what) {
  const OutsideOfRecording outside;  // kernels are compiled and loaded
  const cudnnHandle_t handle = find_handle();
  try {
    require(graph->validate());
    require(graph->build_operation_graph(handle));
    require(graph->create_execution_plans({fe::HeurMode_t::A, fe::HeurMode_t::FALLBACK}));
    std::vector<fe::NumericalNote_t> unwanted{fe::NumericalNote_t::NONDETERMINISTIC,
                                              fe::NumericalNote_t::REDUCED_PRECISION_REDUCTION};
    if (limits.exact)
      for (const auto note :
           {fe::NumericalNote_t::TENSOR_CORE, fe::NumericalNote_t::DOWN_CONVERT_INPUTS, fe::NumericalNote_t::FFT,
            fe::NumericalNote_t::WINOGRAD, fe::NumericalNote_t::WINOGRAD_TILE_4x4,
            fe::NumericalNote_t::WINOGRAD_TILE_6x6, fe::NumericalNote_t::WINOGRAD_TILE_13x13})
        unwanted.push_back(note);
    graph->deselect_numeric_notes(unwanted);
    graph->deselect_workspace_greater_than(limits.workspace_bytes);
    require(graph->check_support(handle));
    require(graph->build_plans(handle));
    Plan plan;
    require(graph->get_workspace_size(plan.workspace_bytes));
    plan.graph = std::move(graph);
    return plan;
  } catch (const std::exception& error) {
    if (log::enabled(log::Channel::kDispatch))
      log::line(log::Channel::kDispatch, fmt::format("cuDNN has no way for {}: {}", what, error.what()));
    return {};
  }
}

bool run(Plan& plan, std::initializer_list<std::pair<int64_t, const void*>> addresses, const char* what) {
  std::unordered_map<int64_t, void*> at;
  for (auto& [tensor, address] : addresses)
    if (address) at.emplace(tensor, const_cast<void*>(address));
  const cudnnHandle_t handle = find_handle();
  try {
    if (const auto status = fe::detail::set_stream(handle, stream()); status != CUDNN_STATUS_SUCCESS)
      throw std::runtime_error(fe::detail::get_error_string(status));
    const Scratch workspace(static_cast<size_t>(plan.workspace_bytes));
    require(plan.graph->execute(handle, at, workspace.data<void>()));
    return true;
  } catch (const std::exception& error) {
    log::warn(fmt::format("cuDNN does not run {}, which is left to other kernels: {}", what, error.what()));
    plan.graph = nullptr;
    return false;
  }
}

}  // namespace holon::kernels::cuda::cudnn
#endif
