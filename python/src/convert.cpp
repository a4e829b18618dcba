// Tensor.to and its short forms: dtype, device, placement and sbp.
#include "call.h"
#include "holon/base/fmt.h"
#include "holon/tensor/print.h"

namespace holon::python {

namespace {

Tensor cast(const Tensor& t, DType dtype) {
  return t.dtype() == dtype ? t : OpCall("cast").in(t).set("dtype", dtype).run();
}

Tensor to_global(const Tensor& t, const Placement& placement, const NdSbp& sbp) {
  return OpCall("to_global").in(t).set("placement", placement).set("sbp", sbp).run();
}

// A global tensor goes to the same ranks under another type of device.
Tensor to_device(const Tensor& t, Device device, bool non_blocking = false) {
  if (t.is_local())
    return t.device() == device
        ? t
        : OpCall("to_device").in(t).set("device", device).set("non_blocking", non_blocking).run();
  const Placement& p = t.placement();
  if (p.device_type() == device.type) return t;
  return to_global(
      t, Placement(name(device.type), p.hierarchy(), std::vector<int64_t>(p.ranks().begin(), p.ranks().end())),
      t.nd_sbp());
}

// The very same object where nothing changed.
ObjectOf<"Tensor"> result(nb::handle self, Tensor t) {
  return t.is_same(tensor_of(self.ptr())) ? nb::borrow(self) : wrap_object(std::move(t));
}

struct Wish {
  nb::object dtype = nb::none(), device = nb::none(), placement = nb::none(), sbp = nb::none();
  bool copy = false, non_blocking = false;
};

ObjectOf<"Tensor"> to(nb::handle self, nb::args args, nb::kwargs kwargs) {
  Wish w;
  Tensor like;
  auto take = [&](nb::object& slot, nb::handle value, const char* what) {
    if (!slot.is_none()) fail_type("to: {} was given twice.", what);
    slot = nb::borrow(value);
  };
  int bools = 0;
  for (nb::handle a : args) {
    DType dtype;
    Device device;
    Placement placement;
    NdSbp sbp;
    if (a.is_none()) continue;
    if (PyBool_Check(a.ptr())) {  // behind the device or dtype: non_blocking, then copy
      if (bools++ > 1) fail_type("to: accepts two positional bools, non_blocking and copy; got more.");
      (bools == 1 ? w.non_blocking : w.copy) = a.ptr() == Py_True;
      continue;
    }
    if (is_tensor(a.ptr()))
      like = tensor_of(a.ptr());
    else if (DTypeObject d; nb::try_cast(a, d) || PyType_Check(a.ptr()))
      take(w.dtype, a, "dtype");
    else if (nb::try_cast(a, device))
      take(w.device, a, "device");
    else if (PyUnicode_Check(a.ptr()))
      take(to_dtype(a.ptr(), &dtype) ? w.dtype : w.device, a, "device");
    else if (to_placement(a.ptr(), &placement))
      take(w.placement, a, "placement");
    else if (to_nd_sbp(a.ptr(), &sbp))
      take(w.sbp, a, "sbp");
    else
      fail_type("to: takes a dtype, a device, a tensor, or a placement and an sbp; got {}.", describe(a.ptr()));
  }
  for (auto [key, value] : kwargs) {
    std::string k = nb::cast<std::string>(key);
    if (k == "dtype")
      take(w.dtype, value, "dtype");
    else if (k == "device")
      take(w.device, value, "device");
    else if (k == "placement")
      take(w.placement, value, "placement");
    else if (k == "sbp")
      take(w.sbp, value, "sbp");
    else if (k == "other")
      like = expect_tensor(value, "to", "other");
    else if (k == "copy")
      w.copy = nb::cast<bool>(value);
    else if (k == "non_blocking")
      w.non_blocking = nb::cast<bool>(value);
    else if (k != "memory_format")
      fail_type("to: there is no argument '{}'.", k);
  }
  Tensor t = tensor_of(self.ptr());
  if (like.defined()) {
    t = cast(t, like.dtype());
    if (like.is_global())
      t = to_global(t, like.placement(), like.nd_sbp());
    else if (t.is_local())
      t = to_device(t, like.device(), w.non_blocking);
    else
      fail_runtime("to: a global tensor cannot become like a local one. Use to_local() first.");
  }
  if (!w.dtype.is_none()) t = cast(t, expect_dtype(w.dtype, "to"));
  if (!w.device.is_none()) {
    if (!w.placement.is_none() || !w.sbp.is_none())
      fail_layout(
          "to: both device and placement or sbp were given. A global tensor has a placement, a local one a device.");
    t = to_device(t, expect_device(w.device, "to"), w.non_blocking);
  }
  if (!w.placement.is_none() || !w.sbp.is_none()) {
    if (t.is_local() && (w.placement.is_none() || w.sbp.is_none()))
      fail_layout("to: a local tensor becomes global with both placement and sbp; only {} was given.",
                  w.sbp.is_none() ? "placement" : "sbp");
    t = to_global(t, w.placement.is_none() ? t.placement() : expect_placement(w.placement, "to"),
                  w.sbp.is_none() ? t.nd_sbp() : expect_nd_sbp(w.sbp, "to"));
  }
  if (w.copy && t.is_same(tensor_of(self.ptr()))) t = OpCall("clone").in(t).run();
  return result(self, std::move(t));
}

const char* type_word(DType d) {
  switch (d) {
    case DType::kBool: return "BoolTensor";
    case DType::kUInt8: return "ByteTensor";
    case DType::kInt8: return "CharTensor";
    case DType::kInt32: return "IntTensor";
    case DType::kInt64: return "LongTensor";
    case DType::kFloat16: return "HalfTensor";
    case DType::kBFloat16: return "BFloat16Tensor";
    case DType::kFloat32: return "FloatTensor";
    case DType::kFloat64: return "DoubleTensor";
    case DType::kFloat8E4M3FN: return "Float8E4M3FNTensor";
    case DType::kFloat8E5M2: return "Float8E5M2Tensor";
    case DType::kFloat8E8M0FNU: return "Float8E8M0FNUTensor";
    default: return "Tensor";
  }
}

nb::object type(nb::handle self, nb::handle dtype) {
  const Tensor& t = tensor_of(self.ptr());
  if (dtype.is_none()) {
    std::string cuda =
        t.impl()->device.type == DeviceType::kCpu ? "." : fmt::format(".{}.", name(t.impl()->device.type));
    return nb::str((print_options().prefix + cuda + type_word(t.dtype())).c_str());
  }
  return result(self, cast(t, expect_dtype(dtype, "type")));
}

}  // namespace

void bind_conversion(nb::module_&) {
  using namespace nb::literals;
  def_method("to", to, "args"_a, "kwargs"_a,
             "The tensor with another dtype, on another device, like another tensor, or under a placement and sbp. The "
             "same object if nothing changes.");
  def_method(
      "cpu", [](nb::handle self) { return result(self, to_device(tensor_of(self.ptr()), Device{})); },
      "The tensor on the CPU.");
  def_method(
      "cuda",
      [](nb::handle self, nb::handle device, bool non_blocking) {
        int64_t index;
        Device to = device.is_none()       ? Device::parse("cuda")
            : to_int(device.ptr(), &index) ? Device::parse(fmt::format("cuda:{}", index))
                                           : expect_device(device, "cuda");
        return result(self, to_device(tensor_of(self.ptr()), to, non_blocking));
      },
      "device"_a = nb::none(), "non_blocking"_a = false,
      "The tensor on a cuda device. non_blocking: from pinned memory without waiting for the copy.");
  def_method("type", type, "dtype"_a = nb::none(), "The name of the tensor's type, or the tensor with another dtype.");
  def_method(
      "type_as",
      [](nb::handle self, const Tensor& other) { return result(self, cast(tensor_of(self.ptr()), other.dtype())); },
      "other"_a, "The tensor with the other's dtype.");
  const std::pair<const char*, DType> casts[] = {{"float", float32},     {"double", float64}, {"half", float16},
                                                 {"bfloat16", bfloat16}, {"int", int32},      {"long", int64},
                                                 {"char", int8},         {"byte", uint8},     {"bool", boolean}};
  for (auto& [method, dtype] : casts)
    def_method(method, [dtype = dtype](nb::handle self) { return result(self, cast(tensor_of(self.ptr()), dtype)); });
}

}  // namespace holon::python
