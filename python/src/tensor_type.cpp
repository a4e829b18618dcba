// The Tensor type itself: making and freeing of objects, and the slots behind Python's operators.
#include <Python.h>
#include <structmember.h>

#include <unordered_map>

#include "call.h"
#include "holon/base/index.h"
#include "holon/tensor/print.h"
#include "size.h"

namespace holon::python {

PyTypeObject* tensor_type;

namespace {

// Objects that are ready for the next tensor; the GIL guards them.
constexpr int kMostFree = 512;
TensorObject* free_objects[kMostFree];
int n_free = 0;

// Not owned: an object leaves when it dies. The GIL guards them.
std::unordered_map<TensorImpl*, PyObject*>& known_objects() {
  static auto& map = *new std::unordered_map<TensorImpl*, PyObject*>;
  return map;
}

void dealloc(PyObject* self) {
  auto* o = reinterpret_cast<TensorObject*>(self);
  PyTypeObject* type = Py_TYPE(self);
  if (o->weakrefs) PyObject_ClearWeakRefs(self);
  if (o->marks & kKnown) known_objects().erase(o->tensor.impl());
  o->tensor.~Tensor();
  if (type == tensor_type && n_free < kMostFree)
    free_objects[n_free++] = o;
  else
    type->tp_free(self);
  Py_DECREF(type);
}

Tensor empty_of_size(PyObject* args) {
  static const ArgParser parser(find_op("empty"));
  ReadyCall call;
  parser.parse(&PyTuple_GET_ITEM(args, 0), to_size(PyTuple_GET_SIZE(args)), nullptr, &call);
  return dispatch_one(*call.op, std::move(call.inputs), call.attrs);
}

// Tensor(t) shares t's value and tape; Tensor(data) holds float32 values, Tensor(2, 3) and Tensor(Size([2, 3])) memory
// as it comes, Tensor() no element. A subclass may take more.
PyObject* tensor_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  return guarded([&] {
    Py_ssize_t n = PyTuple_GET_SIZE(args);
    PyObject* first = n > 0 ? PyTuple_GET_ITEM(args, 0) : nullptr;
    if (type == tensor_type && kwargs && PyDict_GET_SIZE(kwargs) > 0)
      fail_type("Tensor: takes no keyword arguments. Use holon.tensor(data, dtype=..., ...) for those.");
    Tensor t;
    if (first && is_tensor(first))
      t = tensor_of(first);
    else if (!first)
      t = tensor_from_data(nb::list(), dtype_object(float32), nb::none(), false, nb::none(), nb::none());
    else if (PyLong_Check(first) || (n == 1 && is_size(first)))
      t = empty_of_size(args);
    else
      t = tensor_from_data(first, dtype_object(float32), nb::none(), false, nb::none(), nb::none());
    if (type == tensor_type && n > 1 && !PyLong_Check(first)) fail_type("Tensor: takes one value, got {}.", n);
    PyObject* self = checked(type->tp_alloc(type, 0));
    new (&tensor_of(self)) Tensor(std::move(t));
    return self;
  });
}

int tensor_init(PyObject*, PyObject*, PyObject*) { return 0; }

// The ops behind operators, looked up once when the module is made; an op that is not there leaves its operator out.
struct OperatorOps {
  const OpDef* op = nullptr;
  const OpDef* scalar = nullptr;
};
enum Operator {
  kAdd,
  kSub,
  kMul,
  kDiv,
  kFloorDivide,
  kRemainder,
  kPow,
  kMatmul,
  kEq,
  kNe,
  kLt,
  kLe,
  kGt,
  kGe,
  kAnd,
  kOr,
  kXor,
  kBitAnd,
  kBitOr,
  kBitXor,
  kLeftShift,
  kRightShift,
  kOperatorCount
};
constexpr const char* kOperatorOps[] = {"add",
                                        "sub",
                                        "mul",
                                        "div",
                                        "floor_divide",
                                        "remainder",
                                        "pow",
                                        "matmul",
                                        "eq",
                                        "ne",
                                        "lt",
                                        "le",
                                        "gt",
                                        "ge",
                                        "logical_and",
                                        "logical_or",
                                        "logical_xor",
                                        "bitwise_and",
                                        "bitwise_or",
                                        "bitwise_xor",
                                        "bitwise_left_shift",
                                        "bitwise_right_shift"};
static_assert(std::size(kOperatorOps) == kOperatorCount);
OperatorOps operators[kOperatorCount];
const OpDef *neg_op, *abs_op, *not_op, *bit_not_op;

void find_operators() {
  for (int i = 0; i < kOperatorCount; ++i) {
    OperatorOps& f = operators[i];
    f.op = try_find_op(kOperatorOps[i]);
    if (!f.op || f.op->scalar_overload.empty()) continue;
    f.scalar = try_find_op(f.op->scalar_overload);
    if (!f.scalar) continue;
    auto& s = f.scalar->schema;
    HOLON_CHECK(s.n_attrs == 2 && s.attr("value") == 0 && s.attr("reverse") == 1,
                "{} has not the attributes value, reverse", s.name);
  }
  neg_op = try_find_op("neg");
  abs_op = try_find_op("abs");
  not_op = try_find_op("logical_not");
  bit_not_op = try_find_op("bitwise_not");
}

PyObject* binary(const OperatorOps& f, PyObject* a, PyObject* b) noexcept {
  return guarded([&]() -> PyObject* {
    bool left = is_tensor(a);
    if (left && is_tensor(b)) {
      if (!f.op) Py_RETURN_NOTIMPLEMENTED;
      TensorVec in;
      in.push_back(tensor_of(a));
      in.push_back(tensor_of(b));
      return wrap(dispatch_one(*f.op, std::move(in), Attrs()));
    }
    Scalar value;
    if (!f.scalar || !to_scalar(left ? b : a, &value)) Py_RETURN_NOTIMPLEMENTED;
    TensorVec in;
    in.push_back(tensor_of(left ? a : b));
    Attrs attrs;
    attrs.push_scalar(value);
    attrs.push_bool(!left);
    return wrap(dispatch_one(*f.scalar, std::move(in), attrs));
  });
}

// Python falls back to the plain operator, and binds the name again, where there is no in-place variant. So it does
// with a copy in place of a view, as x[0] += 1 then writes the sum into x by index.
PyObject* in_place(const OperatorOps& f, PyObject* self, PyObject* other) noexcept {
  return guarded([&]() -> PyObject* {
    if (tensor_of(self).impl()->copied) [[unlikely]]
      Py_RETURN_NOTIMPLEMENTED;
    TensorVec in;
    in.push_back(tensor_of(self));
    Attrs attrs;
    if (is_tensor(other)) {
      if (!f.op || !f.op->in_place) Py_RETURN_NOTIMPLEMENTED;
      in.push_back(tensor_of(other));
      dispatch_in_place(*f.op, std::move(in), attrs);
    } else {
      Scalar value;
      if (!f.scalar || !f.scalar->in_place || !to_scalar(other, &value)) Py_RETURN_NOTIMPLEMENTED;
      attrs.push_scalar(value);
      attrs.push_bool(false);
      dispatch_in_place(*f.scalar, std::move(in), attrs);
    }
    return Py_NewRef(self);
  });
}

template <Operator kOp>
PyObject* binary_slot(PyObject* a, PyObject* b) {
  return binary(operators[kOp], a, b);
}
template <Operator kOp>
PyObject* in_place_slot(PyObject* a, PyObject* b) {
  return in_place(operators[kOp], a, b);
}
// &, | and ^ are logical between bools and bit by bit between integers.
template <Operator kLogical, Operator kBits, bool kInPlace>
PyObject* bits_slot(PyObject* a, PyObject* b) {
  auto is_bool = [](PyObject* o) { return is_tensor(o) ? tensor_of(o).dtype() == boolean : PyBool_Check(o) != 0; };
  const OperatorOps& f = operators[is_bool(a) && is_bool(b) ? kLogical : kBits];
  return kInPlace ? in_place(f, a, b) : binary(f, a, b);
}

PyObject* pow_slot(PyObject* a, PyObject* b, PyObject* modulus) {
  if (modulus != Py_None) Py_RETURN_NOTIMPLEMENTED;
  return binary(operators[kPow], a, b);
}
PyObject* pow_in_place_slot(PyObject* a, PyObject* b, PyObject*) { return in_place(operators[kPow], a, b); }

PyObject* rich_compare(PyObject* a, PyObject* b, int op) {
  constexpr Operator kOps[] = {kLt, kLe, kEq, kNe, kGt, kGe};  // in the order of Py_LT ... Py_GE
  return binary(operators[kOps[op]], a, b);
}

PyObject* unary(const OpDef* op, PyObject* self) noexcept {
  return guarded([&] {
    if (!op)
      fail(ErrorKind::kNotImplemented, "this operator is not defined for tensors of {}.",
           name(tensor_of(self).dtype()));
    return wrap(dispatch_one(*op, TensorVec{tensor_of(self)}, Attrs()));
  });
}
PyObject* neg_slot(PyObject* self) { return unary(neg_op, self); }
PyObject* abs_slot(PyObject* self) { return unary(abs_op, self); }
PyObject* invert_slot(PyObject* self) { return unary(tensor_of(self).dtype() == boolean ? not_op : bit_not_op, self); }
PyObject* positive_slot(PyObject* self) { return Py_NewRef(self); }

int bool_slot(PyObject* self) {
  return guarded(
      [&] {
        const Tensor& t = tensor_of(self);
        if (t.numel() != 1)
          fail_runtime("bool() of a tensor of shape {}: only one element has a truth value. Reduce it first, e.g. by "
                       "any() or all().",
                       t.shape());
        Scalar s = t.item();
        return static_cast<int>(s.is_float() ? s.as_double() != 0 : s.as_int() != 0);
      },
      -1);
}
PyObject* int_slot(PyObject* self) {
  return guarded([&] { return checked(PyNumber_Long(scalar_object(tensor_of(self).item()).ptr())); });
}
PyObject* float_slot(PyObject* self) {
  return guarded([&] { return checked(PyFloat_FromDouble(tensor_of(self).item().as_double())); });
}
PyObject* index_slot(PyObject* self) {
  return guarded([&] {
    const Tensor& t = tensor_of(self);
    if (t.numel() != 1 || is_floating(t.dtype()))
      fail_type("only an integer tensor of one element can be an index; this one is {} {}.", name(t.dtype()),
                t.shape());
    return checked(PyLong_FromLongLong(t.item().as_int()));
  });
}

Py_ssize_t length(PyObject* self) {
  return guarded(
      [&] {
        const Tensor& t = tensor_of(self);
        if (t.ndim() == 0) fail_type("len() of a tensor without axes.");
        return static_cast<Py_ssize_t>(t.shape()[0]);
      },
      Py_ssize_t{-1});
}

int contains(PyObject* self, PyObject* value) {
  PyObject* equal = rich_compare(self, value, Py_EQ);
  return guarded(
      [&] {
        nb::object hits = nb::steal(checked(equal));
        if (!is_tensor(hits.ptr())) fail_type("in: a tensor holds numbers only, got {}.", describe(value));
        Tensor any = OpCall("any").in(tensor_of(hits.ptr())).run();
        return static_cast<int>(any.item().as_int() != 0);
      },
      -1);
}

// Rows along the first axis.
PyObject* iterate(PyObject* self) {
  return guarded([&] {
    Py_ssize_t n = length(self);
    if (n < 0) raise_python();
    nb::object rows = nb::steal(checked(PyTuple_New(n)));
    for (Py_ssize_t i = 0; i < n; ++i) {
      nb::int_ at(i);
      PyTuple_SET_ITEM(rows.ptr(), i, checked(get_item(self, at.ptr())));
    }
    return checked(PyObject_GetIter(rows.ptr()));
  });
}

// By object, as == compares values.
Py_hash_t hash(PyObject* self) { return _Py_HashPointer(self); }

PyObject* repr(PyObject* self) {
  return guarded([&] {
    const Tensor& t = tensor_of(self);
    bool gather = print_options().gather && t.is_global() && !t.is_symbolic();
    std::string s = gather ? to_string(t, t.full().array()) : to_string(t);
    return checked(PyUnicode_DecodeUTF8(s.data(), static_cast<Py_ssize_t>(s.size()), "replace"));
  });
}

}  // namespace

