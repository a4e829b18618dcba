#include "holon/array/device_runtime.h"

#include <dlfcn.h>

#include <atomic>
#include <filesystem>

#include "holon/array/vendor_library.h"
#include "holon/base/settings.h"

namespace holon {

namespace {

struct Backend {
  DeviceRuntime* runtime = nullptr;
  std::string missing;

  Backend() {
    // The library lies beside this one.
    std::filesystem::path path = settings::text("HOLON_CUDA_LIBRARY");
    if (path.empty()) {
      Dl_info here;
      path = "libholon_cuda.so";
      if (dladdr(reinterpret_cast<void*>(&device_runtime), &here) && here.dli_fname)
        path = std::filesystem::path(here.dli_fname).parent_path() / path;
    }
    std::error_code error;
    if (!std::filesystem::exists(path, error)) {
      missing = "this build has no CUDA backend (" + path.string() + " is not there; ./dev build --cuda makes it)";
      return;
    }
    void* module = load_with_vendor_libraries(path.string(), &missing);
    using Start = DeviceRuntime*(std::string * why_not);
    auto* start = module ? reinterpret_cast<Start*>(dlsym(module, "holon_cuda_runtime")) : nullptr;
    if (!start) {
      missing = path.string() + " cannot be loaded: " + (module ? "it has no runtime" : missing);
      return;
    }
    missing.clear();
    runtime = start(&missing);
  }
};

// Never destroyed: storages may be freed by static destructors.
Backend& backend() {
  static auto* b = new Backend;
  return *b;
}

std::atomic<void (*)()> further_check{nullptr};
thread_local RecordedDraw* the_draw = nullptr;

}  // namespace

void set_device_check(void (*check)()) { further_check.store(check); }
void run_device_check() {
  if (auto* check = further_check.load(std::memory_order_relaxed)) check();
}

RecordedDrawScope::RecordedDrawScope(RecordedDraw& draw) { the_draw = &draw; }
RecordedDrawScope::~RecordedDrawScope() { the_draw = nullptr; }
RecordedDraw* recorded_draw() { return the_draw; }

DeviceRuntime* device_runtime() { return backend().runtime; }
const std::string& why_no_device() { return backend().missing; }

}  // namespace holon
