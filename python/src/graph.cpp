// nn.Graph: Python's arguments, optimizers and lines of code for the core's Graph.
#include "holon/base/index.h"
#include "holon/graph/capture/blocks.h"
#include "holon/graph/graph_core.h"
#include "holon/graph/picture/memory_use.h"
#include "holon/graph/picture/plan.h"
#include "holon/graph/picture/timetable.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <functional>
#include <memory>
#include <unordered_map>
#include <variant>

#include "args.h"
#include "bind.h"
#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/hash.h"
#include "holon/graph/capture/capture.h"
#include "holon/graph/step.h"
#include "nested.h"
#include "optim.h"

namespace holon::python {

namespace {

// Counts changes of modules that a graph may have to see: a flag, a parameter, a submodule.
std::atomic<uint64_t> module_changes{0};

// The user's line for each op of a capture: the innermost frame of a file outside the package, remembered by its
// place in the code.
class UserLines {
 public:
  std::string operator()() {
    nb::object frame = nb::steal(reinterpret_cast<PyObject*>(PyThreadState_GetFrame(PyThreadState_Get())));
    while (frame.ptr()) {
      auto* f = reinterpret_cast<PyFrameObject*>(frame.ptr());
      nb::object code = nb::steal(reinterpret_cast<PyObject*>(PyFrame_GetCode(f)));
      if (is_users(code)) {
#if PY_VERSION_HEX >= 0x030B0000
        const int place = PyFrame_GetLasti(f);
#else
        const int place = PyFrame_GetLineNumber(f);
#endif
        auto [it, fresh] = lines_.try_emplace({code.ptr(), place});
        if (fresh) {
          const char* file = PyUnicode_AsUTF8(reinterpret_cast<PyCodeObject*>(code.ptr())->co_filename);
          it->second = fmt::format("{}:{}", file ? file : "?", PyFrame_GetLineNumber(f));
          PyErr_Clear();
        }
        return it->second;
      }
      frame = nb::steal(reinterpret_cast<PyObject*>(PyFrame_GetBack(f)));
    }
    return {};
  }

 private:
  bool is_users(const nb::object& code) {
    auto [it, fresh] = codes_.try_emplace(code.ptr());
    if (fresh) {
      const char* file = PyUnicode_AsUTF8(reinterpret_cast<PyCodeObject*>(code.ptr())->co_filename);
      it->second = {code, file && is_users_file(file)};
      PyErr_Clear();
    }
    return it->second.second;
  }

  struct Hash {
    size_t operator()(const std::pair<PyObject*, int>& k) const { return hash_words(k.first, k.second); }
  };
  std::unordered_map<PyObject*, std::pair<nb::object, bool>> codes_;  // held, so that an address stays one code's
  std::unordered_map<std::pair<PyObject*, int>, std::string, Hash> lines_;
};

// An optimizer of the Python package. Its class has `_rule`, `_state` and `_give_back`
// (python/holon/optim/optimizer.py).
class PyOptimizer final : public nn::GraphOptimizer {
 public:
  explicit PyOptimizer(nb::handle optimizer)
      : weak_(nb::steal(checked(PyWeakref_NewRef(optimizer.ptr(), nullptr)))),
        kind_(nb::cast<std::string>(optimizer.attr("_rule"))),
        name_(Py_TYPE(optimizer.ptr())->tp_name) {}

