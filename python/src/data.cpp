// holon.tensor(): values from lists, numbers, arrays and tensors, local or as a part of a global tensor.
#include <algorithm>
#include <cmath>

#include "call.h"
#include "global_mode.h"
#include "holon/base/context.h"
#include "holon/base/fmt.h"
#include "holon/global/slice.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/on_device.h"
#include "holon/ops/part_metas.h"
#include "holon/tensor/observer.h"

namespace holon::python {

Tensor tensor_over_numpy(nb::handle a, const char* call);  // in numpy.cpp
nb::object to_host_numpy(const Tensor& t);

namespace {

// Nested lists of Python numbers, read in one pass.
class ListReader {
 public:
  // False if something else than lists and plain numbers is in it.
  bool read(PyObject* o, int depth = 0) {
    if (PyList_Check(o) || PyTuple_Check(o)) {
      int64_t n = PySequence_Fast_GET_SIZE(o);
      bool first = shape_.size() == depth && !leaf_;
      if (first) shape_.push_back(n);
      if (shape_.size() <= depth || shape_[depth] != n) fail_ragged(depth, n);
      for (int64_t i = 0; i < n; ++i)
        if (!read(PySequence_Fast_GET_ITEM(o, i), depth + 1)) return false;
      return true;
    }
    double f;
    int64_t i = 0;
    if (PyBool_Check(o)) {
      f = static_cast<double>(i = o == Py_True);
    } else if (PyLong_CheckExact(o)) {
      if (!to_int(o, &i)) return false;
      f = static_cast<double>(i);
      kind_ = std::max(kind_, 1);
    } else if (PyFloat_CheckExact(o)) {
      f = PyFloat_AS_DOUBLE(o);
      kind_ = 2;
    } else {
      return false;
    }
    if (depth != shape_.size()) fail_ragged(depth, -1);
    leaf_ = true;
    floats_.push_back(f);
    ints_.push_back(i);
    return true;
  }

  Array array(const DType* wanted) const {
    Scalar::Kind kinds[] = {Scalar::Kind::kBool, Scalar::Kind::kInt, Scalar::Kind::kFloat};
    DType natural = floats_.empty()           ? float32
        : kinds[kind_] == Scalar::Kind::kBool ? boolean
        : kinds[kind_] == Scalar::Kind::kInt  ? int64
                                              : float32;
    if (wanted && is_float8(*wanted)) return kernels::converted(filled(float32), *wanted);
    return filled(wanted ? *wanted : natural);
  }

 private:
  Array filled(DType dtype) const {
    Array out = Array::empty(shape_, dtype);
    visit_dtype(out.dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      T* p = out.data<T>();
      for (size_t k = 0; k < floats_.size(); ++k) {
        if constexpr (std::is_same_v<T, bool>)
          p[k] = floats_[k] != 0;
        else if constexpr (std::is_integral_v<T>)
          p[k] = static_cast<T>(kind_ == 2 ? to_integer(floats_[k]) : ints_[k]);
        else if constexpr (std::is_same_v<T, double>)
          p[k] = floats_[k];
        else
          p[k] = T(static_cast<float>(floats_[k]));
      }
    });
    return out;
  }

  static int64_t to_integer(double f) {
    if (!(std::fabs(f) < 9.2e18)) fail_value("tensor: {} cannot be an integer.", f);
    return static_cast<int64_t>(f);
  }
  [[noreturn]] void fail_ragged(int depth, int64_t n) const {
    std::string found = n < 0 ? "a number" : fmt::format("a list of {}", n);
    std::string wanted = depth < shape_.size() ? fmt::format("a list of {}", shape_[depth]) : "a number";
    fail_value("tensor: the lists are ragged: {} is at depth {} where others have {}. All lists of one depth must have "
               "the same length.",
               found, depth, wanted);
  }

