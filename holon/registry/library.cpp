#include "holon/registry/library.h"

#include <dlfcn.h>

#include <filesystem>
#include <map>
#include <mutex>

#include "holon/base/error.h"
#include "holon/base/fork.h"
#include "holon/registry/loading.h"
#include "holon/registry/op_def.h"

namespace holon {

std::vector<std::string> load_library(const std::string& path) {
  static auto* mutex = new ProcessMutex;
  static auto* loaded = new std::map<void*, std::vector<std::string>>;
  std::lock_guard lock(*mutex);
  std::error_code error;
  if (!std::filesystem::exists(path, error))
    fail_runtime(
        "load_library: there is no file {}. Give the path of the shared library compiled from the op's source.", path);
  std::vector<std::string> declared;
  size_t others;
  void* handle;
  {
    detail::Loading loading;
    handle = dlopen(std::filesystem::absolute(path).c_str(), RTLD_NOW | RTLD_LOCAL);
    // Of names that are missing, the loader says the first.
    if (!handle)
      fail_runtime("load_library: {} cannot be loaded: {}. Compile it as a shared library against this version of "
                   "Holon's headers.",
                   path, dlerror());
    if (auto it = loaded->find(handle); it != loaded->end()) {
      dlclose(handle);
      return it->second;
    }
    if (!loading.error().empty()) {
      // What was declared is forgotten, and the library stays mapped: a declaration may have left a pointer into it.
      loading.undo();
      fail_runtime("load_library: {}: {}", path, loading.error());
    }
    declared = loading.finish();
    others = loading.others;
  }
  if (declared.empty() && others == 0)
    fail_runtime("load_library: {} declares no ops. Declare one with HOLON_OP(name, \"name(Tensor x) -> Tensor\"), or "
                 "a class or a function of Python with HOLON_PYTHON_MODULE(Class) or HOLON_PYTHON_FUNCTION(function).",
                 path);
  return loaded->emplace(handle, std::move(declared)).first->second;
}

}  // namespace holon