  std::string name() const override { return name_; }
  size_t n_groups() const override { return nb::len(groups()); }
  Group group(size_t i) const override {
    nb::object options = dict(i);
    Group g{rule_of(kind_, options), -1, 2, 0};
    auto number = [&](const char* name, double* out) {
      PyObject* o = PyDict_GetItemString(options.ptr(), name);
      if (!o || o == Py_None) return false;
      if (!to_float(o, out)) fail_type("the option {} must be a number, got {}.", name, describe(o));
      return true;
    };
    if (number("clip_grad_max_norm", &g.clip_grad_max_norm) && !(g.clip_grad_max_norm >= 0))
      fail_value("{}: the option clip_grad_max_norm is {}; it must not be negative. Pass None, or leave it out, if "
                 "gradients are not to be clipped.",
                 name_, g.clip_grad_max_norm);
    number("clip_grad_norm_type", &g.clip_grad_norm_type);
    g.n_params = nb::len(nb::object(options["params"]));
    return g;
  }
  std::vector<Tensor> params(size_t i) const override {
    std::vector<Tensor> list;
    for (nb::handle p : nb::object(dict(i)["params"])) list.push_back(expect_tensor(p, name_.c_str(), "a parameter"));
    return list;
  }
  void read(size_t group, std::span<const size_t> params, std::span<optim::Slot> slots) override {
    nb::object options = dict(group), list = options["params"],
               all = optimizer().attr("state");  // who has it gives it back
    const optim::Rule rule = rule_of(kind_, options);
    for (size_t i = 0; i < params.size(); ++i) {
      optim::Slot& slot = slots[i];
      nb::object p = list[params[i]];
      PyObject* found = PyDict_GetItemWithError(all.ptr(), p.ptr());
      if (!found && PyErr_Occurred()) raise_python();
      nb::dict state = found ? nb::borrow<nb::dict>(found) : nb::dict();
      for (int k = 0; k < optim::kMaxStates; ++k)
        if (const char* name = optim::state_name(rule, k))
          at_index(slot.state, k) = nn::state_for(rule, slot.param, state_in(state, name));
      slot.master = nn::state_for(rule, slot.param, state_in(state, "master"));
      slot.step = 0;
      if (PyObject* step = PyDict_GetItemString(state.ptr(), "step")) {
        double x = 0;
        if (!to_float(step, &x)) fail_type("the state 'step' of a parameter must be a number, got {}.", describe(step));
        slot.step = static_cast<int64_t>(x);
      }
    }
  }
  void write(size_t group, std::span<const size_t> params, std::span<const optim::Slot> slots) override {
    nb::object o = referenced();
    if (!o.is_valid()) return;
    nb::object options = dict(group), list = options["params"], all = o.attr("_state");
    const optim::Rule rule = rule_of(kind_, options);
    for (size_t i = 0; i < params.size(); ++i) {
      const optim::Slot& slot = slots[i];
      if (slot.step == 0) continue;
      nb::object p = list[params[i]], state = all[p];
      const Tensor& param = tensor_of(p.ptr());
      state["step"] = slot.step;
      for (int k = 0; k < optim::kMaxStates; ++k)
        if (const char* name = optim::state_name(rule, k); name && at_index(slot.state, k).defined())
          state[name] = wrap_object(nn::state_for(rule, param, at_index(slot.state, k)));
      if (slot.master.defined()) state["master"] = wrap_object(nn::state_for(rule, param, slot.master));
    }
  }
  void lend(const void* borrower, std::function<void()> give_back) override {
    nb::object o = optimizer();
    (void)o.attr("state");
    borrower_ = borrower;
    o.attr("_give_back") = nb::cpp_function([this, give_back = std::move(give_back)] {
      borrower_ = nullptr;
      give_back();
    });
  }
  const void* borrower() const override { return borrower_; }

 private:
  // What weak_ refers to; no object if it is gone.
  nb::object referenced() const {
#if PY_VERSION_HEX >= 0x030D0000
    PyObject* o = nullptr;
    if (PyWeakref_GetRef(weak_.ptr(), &o) < 0) raise_python();
    return nb::steal(o);
#else
    PyObject* o = PyWeakref_GetObject(weak_.ptr());
    return o == Py_None ? nb::object() : nb::borrow(o);
#endif
  }
  nb::object optimizer() const {
    nb::object o = referenced();
    if (!o.is_valid()) fail_runtime("the {} of a graph no longer exists. Keep it as long as the graph.", name_);
    return o;
  }
  nb::object groups() const { return optimizer().attr("param_groups"); }
  nb::object dict(size_t i) const { return groups()[i]; }
  nb::object weak_;  // the graph's Python object holds it; a strong reference would be a cycle through its lent state
  std::string kind_, name_;
  const void* borrower_ = nullptr;
};

// An amp.GradScaler.
class PyScaler final : public nn::GraphScaler {
 public:
  explicit PyScaler(nb::handle scaler) : scaler_(nb::borrow(scaler)) {}
  double scale() const override { return nb::cast<double>(scaler_.attr("get_scale")()); }
  void stepped(bool finite) override { scaler_.attr("_stepped_by_graph")(finite); }

