// One Python object per op, called by vectorcall. The same object serves as holon.add and, being a method descriptor,
// as Tensor.add without a bound method.
#include <Python.h>
#include <structmember.h>

#include <map>
#include <memory>

#include "call.h"
#include "holon/base/fmt.h"
#include "holon/base/index.h"
#include "holon/dispatch/signature.h"
#include "holon/registry/describe.h"
#include "holon/registry/library.h"

namespace holon::python {

namespace {

struct OpFunction {
  PyObject_HEAD vectorcallfunc vectorcall;
  const ArgParser* parser;     // shared by a name, its aliases and the in-place variant; the first overload of several
  const Overloads* overloads;  // nullptr: one overload
  bool in_place;
  PyObject* name;
};
PyTypeObject* op_function_type;

PyObject* call_op(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* kwnames) noexcept {
  return guarded([&] {
    ReadyCall call;
    reinterpret_cast<OpFunction*>(self)->parser->parse(args, to_size(PyVectorcall_NARGS(nargsf)), kwnames, &call);
    return run(call);
  });
}

PyObject* call_in_place(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* kwnames) noexcept {
  return guarded([&] {
    ReadyCall call;
    auto* f = reinterpret_cast<OpFunction*>(self);
    f->parser->parse(args, to_size(PyVectorcall_NARGS(nargsf)), kwnames, &call);
    if (!call.first || call.inputs.empty() || (call.op != &f->parser->op() && call.first != args[0]))
      fail_type("{}_: the first argument must be Tensor: it is written to. Signature: {}",
                f->parser->op().public_name(), f->parser->signature());
    dispatch_in_place(*call.op, std::move(call.inputs), call.attrs);
    return Py_NewRef(call.first);
  });
}

// A name with several overloads pays for finding the one that fits; one with a single one does not.
template <auto kCall>
PyObject* call_overloaded(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* kwnames) noexcept {
  return guarded([&] {
    OpFunction chosen = *reinterpret_cast<OpFunction*>(self);
    chosen.parser = &chosen.overloads->pick(args, to_size(PyVectorcall_NARGS(nargsf)), kwnames);
    return kCall(reinterpret_cast<PyObject*>(&chosen), args, nargsf, kwnames);
  });
}

// __holon_function__ of the object's type, or, of a list or tuple, of an item's: a new reference, or nullptr without an
// error.
PyObject* find_override(PyObject* o) {
  static PyObject* const name = PyUnicode_InternFromString("__holon_function__");
  if (is_tensor(o) || PyLong_CheckExact(o) || PyFloat_CheckExact(o) || PyUnicode_CheckExact(o)) return nullptr;
  if (PyList_Check(o) || PyTuple_Check(o)) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); ++i) {
      PyObject* item = PySequence_Fast_GET_ITEM(o, i);
      PyObject* found = PyList_Check(item) || PyTuple_Check(item) ? nullptr : find_override(item);
      if (found) return found;
    }
    return nullptr;
  }
  PyObject* found = PyObject_GetAttr(reinterpret_cast<PyObject*>(Py_TYPE(o)), name);
  if (!found) PyErr_Clear();
  return found;
}

// A call that failed is taken over by an argument that is not a tensor and whose type has __holon_function__(op, args,
// kwargs); else its error stays.
PyObject* call_override(PyObject* self, PyObject* const* args, size_t nargs, PyObject* kwnames) noexcept {
  return guarded([&]() -> PyObject* {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    const size_t n_named = kwnames ? to_size(PyTuple_GET_SIZE(kwnames)) : 0;
    PyObject* override = nullptr;
    for (size_t i = 0; i < nargs + n_named && !override; ++i) override = find_override(args[i]);
    if (!override) {
      PyErr_Restore(type, value, trace);
      return nullptr;
    }
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    nb::object function = nb::steal(override),
               positional = nb::steal(checked(PyTuple_New(static_cast<Py_ssize_t>(nargs))));
    for (size_t i = 0; i < nargs; ++i)
      PyTuple_SET_ITEM(positional.ptr(), static_cast<Py_ssize_t>(i), Py_NewRef(args[i]));
    nb::dict named;
    for (size_t i = 0; i < n_named; ++i)
      named[nb::handle(PyTuple_GET_ITEM(kwnames, static_cast<Py_ssize_t>(i)))] = nb::handle(args[nargs + i]);
    return function(nb::handle(self), positional, named).release().ptr();
  });
}