  Dims shape_;
  bool leaf_ = false;  // a number was read: the depth is known
  int kind_ = 0;       // 0 bool, 1 int, 2 float
  std::vector<double> floats_;
  std::vector<int64_t> ints_;
};

Array converted(const Array& a, const DType* wanted, bool copy) {
  if (!copy && (!wanted || *wanted == a.dtype) && a.is_contiguous()) return a;
  Array out = Array::empty(a.shape, wanted ? *wanted : a.dtype);
  kernels::copy(a, out);
  return out;
}

// Lists with arrays, numpy scalars or tensors in them: numpy puts them together.
nb::object without_tensors(nb::handle o) {
  if (is_tensor(o.ptr())) return to_host_numpy(tensor_of(o.ptr()));
  if (!PyList_Check(o.ptr()) && !PyTuple_Check(o.ptr())) return nb::borrow(o);
  nb::list l;
  for (nb::handle item : nb::steal(checked(PySequence_Fast(o.ptr(), "")))) l.append(without_tensors(item));
  return l;
}

Array read(nb::handle data, const DType* wanted) {
  if (is_tensor(data.ptr())) return converted(tensor_of(data.ptr()).full().array(), wanted, true);
  if (!is_numpy(data.ptr())) {
    ListReader reader;
    if (reader.read(data.ptr())) return reader.array(wanted);
    bool sequence = PyList_Check(data.ptr()) || PyTuple_Check(data.ptr());
    if (!sequence && !PyRange_Check(data.ptr()) && !PyObject_HasAttrString(data.ptr(), "__array__") &&
        !PyObject_CheckBuffer(data.ptr()))
      fail_type("tensor: takes numbers, (nested) lists of them, arrays or tensors; got {}.", describe(data.ptr()));
  }
  nb::module_ np = nb::module_::import_("numpy");
  nb::object a;
  try {
    a = np.attr("array")(without_tensors(data));
  } catch (nb::python_error& e) {
    std::string reason = nb::cast<std::string>(nb::str(e.value()));
    fail_value("tensor: the data does not form an array: {}", reason);
  }
  a = np.attr("ascontiguousarray")(a).attr("reshape")(a.attr("shape"));
  return converted(tensor_over_numpy(a, "tensor").array(), wanted, false);
}

// This rank's part of a value that all ranks have: cut, or under P the value on the first rank and zeros elsewhere.
Array part_of(const Array& whole, const Placement& placement, const NdSbp& sbp) {
  int index = placement.index_of(Context::current().rank());
  if (index < 0) return {};
  Region s = region_of(whole.shape, placement, sbp, index);
  Array out = Array::empty(s.shape, whole.dtype, placement.device());
  Dims at = placement.coordinate(index);
  for (int a = 0; a < sbp.size(); ++a)
    if (sbp[a].is_partial() && at[a] != 0) {
      kernels::fill(out, 0);
      return out;
    }
  int64_t offset = 0;
  for (int d = 0; d < whole.ndim(); ++d) offset += s.offset[d] * whole.strides[d];
  kernels::copy(whole.view(s.shape, whole.strides, offset), out);
  return out;
}

}  // namespace

Tensor tensor_from_data(nb::handle data, nb::handle dtype, nb::handle device, bool requires_grad, nb::handle placement,
                        nb::handle sbp, bool pin_memory) {
  bool global = !placement.is_none();
  if (global != !sbp.is_none())
    fail_layout("tensor: placement and sbp must be given together; only {} was given. Give both for a global tensor, "
                "neither for a local one.",
                global ? "placement" : "sbp");
  if (global && !device.is_none())
    fail_layout(
        "tensor: both placement and device were given. A global tensor has a placement, a local one has a device.");
  DType wanted;
  if (!dtype.is_none()) wanted = expect_dtype(dtype, "tensor");
  Placement p;
  NdSbp s;
  if (global) {
    p = expect_placement(placement, "tensor");
    s = expect_nd_sbp(sbp, "tensor");
  }
  Device d;
  if (!device.is_none()) d = expect_device(device, "tensor");
  Array whole = read(data, dtype.is_none() ? nullptr : &wanted);
  Tensor t;
  if (global) {
    check_nd_sbp(whole.shape, p, s, "tensor");
    ops::check_alike("tensor", Tensor::local(whole), p);
    t = Tensor::global(part_of(whole, p, s), whole.shape, whole.dtype, intern_spec(p, s));
  } else {
    if (device.is_none() && is_tensor(data.ptr()) && tensor_of(data.ptr()).is_local())
      d = tensor_of(data.ptr()).device();
    t = Tensor::local(kernels::on_device(whole, d));
  }
  if (pin_memory) t = OpCall("pin_memory").in(t).run();
  if (requires_grad) t.set_requires_grad();
  if (Observer* o = observer()) [[unlikely]]
    o->made("tensor", t);
  return t;
}

void bind_data(nb::module_& m) {
  using namespace nb::literals;
  m.def(
      "tensor",
      [](nb::handle data, nb::handle dtype, nb::handle device, bool requires_grad, PlacementHandle placement,
         SbpHandle sbp, bool pin_memory) {
        if (!global_mode().enabled || !placement.is_none() || !sbp.is_none())
          return tensor_from_data(data, dtype, device, requires_grad, placement, sbp, pin_memory);
        Device d;
        if (!device.is_none()) d = expect_device(device, "tensor");
        return tensor_from_data(data, dtype, nb::none(), requires_grad,
                                nb::cast(mode_placement(device.is_none() ? nullptr : &d)), sbp_tuple(global_mode().sbp),
                                pin_memory);
      },
      "data"_a.none(), "dtype"_a = nb::none(), "device"_a = nb::none(), "requires_grad"_a = false,
      "placement"_a = nb::none(), "sbp"_a = nb::none(), "pin_memory"_a = false,
      "A tensor from numbers, nested lists, arrays or tensors. With placement and sbp every rank passes the same data "
      "and keeps its part.");
  m.def(
      "as_tensor", [](nb::object data, nb::handle dtype, nb::handle device) -> ObjectOf<"Tensor"> {
        if (is_tensor(data.ptr()) && dtype.is_none() && device.is_none()) return data;
        if (is_numpy_array(data.ptr()) && dtype.is_none() && device.is_none() &&
            nb::cast<bool>(data.attr("flags").attr("writeable")))
          return wrap_object(tensor_over_numpy(data, "as_tensor"));
        return wrap_object(tensor_from_data(data, dtype, device, false, nb::none(), nb::none()));
      },
      "data"_a, "dtype"_a = nb::none(), "device"_a = nb::none(),
      "The data as a tensor, over its own memory where that is possible.");
}

}  // namespace holon::python