PyObject* wrap(Tensor t) {
  if (!t.defined()) Py_RETURN_NONE;
  TensorObject* o;
  if (n_free > 0) {
    o = free_objects[--n_free];
    PyObject_Init(reinterpret_cast<PyObject*>(o), tensor_type);
  } else {
    o = PyObject_New(TensorObject, tensor_type);
    if (!o) return nullptr;
  }
  o->weakrefs = nullptr;
  o->marks = 0;
  new (&o->tensor) Tensor(std::move(t));
  return reinterpret_cast<PyObject*>(o);
}

void make_known(PyObject* o) {
  auto* t = reinterpret_cast<TensorObject*>(o);
  if (known_objects().emplace(t->tensor.impl(), o).second) t->marks |= kKnown;
}

PyObject* known_object(Tensor t) {
  if (!t.defined()) Py_RETURN_NONE;
  if (auto at = known_objects().find(t.impl()); at != known_objects().end()) return Py_NewRef(at->second);
  PyObject* o = wrap(std::move(t));
  if (o) make_known(o);
  return o;
}

void note_window(PyObject* x, PyObject* view) {
  if (!view || !is_tensor(view)) return;
  const Tensor &from = tensor_of(x), &to = tensor_of(view);
  if (!from.is_local() || !to.is_local() || !to.array().defined() || to.array().is_contiguous() ||
      from.array().storage != to.array().storage)
    return;
  if ((reinterpret_cast<TensorObject*>(x)->marks & kUsersStrides) || from.array().is_contiguous())
    reinterpret_cast<TensorObject*>(view)->marks |= kUsersStrides;
}