template <auto kCall>
PyObject* call_or_override(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* kwnames) noexcept {
  PyObject* result = kCall(self, args, nargsf, kwnames);
  return result ? result : call_override(self, args, to_size(PyVectorcall_NARGS(nargsf)), kwnames);
}

PyObject* descr_get(PyObject* self, PyObject* object, PyObject*) {
  return object && object != Py_None ? PyMethod_New(self, object) : Py_NewRef(self);
}

OpFunction& self_of(PyObject* o) { return *reinterpret_cast<OpFunction*>(o); }

PyObject* get_name(PyObject* self, void*) { return Py_NewRef(self_of(self).name); }

PyObject* get_doc(PyObject* self, void*) {
  return guarded([&] {
    auto& f = self_of(self);
    std::vector<const ArgParser*> parsers{f.parser};
    if (f.overloads) parsers = f.overloads->parsers;
    std::string text;
    for (auto* parser : parsers) {
      const OpDef& op = parser->op();
      if (!text.empty()) text += "\n\n";
      text += op.doc;
      if (op.elementwise) text += " " + shape_words(op);
      if (f.in_place) text += "\n\nIn place: the result is written into the first argument, which is returned.";
      text += "\n\nSignature: " + parser->signature();
      if (!op.example.empty()) text += "\nExample: holon." + op.example;
    }
    return checked(PyUnicode_FromStringAndSize(text.data(), static_cast<Py_ssize_t>(text.size())));
  });
}

PyObject* get_text_signature(PyObject* self, void*) {
  return guarded([&] {
    auto& f = self_of(self);
    const ArgParser* plain = f.overloads ? f.overloads->plain() : f.parser;
    std::string s = plain ? plain->text_signature() : "(*args, **kwargs)";
    return checked(PyUnicode_FromStringAndSize(s.data(), static_cast<Py_ssize_t>(s.size())));
  });
}

// For inspect.signature(): that of a Python function with the same parameters.
PyObject* get_signature(PyObject* self, void*) {
  return guarded([&] {
    auto& f = self_of(self);
    const ArgParser* plain = f.overloads ? f.overloads->plain() : f.parser;
    std::string s = plain ? plain->text_signature() : "(*args, **kwargs)";
    std::string source = "lambda " + s.substr(1, s.size() - 2) + ": None";
    nb::object builtins = nb::module_::import_("builtins");
    nb::object function = builtins.attr("eval")(nb::str(source.c_str()), nb::dict());
    return nb::module_::import_("inspect").attr("signature")(function).release().ptr();
  });
}

PyObject* get_module(PyObject*, void*) { return PyUnicode_FromString("holon"); }

PyObject* op_repr(PyObject* self) {
  auto& f = self_of(self);
  const ArgParser* plain = f.overloads ? f.overloads->plain() : f.parser;
  if (!plain) return PyUnicode_FromFormat("<op %U: %zu overloads>", f.name, f.overloads->parsers.size());
  return PyUnicode_FromFormat("<op %U: %s>", f.name, plain->signature().c_str());
}

void op_dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  Py_XDECREF(self_of(self).name);
  type->tp_free(self);
  Py_DECREF(type);
}

// A pickled op (a partial sent to a worker process) is found again by its name.
PyObject* op_reduce(PyObject* self, PyObject*) {
  return guarded([&] { return pickled("find_op_function", nb::borrow(self_of(self).name)).release().ptr(); });
}

