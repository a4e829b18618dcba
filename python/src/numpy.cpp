// Values to and from numpy and DLPack. A local CPU tensor shares its memory with the array, both ways.
#include <algorithm>
#include <memory>

#include "call.h"
#include "holon/array/device_runtime.h"
#include "holon/base/fmt.h"
#include "holon/base/index.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/on_device.h"
#include "holon/tensor/observer.h"
#include "holon/tensor/tracer.h"

namespace holon::python {

using namespace nb::literals;

namespace {

bool copies_from_devices = false;

// What the buffer protocol calls each dtype; bfloat16 has no name there.
const char* format_of(DType d) {
  switch (d) {
    case DType::kBool: return "?";
    case DType::kUInt8: return "B";
    case DType::kInt8: return "b";
    case DType::kInt32: return "i";
    case DType::kInt64: return "l";
    case DType::kFloat16: return "e";
    case DType::kFloat32: return "f";
    case DType::kFloat64: return "d";
    default: return nullptr;
  }
}

bool dtype_of_format(const char* format, Py_ssize_t itemsize, DType* out) {
  std::string_view f = format ? format : "B";
  if (!f.empty() && (f[0] == '@' || f[0] == '=' || f[0] == '<')) f.remove_prefix(1);
  if (f.size() != 1) return false;
  switch (f[0]) {
    case '?': *out = boolean; return true;
    case 'B': *out = uint8; return true;
    case 'b': *out = int8; return true;
    case 'e': *out = float16; return true;
    case 'f': *out = float32; return true;
    case 'd': *out = float64; return true;
    case 'i':
    case 'l':
    case 'q': *out = itemsize == 4 ? int32 : int64; return itemsize == 4 || itemsize == 8;
    default: return false;
  }
}

// Lends an array's memory by the buffer protocol, which numpy reads; keeps the memory alive.
struct LentArray {
  PyObject_HEAD Array array;
  Py_ssize_t shape[kMaxAxes], strides[kMaxAxes];
};
PyTypeObject* lent_type;

int lend(PyObject* self, Py_buffer* view, int) {
  auto* o = reinterpret_cast<LentArray*>(self);
  const Array& a = o->array;
  view->obj = Py_NewRef(self);
  view->buf = a.bytes();
  view->itemsize = static_cast<Py_ssize_t>(size_bytes(a.dtype));
  view->len = static_cast<Py_ssize_t>(a.nbytes());
  view->readonly = 0;
  view->ndim = a.ndim();
  view->format = const_cast<char*>(format_of(a.dtype));
  view->shape = o->shape;
  view->strides = o->strides;
  view->suboffsets = nullptr;
  view->internal = nullptr;
  return 0;
}

void lent_dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  reinterpret_cast<LentArray*>(self)->array.~Array();
  type->tp_free(self);
  Py_DECREF(type);
}

void make_lent_type() {
  PyType_Slot slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(lend)},
                         {Py_tp_dealloc, reinterpret_cast<void*>(lent_dealloc)},
                         {0, nullptr}};
  PyType_Spec spec = {"holon._C.LentArray", sizeof(LentArray), 0,
                      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
  lent_type = reinterpret_cast<PyTypeObject*>(checked(PyType_FromSpec(&spec)));
}

nb::object numpy_of(const Array& a) {
  auto* o = PyObject_New(LentArray, lent_type);
  if (!o) raise_python();
  new (&o->array) Array(a);
  for (int i = 0; i < a.ndim(); ++i) {
    o->shape[i] = a.shape[i];
    o->strides[i] = a.strides[i] * static_cast<Py_ssize_t>(size_bytes(a.dtype));
  }
  nb::object lent = nb::steal(reinterpret_cast<PyObject*>(o));
  // Not initialised where it is declared: the import lets other threads run, and those would wait for it with the lock
  // held.
  static PyObject* asarray = nullptr;
  if (!asarray) {
    nb::object found = nb::module_::import_("numpy").attr("asarray");
    if (!asarray) asarray = found.release().ptr();
  }
  return nb::handle(asarray)(lent);
}

void release_buffer(void* owner) {
  if (!Py_IsInitialized()) return;
  nb::gil_scoped_acquire gil;
  auto* view = static_cast<Py_buffer*>(owner);
  PyBuffer_Release(view);
  delete view;
}

