#include "holon/array/device_backend.h"

#include <dlfcn.h>
#include <fmt/ranges.h>

#include <array>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <optional>
#include <sstream>
#include <string_view>

#include "holon/array/device_runtime.h"
#include "holon/array/vendor_library.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/fork.h"
#include "holon/base/index.h"
#include "holon/base/settings.h"

namespace holon {

namespace {

namespace fs = std::filesystem;

// A type that is known before its library is loaded.
struct KnownBackend {
  const char* names;
  const char* title;    // in errors
  const char* file;     // next to this library, or in the Python package `package`
  const char* setting;  // another file
  const char* package;
  const char* distribution;  // of that package
  const char* build;         // what builds it in this tree
  bool may_be_simulated;
};
constexpr KnownBackend kKnownBackends[] = {
    {"cuda gpu", "CUDA", "libholon_cuda.so", "HOLON_CUDA_LIBRARY", "holon_cuda", "holon-tensor-cuda",
     "./dev build --cuda", true},
};

struct Type {
  std::vector<std::string> names;
  const KnownBackend* known = nullptr;
  void* module = nullptr;
  std::atomic<bool> loaded{false};  // then the rest does not change any more
  DeviceRuntime* runtime = nullptr;
  std::string missing;
  bool broken = false;
};

std::vector<std::string> words(const char* text) {
  std::istringstream stream(text);
  std::vector<std::string> list;
  for (std::string word; stream >> word;) list.push_back(word);
  return list;
}

struct Types {
  std::array<Type, kMaxDeviceTypes> of;
  std::atomic<int> count{0};  // before it, names do not change
  ProcessMutex loading;
  ProcessMutex installing;
  std::vector<void (*)(DeviceType)> installs;  // of libraries whose type has no number yet

