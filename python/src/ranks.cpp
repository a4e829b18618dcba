// Ranks and what belongs to them: world, random seed, memory, printing; ranks as threads; the interpreter's lock around
// waits.
#include <dlfcn.h>
#include <nanobind/eval.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "args.h"
#include "holon/array/memory.h"
#include "holon/base/blocking.h"
#include "holon/base/context.h"
#include "holon/base/hash.h"
#include "holon/base/index.h"
#include "holon/base/settings.h"
#include "holon/comm/core/communicator.h"
#include "holon/comm/core/context_handoff.h"
#include "holon/comm/core/report.h"
#include "holon/comm/run_ranks.h"
#include "holon/dispatch/dispatch.h"
#include "holon/dispatch/draw_seed.h"
#include "holon/graph/virtual_rank.h"
#include "holon/tensor/print.h"

namespace holon::python {

namespace {

std::vector<std::string>& package_folders() {
  static std::vector<std::string> folders;
  return folders;
}

}  // namespace

bool is_users_file(const char* file) {
  return std::ranges::none_of(package_folders(), [&](auto& f) { return std::string_view(file).starts_with(f); });
}

namespace {

// A thread that does not hold the lock (one of the core's own) has nothing to give up.
void* release_lock() { return Py_IsInitialized() && PyGILState_Check() ? PyEval_SaveThread() : nullptr; }
void take_lock(void* state) { PyEval_RestoreThread(static_cast<PyThreadState*>(state)); }
// Ctrl-C ends a wait. Off the main thread Python has no signals to look at, but another thread may have requested an
// exception (PyThreadState_SetAsyncExc), which only running code raises.
void look_at_signals() {
  nb::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() < 0) raise_python();
  static PyObject* const nothing = nb::eval("lambda: None", nb::dict()).release().ptr();
  PyObject* result = PyObject_CallNoArgs(nothing);
  if (!result) raise_python();
  Py_DECREF(result);
}

// The innermost frame that is the user's, and its code; none on a thread of the core's own. Pre: the lock is held.
struct UserFrame {
  nb::object frame, code;
  const char* file = nullptr;
};
UserFrame user_frame(PyThreadState* thread) {
  UserFrame u;
  u.frame = nb::steal(reinterpret_cast<PyObject*>(PyThreadState_GetFrame(thread)));
  while (u.frame.ptr()) {
    auto* f = reinterpret_cast<PyFrameObject*>(u.frame.ptr());
    u.code = nb::steal(reinterpret_cast<PyObject*>(PyFrame_GetCode(f)));
    u.file = PyUnicode_AsUTF8(reinterpret_cast<PyCodeObject*>(u.code.ptr())->co_filename);
    if (!u.file) PyErr_Clear();
    if (u.file && is_users_file(u.file)) return u;
    u.frame = nb::steal(reinterpret_cast<PyObject*>(PyFrame_GetBack(f)));
  }
  return {};
}

PyThreadState* python_thread() { return Py_IsInitialized() ? PyGILState_GetThisThreadState() : nullptr; }

void user_line(char* text, size_t size) {
  text[0] = 0;
  PyThreadState* thread = python_thread();
  if (!thread) return;
  nb::gil_scoped_acquire gil;
  const UserFrame u = user_frame(thread);
  if (!u.file) return;
  char line[16];
  const int length =
      std::snprintf(line, sizeof line, ":%d", PyFrame_GetLineNumber(reinterpret_cast<PyFrameObject*>(u.frame.ptr())));
  // The end of a long path says more than its beginning.
  std::string_view shown(u.file), cut;
  if (shown.size() + to_size(length) + 1 > size)
    cut = "...", shown.remove_prefix(shown.size() + to_size(length) + 4 - size);
  std::snprintf(text, size, "%.*s%.*s%s", static_cast<int>(cut.size()), cut.data(), static_cast<int>(shown.size()),
                shown.data(), line);
}

// Numbers of places in code, which is held so that its address stays its own. Pre: the lock is held.
class Places {
 public:
  uint64_t current(PyThreadState* thread) {
    if (numbers_.size() > kMost) {
      for (auto& [code, users] : codes_) Py_DECREF(code);
      codes_.clear();
      numbers_.clear();
    }
    nb::object frame = nb::steal(reinterpret_cast<PyObject*>(PyThreadState_GetFrame(thread)));
    while (frame.ptr()) {
      auto* f = reinterpret_cast<PyFrameObject*>(frame.ptr());
      nb::object code = nb::steal(reinterpret_cast<PyObject*>(PyFrame_GetCode(f)));
      if (is_users(code.ptr())) {
#if PY_VERSION_HEX >= 0x030B0000
        const int place = PyFrame_GetLasti(f);
#else
        const int place = PyFrame_GetLineNumber(f);
#endif
        auto [it, fresh] = numbers_.try_emplace({code.ptr(), place}, last_ + 1);
        if (fresh) ++last_;
        return it->second;
      }
      frame = nb::steal(reinterpret_cast<PyObject*>(PyFrame_GetBack(f)));
    }
    return 0;
  }