[[noreturn]] void fail_numpy_dtype(nb::handle a, const char* call) {
  fail_type("{}: numpy's {} has no tensor type. Convert the array first, e.g. a.astype('float32').", call,
            nb::str(nb::object(a.attr("dtype"))).c_str());
}

// A window on the array's own memory. Errors: read-only memory, a dtype or strides that tensors have not.
Array array_over(nb::handle a, const char* call) {
  auto view = std::make_unique<Py_buffer>();
  if (PyObject_GetBuffer(a.ptr(), view.get(), PyBUF_STRIDES | PyBUF_FORMAT | PyBUF_WRITABLE) < 0) {
    nb::python_error error;
    if (PyObject_GetBuffer(a.ptr(), view.get(), PyBUF_STRIDES | PyBUF_FORMAT) == 0) {
      PyBuffer_Release(view.get());
      fail_value("{}: the array is read-only, and a tensor could write to it. Pass a copy: a.copy().", call);
    }
    PyErr_Clear();
    if (is_numpy_array(a.ptr())) fail_numpy_dtype(a, call);
    fail_type("{}: takes a numpy array, got {}.", call, describe(a.ptr()));
  }
  Array out;
  std::unique_ptr<Py_buffer, void (*)(Py_buffer*)> held(view.release(), [](Py_buffer* b) { release_buffer(b); });
  if (!dtype_of_format(held->format, held->itemsize, &out.dtype)) fail_numpy_dtype(a, call);
  auto item = static_cast<int64_t>(held->itemsize);
  for (int i = 0; i < held->ndim; ++i) {
    out.shape.push_back(held->shape[i]);
    int64_t stride = held->shape[i] > 1 ? held->strides[i] : item;
    if (stride < 0 || stride % item)
      fail_value("{}: an array with negative strides, or strides that are not multiples of the element size, cannot be "
                 "shared. Pass a copy: a.copy().",
                 call);
    out.strides.push_back(stride / item);
  }
  int64_t extent = 1;
  for (int i = 0; i < out.ndim(); ++i) extent += (std::max<int64_t>(out.shape[i], 1) - 1) * out.strides[i];
  void* data = held->buf;
  if (reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(item))
    fail_value("{}: the array's memory is not aligned. Pass a copy: a.copy().", call);
  out.storage = borrow_storage(data, to_size(extent * item), held.get(), release_buffer);
  held.release();
  return out;
}

template <class T>
nb::object number(T v) {
  if constexpr (std::is_same_v<T, bool>)
    return nb::bool_(v);
  else if constexpr (std::is_integral_v<T>)
    return nb::int_(static_cast<int64_t>(v));
  else
    return nb::float_(static_cast<double>(v));
}

// a has no float8.
nb::object nested(const Array& a, int axis, int64_t at) {
  if (axis == a.ndim())
    return visit_dtype(a.dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      return number(reinterpret_cast<const T*>(a.storage->data())[at]);
    });
  nb::object list = nb::steal(checked(PyList_New(a.shape[axis])));
  for (int64_t i = 0; i < a.shape[axis]; ++i)
    PyList_SET_ITEM(list.ptr(), i, nested(a, axis + 1, at + i * a.strides[axis]).release().ptr());
  return list;
}

ObjectOf<"numpy.ndarray"> array_method(const Tensor& t, nb::handle dtype, nb::handle copy) {
  nb::object a = to_numpy(t);
  if (!dtype.is_none()) return a.attr("astype")(dtype);
  return copy.ptr() == Py_True ? a.attr("copy")() : a;
}

// DLPack: one struct of the ABI that numpy, PyTorch and others share (version 0.8 of the specification; float8: 1.1).
struct DLDevice {
  int32_t type, id;
};
struct DLDataType {
  uint8_t code, bits;
  uint16_t lanes;
};
struct DLTensor {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
};
struct DLManagedTensor {
  DLTensor tensor;
  void* context;
  void (*deleter)(DLManagedTensor*);
};
enum : uint8_t {
  kDLInt = 0,
  kDLUInt = 1,
  kDLFloat = 2,
  kDLBfloat = 4,
  kDLBool = 6,
  kDLFloat8E4M3FN = 10,
  kDLFloat8E5M2 = 12,
  kDLFloat8E8M0FNU = 14
};
constexpr int32_t kDLCpu = 1, kDLCuda = 2;

DLDevice dl_device(const Tensor& t) {
  const Device d = t.impl()->device;
  if (d.is_host()) return {kDLCpu, 0};
  if (d.type != parse_device_type("cuda"))
    fail_runtime("__dlpack__ of a tensor on {}: memory of the CPU and of cuda devices can be shared. Use cpu() first.",
                 d);
  return {kDLCuda, d.index};
}

