#include "holon/array/vendor_library.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>

#include "holon/base/fmt.h"

namespace holon {

namespace {

namespace fs = std::filesystem;

constexpr int kMostNeeds = 16;  // of one library, and how deep they go

struct Libraries {
  std::recursive_mutex mutex;
  std::vector<std::string> packages;
  std::map<std::string, VendorLibrary, std::less<>> asked;
};
Libraries& libraries() {
  static auto* l = new Libraries;
  return *l;
}

std::vector<fs::path> folders_in(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    if (it->is_directory(error)) found.push_back(it->path());
  std::sort(found.begin(), found.end());
  return found;
}

// The number of "cuda-13.1" as 13001; "cuda" itself, which somebody has chosen, comes before all.
int version_of(const fs::path& toolkit) {
  int major = 0, minor = 0;
  const std::string name = toolkit.filename().string();
  if (name == "cuda") return 1 << 30;
  std::sscanf(name.c_str(), "cuda-%d.%d", &major, &minor);
  return major * 1000 + minor;
}

std::vector<fs::path> places() {
  std::vector<fs::path> found;
  for (const fs::path package : package_folders())
    for (auto& part : folders_in(package / "nvidia")) found.push_back(part / "lib");
  for (const char* variable : {"CUDA_HOME", "CUDA_PATH"})
    if (const char* toolkit = std::getenv(variable); toolkit && *toolkit)
      for (const char* lib : {"lib64", "lib"}) found.push_back(fs::path(toolkit) / lib);
  std::vector<fs::path> toolkits;
  for (auto& folder : folders_in("/usr/local"))
    if (folder.filename().string().starts_with("cuda")) toolkits.push_back(folder);
  std::stable_sort(toolkits.begin(), toolkits.end(), [](auto& a, auto& b) { return version_of(a) > version_of(b); });
  for (auto& toolkit : toolkits)
    for (const char* lib : {"lib64", "lib"}) found.push_back(toolkit / lib);
  return found;
}

std::string loader_says() {
  const char* text = dlerror();
  return text ? text : "it cannot be loaded";
}

void* load(const std::string& path, int depth, std::string* why_not);

VendorLibrary find(std::string_view name, int depth) {
  VendorLibrary l;
  l.name = name;
  l.handle = load(l.name, depth, &l.missing);
  std::string looked;
  int count = 0;
  if (!l.handle && name.find('/') == std::string_view::npos)
    for (auto& place : places()) {
      const fs::path file = place / l.name;
      std::error_code error;
      ++count;
      if (!fs::exists(file, error)) continue;
      std::string why;
      if ((l.handle = load(file.string(), depth, &why))) break;
      looked += "; " + why;
    }
  if (l.handle) {
    l.missing.clear();
    link_map* map = nullptr;
    l.path = dlinfo(l.handle, RTLD_DI_LINKMAP, &map) == 0 && map && map->l_name && *map->l_name ? map->l_name : l.name;
  } else {
    l.missing += fmt::format("{}; nor is it in the {} folders of pip packages (nvidia/*/lib) and toolkits "
                             "(/usr/local/cuda*) that were searched",
                             looked, count);
  }
  return l;
}

// The library that is missing where the loader says so of one that `path` needs; else empty.
std::string missing_need(const std::string& path, const std::string& says) {
  const size_t end = says.find(": cannot open shared object file");
  if (end == std::string::npos) return {};
  const std::string name = says.substr(0, end);
  return name == path || name.find('/') != std::string::npos ? std::string() : name;
}

void* load(const std::string& path, int depth, std::string* why_not) {
  std::string last;
  for (int i = 0; i < kMostNeeds; ++i) {
    if (void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return handle;
    *why_not = loader_says();
    const std::string need = missing_need(path, *why_not);
    if (need.empty() || need == last || depth >= kMostNeeds) return nullptr;
    last = need;
    // It stays loaded, by which the loader finds it in the next round.
    if (VendorLibrary l = find(need, depth + 1); !l.handle) {
      *why_not = path + " needs " + l.missing;
      return nullptr;
    }
  }
  return nullptr;
}

}  // namespace

VendorLibrary vendor_library(std::string_view name) {
  Libraries& all = libraries();
  std::lock_guard lock(all.mutex);
  auto found = all.asked.find(name);
  if (found == all.asked.end()) found = all.asked.emplace(std::string(name), find(name, 0)).first;
  return found->second;
}

std::vector<VendorLibrary> vendor_libraries() {
  Libraries& all = libraries();
  std::lock_guard lock(all.mutex);
  std::vector<VendorLibrary> list;
  std::map<std::string, VendorLibrary, std::less<>> known = all.asked;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* into) {
        const fs::path path = info->dlpi_name;
        const std::string name = path.filename().string();
        for (const char* ours : {"libcublasLt.so", "libcudnn.so", "libnccl.so", "libnvrtc.so", "libcuda.so"})
          if (name.starts_with(ours))
            static_cast<decltype(known)*>(into)->try_emplace(name, VendorLibrary{name, nullptr, path.string(), {}});
        return 0;
      },
      &known);
  for (auto& [name, l] : known) list.push_back(l);
  return list;
}

void set_package_folders(std::vector<std::string> folders) {
  Libraries& all = libraries();
  std::lock_guard lock(all.mutex);
  all.packages = std::move(folders);
  std::erase_if(all.asked, [](auto& l) { return !l.second.handle; });
}

std::vector<std::string> package_folders() {
  Libraries& all = libraries();
  std::lock_guard lock(all.mutex);
  std::vector<std::string> folders = all.packages;
  Dl_info here;
  if (dladdr(reinterpret_cast<void*>(&vendor_library), &here) && here.dli_fname) {
    std::error_code error;
    fs::path at = fs::absolute(here.dli_fname, error).lexically_normal();
    for (int up = 0; up < 4 && at.has_relative_path(); ++up) folders.push_back((at = at.parent_path()).string());
  }
  return folders;
}

void* load_with_vendor_libraries(const std::string& path, std::string* why_not) {
  std::lock_guard lock(libraries().mutex);
  return load(path, 0, why_not);
}

}  // namespace holon