 private:
  static constexpr size_t kMost = 1 << 16;

  bool is_users(PyObject* code) {
    auto [it, fresh] = codes_.try_emplace(code, false);
    if (fresh) {
      Py_INCREF(code);
      const char* file = PyUnicode_AsUTF8(reinterpret_cast<PyCodeObject*>(code)->co_filename);
      if (!file) PyErr_Clear();
      it->second = file && is_users_file(file);
    }
    return it->second;
  }

  struct PlaceHash {
    size_t operator()(const std::pair<PyObject*, int>& p) const { return hash_words(p.first, p.second); }
  };
  std::unordered_map<PyObject*, bool> codes_;
  std::unordered_map<std::pair<PyObject*, int>, uint64_t, PlaceHash> numbers_;
  uint64_t last_ = 0;
};

uint64_t user_place() {
  PyThreadState* thread = python_thread();
  if (!thread) return 0;
  nb::gil_scoped_acquire gil;
  static auto* places = new Places;  // never destroyed: the interpreter may be gone before
  return places->current(thread);
}

void user_function(char* text, size_t size) {
  text[0] = 0;
  PyThreadState* thread = python_thread();
  if (!thread) return;
  nb::gil_scoped_acquire gil;
  const UserFrame u = user_frame(thread);
  if (!u.file) return;
#if PY_VERSION_HEX >= 0x030B0000
  PyObject* name = reinterpret_cast<PyCodeObject*>(u.code.ptr())->co_qualname;
#else
  PyObject* name = reinterpret_cast<PyCodeObject*>(u.code.ptr())->co_name;
#endif
  const char* utf8 = PyUnicode_AsUTF8(name);
  if (utf8)
    std::snprintf(text, size, "%s", utf8);
  else
    PyErr_Clear();
}

// CPython writes a thread's frames without its lock, for faulthandler; where it does not export the function there is
// no such stack.
void (*dump_traceback)(int fd, PyThreadState*) = nullptr;
void dump_stack(int fd) {
  if (PyThreadState* thread = PyGILState_GetThisThreadState(); dump_traceback && thread) dump_traceback(fd, thread);
}

// The first exception of any rank, as the Python object that it was.
struct FirstFailure {
  nb::object exception;
  bool set = false;
  void keep(nb::python_error& e) {
    if (set) return;
    set = true;
    exception = nb::borrow(e.value());
  }
};

std::optional<size_t> bytes_or_none(const char* call, nb::handle bytes) {
  if (bytes.is_none()) return std::nullopt;
  int64_t v;
  if (!to_int(bytes.ptr(), &v)) fail_type("{}: bytes must be int or None, got {}.", call, describe(bytes.ptr()));
  if (v < 0) fail_value("{}: {} bytes; give a number that is at least 0, or None.", call, v);
  return to_size(v);
}

ObjectOf<"int | None"> bytes_or_none(std::optional<size_t> bytes) {
  return bytes ? nb::object(nb::int_(*bytes)) : nb::none();
}

nb::typed<nb::list, nb::any> run_ranks(int n, HandleOf<"Callable[[int], Any]"> fn) {
  if (n < 1) fail_value("run_ranks: {} ranks; a world has at least one.", n);
  if (!PyCallable_Check(fn.ptr())) fail_type("run_ranks: takes a function of the rank, got {}.", describe(fn.ptr()));
  nb::list results;
  for (int i = 0; i < n; ++i) results.append(nb::none());
  FirstFailure failure;
  try {
    nb::gil_scoped_release release;
    comm::run_ranks(n, [&](int rank) {
      nb::gil_scoped_acquire acquire;
      try {
        at_index(results, rank) = fn(rank);
      } catch (nb::python_error& e) {
        failure.keep(e);
        std::string what = e.what();
        size_t last = what.find_last_not_of('\n');
        what.resize(last == std::string::npos ? 0 : last + 1);
        throw Error(ErrorKind::kRuntime,
                    std::move(what));  // for the other ranks' messages; the object itself is raised below
      }
    });
  } catch (const Error&) {
    if (!failure.set) throw;
  }
  if (failure.set) {
    PyErr_SetObject(failure.exception.type().ptr(), failure.exception.ptr());
    raise_python();
  }
  return results;
}

void barrier() {
  int world = Context::current().world_size();
  if (world == 1 || graph::is_virtual()) return;
  std::vector<int> ranks(to_size(world));
  for (int r = 0; r < world; ++r) at_index(ranks, r) = r;
  comm::communicator(ranks).barrier();
}

nb::typed<nb::dict, nb::str, nb::any> get_printoptions() {
  const PrintOptions& o = print_options();
  nb::dict d;
  d["precision"] = o.precision;
  d["threshold"] = o.threshold;
  d["edgeitems"] = o.edge_items;
  d["linewidth"] = o.line_width;
  d["gather"] = o.gather;
  d["prefix"] = o.prefix;
  return d;
}

void set_printoptions(HandleOf<"int"> precision, HandleOf<"int"> threshold, HandleOf<"int"> edgeitems,
                      HandleOf<"int"> linewidth, HandleOf<"str"> profile, HandleOf<"bool"> gather,
                      HandleOf<"str"> prefix) {
  PrintOptions o = print_options();
  if (!profile.is_none()) {
    std::string p = nb::cast<std::string>(nb::str(profile));
    if (p != "default" && p != "short" && p != "full")
      fail_value("set_printoptions: profile must be \"default\", \"short\" or \"full\", got \"{}\".", p);
    o.precision = p == "short" ? 2 : 4;
    o.threshold = p == "full" ? INT64_MAX : 1000;
    o.edge_items = p == "short" ? 2 : 3;
    o.line_width = 80;
  }
  auto number = [](nb::handle h, const char* what, int64_t least, auto* out) {
    int64_t v;
    if (h.is_none()) return;
    if (!to_int(h.ptr(), &v) || v < least)
      fail_value("set_printoptions: {} must be an int of at least {}, got {}.", what, least, describe(h.ptr()));
    *out = static_cast<std::remove_pointer_t<decltype(out)>>(std::min<int64_t>(v, 1 << 30));
  };
  number(precision, "precision", 0, &o.precision);
  number(threshold, "threshold", 0, &o.threshold);
  number(edgeitems, "edgeitems", 1, &o.edge_items);
  number(linewidth, "linewidth", 10, &o.line_width);
  if (!gather.is_none() && !to_bool(gather.ptr(), &o.gather))
    fail_type("set_printoptions: gather must be bool, got {}.", describe(gather.ptr()));
  if (!prefix.is_none()) o.prefix = nb::cast<std::string>(nb::str(prefix));
  print_options() = o;
}

// What `with handoff:` opens and closes, on one thread.
class Handoff {
 public:
  void enter() {
    auto scope = std::unique_ptr<comm::ContextHandoff::Scope>(new comm::ContextHandoff::Scope(handoff_.enter()));
    thread_ = std::this_thread::get_id();
    scope_ = std::move(scope);
  }
  void exit() {
    if (!scope_ || thread_ != std::this_thread::get_id())
      fail_runtime("ContextHandoff: this thread leaves a block that it has not entered. Use `with handoff:`.");
    scope_.reset();
  }

