#include "holon/exports/python.h"

#include <cxxabi.h>
#include <dlfcn.h>

#include <cstdlib>
#include <deque>
#include <filesystem>
#include <mutex>
#include <unordered_set>

#include "holon/base/error.h"
#include "holon/base/fork.h"
#include "holon/registry/library.h"
#include "holon/registry/loading.h"

namespace holon::exports {

namespace {

template <class E>
struct Entry {
  E made;
  std::string file;  // of the library
  bool taken_back = false;
};

// What libraries export; never freed, as libraries stay.
struct Registry {
  ProcessMutex mutex;
  std::deque<Entry<ModuleExport>> modules;
  std::deque<Entry<FunctionExport>> functions;
};
Registry& registry() {
  static auto* r = new Registry;
  return *r;
}

std::string file_of(const void* variable) {
  Dl_info info;
  if (!dladdr(variable, &info) || !info.dli_fname) return "";
  std::error_code error;
  auto path = std::filesystem::canonical(info.dli_fname, error);
  return error ? info.dli_fname : path.string();
}

// "my::Net" -> "Net"
std::string last_name(const std::string& name) {
  const size_t colon = name.rfind(':');
  return colon == std::string::npos ? name : name.substr(colon + 1);
}

template <class E>
bool has(const std::deque<Entry<E>>& entries, const std::string& file, const std::string& name) {
  for (auto& e : entries)
    if (!e.taken_back && e.file == file && e.made.name == name) return true;
  return false;
}

// An error of a declaration: raised, or kept while a library is loaded, through whose loader no exception may pass.
template <class F>
void declare(F&& f) {
  auto* loading = holon::detail::Loading::current();
  try {
    f();
  } catch (const std::exception& e) {
    if (!loading) throw;
    loading->keep_error(e.what());
  }
}

template <class E>
E* add(std::deque<Entry<E>>& entries, E made, const void* variable, int version) {
  Entry<E>* entry;
  {
    std::lock_guard lock(registry().mutex);
    entry = &entries.emplace_back();
    entry->taken_back = true;  // until it is known to be right
  }
  declare([&] {
    if (version != detail::kExportVersion)
      fail_runtime("the export {} was compiled against version {} of holon/exports/python.h, and this is {}. Compile "
                   "the library against these headers.",
                   made.name, version, detail::kExportVersion);
    made.name = last_name(made.name);
    std::string file = file_of(variable);
    std::lock_guard lock(registry().mutex);
    if (has(registry().modules, file, made.name) || has(registry().functions, file, made.name))
      fail_runtime("the library exports {} twice. Choose another name.", made.name);
    entry->file = std::move(file);
    entry->made = std::move(made);
    entry->taken_back = false;
  });
  if (auto* loading = holon::detail::Loading::current()) {
    ++loading->others;
    loading->undo_others.emplace_back([entry] {
      std::lock_guard lock(registry().mutex);
      entry->taken_back = true;
    });
  }
  return &entry->made;
}

}  // namespace

namespace detail {

ModuleExport* add_export(ModuleExport made, const void* variable, int version) {
  made.forward.name = last_name(made.name);
  return add(registry().modules, std::move(made), variable, version);
}
FunctionExport* add_export(FunctionExport made, const void* variable, int version) {
  return add(registry().functions, std::move(made), variable, version);
}

void set_arguments(Callable* callable, std::vector<Argument> arguments, const char* call) {
  declare([&] {
    if (arguments.size() != callable->n_arguments)
      fail_runtime("{}: .{}() has {} names for {} parameters. Name each of them.", callable->name, call,
                   arguments.size(), callable->n_arguments);
    std::unordered_set<std::string> names;
    bool optional = false;
    for (auto& a : arguments) {
      if (a.name.empty() || !names.insert(a.name).second)
        fail_runtime("{}: .{}() has the name '{}' twice, or an empty one.", callable->name, call, a.name);
      if (optional && !a.optional)
        fail_runtime("{}: .{}(): {} has no value and comes after arguments that have one.", callable->name, call,
                     a.name);
      optional = a.optional;
    }
    callable->arguments = std::move(arguments);
  });
}

}  // namespace detail

Exports load_exports(const std::string& path) {
  Exports all;
  all.ops = load_library(path);
  std::error_code error;
  const std::string file = std::filesystem::canonical(path, error).string();
  std::lock_guard lock(registry().mutex);
  for (auto& e : registry().modules)
    if (!e.taken_back && e.file == file) all.modules.push_back(&e.made);
  for (auto& e : registry().functions)
    if (!e.taken_back && e.file == file) all.functions.push_back(&e.made);
  return all;
}

const ModuleExport* find_export(const std::type_info& type) {
  std::lock_guard lock(registry().mutex);
  for (auto& e : registry().modules)
    if (!e.taken_back && *e.made.type == type) return &e.made;
  return nullptr;
}

std::string class_name(const std::type_info& type) {
  int status = 0;
  std::unique_ptr<char, void (*)(void*)> text(abi::__cxa_demangle(type.name(), nullptr, nullptr, &status), std::free);
  return status == 0 ? text.get() : type.name();
}

}  // namespace holon::exports