void make_type() {
  static PyMemberDef members[] = {{"__vectorcalloffset__", T_PYSSIZET, offsetof(OpFunction, vectorcall), READONLY,
                                   nullptr},
                                  {nullptr, 0, 0, 0, nullptr}};
  static PyMethodDef methods[] = {{"__reduce__", op_reduce, METH_NOARGS, nullptr}, {nullptr, nullptr, 0, nullptr}};
  static PyGetSetDef getset[] = {{"__name__", get_name, nullptr, nullptr, nullptr},
                                 {"__qualname__", get_name, nullptr, nullptr, nullptr},
                                 {"__doc__", get_doc, nullptr, nullptr, nullptr},
                                 {"__module__", get_module, nullptr, nullptr, nullptr},
                                 {"__text_signature__", get_text_signature, nullptr, nullptr, nullptr},
                                 {"__signature__", get_signature, nullptr, nullptr, nullptr},
                                 {nullptr, nullptr, nullptr, nullptr, nullptr}};
  PyType_Slot slots[] = {{Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
                         {Py_tp_descr_get, reinterpret_cast<void*>(descr_get)},
                         {Py_tp_repr, reinterpret_cast<void*>(op_repr)},
                         {Py_tp_dealloc, reinterpret_cast<void*>(op_dealloc)},
                         {Py_tp_members, members},
                         {Py_tp_methods, methods},
                         {Py_tp_getset, getset},
                         {0, nullptr}};
  PyType_Spec spec = {"holon._C.OpFunction", sizeof(OpFunction), 0,
                      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR |
                          Py_TPFLAGS_DISALLOW_INSTANTIATION,
                      slots};
  op_function_type = reinterpret_cast<PyTypeObject*>(checked(PyType_FromSpec(&spec)));
}

nb::object make_function(const ArgParser* parser, const std::string& name, bool in_place,
                         const Overloads* overloads = nullptr) {
  auto* f = PyObject_New(OpFunction, op_function_type);
  if (!f) raise_python();
  f->vectorcall = overloads
      ? in_place ? call_or_override<call_overloaded<call_in_place>> : call_or_override<call_overloaded<call_op>>
      : in_place ? call_or_override<call_in_place>
                 : call_or_override<call_op>;
  f->parser = parser;
  f->overloads = overloads;
  f->in_place = in_place;
  f->name = PyUnicode_InternFromString(name.c_str());
  return nb::steal(reinterpret_cast<PyObject*>(f));
}

// Of the ops that are made so far; they live as long as the process.
const ArgParser* parser_of(const OpDef& op) {
  static auto* parsers = new std::map<const OpDef*, std::unique_ptr<ArgParser>>;
  auto& slot = (*parsers)[&op];
  if (!slot) slot = std::make_unique<ArgParser>(op);
  return slot.get();
}

// The overloads of a public name, or nullptr. They live as long as the process, and grow by what libraries add.
const Overloads* overloads_named(const std::string& name, bool in_place) {
  static auto* made = new std::map<std::pair<std::string, bool>, Overloads>;
  std::vector<const ArgParser*> parsers;
  for (auto* op : overloads_of(name))
    if (op->in_place || !in_place) parsers.push_back(parser_of(*op));
  if (parsers.empty()) return nullptr;
  Overloads& all = (*made)[{name, in_place}];
  all.name = name + (in_place ? "_" : "");
  all.parsers = std::move(parsers);
  return &all;
}

// Any op by its name, with "_" at the end for its in-place variant.
ObjectOf<"OpFunction"> find_op_function(const std::string& name) {
  if (auto* all = overloads_named(name, false)) return make_function(all->parsers[0], name, false, all);
  if (auto* op = try_find_op(name)) return make_function(parser_of(*op), name, false);
  if (name.size() > 1 && name.back() == '_') {
    std::string plain = name.substr(0, name.size() - 1);
    if (auto* all = overloads_named(plain, true)) return make_function(all->parsers[0], name, true, all);
    auto* op = try_find_op(plain);
    if (op && op->in_place) return make_function(parser_of(*op), name, true);
    for (auto* other : all_ops())
      if (other->in_place_name == name) return make_function(parser_of(*other), name, true);
  }
  find_op(name);  // raises
  return nb::none();
}

ObjectOf<"list[dict[str, Any]]"> op_table() {
  const std::string text = describe_ops();
  return nb::module_::import_("json").attr("loads")(nb::str(text.data(), text.size()));
}

// For the reference and for users who want to know what a call would ask of its inputs.
nb::typed<nb::list, nb::str> signatures_of_python_call(const std::string& name, const nb::args& args,
                                                       const nb::kwargs& kwargs) {
  std::vector<PyObject*> values;
  for (nb::handle a : args) values.push_back(a.ptr());
  nb::object names = nb::steal(checked(PyTuple_New(static_cast<Py_ssize_t>(kwargs.size()))));
  Py_ssize_t at = 0;
  for (auto [key, value] : kwargs) {
    values.push_back(value.ptr());
    PyTuple_SET_ITEM(names.ptr(), at++, Py_NewRef(key.ptr()));
  }
  PyObject* kwnames = at ? names.ptr() : nullptr;
  auto* overloads = overloads_named(name, false);
  const ArgParser& parser =
      overloads ? overloads->pick(values.data(), args.size(), kwnames) : *parser_of(find_op(name));
  ReadyCall call;
  parser.parse(values.data(), args.size(), kwnames, &call);
  nb::list texts;
  for (auto& s : signatures_of_call(*call.op, call.inputs, call.attrs)) {
    std::string in, out;
    for (size_t i = 0; i < s.in.size(); ++i)
      if (call.inputs[i].defined()) in += (in.empty() ? "" : ", ") + s.in[i].str();
    for (auto& o : s.out) out += (out.empty() ? "" : ", ") + o.str();
    std::string text = in + " -> " + out;
    if (s.even_units) text += fmt::format(" (if the ranks divide {})", s.even_units);
    texts.append(text);
  }
  return texts;
}

// A method has the tensor as its first argument.
bool is_method(const OpDef& op) {
  return op.method && !op.schema.args.empty() && op.schema.args[0].type == ArgType::kTensor &&
      !op.schema.args[0].optional;
}

// Makes an op's function and method under a name, its public one or an alias, and those of its in-place variant.
void add_functions(nb::dict functions, const std::string& name, const OpDef& op) {
  nb::handle type(reinterpret_cast<PyObject*>(tensor_type));
  for (bool in_place : {false, true}) {
    if (in_place && (!op.in_place || !op.in_place_name.empty())) continue;
    std::string full = in_place ? name + "_" : name;
    nb::object f = make_function(parser_of(op), full, in_place, overloads_named(op.public_name(), in_place));
    if (op.function) functions[full.c_str()] = f;
    if (is_method(op)) nb::setattr(type, full.c_str(), f);
  }
}

}  // namespace

