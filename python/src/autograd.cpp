// Backward, gradient mode, hooks, and the node behind a user's autograd.Function.
#include "holon/autograd/engine.h"

#include <atomic>
#include <memory>
#include <optional>

#include <atomic>

#include "args.h"
#include "holon/dispatch/autocast.h"
#include "holon/dispatch/record.h"

namespace holon::python {

namespace {

// What x.grad_fn returns.
struct GradFn {
  Ref<Node> node;
};

std::vector<Tensor> tensors_of(nb::handle list, const char* call, const char* argument, bool none_too = false) {
  std::vector<Tensor> v;
  if (list.is_none()) return v;
  if (is_tensor(list.ptr())) return {tensor_of(list.ptr())};
  if (!PyList_Check(list.ptr()) && !PyTuple_Check(list.ptr()))
    fail_type("{}: {} must be Tensor or a list of them, got {}.", call, argument, describe(list.ptr()));
  for (nb::handle item : nb::steal(checked(PySequence_Fast(list.ptr(), "")))) {
    if (none_too && item.is_none()) v.emplace_back();
    else v.push_back(expect_tensor(item, call, argument));
  }
  return v;
}

// A node whose gradient is computed by a Python callable: backward(list of gradients or None) -> one gradient or None per
// input, in a list or tuple, or alone.
class PythonNode final : public Node {
 public:
  PythonNode(std::string name, nb::object backward) : name_(std::move(name)), backward_(std::in_place, std::move(backward)) {}
  const char* name() const override { return name_.c_str(); }
  void expect(std::span<const Tensor> inputs) {
    for (auto& t : inputs) shapes_.push_back(t.shape());
  }

  TensorVec backward(std::span<const Tensor> grads) override {
    if (!backward_)
      fail_runtime("backward of {}: its values were freed by an earlier backward. Pass retain_graph=True to that one to go through the graph again.",
                   name_);
    nb::gil_scoped_acquire gil;
    nb::list given;
    for (auto& g : grads) given.append(wrap_object(g));
    nb::object result = backward_->get()(given);
    TensorVec out;
    if (!PyTuple_Check(result.ptr()) && !PyList_Check(result.ptr())) result = nb::make_tuple(result);
    auto n = static_cast<size_t>(PySequence_Size(result.ptr()));
    if (n != shapes_.size()) fail_runtime("backward of {}: returned {} gradients for {} inputs.", name_, n, shapes_.size());
    for (size_t i = 0; i < n; ++i) {
      nb::object g = nb::steal(checked(PySequence_GetItem(result.ptr(), static_cast<Py_ssize_t>(i))));
      if (g.is_none()) {
        out.emplace_back();
        continue;
      }
      const Tensor& t = expect_tensor(g, name_.c_str(), "a gradient that backward returns");
      if (t.shape() != shapes_[i])
        fail_runtime("backward of {}: gradient {} has shape {}, its input {}. They must be alike.", name_, i, t.shape(), shapes_[i]);
      out.push_back(t);
    }
    return out;
  }

  void free_saved() override { backward_.reset(); }

