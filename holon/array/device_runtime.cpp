#include "holon/array/device_runtime.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <string_view>

#include "holon/array/device_backend.h"
#include "holon/array/vendor_library.h"
#include "holon/base/settings.h"
#include "holon/version.h"

namespace holon {

namespace {

namespace fs = std::filesystem;

// Beside this library, or where the wheel holon-tensor-cuda puts it: in the package holon_cuda.
fs::path find_backend() {
  if (fs::path given = settings::text("HOLON_CUDA_LIBRARY"); !given.empty()) return given;
  fs::path beside = "libholon_cuda.so";
  Dl_info here;
  if (dladdr(reinterpret_cast<void*>(&device_runtime), &here) && here.dli_fname)
    beside = fs::path(here.dli_fname).parent_path() / beside;
  std::error_code error;
  if (fs::exists(beside, error)) return beside;
  for (const fs::path folder : package_folders())
    if (fs::path path = folder / "holon_cuda/libholon_cuda.so"; fs::exists(path, error)) return path;
  return beside;
}

// What stands before the version in the text that a backend's holon_cuda_version() returns.
constexpr std::string_view kVersionMark = "holon_cuda_version=";

// The version of a backend; empty if it tells none. Of one that cannot be loaded (that may be because it is of another
// version) the text is looked for in the file.
std::string version_of(const fs::path& path, void* module) {
  std::string text;
  if (module) {
    using Version = const char*();
    if (auto* version = reinterpret_cast<Version*>(dlsym(module, "holon_cuda_version"))) text = version();
  } else {
    std::ifstream file(path, std::ios::binary);
    std::error_code error;
    const auto size_bytes = fs::file_size(path, error);
    if (!error) text.resize(size_bytes);
    file.read(text.data(), static_cast<std::streamsize>(text.size()));
  }
  const size_t mark = text.find(kVersionMark);
  return mark == std::string::npos ? std::string() : text.c_str() + mark + kVersionMark.size();
}

struct Backend {
  DeviceRuntime* runtime = nullptr;
  std::string missing;
  bool broken = false;

  Backend() {
    const fs::path path = find_backend();
    std::error_code error;
    if (!fs::exists(path, error)) {
      missing =
          fmt::format("this Holon has no CUDA backend ({} is not there; pip install holon-tensor-cuda=={} adds it to "
                      "an installed Holon, ./dev build --cuda to one that is built from source)",
                      path.string(), HOLON_VERSION);
      return;
    }
    void* module = load_with_vendor_libraries(path.string(), &missing);
    using Start = DeviceRuntime*(std::string * why_not);
    auto* start = module ? reinterpret_cast<Start*>(dlsym(module, "holon_cuda_runtime")) : nullptr;
    const std::string version = version_of(path, module);
    broken = true;
    if (!version.empty() && version != HOLON_VERSION)
      missing = fmt::format("{} is version {} and Holon is version {}: they must be the same. pip install "
                            "holon-tensor-cuda=={}, or build both from one tree",
                            path.string(), version, HOLON_VERSION, HOLON_VERSION);
    else if (!module)
      missing = path.string() + " cannot be loaded: " + missing;
    else if (!start || version.empty())
      missing = path.string() + " cannot be loaded: it is no CUDA backend of Holon";
    else {
      broken = false;
      missing.clear();
      runtime = start(&missing);
    }
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
bool device_backend_broken() { return backend().broken; }

}  // namespace holon