// Libraries have their own streams: what one hands to another has been waited for, both ways.
void wait_for(const DLDevice& d) {
  if (d.type == kDLCuda) device_runtime(parse_device_type("cuda"))->wait_for_all(d.id);
}

struct Lent {
  DLManagedTensor managed;
  Array array;
};
struct Borrowed {
  DLManagedTensor* managed;
  DLDevice device;
};

DLDataType dl_type(DType d) {
  auto bits = static_cast<uint8_t>(size_bytes(d) * 8);
  uint8_t code = d == boolean ? kDLBool
      : d == uint8            ? kDLUInt
      : d == bfloat16         ? kDLBfloat
      : d == float8_e4m3fn    ? kDLFloat8E4M3FN
      : d == float8_e5m2      ? kDLFloat8E5M2
      : d == float8_e8m0fnu   ? kDLFloat8E8M0FNU
      : is_floating(d)        ? kDLFloat
                              : kDLInt;
  return {code, bits, 1};
}

nb::object to_dlpack(const Tensor& t) {
  t.require_constant("__dlpack__");
  if (t.is_global())
    fail_runtime(
        "__dlpack__ of a global tensor: other libraries can only use local memory. Use to_local() or numpy().");
  if (t.requires_grad())
    fail_runtime("__dlpack__ of a tensor that requires grad: autograd would not see writes by other libraries. Use "
                 "detach() first.");
  wait_for(dl_device(t));
  auto* lent = new Lent{{}, t.array()};
  DLTensor& d = lent->managed.tensor;
  d.data = lent->array.bytes();
  d.device = dl_device(t);
  d.ndim = lent->array.ndim();
  d.dtype = dl_type(t.dtype());
  d.shape = lent->array.shape.begin();
  d.strides = lent->array.strides.begin();
  d.byte_offset = 0;
  lent->managed.context = lent;
  lent->managed.deleter = [](DLManagedTensor* m) {
    try {
      wait_for(m->tensor.device);
    } catch (...) {  // the consumer's work has failed, or the driver is gone
    }
    delete static_cast<Lent*>(m->context);
  };
  PyObject* capsule = PyCapsule_New(&lent->managed, "dltensor", [](PyObject* c) {
    if (!PyCapsule_IsValid(c, "dltensor")) return;  // its consumer has renamed it and frees it
    auto* m = static_cast<DLManagedTensor*>(PyCapsule_GetPointer(c, "dltensor"));
    m->deleter(m);
  });
  if (!capsule) delete lent;
  return nb::steal(checked(capsule));
}

Tensor from_dlpack(nb::handle source) {
  nb::object capsule;
  if (PyCapsule_CheckExact(source.ptr())) {
    capsule = nb::borrow(source);
  } else {
    const bool cuda = nb::hasattr(source, "__dlpack_device__") &&
        nb::cast<int>(nb::object(source.attr("__dlpack_device__")())[0]) == kDLCuda;
    // 1 is the default stream; what it is ready in the order of is waited for below.
    capsule = cuda ? nb::object(source.attr("__dlpack__")("stream"_a = 1)) : nb::object(source.attr("__dlpack__")());
  }
  auto* m = static_cast<DLManagedTensor*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"));
  if (!m) {
    PyErr_Clear();
    fail_value("from_dlpack: the capsule was already consumed, or has a version that Holon does not support.");
  }
  const DLTensor& d = m->tensor;
  if (d.device.type != kDLCpu && d.device.type != kDLCuda)
    fail_value(
        "from_dlpack: the data is on a device of kind {}; only memory of the CPU and of cuda devices can be shared.",
        d.device.type);
  Array a;
  if (d.device.type == kDLCuda) {
    a.device = Device::parse(fmt::format("cuda:{}", d.device.id));
    if (a.device.is_host())
      fail_value("from_dlpack: the data is on a cuda device, but this process simulates cuda devices.");
    wait_for(d.device);
  }
  bool known = false;
  for (int i = 0; i < kDTypeCount && !known; ++i) {
    DLDataType t = dl_type(static_cast<DType>(i));
    known = d.dtype.lanes == 1 && t.code == d.dtype.code && t.bits == d.dtype.bits;
    a.dtype = static_cast<DType>(i);
  }
  if (!known)
    fail_type("from_dlpack: an element type of code {} and {} bits has no tensor type.", d.dtype.code, d.dtype.bits);
  a.shape = Dims(std::span<const int64_t>(d.shape, to_size(d.ndim)));
  a.strides = d.strides ? Dims(std::span<const int64_t>(d.strides, to_size(d.ndim))) : contiguous_strides(a.shape);
  int64_t extent = 1;
  for (int i = 0; i < a.ndim(); ++i) {
    if (a.strides[i] < 0 && a.shape[i] > 1) fail_value("from_dlpack: negative strides cannot be shared. Pass a copy.");
    extent += (std::max<int64_t>(a.shape[i], 1) - 1) * a.strides[i];
  }
  PyCapsule_SetName(capsule.ptr(), "used_dltensor");
  a.storage = borrow_storage(static_cast<std::byte*>(d.data) + d.byte_offset, to_size(extent) * size_bytes(a.dtype),
                             new Borrowed{m, d.device}, [](void* p) {
                               if (!Py_IsInitialized()) return;
                               nb::gil_scoped_acquire gil;
                               auto* borrowed = static_cast<Borrowed*>(p);
                               try {
                                 wait_for(borrowed->device);
                               } catch (...) {  // the driver is gone
                               }
                               if (borrowed->managed->deleter) borrowed->managed->deleter(borrowed->managed);
                               delete borrowed;
                             });
  return Tensor::local(a);
}

}  // namespace