 private:
  nb::object scaler_;
};

// The core's graph under Python's nn.Graph, which build() and the names of things come from.
class PyGraph final : public nn::GraphCore {
 public:
  explicit PyGraph(std::string name) : name_(std::move(name)) {}

  // The outputs, or NotImplemented where nothing is compiled for these arguments yet or modules have changed.
  nb::object run_compiled(nb::handle args, nb::handle kwargs) {
    check_not_capturing();
    if (changes_ != module_changes.load(std::memory_order_relaxed)) return nb::borrow(Py_NotImplemented);
    Tensors tensors;
    int64_t structure = structure_of(args, kwargs, tensors, false);
    if (structure < 0) return nb::borrow(Py_NotImplemented);
    const int at = find_current(tensors, variant(structure));
    if (at < 0) return nb::borrow(Py_NotImplemented);
    auto outputs = run(to_size(at), tensors);
    size_t next = 0;
    return put_together(at_index(out_trees_, at).ptr(), outputs, &next);
  }

  // front: has begin(), build(args, kwargs) and end().
  void compile_for(nb::handle args, nb::handle kwargs, nb::handle front) {
    Tensors tensors;
    int64_t structure = structure_of(args, kwargs, tensors, true);
    front_ = front;
    structure_ = structure;
    size_t at;
    try {
      at = entry_for(tensors, variant(structure));
    } catch (...) {
      front_ = {};
      throw;
    }
    front_ = {};
    if (at >= out_trees_.size()) out_trees_.resize(at + 1);
    if (out_tree_.is_valid()) out_trees_[at] = std::move(out_tree_);
    out_tree_.reset();
    compiled_ = at;
    compiled_structure_ = structure;
  }

  // Where to cut the chain of these modules into stages: see graph/capture/blocks.h. Nothing is compiled.
  nb::dict cut(nb::handle args, nb::handle kwargs, nb::handle front, const std::vector<std::string>& paths,
               int stages) {
    Tensors tensors;
    structure_ = structure_of(args, kwargs, tensors, true);
    front_ = front;
    graph::Graph g;
    try {
      g = capture(tensors);
    } catch (...) {
      front_ = {};
      throw;
    }
    front_ = {};
    out_tree_.reset();
    const graph::Chain chain = graph::cut_chain(g, paths, stages);
    nb::dict d, readers;
    for (size_t e = 0; e < g.externals.size(); ++e)
      if (!g.externals[e].name.empty()) readers[g.externals[e].name.c_str()] = nb::cast(chain.external_readers[e]);
    d["blocks"] = nb::cast(chain.blocks);
    d["costs"] = nb::cast(chain.costs);
    d["bytes"] = nb::cast(chain.bytes);
    d["cut_costs"] = nb::cast(chain.cut_costs);
    d["first"] = nb::cast(chain.first);
    d["input_readers"] = nb::cast(chain.input_readers);
    d["readers"] = readers;
    return d;
  }

  // flags: a number for the state that modules are in now. The signature compiled last has it from now on, if relabel.
  void set_flags(uint32_t flags, bool relabel) {
    flags_ = flags;
    changes_ = module_changes.load(std::memory_order_relaxed);
    if (relabel) set_variant(compiled_, variant(compiled_structure_));
  }
  void add(nb::handle optimizer) { add_optimizer(std::make_shared<PyOptimizer>(optimizer)); }
  void set_scaler(nb::handle scaler) {
    set_grad_scaler(scaler.is_none() ? std::shared_ptr<nn::GraphScaler>() : std::make_shared<PyScaler>(scaler));
  }
  std::string text(const std::string& description) {
    description_ = description;
    return str();
  }
  size_t n_structures() const { return n_structures_; }

  std::vector<std::string> recompute;

  std::vector<Tensor> build(TensorList symbols) override {
    const bool flat = structure_ < kFlat;
    size_t next = 0;
    nb::object args, kwargs;
    if (flat) {
      args = nb::steal(checked(PyTuple_New(static_cast<Py_ssize_t>(symbols.size()))));
      for (size_t i = 0; i < symbols.size(); ++i)
        PyTuple_SET_ITEM(args.ptr(), static_cast<Py_ssize_t>(i), wrap(symbols[i]));
      kwargs = nb::dict();
    } else {
      nb::object both = put_together(at_index(trees_, structure_ - kFlat).ptr(), symbols, &next);
      args = both[0];
      kwargs = both[1];
    }
    if (nb::hasattr(front_, "enter")) follow_cpp_modules();
    nb::object result = front_.attr("build")(args, kwargs);
    Tensors tensors;
    out_tree_ = take_apart(result.ptr(), tensors);
    return {tensors.begin(), tensors.end()};
  }

