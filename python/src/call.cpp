#include "call.h"

#include <structseq.h>

#include <algorithm>
#include <map>
#include <optional>

#include "global_mode.h"
#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/kernels/copy.h"
#include "holon/registry/describe.h"

namespace holon::python {

namespace {

// Appends attribute `at` of `from`, whose type the schema tells.
void copy_attr(const Attrs& from, const ArgDef& a, Attrs* to) {
  int at = a.attr;
  if (!from.has(at)) return to->push_none();
  switch (a.type) {
    case ArgType::kFloat: return to->push_float(from.as_float(at));
    case ArgType::kScalar: return to->push_scalar(from.as_scalar(at));
    case ArgType::kText: return to->push_text(from.as_text(at));
    case ArgType::kInts: return to->push_ints(from.as_ints(at));
    case ArgType::kDevice: return to->push_device(from.as_device(at));
    default: return to->push_int(from.as_int(at));  // one word, whatever it means
  }
}

const char* type_text(const ArgDef& a) {
  switch (a.type) {
    case ArgType::kTensor: return "Tensor";
    case ArgType::kTensorList: return "a list of Tensor";
    case ArgType::kInt: return "int";
    case ArgType::kFloat: return "float";
    case ArgType::kBool: return "bool";
    case ArgType::kScalar: return "a number";
    case ArgType::kText: return "str";
    case ArgType::kDType: return "a dtype such as holon.float32";
    case ArgType::kDevice: return "a device or its name such as \"cpu\"";
    case ArgType::kPlacement: return "a placement";
    case ArgType::kSbp: return "an sbp, or a list of them";
    default: return a.variadic || a.repeat ? "int, or a list of them" : "a list of int";
  }
}

// PyTorch's and numpy's words for the same arguments.
bool same_word(std::string_view wanted, std::string_view given) {
  static constexpr std::pair<std::string_view, std::string_view> kWords[] = {{"dim", "axis"},
                                                                             {"keepdim", "keepdims"},
                                                                             {"other", "exponent"},
                                                                             {"split_sizes", "split_size_or_sections"},
                                                                             {"sections", "indices_or_sections"},
                                                                             {"indices", "indices_or_sections"},
                                                                             {"w", "other"}};
  return std::find(std::begin(kWords), std::end(kWords), std::pair(wanted, given)) != std::end(kWords);
}

}  // namespace

ArgParser::ArgParser(const OpDef& op) : op_(op) {
  auto& args = op.schema.args;
  signature_ = signature_text(op);
  HOLON_CHECK(args.size() <= kMaxArgs, "op {} has {} arguments", op.name(), args.size());
  plain_tensors_ = true;
  mask_ = op.mask_input;
  for (auto& a : args) {
    names_.push_back(checked(PyUnicode_InternFromString(a.name.c_str())));
    if (a.variadic && variadic_ < 0) variadic_ = static_cast<int>(n_positional_);
    if (!a.keyword_only) ++n_positional_;
    plain_tensors_ &= a.type == ArgType::kTensor && !a.optional && !a.has_default;
    if (a.keyword_only && !a.has_default) needed_keywords_.push_back(names_.back());
  }
  if (op.scalar_overload.empty()) return;
  scalar_op_ = try_find_op(op.scalar_overload);
  if (!scalar_op_) return;
  auto* value = scalar_op_->schema.find("value");
  auto* reverse = scalar_op_->schema.find("reverse");
  HOLON_CHECK(value && value->type == ArgType::kScalar, "{} is the scalar overload of {} but has no Scalar value",
              scalar_op_->name(), op.name());
  scalar_value_ = value->attr;
  if (reverse) scalar_reverse_ = reverse->attr;
}

int ArgParser::find(PyObject* name) const {
  for (size_t i = 0; i < names_.size(); ++i)
    if (names_[i] == name) return static_cast<int>(i);
  Py_ssize_t n;
  const char* p = PyUnicode_AsUTF8AndSize(name, &n);
  if (!p) raise_python();
  std::string_view text(p, to_size(n));
  auto& args = op_.schema.args;
  for (size_t i = 0; i < args.size(); ++i)
    if (args[i].name == text || same_word(args[i].name, text)) return static_cast<int>(i);
  if (text == "input" && !args.empty() && args[0].type == ArgType::kTensor) return 0;
  return -1;
}

// The draw's seed and number come from the generator, which counts on.
void ArgParser::take_generator(PyObject* generator, ReadyCall* call) const {
  if (generator == Py_None) return;
  Generator* g;
  if (!nb::try_cast(nb::handle(generator), g))
    fail_type("{}: generator must be holon.Generator, got {}.", op_.public_name(), describe(generator));
  if (Context::current().tracer())
    fail_runtime("{}: a Generator inside a graph that is being captured would draw the same numbers in each call. "
                 "Leave it out: the rank's own generator advances with each call (holon.manual_seed).",
                 op_.public_name());
  call->attrs.set_int(op_.seed_attr, static_cast<int64_t>(g->seed));
  call->attrs.set_int(op_.counter_attr, g->counter++);
}

bool ArgParser::assign_keywords(PyObject* const* values, PyObject* kwnames, Placed* placed, bool raise) const {
  Py_ssize_t n = PyTuple_GET_SIZE(kwnames);
  PyObject** given = placed->given;
  for (Py_ssize_t k = 0; k < n; ++k) {
    PyObject* name = PyTuple_GET_ITEM(kwnames, k);
    int at = find(name);
    if (at < 0 && op_.seed_attr >= 0 && op_.counter_attr >= 0 &&
        PyUnicode_CompareWithASCIIString(name, "generator") == 0) {
      placed->generator = values[k];
      continue;
    }
    if (!raise && (at < 0 || given[at])) return false;
    if (at < 0)
      fail_type("{}: there is no argument {}. Signature: {}", op_.public_name(), describe(name).substr(4), signature_);
    if (given[at])
      fail_type("{}: argument {} was given twice. Signature: {}", op_.public_name(), at_index(op_.schema.args, at).name,
                signature_);
    given[at] = values[k];
  }
  return true;
}

void ArgParser::wrong(const ArgDef& a, PyObject* o) const {
  if (!o) fail_type("{}: argument {} is missing. Signature: {}", op_.public_name(), a.name, signature_);
  bool number_too = a.type == ArgType::kTensor && scalar_op_;
  fail(a.type == ArgType::kSbp ? ErrorKind::kLayout : ErrorKind::kType,
       "{}: argument {} must be {}{}{}, got {}. Signature: {}", op_.public_name(), a.name, type_text(a),
       number_too ? " or a number" : "", a.optional ? " or None" : "", describe(o), signature_);
}

void ArgParser::push_default(const ArgDef& a, Attrs* attrs) const {
  if (!a.has_default && !a.optional) wrong(a, nullptr);
  copy_attr(op_.schema.defaults, a, attrs);
}

void ArgParser::push(const ArgDef& a, PyObject* o, Attrs* attrs) const {
  if (!o) return push_default(a, attrs);
  if (o == Py_None && (a.optional || a.default_text == "None")) return attrs->push_none();
  switch (a.type) {
    case ArgType::kInt: {
      int64_t v;
      if (to_int(o, &v)) return attrs->push_int(v);
      break;
    }
    case ArgType::kFloat: {
      double v;
      if (to_float(o, &v)) return attrs->push_float(v);
      break;
    }
    case ArgType::kBool: {
      bool v;
      if (to_bool(o, &v)) return attrs->push_bool(v);
      break;
    }
    case ArgType::kScalar: {
      Scalar v;
      if (to_scalar(o, &v)) return attrs->push_scalar(v);
      break;
    }
    case ArgType::kText: {
      if (!PyUnicode_Check(o)) break;
      Py_ssize_t n;
      const char* p = PyUnicode_AsUTF8AndSize(o, &n);
      if (!p) raise_python();
      return attrs->push_text({p, to_size(n)});
    }
    case ArgType::kDType: {
      DType v;
      if (to_dtype(o, &v)) return attrs->push_dtype(v);
      break;
    }
    case ArgType::kDevice: {
      Device v;
      if (to_device(o, &v)) return attrs->push_device(v);
      break;
    }
    case ArgType::kPlacement: {
      Placement v;
      if (to_placement(o, &v)) return attrs->push_placement(v);
      break;
    }
    case ArgType::kSbp: {
      NdSbp v;
      if (to_nd_sbp(o, &v)) return attrs->push_nd_sbp(v);
      break;
    }
    default: {
      IntList list;
      int64_t one;
      if (to_ints(o, &list)) return attrs->push_ints(list);
      if (to_int(o, &one)) {
        for (int i = 0; i < std::max(a.repeat, 1); ++i) list.push_back(one);
        return attrs->push_ints(list);
      }
    }
  }
  wrong(a, o);
}

// add(2, x), add(x, 2): the other argument is the tensor.
void ArgParser::use_scalar_overload(size_t place, PyObject* const* given, const Scalar& value, ReadyCall* call) const {
  PyObject* tensor = given[1 - place];
  auto& args = op_.schema.args;
  if (!tensor || !is_tensor(tensor)) wrong(args[tensor ? place : 1 - place], tensor ? given[place] : nullptr);
  if (place == 0 && scalar_reverse_ < 0) wrong(args[0], given[0]);
  call->op = scalar_op_;
  call->first = tensor;
  call->inputs.clear();
  call->inputs.push_back(tensor_of(tensor));
  call->attrs = {};
  for (auto& a : scalar_op_->schema.args) {
    if (a.attr < 0) continue;
    if (a.attr == scalar_value_)
      call->attrs.push_scalar(value);
    else if (a.attr == scalar_reverse_)
      call->attrs.push_bool(place == 0);
    else
      copy_attr(scalar_op_->schema.defaults, a, &call->attrs);
  }
}

void ArgParser::make_mask_bool(ReadyCall* call) const {
  Tensor& mask = at_index(call->inputs, mask_);
  if (!mask.defined() || mask.dtype() == boolean || is_floating(mask.dtype())) return;
  mask = OpCall("cast").in(mask).set("dtype", boolean).run();
}

// where(c, x, 0.5): numbers as tensors without axes like the other inputs, in the dtype that they promote these to.
void ArgParser::wrap_numbers(std::span<const std::pair<size_t, Scalar>> numbers, ReadyCall* call) const {
  const Tensor* beside = nullptr;
  std::optional<DType> dtype;
  for (size_t i = 0; i < call->inputs.size(); ++i) {
    const Tensor& t = call->inputs[i];
    if (!t.defined()) continue;
    if (!beside) beside = &t;
    if (!dtype && (op_.promoted_inputs >> i & 1)) dtype = t.dtype();
  }
  for (auto& [at, value] : numbers) dtype = dtype ? value.promote_with(*dtype) : value.dtype();
  const GlobalSpec* spec = nullptr;
  if (beside && beside->is_global()) {
    const GlobalSpec* s = beside->spec();
    spec = intern_spec(s->placement, NdSbp::filled(s->nd_sbp.size(), sbp::broadcast()));
  }
  for (auto& [at, value] : numbers) {
    Array a = Array::empty({}, *dtype, beside ? beside->impl()->device : Device{});
    kernels::fill(a, value);
    bool member = spec && spec->placement.contains(Context::current().rank());
    call->inputs[at] = spec ? Tensor::global(member ? a : Array(), {}, *dtype, spec) : Tensor::local(a);
  }
}

bool ArgParser::place(PyObject* const* args, size_t nargs, PyObject* kwnames, Placed* placed, bool raise) const {
  // int... takes all positional arguments from its place on, or one list.
  size_t n_taken = nargs;
  if (variadic_ >= 0 && nargs > to_size(variadic_)) {
    n_taken = to_size(variadic_);
    placed->rest = args + n_taken;
    placed->n_rest = nargs - n_taken;
    PyObject* first = placed->rest[0];
    bool one_list = !PyIndex_Check(first) || PyList_Check(first) || PyTuple_Check(first) || is_numpy_array(first);
    if (one_list) {
      n_taken = std::min(nargs, n_positional_);
      placed->rest = nullptr;
    }
  }
  if (n_taken > n_positional_ || (!placed->rest && nargs > n_positional_)) {
    if (!raise) return false;
    fail_type("{}: takes at most {} positional arguments, got {}. Signature: {}", op_.public_name(), n_positional_,
              nargs, signature_);
  }
  std::copy(args, args + n_taken, placed->given);
  if (placed->rest) placed->given[variadic_] = placed->rest[0];
  return !kwnames || assign_keywords(args + nargs, kwnames, placed, raise);
}

bool ArgParser::accepts(size_t at, PyObject* o) const {
  const ArgDef& a = op_.schema.args[at];
  if (!o) return a.has_default || a.optional || a.variadic;
  if (o == Py_None) return a.optional || a.default_text == "None";
  switch (a.type) {
    case ArgType::kTensor: {
      Scalar s;
      bool number_too = (at < 2 && scalar_op_) || op_.wraps_numbers;
      return is_tensor(o) || (number_too && to_scalar(o, &s));
    }
    case ArgType::kTensorList: {
      if (a.variadic && is_tensor(o)) return true;
      if (!PyList_Check(o) && !PyTuple_Check(o)) return false;
      for (Py_ssize_t k = 0; k < PySequence_Fast_GET_SIZE(o); ++k)
        if (!is_tensor(PySequence_Fast_GET_ITEM(o, k))) return false;
      return true;
    }
    case ArgType::kInt: {
      int64_t v;
      return !PyBool_Check(o) && to_int(o, &v);
    }
    case ArgType::kFloat: {
      double v;
      return !PyBool_Check(o) && to_float(o, &v);
    }
    case ArgType::kBool: {
      bool v;
      return to_bool(o, &v);
    }
    case ArgType::kScalar: {
      Scalar v;
      return !is_tensor(o) && to_scalar(o, &v);  // a tensor has its own overload, with a gradient
    }
    case ArgType::kText: return PyUnicode_Check(o);
    case ArgType::kInts: {
      IntList list;
      int64_t v;
      return !PyBool_Check(o) && (to_ints(o, &list) || to_int(o, &v));
    }
    default: return true;  // a wrong one is told when it is parsed
  }
}

bool ArgParser::fits(PyObject* const* args, size_t nargs, PyObject* kwnames) const {
  Placed placed;
  if (!place(args, nargs, kwnames, &placed, false)) return false;
  for (size_t i = 0; i < op_.schema.args.size(); ++i)
    if (!accepts(i, placed.given[i])) return false;
  return true;
}

bool ArgParser::takes_as_it_stands(PyObject* const* args, size_t nargs) const {
  return plain_tensors_ && nargs == op_.schema.args.size() && std::all_of(args, args + nargs, is_tensor);
}

bool ArgParser::has_needed_keywords(PyObject* kwnames) const {
  for (PyObject* needed : needed_keywords_) {
    bool given = false;
    for (Py_ssize_t k = 0; kwnames && k < PyTuple_GET_SIZE(kwnames) && !given; ++k)
      given = PyTuple_GET_ITEM(kwnames, k) == needed || PyUnicode_Compare(PyTuple_GET_ITEM(kwnames, k), needed) == 0;
    if (!given) return false;
  }
  return true;
}

const ArgParser* Overloads::plain() const {
  const ArgParser* one = nullptr;
  for (auto* parser : parsers) {
    if (!parser->has_needed_keywords(nullptr)) continue;
    if (one) return nullptr;
    one = parser;
  }
  return one;
}

const ArgParser& Overloads::pick(PyObject* const* args, size_t nargs, PyObject* kwnames) const {
  if (!kwnames && parsers[0]->takes_as_it_stands(args, nargs)) return *parsers[0];
  // A keyword that one overload alone needs tells which is meant, and its absence too: that overload's parser tells
  // best what is wrong.
  for (auto* parser : parsers)
    if (kwnames && parser->needs_keywords() && parser->has_needed_keywords(kwnames)) return *parser;
  if (auto* one = plain()) return *one;
  for (auto* parser : parsers)
    if (parser->fits(args, nargs, kwnames)) return *parser;
  std::string got, all;
  size_t n_named = kwnames ? to_size(PyTuple_GET_SIZE(kwnames)) : 0;
  for (size_t i = 0; i < nargs + n_named; ++i) {
    if (i > 0) got += ", ";
    if (i >= nargs)
      got += nb::cast<std::string>(nb::handle(PyTuple_GET_ITEM(kwnames, static_cast<Py_ssize_t>(i - nargs)))) + "=";
    got += describe(args[i]);
  }
  for (auto* parser : parsers) all += "\n  " + parser->signature();
  fail_type("{}: no overload accepts ({}). An argument is missing, unknown or of a wrong type. The overloads are:{}",
            name, got, all);
}

void ArgParser::parse(PyObject* const* args, size_t nargs, PyObject* kwnames, ReadyCall* call) const {
  auto& defs = op_.schema.args;
  call->op = &op_;
  if (plain_tensors_ && !kwnames && nargs == defs.size()) {
    size_t i = 0;
    for (; i < nargs && is_tensor(args[i]); ++i) call->inputs.push_back(tensor_of(args[i]));
    call->first = nargs ? args[0] : nullptr;
    if (i == nargs) {
      if (mask_ >= 0) make_mask_bool(call);
      return;
    }
    call->inputs.clear();
  }

  Placed placed;
  place(args, nargs, kwnames, &placed, true);
  PyObject** given = placed.given;
  PyObject* const* rest = placed.rest;
  size_t n_rest = placed.n_rest;
  SmallVec<std::pair<size_t, Scalar>, 2> numbers;
  for (size_t i = 0; i < defs.size(); ++i) {
    const ArgDef& a = defs[i];
    PyObject* o = given[i];
    if (a.type == ArgType::kTensor) {
      if (o && is_tensor(o)) {
        if (call->inputs.empty()) call->first = o;
        call->inputs.push_back(tensor_of(o));
      } else if (a.optional && (!o || o == Py_None)) {
        call->inputs.emplace_back();
      } else if (Scalar s; o && i < 2 && scalar_op_ && to_scalar(o, &s)) {
        return use_scalar_overload(i, given, s, call);
      } else if (Scalar s; o && op_.wraps_numbers && to_scalar(o, &s)) {
        numbers.emplace_back(call->inputs.size(), s);
        call->inputs.emplace_back();
      } else {
        wrong(a, o);
      }
    } else if (a.type == ArgType::kTensorList && rest && static_cast<int>(i) == variadic_) {
      for (size_t k = 0; k < n_rest; ++k) {
        if (!is_tensor(rest[k]))
          fail_type("{}: argument {}[{}] must be Tensor, got {}. Signature: {}", op_.public_name(), a.name, k,
                    describe(rest[k]), signature_);
        call->inputs.push_back(tensor_of(rest[k]));
      }
    } else if (a.type == ArgType::kTensorList) {
      if (!o || (!PyList_Check(o) && !PyTuple_Check(o))) wrong(a, o);
      Py_ssize_t n = PySequence_Fast_GET_SIZE(o);
      for (Py_ssize_t k = 0; k < n; ++k) {
        PyObject* item = PySequence_Fast_GET_ITEM(o, k);
        if (!is_tensor(item))
          fail_type("{}: argument {}[{}] must be Tensor, got {}. Signature: {}", op_.public_name(), a.name, k,
                    describe(item), signature_);
        call->inputs.push_back(tensor_of(item));
      }
    } else if (rest && static_cast<int>(i) == variadic_) {
      IntList list;
      for (size_t k = 0; k < n_rest; ++k) {
        int64_t v;
        if (!to_int(rest[k], &v)) wrong(a, rest[k]);
        list.push_back(v);
      }
      call->attrs.push_ints(list);
    } else if (a.variadic && !o && !a.has_default && !a.optional && op_.schema.n_inputs > 0) {
      wrong(a, nullptr);
    } else if (a.variadic && !o && !a.has_default && !a.optional) {
      call->attrs.push_ints({});  // ones() has no axes
    } else {
      push(a, o, &call->attrs);
    }
  }
  if (mask_ >= 0) make_mask_bool(call);
  if (!numbers.empty()) wrap_numbers(numbers, call);
  if (op_.placement_attr >= 0 && op_.schema.n_inputs == 0 && global_mode().enabled)
    apply_global_mode(op_, &call->attrs);
  if (placed.generator) take_generator(placed.generator, call);
}

std::string ArgParser::text_signature() const {
  std::string s = "(";
  bool star = false;
  for (auto& a : op_.schema.args) {
    if (s.size() > 1) s += ", ";
    if (a.keyword_only && !star) {
      s += "*, ";
      star = true;
    }
    s += a.name;
    bool text = a.type == ArgType::kText && a.has_default && a.default_text != "None";
    if (a.has_default)
      s += "=" + (text ? "'" + a.default_text + "'" : a.default_text);
    else if (a.optional)
      s += "=None";
  }
  return s + ")";
}

namespace {

// The tuple with names that an op returns; made when first needed, and kept.
PyTypeObject* result_type(const OpDef& op) {
  struct Named {
    std::string name;
    std::vector<PyStructSequence_Field> fields;
    PyTypeObject* type = nullptr;
  };
  static auto* types = new std::map<const OpDef*, Named>;
  Named& n = (*types)[&op];
  if (n.type) return n.type;
  n.name = std::string("holon.return_types.") + op.public_name();
  for (auto& f : op.schema.output_names) n.fields.push_back({f.c_str(), nullptr});
  n.fields.push_back({nullptr, nullptr});
  PyStructSequence_Desc desc{n.name.c_str(), nullptr, n.fields.data(), op.schema.n_outputs};
  n.type = PyStructSequence_NewType(&desc);
  if (!n.type) raise_python();
  return n.type;
}

}  // namespace

// A view is not a copy: what is written to it would be lost. (Layouts that are the library's own choice, such as
// channels last in memory, are copied all the same: there PyTorch has rows in their order, and a view.)
static void require_view(const OpDef& op, PyObject* first, const Tensor& out) {
  static const OpDef* const view = &find_op("view");
  const Tensor& x = tensor_of(first);
  if (&op != view || !(reinterpret_cast<TensorObject*>(first)->marks & kUsersStrides) ||
      out.array().storage == x.array().storage)
    return;
  fail_runtime("view: x of shape {} with strides {} cannot be seen as {} without a copy. Use reshape(), which copies "
               "if necessary, or contiguous() first.",
               x.shape(), x.array().strides, out.shape());
}

PyObject* run(ReadyCall& call) {
  const OpDef& op = *call.op;
  PyObject* first = call.first;
  TensorImpl* same = first ? tensor_of(first).impl() : nullptr;
  if (op.schema.n_outputs == 1) {
    Tensor out = dispatch_one(op, std::move(call.inputs), call.attrs);
    if (op.gives_number) return checked(scalar_object(out.item()).release().ptr());
    if (out.impl() == same && same) return Py_NewRef(first);
    if (!first || !(op.view || (op.body && !op.kernel))) return wrap(std::move(out));
    require_view(op, first, out);
    PyObject* result = wrap(std::move(out));
    note_window(first, result);
    return result;
  }
  bool unwraps = op.unwraps && (op.unwraps_unless.empty() || !call.attrs.as_bool(op.schema.attr(op.unwraps_unless)));
  TensorVec outs = dispatch(op, std::move(call.inputs), call.attrs);
  if (unwraps && outs.size() == 1) return wrap(std::move(outs[0]));
  if (!op.schema.output_names.empty()) {
    nb::object named = nb::steal(checked(PyStructSequence_New(result_type(op))));
    for (size_t i = 0; i < outs.size(); ++i)
      PyStructSequence_SetItem(named.ptr(), static_cast<Py_ssize_t>(i), checked(wrap(std::move(outs[i]))));
    return named.release().ptr();
  }
  nb::object tuple = nb::steal(checked(PyTuple_New(static_cast<Py_ssize_t>(outs.size()))));
  for (size_t i = 0; i < outs.size(); ++i)
    PyTuple_SET_ITEM(tuple.ptr(), static_cast<Py_ssize_t>(i), checked(wrap(std::move(outs[i]))));
  return tuple.release().ptr();
}

OpCall::OpCall(const char* op) : op_(find_op(op)), values_(to_size(op_.schema.n_attrs)) {}

bool OpCall::has(const char* name) const {
  auto* a = op_.schema.find(name);
  return a && a->attr >= 0;
}

Attrs& OpCall::slot(const char* name) { return at_index(values_, op_.schema.attr(name)); }

OpCall& OpCall::set(const char* name, int64_t v) { return slot(name).push_int(v), *this; }
OpCall& OpCall::set(const char* name, bool v) { return slot(name).push_bool(v), *this; }
OpCall& OpCall::set(const char* name, double v) { return slot(name).push_float(v), *this; }
OpCall& OpCall::set(const char* name, const Scalar& v) { return slot(name).push_scalar(v), *this; }
OpCall& OpCall::set(const char* name, DType v) { return slot(name).push_dtype(v), *this; }
OpCall& OpCall::set(const char* name, Device v) { return slot(name).push_device(v), *this; }
OpCall& OpCall::set(const char* name, Placement v) { return slot(name).push_placement(v), *this; }
OpCall& OpCall::set(const char* name, NdSbp v) { return slot(name).push_nd_sbp(v), *this; }
OpCall& OpCall::set(const char* name, std::span<const int64_t> v) { return slot(name).push_ints(v), *this; }

Attrs OpCall::attrs() const {
  Attrs all;
  for (auto& a : op_.schema.args) {
    if (a.attr < 0) continue;
    const Attrs& v = at_index(values_, a.attr);
    ArgDef first = a;
    first.attr = 0;
    if (v.size())
      copy_attr(v, first, &all);
    else
      copy_attr(op_.schema.defaults, a, &all);
  }
  return all;
}

Tensor OpCall::run() { return dispatch_one(op_, std::move(inputs_), attrs()); }
TensorVec OpCall::run_all() { return dispatch(op_, std::move(inputs_), attrs()); }
Tensor OpCall::run_in_place() { return dispatch_in_place(op_, std::move(inputs_), attrs()); }

}  // namespace holon::python