void bind_tensor_type(nb::module_& m) {
  find_operators();
  static PyMemberDef members[] = {{"__weaklistoffset__", T_PYSSIZET, offsetof(TensorObject, weakrefs), READONLY,
                                   nullptr},
                                  {nullptr, 0, 0, 0, nullptr}};
#define HOLON_SLOT(name, f) \
  { name, reinterpret_cast<void*>(f) }
  static PyType_Slot slots[] = {
      HOLON_SLOT(Py_tp_new, tensor_new),
      HOLON_SLOT(Py_tp_init, tensor_init),
      HOLON_SLOT(Py_tp_dealloc, dealloc),
      HOLON_SLOT(Py_tp_members, members),
      HOLON_SLOT(Py_tp_getset, tensor_properties),
      HOLON_SLOT(Py_tp_repr, repr),
      HOLON_SLOT(Py_tp_hash, hash),
      HOLON_SLOT(Py_tp_richcompare, rich_compare),
      HOLON_SLOT(Py_tp_iter, iterate),
      HOLON_SLOT(Py_nb_add, binary_slot<kAdd>),
      HOLON_SLOT(Py_nb_subtract, binary_slot<kSub>),
      HOLON_SLOT(Py_nb_multiply, binary_slot<kMul>),
      HOLON_SLOT(Py_nb_true_divide, binary_slot<kDiv>),
      HOLON_SLOT(Py_nb_floor_divide, binary_slot<kFloorDivide>),
      HOLON_SLOT(Py_nb_remainder, binary_slot<kRemainder>),
      HOLON_SLOT(Py_nb_power, pow_slot),
      HOLON_SLOT(Py_nb_matrix_multiply, binary_slot<kMatmul>),
      HOLON_SLOT(Py_nb_and, (bits_slot<kAnd, kBitAnd, false>)),
      HOLON_SLOT(Py_nb_or, (bits_slot<kOr, kBitOr, false>)),
      HOLON_SLOT(Py_nb_xor, (bits_slot<kXor, kBitXor, false>)),
      HOLON_SLOT(Py_nb_inplace_add, in_place_slot<kAdd>),
      HOLON_SLOT(Py_nb_inplace_subtract, in_place_slot<kSub>),
      HOLON_SLOT(Py_nb_inplace_multiply, in_place_slot<kMul>),
      HOLON_SLOT(Py_nb_inplace_true_divide, in_place_slot<kDiv>),
      HOLON_SLOT(Py_nb_inplace_floor_divide, in_place_slot<kFloorDivide>),
      HOLON_SLOT(Py_nb_inplace_remainder, in_place_slot<kRemainder>),
      HOLON_SLOT(Py_nb_inplace_power, pow_in_place_slot),
      HOLON_SLOT(Py_nb_inplace_and, (bits_slot<kAnd, kBitAnd, true>)),
      HOLON_SLOT(Py_nb_inplace_or, (bits_slot<kOr, kBitOr, true>)),
      HOLON_SLOT(Py_nb_inplace_xor, (bits_slot<kXor, kBitXor, true>)),
      HOLON_SLOT(Py_nb_lshift, binary_slot<kLeftShift>),
      HOLON_SLOT(Py_nb_rshift, binary_slot<kRightShift>),
      HOLON_SLOT(Py_nb_inplace_lshift, in_place_slot<kLeftShift>),
      HOLON_SLOT(Py_nb_inplace_rshift, in_place_slot<kRightShift>),
      HOLON_SLOT(Py_nb_negative, neg_slot),
      HOLON_SLOT(Py_nb_absolute, abs_slot),
      HOLON_SLOT(Py_nb_invert, invert_slot),
      HOLON_SLOT(Py_nb_positive, positive_slot),
      HOLON_SLOT(Py_nb_bool, bool_slot),
      HOLON_SLOT(Py_nb_int, int_slot),
      HOLON_SLOT(Py_nb_float, float_slot),
      HOLON_SLOT(Py_nb_index, index_slot),
      HOLON_SLOT(Py_mp_length, length),
      HOLON_SLOT(Py_mp_subscript, get_item),
      HOLON_SLOT(Py_mp_ass_subscript, set_item),
      HOLON_SLOT(Py_sq_contains, contains),
      {Py_tp_doc,
       const_cast<char*>(
           "One logical tensor: local, on a device of this rank, or global, with a placement and an sbp.")},
      {0, nullptr}};
#undef HOLON_SLOT
  PyType_Spec spec = {"holon.Tensor", sizeof(TensorObject), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, slots};
  tensor_type = reinterpret_cast<PyTypeObject*>(checked(PyType_FromSpec(&spec)));
  nb::handle type(reinterpret_cast<PyObject*>(tensor_type));
  // numpy's operators leave an array or number with a tensor to the tensor.
  nb::setattr(type, "__array_priority__", nb::int_(1000));
  m.attr("Tensor") = type;
}

}  // namespace holon::python