 protected:
  std::string name() const override { return name_; }
  std::string describe() const override { return description_; }
  void capture_begins(graph::Capture& capture) override {
    capture.set_site_hook(UserLines());
    front_.attr("begin")();
  }
  void capture_ends(graph::Capture&) override { front_.attr("end")(); }
  void compile_options(graph::CompileOptions* o) const override { o->recompute = recompute; }
  std::vector<Tensor> run_step(graph::Step& step, std::span<const Tensor> inputs) override {
    nb::gil_scoped_release released;
    return step.run(inputs);
  }

 private:
  static constexpr int64_t kFlat = 1 << 20;  // below: so many tensors and nothing else

  uint64_t variant(int64_t structure) const {
    return static_cast<uint64_t>(flags_) << 32 | static_cast<uint64_t>(structure);
  }

  // Modules of C++ call each other without Python, which has their paths and stages.
  void follow_cpp_modules() {
    graph::Capture::current()->set_module_hooks(
        [front = front_](const void* module, const Tensor& x) {
          nb::object brought = front.attr("enter")(reinterpret_cast<uintptr_t>(module), wrap_object(x));
          return brought.is_none() ? Tensor() : expect_tensor(brought, "a module of C++", "x");
        },
        [front = front_](bool failed) {
          try {
            front.attr("leave")(failed);
          } catch (nb::python_error& e) {
            e.discard_as_unraisable("a module's scope");
          }
        });
  }

  // A number for how the arguments are nested and for those that are not tensors. -1: not known, and not to be made.
  int64_t structure_of(nb::handle args, nb::handle kwargs, Tensors& tensors, bool make) {
    const Py_ssize_t n = PyTuple_GET_SIZE(args.ptr());
    const bool named = PyDict_GET_SIZE(kwargs.ptr()) > 0;
    Py_ssize_t i = 0;
    if (!named)
      for (; i < n && is_tensor(PyTuple_GET_ITEM(args.ptr(), i)); ++i)
        tensors.push_back(tensor_of(PyTuple_GET_ITEM(args.ptr(), i)));
    if (!named && i == n) return n;
    tensors.clear();
    nb::object both = nb::make_tuple(args, kwargs);
    nb::object tree = take_apart(both.ptr(), tensors);
    PyObject* known = PyDict_GetItemWithError(structures_.ptr(), tree.ptr());
    if (known) return PyLong_AsLongLong(known);
    if (PyErr_Occurred()) {
      std::string what;
      if (!PyErr_ExceptionMatches(PyExc_TypeError)) raise_python();
      PyErr_Clear();
      if (!find_unhashable(PyTuple_GET_ITEM(tree.ptr(), 2), "args", &what))
        find_unhashable(PyTuple_GET_ITEM(tree.ptr(), 3), "kwargs", &what);
      fail_type("{}: {}, cannot be compared with that of the next call. Arguments of a graph are tensors "
                "(holon.tensor(x)), hashable values, and lists, "
                "tuples and dicts of them.",
                name_, what.empty() ? "an argument" : what);
    }
    if (!make) return -1;
    const int64_t number = kFlat + static_cast<int64_t>(trees_.size());
    trees_.push_back(tree);
    structures_[tree] = number;
    ++n_structures_;
    return number;
  }