nb::object to_host_numpy(const Tensor& given);

// A global tensor's value is gathered in any case, so that it may as well be brought here.
ObjectOf<"numpy.ndarray"> to_numpy(const Tensor& t) {
  if (t.is_local() && !t.device().is_host() && !copies_from_devices)
    fail_type(
        "numpy: the tensor is on {}, whose memory numpy cannot read. Use Tensor.cpu() first to copy it to the host.",
        t.device().str());
  return to_host_numpy(t);
}

// Of a tensor on any device: a copy where its memory is not the host's.
nb::object to_host_numpy(const Tensor& given) {
  given.require_constant("numpy");
  TracerPause untraced;
  Tensor t = given.detach();
  if (t.is_global()) t = t.full();
  if (t.dtype() == bfloat16 || is_float8(t.dtype())) t = OpCall("cast").in(t).set("dtype", float32).run();
  return numpy_of(kernels::on_device(t.array(), {}));
}

nb::object to_list(const Tensor& t) {
  Array a = kernels::on_device(t.full().array(), {});
  if (is_float8(a.dtype)) a = kernels::converted(a, float32);
  return nested(a, 0, a.offset);
}

Tensor tensor_over_numpy(nb::handle a, const char* call) { return Tensor::local(array_over(a, call)); }

void bind_numpy(nb::module_& m) {
  using namespace nb::literals;
  make_lent_type();
  auto numpy = [](const Tensor& t) { return to_numpy(t); };
  def_method(
      "numpy", numpy,
      "The whole value as a numpy array; a local CPU tensor's shares its memory. Collective for a global tensor.");
  def_method("__array__", array_method, "dtype"_a = nb::none(), "copy"_a = nb::none());
  def_method(
      "__dlpack__", [](const Tensor& t, nb::kwargs) { return to_dlpack(t); }, "kwargs"_a,
      "The memory of a local tensor as a DLPack capsule.");
  def_method("__dlpack_device__", [](const Tensor& t) {
    const DLDevice d = dl_device(t);
    return nb::typed<nb::tuple, int, int>(nb::make_tuple(d.type, d.id));
  });
  m.def(
      "set_numpy_copies", [](bool on) { copies_from_devices = on; }, "on"_a,
      "Whether numpy() of a tensor on a cuda device copies it, instead of failing, as PyTorch's does.");
  m.def(
      "from_numpy",
      [](HandleOf<"numpy.ndarray"> a) {
        if (!is_numpy_array(a.ptr()))
          fail_type("from_numpy: takes a numpy array, got {}. Use holon.tensor() for other data.", describe(a.ptr()));
        Tensor t = tensor_over_numpy(a, "from_numpy");
        if (Observer* o = observer()) [[unlikely]]
          o->made("from_numpy", t);
        return t;
      },
      "array"_a, "A tensor over the array's memory.");
  m.def("from_dlpack", from_dlpack, "source"_a,
        "A tensor over the memory of another library's tensor, on the CPU or a cuda device of this process.");
}

}  // namespace holon::python