 private:
  comm::ContextHandoff handoff_;
  std::unique_ptr<comm::ContextHandoff::Scope> scope_;
  std::thread::id thread_;
};

}  // namespace

void bind_ranks(nb::module_& m) {
  using namespace nb::literals;
  dump_traceback = reinterpret_cast<decltype(dump_traceback)>(dlsym(RTLD_DEFAULT, "_Py_DumpTraceback"));
  set_blocking_hooks({release_lock, take_lock, look_at_signals, user_line, user_place, user_function, dump_stack});
  m.def(
      "add_package_folder", [](const std::string& path) { package_folders().push_back(path); }, "path"_a,
      "Adds a folder whose files are not part of the user's program: errors show the line that called into it.");
  m.def(
      "is_users_file", [](const char* file) { return is_users_file(file); }, "file"_a,
      "Returns whether a file is in none of these folders.");
  m.def(
      "user_line",
      [] {
        char text[512];
        user_line(text, sizeof text);
        return std::string(text);
      },
      "The file and line of the user's program that is running.");

  m.def(
      "rank", [] { return Context::current().rank(); }, "This rank's number, from 0.");
  m.def(
      "world_size", [] { return Context::current().world_size(); }, "The number of ranks.");
  m.def(
      "local_rank", [] { return Context::current().local_rank(); }, "This rank's number on its host.");
  m.def(
      "local_world_size", [] { return Context::current().local_world_size(); }, "The number of ranks on this host.");
  m.def(
      "ranks_are_threads", [] { return Context::current().ranks_are_threads(); },
      "Whether the ranks are threads of this process.");
  m.def("run_ranks", run_ranks, "n"_a, "fn"_a,
        "Runs fn(rank) on n threads, which are the ranks of a separate world, and returns their results in a list. The "
        "first exception of a rank is raised here.");
  nb::class_<Handoff>(
      m, "ContextHandoff",
      "A rank for a thread that it starts itself: created in the rank's own thread, entered by `with` in "
      "the other one, whose collectives then pair with those that the other ranks' threads with the "
      "same handoff make. Ranks create their handoffs in the same order. The thread has its own "
      "gradient mode, autocast and random numbers, which a later `with` continues. RuntimeError: it is "
      "created in a thread that was handed its rank itself, or is used by two threads at a time.")
      .def(nb::init<>())
      .def(
          "__enter__",
          [](Handoff& h) -> Handoff& {
            h.enter();
            return h;
          },
          nb::rv_policy::reference)
      .def(
          "__exit__", [](Handoff& h, nb::args) { h.exit(); }, "args"_a);
  m.def("barrier", barrier, "Waits for all ranks. Collective.");
  m.def(
      "join_world", [] { comm::join_world(); }, "Joins the world now. Collective.");
  m.def(
      "abort_world", [](const std::string& reason) { return comm::abort_world(reason); }, "reason"_a,
      "Tells the other ranks that this one has failed: what they wait for raises with the reason. Returns whether it "
      "was the first.");
  m.def(
      "note_trouble", [](const std::string& text) { comm::note_trouble(text); }, "text"_a,
      "Something that may end this rank later; ranks that then wait for it are told the reason.");
  m.def(
      "set_call_site", [](const std::string& text) { comm::set_call_site(text.c_str()); }, "text"_a,
      "What this rank is about to do, e.g. a file and line: shown in errors of later communication.");
  m.def(
      "comm_stats",
      [] {
        nb::dict d;
        d["calls"] = comm::stats().calls;
        d["bytes_read"] = comm::stats().bytes_read;
        return nb::typed<nb::dict, nb::str, int>(d);
      },
      "What this rank has communicated: calls and bytes_read.");

  m.def(
      "manual_seed",
      [](HandleOf<"int"> seed) {
        int64_t v;
        if (!to_int(seed.ptr(), &v)) fail_type("manual_seed: seed must be int, got {}.", describe(seed.ptr()));
        manual_seed(static_cast<uint64_t>(v));
      },
      "seed"_a,
      "Seeds this rank's random numbers. Local draws are the same on ranks with the same seed; a global draw uses the "
      "seed of its placement's first rank.");
  m.def(
      "initial_seed", [] { return random_state().seed; }, "The seed of this rank's random numbers.");
  m.def(
      "get_rng_state",
      [] {
        const RandomState& r = random_state();
        return nb::typed<nb::tuple, int, bool, int, int>(
            nb::make_tuple(r.seed, r.seeded, r.local_counter, r.global_counter));
      },
      "(seed, seeded, local counter, global counter)");
  m.def(
      "set_rng_state",
      [](nb::typed<nb::tuple, int, bool, int, int> s) {
        if (s.size() != 4) fail_value("set_rng_state: takes what get_rng_state() returned, got {} items.", s.size());
        RandomState& state = random_state();
        state.seed = nb::cast<uint64_t>(s[0]);
        state.seeded = nb::cast<bool>(s[1]);
        state.local_counter = nb::cast<int64_t>(s[2]);
        state.global_counter = nb::cast<int64_t>(s[3]);
        forget_agreed_seeds();
      },
      "state"_a, "Restores what get_rng_state() returned.");

  m.def(
      "memory_stats",
      [] {
        MemoryStats s = memory_stats();
        nb::dict d;
        d["in_use_bytes"] = s.in_use_bytes;
        d["peak_bytes"] = s.peak_bytes;
        d["cached_bytes"] = s.cached_bytes;
        return nb::typed<nb::dict, nb::str, int>(d);
      },
      "Bytes of array memory: in_use_bytes, peak_bytes, cached_bytes.");
  m.def(
      "reset_peak_memory", [] { reset_peak_memory(); }, "Resets the peak.");
  m.def(
      "release_cached_memory", [] { release_cached_memory(); }, "Returns cached memory to the system.");
  m.def(
      "set_memory_limit", [](HandleOf<"int"> bytes) { set_memory_limit(bytes_or_none("set_memory_limit", bytes)); },
      "bytes"_a.none(), "The number of bytes that arrays may use, cached memory included; None: no limit.");
  m.def(
      "memory_limit", [] { return bytes_or_none(memory_limit()); }, "What set_memory_limit() has set, or None.");
  m.def(
      "set_cache_high_water",
      [](HandleOf<"int"> bytes) { set_cache_high_water(bytes_or_none("set_cache_high_water", bytes)); },
      "bytes"_a.none(),
      "Cached memory beyond this number of bytes is returned to the system; None: beyond the peak of what was in use.");
  m.def(
      "cache_high_water", [] { return bytes_or_none(cache_high_water()); },
      "What set_cache_high_water() has set, or None.");
  nb::class_<ForkScope>(m, "ForkScope", "While it exists, forks of this process share one copy of a rank's tensors.")
      .def(nb::init<>());
  m.def(
      "settings",
      [] {
        nb::list l;
        for (auto& s : settings::all()) l.append(nb::make_tuple(s.name, s.fallback, s.doc));
        return nb::typed<nb::list, nb::typed<nb::tuple, nb::str, nb::str, nb::str>>(l);
      },
      "All HOLON_* environment variables: (name, default, meaning).");
  m.def(
      "setting", [](const std::string& name) { return settings::text(name); }, "name"_a,
      "The value of a HOLON_* variable, or its default.");

  m.def("get_printoptions", get_printoptions, "How values are printed.");
  m.def("set_printoptions", set_printoptions, "precision"_a = nb::none(), "threshold"_a = nb::none(),
        "edgeitems"_a = nb::none(), "linewidth"_a = nb::none(), "profile"_a = nb::none(), nb::kw_only(),
        "gather"_a = nb::none(), "prefix"_a = nb::none(),
        "Changes how values are printed. gather: prints the whole value of a global tensor, which makes printing "
        "collective. prefix: of names such as holon.float32.");
}

}  // namespace holon::python
