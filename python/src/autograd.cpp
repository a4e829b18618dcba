// Backward, gradient mode, hooks, and the node behind a user's autograd.Function.
#include "holon/autograd/engine.h"

#include <nanobind/stl/shared_ptr.h>

#include <atomic>
#include <memory>
#include <utility>

#include "args.h"
#include "holon/autograd/function.h"
#include "holon/base/fmt.h"
#include "holon/dispatch/autocast.h"
#include "holon/dispatch/layout_free.h"

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
    if (none_too && item.is_none())
      v.emplace_back();
    else
      v.push_back(expect_tensor(item, call, argument));
  }
  return v;
}

// A user's autograd.Function: forward(list) and backward(list) are Python callables.
nb::typed<nb::list, Tensor> apply_function(
    const std::string& name, const std::string& rule, bool linear, HandleOf<"Sequence[Tensor]"> inputs,
    ObjectOf<"Callable[[list[Tensor]], Sequence[Tensor]]"> forward,
    ObjectOf<"Callable[[list[Tensor | None]], Sequence[Tensor | None]]"> backward,
    ObjectOf<"Callable[[list[Size]], Sequence[Sequence[int]]]"> infer) {
  std::vector<Tensor> in = tensors_of(inputs, name.c_str(), "inputs");
  auto run = [name](const SharedObject& function, TensorList tensors, const char* what) {
    nb::gil_scoped_acquire gil;
    nb::list list;
    for (auto& t : tensors) list.append(wrap_object(t));
    nb::object result = function.get()(list);
    std::vector<Tensor> out;
    for (nb::handle item : nb::steal(checked(PySequence_Fast(result.ptr(), "a list of tensors was expected"))))
      out.push_back(item.is_none() ? Tensor() : expect_tensor(item, name.c_str(), what));
    return out;
  };
  autograd::FunctionCall call;
  call.name = name;
  call.rule = rule;
  call.linear = linear;
  call.forward = [run, f = SharedObject(std::move(forward))](TensorList x) { return run(f, x, "an output"); };
  call.backward = [run, f = SharedObject(std::move(backward))](TensorList g) {
    return run(f, g, "a gradient that backward returns");
  };
  if (!infer.is_none())
    call.infer = [name, f = SharedObject(std::move(infer))](std::span<const Dims> shapes) {
      nb::gil_scoped_acquire gil;
      nb::list list;
      for (auto& s : shapes) list.append(size_object(s));
      nb::object result = f.get()(list);
      std::vector<Dims> out;
      for (nb::handle item : nb::steal(checked(PySequence_Fast(result.ptr(), "infer must return a list of shapes")))) {
        Dims d;
        for (nb::handle n : nb::steal(checked(PySequence_Fast(item.ptr(), "infer must return a list of shapes")))) {
          int64_t v;
          if (!to_int(n.ptr(), &v) || v < 0) fail_value("{}: infer returned {} as a size.", name, describe(n.ptr()));
          d.push_back(v);
        }
        out.push_back(d);
      }
      return out;
    };
  nb::list result;
  for (auto& t : autograd::apply_function(std::move(call), in)) result.append(wrap_object(t));
  return result;
}

// Outputs of a function that have no gradient although others do.
void cut_gradient(const Tensor& t) { t.impl()->set_grad_fn(false, nullptr, 0); }

// What register_hook() returns; remove() takes the hook away.
struct HookHandle {
  std::shared_ptr<std::atomic<bool>> active = std::make_shared<std::atomic<bool>>(true);
};

HookHandle register_hook(const Tensor& t, ObjectOf<"Callable[[Tensor], Tensor | None]"> hook) {
  if (!PyCallable_Check(hook.ptr()))
    fail_type("register_hook: takes a function of the gradient, got {}.", describe(hook.ptr()));
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

void run_backward(TensorsHandle tensors, HandleOf<"Tensor | Sequence[Tensor | None]"> gradients,
                  HandleOf<"bool"> retain_graph, bool create_graph) {
  std::vector<Tensor> roots = tensors_of(tensors, "backward", "tensors"),
                      given = tensors_of(gradients, "backward", "grad_tensors", true);
  if (given.size() > roots.size()) fail_value("backward: {} gradients for {} tensors.", given.size(), roots.size());
  bool retain = retain_graph.is_none() ? create_graph : nb::cast<bool>(retain_graph);
  autograd::backward(roots, given, retain, create_graph);
}

}  // namespace

nb::object grad_fn_object(const Tensor& t) {
  const Ref<Node>& node = t.impl()->grad_fn();
  return node ? nb::cast(GradFn{node}) : nb::none();
}