  std::string name_, description_;
  nb::handle front_;       // while a capture goes on
  int64_t structure_ = 0;  // of that capture's arguments
  nb::object out_tree_;
  std::vector<nb::object> out_trees_;  // of each signature
  std::vector<nb::object> trees_;
  nb::dict structures_;
  uint32_t flags_ = 0;
  uint64_t changes_ = ~uint64_t{0};
  size_t compiled_ = 0, n_structures_ = 0;
  int64_t compiled_structure_ = 0;
};

graph::Capture& open_capture(const char* what) {
  if (auto* c = graph::Capture::current()) return *c;
  fail_runtime("{}: no graph is being captured.", what);
}

nb::object option_object(const graph::OptionValue& value) {
  return std::visit(
      [](const auto& v) -> nb::object {
        if constexpr (std::is_same_v<std::decay_t<decltype(v)>, std::optional<DType>>)
          return v ? nb::object(dtype_object(*v)) : nb::none();
        else
          return nb::cast(v);
      },
      value);
}

std::vector<std::pair<std::string, int>> stage_list(nb::handle list) {
  return nb::cast<std::vector<std::pair<std::string, int>>>(list);
}

// A value of the same type as the option's now.
graph::OptionValue option_value(const std::string& name, const graph::OptionValue& now, nb::handle value) {
  auto as = [&](auto like) -> graph::OptionValue {
    using T = decltype(like);
    if constexpr (std::is_same_v<T, std::optional<DType>>) {
      return value.is_none() ? T() : T(expect_dtype(value, "config"));
    } else {
      T given{};
      const bool is_bool = PyBool_Check(value.ptr());
      if (is_bool != std::is_same_v<T, bool> || !nb::try_cast(value, given))
        fail_type("config: the option '{}' is {}; got {}.", name, nb::cast<std::string>(nb::repr(option_object(now))),
                  describe(value.ptr()));
      return given;
    }
  };
  return std::visit(as, now);
}

}  // namespace

void bind_graph(nb::module_& m) {
  using namespace nb::literals;
  nb::class_<nn::GraphConfig>(m, "GraphConfig", "The options of a graph's compilation.")
      .def(
          "enable_amp",
          [](nn::GraphConfig& c, bool on, nb::handle dtype, std::shared_ptr<Float8Recipe> recipe) {
            c.enable_amp(on, dtype.is_none() ? bfloat16 : expect_dtype(dtype, "config.enable_amp"), std::move(recipe));
          },
          "on"_a, "dtype"_a.none(), "recipe"_a.none())
      .def("enable_zero", &nn::GraphConfig::enable_zero, "on"_a, "stage"_a, "min_elements"_a)
      .def(
          "set",
          [](nn::GraphConfig& c, const std::string& name, nb::handle value) {
            c.set(name, option_value(name, c.get(name), value));
          },
          "name"_a, "value"_a, "Sets one of the options, which list_options() names.")
      .def(
          "get", [](const nn::GraphConfig& c, const std::string& name) { return option_object(c.get(name)); }, "name"_a)
      .def("options",
           [](const nn::GraphConfig& c) {
             nb::dict all;
             for (auto& option : graph::option_table()) all[option.name] = option_object(option.get(c.options()));
             return all;
           })
      .def_prop_ro("zero_stage", [](const nn::GraphConfig& c) { return c.options().zero_stage; })
      .def_prop_ro("micro_batches", &nn::GraphConfig::micro_batches)
      .def("__str__", &nn::GraphConfig::str);
  nb::class_<PyGraph>(m, "Graph", "The core of an nn.Graph.")
      .def(nb::init<std::string>(), "name"_a)
      .def_prop_ro(
          "config", [](PyGraph& g) -> nn::GraphConfig& { return g.config; }, nb::rv_policy::reference_internal)
      .def("run", &PyGraph::run_compiled, "args"_a, "kwargs"_a)
      .def("compile", &PyGraph::compile_for, "args"_a, "kwargs"_a, "front"_a)
      .def("cut", &PyGraph::cut, "args"_a, "kwargs"_a, "front"_a, "paths"_a, "stages"_a)
      .def("set_flags", &PyGraph::set_flags, "flags"_a, "relabel"_a)
      .def("add_optimizer", &PyGraph::add, "optimizer"_a)
      .def("set_grad_scaler", &PyGraph::set_scaler, "scaler"_a.none())
      .def(
          "set_recompute", [](PyGraph& g, std::vector<std::string> paths) { g.recompute = std::move(paths); },
          "paths"_a)
      .def("text", &PyGraph::text, "description"_a)
      .def("plan", [](const PyGraph& g) { return g.plan(); })
      .def("captured", [](const PyGraph& g) { return g.captured(); })
      .def("grad_norms", [](const PyGraph& g) { return g.grad_norms(); })
      .def(
          "plan_svg",
          [](const PyGraph& g, size_t signature, std::string title, int most_items, bool fold) {
            return graph::plan_svg(g.step(signature).graph(), {std::move(title), most_items, fold});
          },
          "signature"_a, "title"_a, "most_items"_a, "fold"_a)
      .def(
          "schedule_svg", [](const PyGraph& g, size_t signature) { return graph::schedule_svg(g.step(signature)); },
          "signature"_a)
      .def(
          "schedule_text", [](const PyGraph& g, size_t signature) { return graph::schedule_text(g.step(signature)); },
          "signature"_a)
      .def(
          "memory",
          [](const PyGraph& g, size_t signature, bool all_ranks, bool svg) {
            nb::gil_scoped_release released;
            std::vector<graph::MemoryUse> uses;
            if (all_ranks)
              uses = graph::memory_use_of_all(g.step(signature));
            else
              uses.push_back(graph::memory_use(g.step(signature)));
            return svg ? graph::memory_svg(uses) : graph::memory_text(uses);
          },
          "signature"_a, "all_ranks"_a, "svg"_a)
      .def_prop_ro("n_signatures", [](const PyGraph& g) { return g.n_signatures(); })
      .def_prop_ro("n_structures", &PyGraph::n_structures)
      .def(
          "stats",
          [](const PyGraph& g, size_t signature) {
            auto s = g.stats(signature);
            nb::dict d;
            d["captured_nodes"] = s.captured_nodes;
            d["nodes"] = s.nodes;
            d["instructions"] = s.instructions;
            d["arena_bytes"] = s.arena_bytes;
            d["sum_bytes"] = s.sum_bytes;
            d["recorded"] = s.recorded;
            d["capture_s"] = s.capture_s;
            d["passes_s"] = s.passes_s;
            d["lowering_s"] = s.lowering_s;
            return d;
          },
          "signature"_a);
  m.def(
      "note_module_change", [] { module_changes.fetch_add(1, std::memory_order_relaxed); },
      "A module's flag, parameter or submodule has changed: graphs inspect their modules again.");
  m.def(
      "capture_open", [] { return graph::Capture::current() != nullptr; }, "Whether this rank is capturing a graph.");
  m.def(
      "capture_push", [](const std::string& path, int stage) { open_capture("capture_push").push_scope(path, stage); },
      "path"_a, "stage"_a);
  m.def("capture_pop", [] { open_capture("capture_pop").pop_scope(); });
  m.def(
      "capture_name",
      [](nb::handle t, const std::string& path, bool parameter) {
        open_capture("capture_name").name_external(expect_tensor(t, "capture_name", "t"), path, parameter);
      },
      "t"_a, "path"_a, "parameter"_a);
  m.def(
      "capture_write",
      [](nb::handle self, nb::handle value) {
        open_capture("capture_write")
            .write("assign", expect_tensor(self, "capture_write", "self"),
                   expect_tensor(value, "capture_write", "value"));
      },
      "self"_a, "value"_a, "self has this value from here on, in the graph that is captured.");
  m.def(
      "tensor_ids",
      [](nb::handle list) {
        nb::list ids;
        for (nb::handle t : list)
          ids.append(reinterpret_cast<uintptr_t>(expect_tensor(t, "tensor_ids", "an item").impl()));
        return nb::tuple(ids);
      },
      "tensors"_a, "A number for each tensor, the same for all handles of it while it lives.");
  m.def(
      "is_symbolic", [](nb::handle t) { return expect_tensor(t, "is_symbolic", "t").is_symbolic(); }, "t"_a,
      "Whether the tensor represents a value of a graph that is being captured.");
  m.def(
      "on_stage",
      [](nb::handle t, nb::handle placement) {
        return wrap_object(nn::on_stage(expect_tensor(t, "on_stage", "t"), expect_placement(placement, "on_stage")));
      },
      "t"_a, "placement"_a, "A global tensor on the placement, with its own sbp if that fits, else broadcast.");
  m.def(
      "check_stages",
      [](const std::string& graph, nb::handle stages) {
        auto list = stage_list(stages);
        nn::check_stages(graph, list);
      },
      "graph"_a, "stages"_a, "Raises ValueError where a number between 0 and the last stage is skipped.");
}

}  // namespace holon::python