  Types() {
    of[0].names = {"cpu"};
    of[0].loaded = true;
    int n = 1;
    for (const KnownBackend& known : kKnownBackends) {
      at_index(of, n).names = words(known.names);
      at_index(of, n++).known = &known;
    }
    count = n;
  }
};

// Never destroyed: storages may be freed by static destructors.
Types& types() {
  static auto* t = new Types;
  return *t;
}

Type& type_of(DeviceType type) { return at_index(types().of, type); }

std::optional<DeviceType> find(std::string_view text) {
  const int count = types().count.load(std::memory_order_acquire);
  for (int i = 0; i < count; ++i)
    for (const std::string& name : at_index(types().of, i).names)
      if (name == text) return static_cast<DeviceType>(i);
  return std::nullopt;
}

const void* module_of(const void* symbol) {
  Dl_info info;
  return dladdr(symbol, &info) ? info.dli_fbase : nullptr;
}

// What the library that start() is of has left to do.
void install(DeviceType type, const void* start) {
  std::vector<void (*)(DeviceType)> own;
  {
    std::lock_guard lock(types().installing);
    std::erase_if(types().installs, [&](auto* f) {
      if (module_of(reinterpret_cast<const void*>(f)) != module_of(start)) return false;
      own.push_back(f);
      return true;
    });
  }
  for (auto* f : own) f(type);
}

// What is before the version in the text that a backend's holon_device_version() returns.
constexpr std::string_view kVersionMark = "holon_device_version=";

// The version of a backend; empty if it tells none. Of one that cannot be loaded (that may be because it is of another
// version) the text is looked for in the file.
std::string version_of(const fs::path& path, void* module) {
  std::string text;
  if (module) {
    using Version = const char*();
    if (auto* version = reinterpret_cast<Version*>(dlsym(module, "holon_device_version"))) text = version();
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

using Start = DeviceRuntime*(DeviceType type, std::string* why_not);

struct Library {
  void* module = nullptr;
  std::vector<std::string> names;
  Start* start = nullptr;
};

// Errors: *why_not, and no module.
Library open(const fs::path& path, const char* title, const std::string& remedy, std::string* why_not) {
  Library library;
  void* module = load_with_vendor_libraries(path.string(), why_not);
  const std::string version = version_of(path, module);
  if (module) {
    using Names = const char*();
    if (auto* names = reinterpret_cast<Names*>(dlsym(module, "holon_device_names"))) library.names = words(names());
    library.start = reinterpret_cast<Start*>(dlsym(module, "holon_device_start"));
  }
  if (!version.empty() && version != HOLON_VERSION)
    *why_not = fmt::format("{} is version {} and Holon is version {}: they must be the same. {}", path.string(),
                           version, HOLON_VERSION, remedy);
  else if (!module)
    *why_not = path.string() + " cannot be loaded: " + *why_not;
  else if (!library.start || library.names.empty() || version.empty())
    *why_not = fmt::format("{} cannot be loaded: it is not a {} of Holon", path.string(), title);
  else
    library.module = module;
  return library;
}

// Errors: as of a type that cannot be used.
void start(DeviceType type, const Library& library, Type& t) {
  t.module = library.module;
  try {
    install(type, reinterpret_cast<const void*>(library.start));
    t.runtime = library.start(type, &t.missing);
  } catch (const Error& e) {
    t.broken = true;
    t.missing = e.what();
  }
}

// Beside this library, or where the backend's wheel puts it.
fs::path file_of(const KnownBackend& known) {
  if (fs::path given = settings::text(known.setting); !given.empty()) return given;
  fs::path beside = known.file;
  Dl_info here;
  if (dladdr(reinterpret_cast<void*>(&load_device_library), &here) && here.dli_fname)
    beside = fs::path(here.dli_fname).parent_path() / beside;
  std::error_code error;
  if (fs::exists(beside, error)) return beside;
  for (const fs::path folder : package_folders())
    if (fs::path path = folder / known.package / known.file; fs::exists(path, error)) return path;
  return beside;
}

void load_known(DeviceType type) {
  Type& t = type_of(type);
  const KnownBackend& known = *t.known;
  std::lock_guard lock(types().loading);
  if (t.loaded.load(std::memory_order_relaxed)) return;
  const fs::path path = file_of(known);
  std::error_code error;
  if (!fs::exists(path, error)) {
    t.missing = fmt::format("this Holon has no {} backend ({} is not there; pip install {}=={} adds it to an installed "
                            "Holon, {} to one that is built from source)",
                            known.title, path.string(), known.distribution, HOLON_VERSION, known.build);
  } else {
    const Library library =
        open(path, fmt::format("{} backend", known.title).c_str(),
             fmt::format("pip install {}=={}, or build both from one tree", known.distribution, HOLON_VERSION),
             &t.missing);
    t.broken = !library.module;
    if (library.module && library.names[0] != t.names[0]) {
      t.broken = true;
      t.missing = fmt::format("{} is the backend of {} devices", path.string(), library.names[0]);
    } else if (library.module) {
      t.missing.clear();
      start(type, library, t);
    }
  }
  t.loaded.store(true, std::memory_order_release);
}

void load_listed() {
  const std::string list = settings::text("HOLON_DEVICE_LIBRARIES");
  std::istringstream stream(list);
  for (std::string path; std::getline(stream, path, ':');)
    if (!path.empty()) load_device_library(path);
}

}  // namespace

std::string load_device_library(const std::string& path) {
  Types& all = types();
  std::error_code error;
  if (!fs::exists(path, error))
    fail_runtime("load_device_library: there is no file {}. Give the path of the backend's shared library.", path);
  std::lock_guard lock(all.loading);
  std::string why;
  const Library library = open(fs::absolute(path), "device backend", "Build it against this version", &why);
  if (!library.module) fail_runtime("load_device_library: {}.", why);
  const int count = all.count.load(std::memory_order_relaxed);
  for (int i = 0; i < count; ++i)
    if (Type& t = at_index(all.of, i); t.module == library.module) return t.names[0];
  for (const std::string& name : library.names)
    if (const auto taken = find(name))
      fail_runtime("load_device_library: {}: the name {} is that of another type of devices{}.", path, name,
                   type_of(*taken).known ? fmt::format("; name its library by {}", type_of(*taken).known->setting)
                                         : std::string());
  if (count == kMaxDeviceTypes)
    fail_runtime("load_device_library: {}: there are {} types of devices already, and no more can be.", path, count);
  Type& t = at_index(all.of, count);
  t.names = library.names;
  start(static_cast<DeviceType>(count), library, t);
  t.loaded.store(true, std::memory_order_release);
  all.count.store(count + 1, std::memory_order_release);
  if (t.broken) fail_runtime("load_device_library: {}: {}", path, t.missing);
  return t.names[0];
}

std::vector<std::string> device_types() {
  load_listed();
  std::vector<std::string> list;
  for (int i = 0; i < types().count.load(std::memory_order_acquire); ++i)
    list.push_back(at_index(types().of, i).names[0]);
  return list;
}

const char* name(DeviceType type) { return type_of(type).names[0].c_str(); }

DeviceType parse_device_type(std::string_view text) {
  if (const auto found = find(text)) return *found;
  load_listed();
  if (const auto found = find(text)) return *found;
  fail_runtime("Expected one of {} device type at start of device string: {}",
               fmt::format("{}", fmt::join(device_types(), ", ")), text);
}

bool may_be_simulated(DeviceType type) { return type_of(type).known && type_of(type).known->may_be_simulated; }
bool is_simulated(DeviceType type) { return may_be_simulated(type) && settings::text("HOLON_SIMULATE") == name(type); }

bool on_device_registration(void (*install)(DeviceType type)) {
  std::lock_guard lock(types().installing);
  types().installs.push_back(install);
  return true;
}

DeviceRuntime* device_runtime(DeviceType type) {
  Type& t = type_of(type);
  if (!t.loaded.load(std::memory_order_acquire)) [[unlikely]]
    load_known(type);
  return t.runtime;
}
const std::string& why_no_device(DeviceType type) { return type_of(type).missing; }
bool device_backend_broken(DeviceType type) {
  device_runtime(type);
  return type_of(type).broken;
}

DeviceRuntime* pinning_runtime() {
  for (int i = 1; i < types().count.load(std::memory_order_acquire); ++i)
    if (DeviceRuntime* r = device_runtime(static_cast<DeviceType>(i)); r && r->capabilities().pinned_memory) return r;
  return nullptr;
}

}  // namespace holon
