// Properties of Tensor, and the methods that are not ops.
#include "call.h"
#include "global_mode.h"
#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/dispatch/gradient_forms.h"
#include "holon/tensor/node.h"
#include "holon/tensor/print.h"
#include "holon/tensor/tracer.h"

namespace holon::python {

nb::object grad_fn_object(const Tensor& t);  // in autograd.cpp
nb::object to_host_numpy(const Tensor& t);   // in numpy.cpp

namespace {

template <auto kGet>
PyObject* get(PyObject* self, void*) {
  return guarded([&] { return kGet(tensor_of(self)); });
}

PyObject* flag(bool b) { return PyBool_FromLong(b); }
PyObject* get_shape(const Tensor& t) { return size_object(t.shape()).release().ptr(); }
PyObject* get_dtype(const Tensor& t) { return dtype_object(t.dtype()).release().ptr(); }
// Inside global_mode a global tensor has a device, too, to make tensors like it.
PyObject* get_device(const Tensor& t) {
  return nb::cast(t.is_global() && global_mode().enabled ? t.placement().device() : t.device()).release().ptr();
}
PyObject* get_placement(const Tensor& t) { return nb::cast(t.placement()).release().ptr(); }
PyObject* get_sbp(const Tensor& t) { return sbp_tuple(t.nd_sbp()).release().ptr(); }
PyObject* get_is_local(const Tensor& t) { return flag(t.is_local()); }
PyObject* get_is_global(const Tensor& t) { return flag(t.is_global()); }
PyObject* get_is_lazy(const Tensor& t) { return flag(t.is_symbolic()); }
PyObject* get_is_eager(const Tensor& t) { return flag(!t.is_symbolic()); }
PyObject* get_requires_grad(const Tensor& t) { return flag(t.requires_grad()); }
PyObject* get_grad(const Tensor& t) { return known_object(t.grad()); }
PyObject* get_is_leaf(const Tensor& t) { return flag(t.is_leaf()); }
PyObject* get_grad_fn(const Tensor& t) { return grad_fn_object(t).release().ptr(); }
PyObject* get_data(const Tensor& t) { return wrap(t.detach()); }
PyObject* get_ndim(const Tensor& t) { return PyLong_FromLong(t.ndim()); }
PyObject* get_nbytes(const Tensor& t) { return PyLong_FromSize_t(to_size(t.numel()) * size_bytes(t.dtype())); }
PyObject* get_is_cuda(const Tensor& t) {
  static const DeviceType cuda = parse_device_type("cuda");
  return flag(t.impl()->device.type == cuda);
}
PyObject* get_retains_grad(const Tensor& t) {
  return flag(!t.is_leaf() && t.impl()->meta && t.impl()->meta->retain_grad);
}
PyObject* get_version(const Tensor& t) {
  return PyLong_FromUnsignedLong(t.array().defined() ? t.array().storage->version : 0);
}

Tensor transposed(const Tensor& t) {
  if (t.ndim() < 2) return t;
  Dims order;
  for (int i = t.ndim() - 1; i >= 0; --i) order.push_back(i);
  return OpCall("permute").in(t).set("dims", std::span<const int64_t>(order)).run();
}
PyObject* window_on(const Tensor& t, Tensor window) {
  nb::object of = wrap_object(t);
  PyObject* result = wrap(std::move(window));
  note_window(of.ptr(), result);
  return result;
}
PyObject* get_T(const Tensor& t) { return window_on(t, transposed(t)); }
PyObject* get_mT(const Tensor& t) {
  if (t.ndim() < 2) fail_value("mT: a tensor of shape {} is not a matrix.", t.shape());
  return window_on(t, OpCall("transpose").in(t).set("dim0", int64_t{-2}).set("dim1", int64_t{-1}).run());
}

int set_requires_grad(PyObject* self, PyObject* value, void*) {
  return guarded(
      [&] {
        bool on;
        if (!value || !to_bool(value, &on))
          fail_type("requires_grad must be bool, got {}.", value ? describe(value) : "nothing");
        tensor_of(self).set_requires_grad(on);
        return 0;
      },
      -1);
}

int set_grad(PyObject* self, PyObject* value, void*) {
  return guarded(
      [&] {
        if (!value || value == Py_None)
          tensor_of(self).set_grad({});
        else
          tensor_of(self).set_grad(expect_tensor(value, "grad", "the value"));
        if (value && value != Py_None) make_known(value);
        return 0;
      },
      -1);
}

// x.data = y: x takes over y's value, with its dtype, device or placement and sbp, and keeps its place in the tape.
int set_data(PyObject* self, PyObject* value, void*) {
  return guarded(
      [&] {
        const Tensor& to = expect_tensor(value ? value : Py_None, "data", "the value");
        if (capturing_tracer() || to.is_symbolic())
          fail_runtime("data of a tensor {} is set while a graph is captured. Write into it instead, by copy_() or "
                       "another in-place op.",
                       tensor_of(self).shape());
        TensorImpl& impl = *tensor_of(self).impl();
        impl.array = to.array();
        impl.shape = to.shape();
        impl.dtype = to.dtype();
        impl.device = to.impl()->device;
        impl.spec = to.spec();
        impl.copied = to.impl()->copied;
        GradientForms::forget();
        return 0;
      },
      -1);
}

int64_t size_of_axis(const Tensor& t, int64_t dim) { return t.size(dim); }
ObjectOf<"Size"> size(const Tensor& t, HandleOf<"None"> dim) {
  if (!dim.is_none()) fail_type("size: dim must be int, got {}.", describe(dim.ptr()));
  return size_object(t.shape());
}

nb::object stride(const Tensor& t, HandleOf<"int"> dim) {
  Dims strides = t.array().defined() ? t.array().strides : contiguous_strides(t.shape());
  if (dim.is_none()) {
    nb::list l;
    for (int64_t s : strides) l.append(s);
    return nb::tuple(l);
  }
  int64_t d;
  if (!to_int(dim.ptr(), &d)) fail_type("stride: dim must be int, got {}.", describe(dim.ptr()));
  return nb::int_(strides[normalize_axis(d, t.ndim(), "stride")]);
}

nb::str format(nb::handle self, const std::string& spec) {
  const Tensor& t = tensor_of(self.ptr());
  if (spec.empty()) return nb::str(self);
  if (t.numel() != 1)
    fail_type("a tensor of shape {} has no format \"{}\": only one element can be formatted.", t.shape(), spec);
  return nb::steal<nb::str>(checked(PyObject_Format(scalar_object(t.item()).ptr(), nb::str(spec.c_str()).ptr())));
}

Tensor copy_of(const Tensor& t) { return OpCall("clone").in(t).run(); }

// Options of new_...: what is not given is the tensor's own.
Tensor new_filled(const char* op, const Tensor& t, const Dims& shape, const Scalar* value, nb::handle dtype,
                  nb::handle device, bool requires_grad, bool pin_memory, nb::handle placement, nb::handle sbp) {
  OpCall call(op);
  call.set("size", std::span<const int64_t>(shape));
  if (value) call.set("fill_value", *value);
  call.set("dtype", dtype.is_none() ? t.dtype() : expect_dtype(dtype, op));
  bool global = !placement.is_none() || !sbp.is_none() || (t.is_global() && device.is_none());
  if (global) {
    if (t.is_local() && (placement.is_none() || sbp.is_none()))
      fail_layout("{}: placement and sbp must be given together; give both for a global tensor.", op);
    call.set("placement", placement.is_none() ? t.placement() : expect_placement(placement, op));
    call.set("sbp", sbp.is_none() ? t.nd_sbp() : expect_nd_sbp(sbp, op));
  } else {
    call.set("device", device.is_none() ? t.impl()->device : expect_device(device, op));
  }
  call.set("requires_grad", requires_grad);
  call.set("pin_memory", pin_memory);
  return call.run();
}

Dims dims_of(nb::tuple size, const char* call) {
  IntList list;
  if (size.size() == 1 && to_ints(size[0].ptr(), &list)) return Dims(std::span<const int64_t>(list));
  Dims d;
  for (nb::handle h : size) {
    int64_t v;
    if (!to_int(h.ptr(), &v)) fail_type("{}: size must be ints or a list of them, got {}.", call, describe(h.ptr()));
    d.push_back(v);
  }
  return d;
}

void def_new(const char* name, const char* op) {
  using namespace nb::literals;
  auto make = [name, op](const Tensor& t, nb::args size, nb::kwargs options) {
    nb::object dtype = nb::none(), device = nb::none(), placement = nb::none(), sbp = nb::none(), shape = nb::none();
    bool requires_grad = false, pin_memory = false;
    for (auto [key, value] : options) {
      std::string k = nb::cast<std::string>(key);
      if (k == "dtype")
        dtype = nb::borrow(value);
      else if (k == "device")
        device = nb::borrow(value);
      else if (k == "placement")
        placement = nb::borrow(value);
      else if (k == "sbp")
        sbp = nb::borrow(value);
      else if (k == "size")
        shape = nb::borrow(value);
      else if (k == "requires_grad")
        requires_grad = nb::cast<bool>(value);
      else if (k == "pin_memory")
        pin_memory = nb::cast<bool>(value);
      else
        fail_type("{}: there is no argument '{}'. Signature: {}(int... size, *, dtype, device, placement, sbp, "
                  "requires_grad, pin_memory)",
                  name, k, name);
    }
    IntList list;
    Dims dims = shape.is_none()       ? dims_of(size, name)
        : to_ints(shape.ptr(), &list) ? Dims(std::span<const int64_t>(list))
                                      : dims_of(nb::make_tuple(shape), name);
    return new_filled(op, t, dims, nullptr, dtype, device, requires_grad, pin_memory, placement, sbp);
  };
  def_method(name, make, "size"_a, "options"_a);
}

}  // namespace

// The type at the head of a doc is the stubs'.
#define HOLON_READ(name, type, f, doc) \
  { name, get<f>, nullptr, type ": " doc, nullptr }
PyGetSetDef tensor_properties[] = {
    HOLON_READ("shape", "Size", get_shape, "The logical sizes."),
    HOLON_READ("dtype", "dtype", get_dtype, "The type of the elements."),
    HOLON_READ("device", "device", get_device, "The device of a local tensor."),
    HOLON_READ("placement", "placement", get_placement, "The placement of a global tensor."),
    HOLON_READ("sbp", "tuple[_SbpValue, ...]", get_sbp,
               "How a global tensor is distributed along each axis of its placement."),
    HOLON_READ("is_local", "bool", get_is_local, "Whether the tensor is local."),
    HOLON_READ("is_global", "bool", get_is_global, "Whether the tensor has a placement and an sbp."),
    HOLON_READ("is_lazy", "bool", get_is_lazy,
               "Whether the tensor belongs to a graph that is being captured, without a value."),
    HOLON_READ("is_eager", "bool", get_is_eager, "Whether the tensor has its value."),
    HOLON_READ("is_leaf", "bool", get_is_leaf, "Whether no recorded op made the tensor."),
    HOLON_READ("grad_fn", "GradFn | None", get_grad_fn, "The recorded op that made the tensor, or None."),
    HOLON_READ("ndim", "int", get_ndim, "The number of axes."),
    HOLON_READ("nbytes", "int", get_nbytes, "The size of the logical value in bytes."),
    HOLON_READ("is_cuda", "bool", get_is_cuda, "Whether the tensor is on a cuda device."),
    HOLON_READ("retains_grad", "bool", get_retains_grad, "Whether backward keeps the gradient of this result."),
    HOLON_READ("T", "Tensor", get_T, "The tensor with its axes in the opposite order."),
    HOLON_READ("mT", "Tensor", get_mT, "The tensor with its last two axes exchanged."),
    HOLON_READ("_version", "int", get_version, "How often the memory was written in place."),
    {"requires_grad", get<get_requires_grad>, set_requires_grad, "bool: Whether gradients are computed for the tensor.",
     nullptr},
    {"grad", get<get_grad>, set_grad, "Tensor | None: The accumulated gradient, or None.", nullptr},
    {"data", get<get_data>, set_data, "Tensor: The same value, detached from the recorded graph.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};
#undef HOLON_READ

void bind_tensor(nb::module_&) {
  using namespace nb::literals;
  def_method("size", size_of_axis, "dim"_a, "The size of one axis.");
  def_method("size", size, "dim"_a = nb::none(), "The sizes.");
  def_method("stride", stride, "dim"_a = nb::none(), "The strides of this rank's part, in elements.");
  def_method(
      "dim", [](const Tensor& t) { return t.ndim(); }, "The number of axes.");
  def_method(
      "ndimension", [](const Tensor& t) { return t.ndim(); }, "The number of axes.");
  for (const char* name : {"numel", "nelement"})
    def_method(
        name, [](const Tensor& t) { return t.numel(); }, "The number of elements.");
  def_method(
      "element_size", [](const Tensor& t) { return size_bytes(t.dtype()); }, "The size of an element in bytes.");
  def_method(
      "is_floating_point", [](const Tensor& t) { return is_floating(t.dtype()); },
      "Whether the elements are floating point numbers.");
  def_method(
      "is_contiguous", [](const Tensor& t) { return !t.array().defined() || t.array().is_contiguous(); },
      "Whether this rank's elements are in row-major order.");
  def_method(
      "data_ptr",
      [](const Tensor& t) {
        t.require_memory("data_ptr");
        return t.array().defined() ? reinterpret_cast<uintptr_t>(t.array().bytes()) : 0;
      },
      "The address of this rank's first element; 0 outside the placement.");
  def_method(
      "storage_offset", [](const Tensor& t) { return t.array().offset; },
      "The offset of the first element in its storage.");
  def_method(
      "get_device",
      [](const Tensor& t) { return t.impl()->device.type == DeviceType::kCpu ? -1 : t.impl()->device.index; },
      "The number of the cuda device, -1 on the CPU.");
  def_method(
      "is_set_to",
      [](const Tensor& t, const Tensor& o) {
        auto &a = t.array(), &b = o.array();
        return a.storage == b.storage && a.offset == b.offset && a.shape == b.shape && a.strides == b.strides;
      },
      "other"_a, "Whether both have the same offset, shape and strides in the same memory.");
  def_method(
      "is_same", [](const Tensor& t, const Tensor& o) { return t.is_same(o); }, "other"_a,
      "Whether both objects are handles of one tensor.");

  def_method(
      "item", [](const Tensor& t) { return scalar_object(t.item()); },
      "The only element as a number. Collective for a global tensor.");
  def_method("tolist", to_list, "The whole value as nested lists. Collective for a global tensor.");
  def_method(
      "detach", [](const Tensor& t) { return t.detach(); },
      "The same value, detached from the recorded graph; shares memory.");
  def_method(
      "detach_", [](nb::object self) -> ObjectOf<"Tensor"> {
        TensorImpl& impl = *tensor_of(self.ptr()).impl();
        impl.set_grad_fn(false, nullptr, 0);
        impl.alias_of = {};
        return self;
      },
      "Detaches the tensor from the recorded graph.");
  def_method(
      "requires_grad_", [](nb::object self, bool requires_grad) -> ObjectOf<"Tensor"> {
        tensor_of(self.ptr()).set_requires_grad(requires_grad);
        return self;
      },
      "requires_grad"_a = true, "Sets requires_grad and returns the tensor.");
  def_method(
      "retain_grad", [](nb::handle self) { tensor_of(self.ptr()).retain_grad(); },
      "Makes backward keep the gradient of this result.");
  def_method(
      "is_pinned", [](const Tensor& t) { return t.is_pinned(); },
      "Whether the tensor, or this rank's part of it, is in pinned CPU memory.");
  def_method(
      "full_value", [](const Tensor& t) { return t.full(); },
      "The whole value as a local tensor on every rank. Collective for a global tensor.");

  def_method("__format__", format, "spec"_a);
  def_method("__copy__", [](const Tensor& t) {
    Tensor c = t.detach();
    if (t.requires_grad()) c.set_requires_grad();
    return c;
  });
  def_method(
      "__deepcopy__",
      [](nb::handle self, nb::dict memo) -> nb::object {
        const Tensor& t = tensor_of(self.ptr());
        // What an op made is copied without its place in the graph: the copy is a leaf.
        nb::object c = wrap_object(copy_of(t.detach()));
        if (self.type().ptr() != reinterpret_cast<PyObject*>(tensor_type)) {
          c = self.type().attr("__new__")(self.type(), c);
          if (PyObject_HasAttrString(self.ptr(), "__dict__")) {
            nb::object copied = nb::module_::import_("copy").attr("deepcopy")(self.attr("__dict__"), memo);
            c.attr("__dict__").attr("update")(copied);
          }
        }
        tensor_of(c.ptr()).set_requires_grad(t.requires_grad());
        if (Tensor g = t.is_leaf() ? t.grad() : Tensor(); g.defined()) tensor_of(c.ptr()).set_grad(copy_of(g.detach()));
        memo[nb::module_::import_("builtins").attr("id")(self)] = c;
        return c;
      },
      "memo"_a);
  def_method(
      "__reduce_ex__",
      [](nb::handle self, nb::handle) -> nb::object {
        const Tensor& t = tensor_of(self.ptr());
        if (t.is_global())
          fail_type("a global tensor cannot be pickled: its parts are on several ranks. Use holon.save, or to_local() "
                    "first.");
        const bool here = t.device().is_host();
        return pickled("tensor", to_host_numpy(t.detach()), dtype_object(t.dtype()),
                       here ? nb::object(nb::none()) : nb::object(nb::str(t.device().str().c_str())),
                       t.requires_grad());
      },
      "protocol"_a);
  def_new("new_zeros", "zeros");
  def_new("new_ones", "ones");
  def_new("new_empty", "empty");
  def_method(
      "new_full",
      [](const Tensor& t, nb::handle size, HandleOf<"Number"> fill_value, nb::handle dtype, nb::handle device,
         bool requires_grad, bool pin_memory, PlacementHandle placement, SbpHandle sbp) {
        IntList list;
        Scalar value;
        if (!to_ints(size.ptr(), &list))
          fail_type("new_full: size must be a list of int, got {}.", describe(size.ptr()));
        if (!to_scalar(fill_value.ptr(), &value))
          fail_type("new_full: fill_value must be a number, got {}.", describe(fill_value.ptr()));
        return new_filled("full", t, Dims(std::span<const int64_t>(list)), &value, dtype, device, requires_grad,
                          pin_memory, placement, sbp);
      },
      "size"_a, "fill_value"_a, nb::kw_only(), "dtype"_a = nb::none(), "device"_a = nb::none(),
      "requires_grad"_a = false, "pin_memory"_a = false, "placement"_a = nb::none(), "sbp"_a = nb::none());
  def_method(
      "new_tensor",
      [](const Tensor& t, nb::handle data, nb::handle dtype, nb::handle device, bool requires_grad, bool pin_memory) {
        return tensor_from_data(data, dtype.is_none() ? dtype_object(t.dtype()) : nb::borrow(dtype), device,
                                requires_grad, nb::none(), nb::none(), pin_memory);
      },
      "data"_a, nb::kw_only(), "dtype"_a = nb::none(), "device"_a = nb::none(), "requires_grad"_a = false,
      "pin_memory"_a = false);

  auto like = [](const char* op, const char* attr) {
    return [op, attr](const Tensor& t, const Tensor& o) {
      return OpCall(op).in(t).set(attr, std::span<const int64_t>(o.shape())).run();
    };
  };
  def_method("view_as", like("reshape", "shape"), "other"_a, "The tensor in the other's shape.");
  def_method("reshape_as", like("reshape", "shape"), "other"_a, "The tensor in the other's shape.");
  def_method(
      "unfold",
      [](const Tensor& t, int64_t dimension, int64_t size, int64_t step) {
        return OpCall("unfold_dim").in(t).set("dimension", dimension).set("size", size).set("step", step).run();
      },
      "dimension"_a, "size"_a, "step"_a,
      "All windows of a size along an axis, each starting a step after the previous one, as a new last axis; a view.");
  def_method("expand_as", like("expand", "size"), "other"_a, "The tensor broadcast to the other's shape.");
}

}  // namespace holon::python