 private:
  std::string name_;
  std::optional<SharedObject> backward_;
  std::vector<Dims> shapes_;
};

nb::list record_function(const std::string& name, nb::handle inputs, nb::handle outputs, nb::object backward, nb::handle non_differentiable) {
  std::vector<Tensor> in = tensors_of(inputs, "record_function", "inputs"), out = tensors_of(outputs, "record_function", "outputs");
  bool needed = false;
  for (auto& t : in) needed |= t.requires_grad();
  nb::list result;
  if (needed && grad_enabled()) {
    // What forward hands through from outside gets a handle of its own, so that its own place in the graph stays.
    for (auto& t : out) t = t.detach();
    auto* node = new PythonNode(name, std::move(backward));
    Ref<Node> held(node);
    node->expect(in);
    record_node(held, in, out);
    if (!non_differentiable.is_none())
      for (nb::handle h : nb::steal(checked(PySequence_Fast(non_differentiable.ptr(), "non_differentiable must be a list of int")))) {
        int64_t i;
        if (!to_int(h.ptr(), &i) || i < 0 || i >= static_cast<int64_t>(out.size())) fail_value("record_function: {} is no output.", describe(h.ptr()));
        TensorImpl& impl = *out[static_cast<size_t>(i)].impl();
        impl.requires_grad = false;
        impl.grad_fn = {};
      }
  }
  for (auto& t : out) result.append(wrap_object(t));
  return result;
}

// What register_hook() returns; remove() takes the hook away.
struct HookHandle {
  std::shared_ptr<std::atomic<bool>> active = std::make_shared<std::atomic<bool>>(true);
};

HookHandle register_hook(const Tensor& t, nb::object hook) {
  if (!PyCallable_Check(hook.ptr())) fail_type("register_hook: takes a function of the gradient, got {}.", describe(hook.ptr()));
  HookHandle handle;
  Tensor self = t;
  self.register_hook([active = handle.active, hook = SharedObject(std::move(hook))](const Tensor& g) -> Tensor {
    if (!*active) return {};
    nb::gil_scoped_acquire gil;
    nb::object result = hook.get()(wrap_object(g));
    return result.is_none() ? Tensor() : expect_tensor(result, "a hook", "what it returns");
  });
  return handle;
}

void run_backward(nb::handle tensors, nb::handle gradients, nb::handle retain_graph, bool create_graph) {
  std::vector<Tensor> roots = tensors_of(tensors, "backward", "tensors"), given = tensors_of(gradients, "backward", "grad_tensors", true);
  if (given.size() > roots.size()) fail_value("backward: {} gradients for {} tensors.", given.size(), roots.size());
  bool retain = retain_graph.is_none() ? create_graph : nb::cast<bool>(retain_graph);
  autograd::backward(roots, given, retain, create_graph);
}

}  // namespace

nb::object grad_fn_object(const Tensor& t) {
  if (!t.impl()->grad_fn) return nb::none();
  return nb::cast(GradFn{t.impl()->grad_fn});
}

void bind_autograd(nb::module_& m) {
  using namespace nb::literals;
  nb::class_<GradFn>(m, "GradFn", "A recorded op.")
      .def_prop_ro("name", [](const GradFn& g) { return g.node->name(); })
      .def_prop_ro("next_functions", [](const GradFn& g) {
        nb::list l;
        for (auto& e : g.node->edges)
          l.append(nb::make_tuple(e.node ? nb::cast(GradFn{e.node}) : nb::object(nb::none()), static_cast<int>(e.index)));
        return nb::tuple(l);
      })
      .def("__eq__", [](const GradFn& a, nb::handle o) {
        GradFn b;
        return nb::try_cast(o, b) && a.node == b.node;
      }, "other"_a.none())
      .def("__hash__", [](const GradFn& g) { return static_cast<Py_ssize_t>(reinterpret_cast<uintptr_t>(g.node.get()) >> 4); })
      .def("__repr__", [](const GradFn& g) { return fmt::format("<{}_backward>", g.node->name()); });
  nb::class_<HookHandle>(m, "HookHandle", "A registered hook.")
      .def("remove", [](HookHandle& h) { *h.active = false; }, "Takes the hook away.")
      .def("__enter__", [](nb::object self) { return self; })
      .def("__exit__", [](HookHandle& h, nb::args) { *h.active = false; }, "args"_a);

  m.def("backward", run_backward, "tensors"_a, "grad_tensors"_a = nb::none(), "retain_graph"_a = nb::none(), "create_graph"_a = false,
        "Adds the gradients of all leaves below the tensors to their grad.");
  m.def("grad", [](nb::handle outputs, nb::handle inputs, nb::handle grad_outputs, nb::handle retain_graph, bool create_graph, bool allow_unused) {
    std::vector<Tensor> roots = tensors_of(outputs, "grad", "outputs"), in = tensors_of(inputs, "grad", "inputs"),
                        given = tensors_of(grad_outputs, "grad", "grad_outputs", true);
    bool retain = retain_graph.is_none() ? create_graph : nb::cast<bool>(retain_graph);
    std::vector<Tensor> grads = autograd::grad(roots, in, given, retain, create_graph, allow_unused);
    nb::list l;
    for (auto& g : grads) l.append(wrap_object(std::move(g)));
    return nb::tuple(l);
  }, "outputs"_a, "inputs"_a, "grad_outputs"_a = nb::none(), "retain_graph"_a = nb::none(), "create_graph"_a = false, "allow_unused"_a = false,
        "The gradients of the outputs with respect to the inputs; no grad changes.");
  m.def("is_grad_enabled", [] { return grad_enabled(); }, "Whether this rank's ops are recorded.");
  m.def("set_grad_enabled", [](bool on) {
    bool before = grad_enabled();
    set_grad_enabled(on);
    return before;
  }, "on"_a, "Turns recording on or off for this rank; returns what it was before.");
  auto mode_tuple = [](const AutocastMode& mode) { return nb::make_tuple(mode.enabled, dtype_object(mode.dtype), mode.cache, mode.depth); };
  m.def("autocast_mode", [mode_tuple] { return mode_tuple(autocast_mode()); }, "This rank's (enabled, dtype, cache, open regions).");
  m.def("set_autocast_mode", [mode_tuple](bool enabled, nb::handle dtype, bool cache, int depth) {
    return mode_tuple(exchange_autocast({enabled, expect_dtype(dtype, "autocast"), cache, depth}));
  }, "enabled"_a, "dtype"_a, "cache"_a, "depth"_a, "Puts a mode in place; returns the one before.");
  m.def("clear_autocast_cache", [] { clear_autocast_cache(); }, "Lets go of the parameters that were cast.");
  m.def("record_function", record_function, "name"_a, "inputs"_a, "outputs"_a, "backward"_a, "non_differentiable"_a = nb::none(),
        "Ties outputs to a node whose gradient the callable backward(list of gradients or None) computes: one gradient or None per input. "
        "Returns the outputs.");

  def_method("backward", [](nb::handle self, nb::handle gradient, nb::handle retain_graph, bool create_graph) {
    run_backward(self, gradient, retain_graph, create_graph);
  }, "gradient"_a = nb::none(), "retain_graph"_a = nb::none(), "create_graph"_a = false,
             "Adds the gradients of all leaves that this tensor depends on to their grad. Collective for global tensors.");
  def_method("register_hook", register_hook, "hook"_a,
             "Calls the function with the gradient during backward; what it returns, if not None, replaces the gradient.");
}

}  // namespace holon::python