void bind_ops(nb::module_& m) {
  make_type();
  m.attr("OpFunction") = nb::borrow(reinterpret_cast<PyObject*>(op_function_type));
  nb::dict functions;
  for (auto* op : all_ops()) {
    if (op->function || op->method) add_functions(functions, op->public_name(), *op);
    if (op->in_place_name.empty()) continue;
    nb::object f = make_function(parser_of(*op), op->in_place_name, true);
    functions[op->in_place_name.c_str()] = f;
    nb::setattr(nb::handle(reinterpret_cast<PyObject*>(tensor_type)), op->in_place_name.c_str(), f);
  }
  for (auto& [name, op] : all_aliases()) add_functions(functions, name, *op);
  m.attr("ops") = functions;
  m.def(
      "load_library",
      [functions](const std::string& path) {
        nb::list names;
        for (auto& name : load_library(path)) {
          const OpDef& op = find_op(name);
          if (op.function || op.method) add_functions(functions, op.public_name(), op);
          names.append(name);
        }
        return nb::typed<nb::list, nb::str>(names);
      },
      nb::arg("path"),
      "Loads a shared library of ops and returns their names; they become functions of holon and methods of Tensor.");
#ifdef HOLON_TREE_INCLUDE
  m.def(
      "tree_paths",
      [] {
        nb::dict paths;
        paths["include"] = nb::str(HOLON_TREE_INCLUDE).attr("split")(":");
        paths["library"] = HOLON_TREE_LIBRARY;
        return nb::typed<nb::dict, nb::str, nb::any>(paths);
      },
      "Where this development build has its headers and its library.");
#endif
  m.def("op_table", op_table, "One dict per op, by name: its parsed schema and the rest of its declaration.");
  m.def("find_op_function", find_op_function, nb::arg("name"),
        "The function of any op, hidden ones included, by name.");
  m.def(
      "call",
      [](const std::string& name, nb::args args, nb::kwargs kwargs) -> nb::object {
        return find_op_function(name)(*args, **kwargs);
      },
      nb::arg("name"), nb::arg("args"), nb::arg("kwargs"), "Calls any op by name, hidden ones included.");
  m.def("signatures_of_call", signatures_of_python_call, nb::arg("name"), nb::arg("args"), nb::arg("kwargs"),
        "The sbp signatures, for one rank axis, that such a call of the op would choose from: \"S(0), B -> S(0)\". "
        "Runs nothing.");
}

}  // namespace holon::python