void bind_autograd(nb::module_& m) {
  using namespace nb::literals;
  nb::class_<GradFn>(m, "GradFn", "A recorded op.")
      .def_prop_ro("name", [](const GradFn& g) { return g.node->name(); })
      .def_prop_ro(
          "next_functions", [](const GradFn& g) -> ObjectOf<"tuple[tuple[GradFn | None, int], ...]"> {
            nb::list l;
            for (auto& e : g.node->edges)
              l.append(nb::make_tuple(e.node ? nb::cast(GradFn{e.node}) : nb::object(nb::none()),
                                      static_cast<int>(e.index)));
            return nb::tuple(l);
          })
      .def(
          "__eq__",
          [](const GradFn& a, nb::handle o) {
            GradFn b;
            return nb::try_cast(o, b) && a.node == b.node;
          },
          "other"_a.none())
      .def("__hash__",
           [](const GradFn& g) { return static_cast<Py_ssize_t>(reinterpret_cast<uintptr_t>(g.node.get()) >> 4); })
      .def("__repr__", [](const GradFn& g) { return fmt::format("<{}_backward>", g.node->name()); });
  nb::class_<HookHandle>(m, "HookHandle", "A registered hook.")
      .def(
          "remove", [](HookHandle& h) { *h.active = false; }, "Removes the hook.")
      .def(
          "__enter__", [](nb::object self) -> ObjectOf<"HookHandle"> { return self; })
      .def(
          "__exit__", [](HookHandle& h, nb::args) { *h.active = false; }, "args"_a);

  m.def("backward", run_backward, "tensors"_a, "grad_tensors"_a = nb::none(), "retain_graph"_a = nb::none(),
        "create_graph"_a = false, "Adds the gradients of all leaves below the tensors to their grad.");
  m.def(
      "grad",
      [](TensorsHandle outputs, TensorsHandle inputs, HandleOf<"Tensor | Sequence[Tensor | None]"> grad_outputs,
         HandleOf<"bool"> retain_graph, bool create_graph, bool allow_unused) -> ObjectOf<"tuple[Tensor | None, ...]"> {
        std::vector<Tensor> roots = tensors_of(outputs, "grad", "outputs"), in = tensors_of(inputs, "grad", "inputs"),
                            given = tensors_of(grad_outputs, "grad", "grad_outputs", true);
        bool retain = retain_graph.is_none() ? create_graph : nb::cast<bool>(retain_graph);
        std::vector<Tensor> grads = autograd::grad(roots, in, given, retain, create_graph, allow_unused);
        nb::list l;
        for (auto& g : grads) l.append(wrap_object(std::move(g)));
        return nb::tuple(l);
      },
      "outputs"_a, "inputs"_a, "grad_outputs"_a = nb::none(), "retain_graph"_a = nb::none(), "create_graph"_a = false,
      "allow_unused"_a = false, "The gradients of the outputs with respect to the inputs; no grad changes.");
  m.def(
      "is_grad_enabled", [] { return grad_enabled(); }, "Whether this rank's ops are recorded.");
  m.def(
      "set_grad_enabled",
      [](bool on) {
        bool before = grad_enabled();
        set_grad_enabled(on);
        return before;
      },
      "on"_a, "Turns recording on or off for this rank; returns what it was before.");
  auto mode_tuple =
      [](const AutocastMode& mode) -> ObjectOf<"tuple[bool, dtype, bool, int, int, Float8Recipe | None]"> {
    return nb::make_tuple(mode.enabled, dtype_object(mode.dtype), mode.cache, mode.depth, mode.float8_block,
                          mode.recipe);
  };
  m.def(
      "autocast_mode", [mode_tuple] { return mode_tuple(autocast_mode()); },
      "This rank's (enabled, dtype, cache, open regions, side of float8's blocks, recipe).");
  m.def(
      "set_autocast_mode",
      [mode_tuple](bool enabled, nb::handle dtype, bool cache, int depth, int64_t float8_block,
                   std::shared_ptr<Float8Recipe> recipe) {
        return mode_tuple(exchange_autocast(
            {enabled, expect_dtype(dtype, "autocast"), cache, depth, float8_block, std::move(recipe)}));
      },
      "enabled"_a, "dtype"_a, "cache"_a, "depth"_a, "float8_block"_a = 0, "recipe"_a.none() = nb::none(),
      "Sets the mode; returns the previous one.");
  m.def(
      "clear_autocast_cache", [] { clear_autocast_cache(); }, "Releases the parameters that were cast.");
  m.def("layout_free", layout_free, "Whether sums of this rank have an order that no layout changes.");
  m.def("exchange_layout_free", exchange_layout_free, "on"_a, "Sets it; returns what it was before.");
  m.def("apply_function", apply_function, "name"_a, "rule"_a, "linear"_a, "inputs"_a, "forward"_a, "backward"_a,
        "infer"_a = nb::none(),
        "Calls forward(list of tensors) and records backward(list of gradients or None). With a sharding rule, both "
        "get this rank's parts.");
  m.def("cut_gradient", cut_gradient, "output"_a, "Detaches a function's output from the recorded graph.");

  def_method(
      "backward",
      [](nb::handle self, HandleOf<"Tensor"> gradient, HandleOf<"bool"> retain_graph, bool create_graph) {
        run_backward(self, gradient, retain_graph, create_graph);
      },
      "gradient"_a = nb::none(), "retain_graph"_a = nb::none(), "create_graph"_a = false,
      "Adds the gradients of all leaves that this tensor depends on to their grad. Collective for global tensors.");
  def_method(
      "register_hook", register_hook, "hook"_a,
      "Calls the function with the gradient during backward; what it returns, if not None, replaces the gradient.");
}

}  // namespace holon::python
