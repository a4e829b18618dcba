// Calls of registered ops: arguments parsed from the schema, and a builder for calls that the binding makes by itself.
#pragma once

#include <vector>

#include "args.h"
#include "holon/dispatch/dispatch.h"

namespace holon::python {

// An op with its arguments, ready for dispatch.
struct ReadyCall {
  const OpDef* op = nullptr;
  TensorVec inputs;
  Attrs attrs;
  PyObject* first = nullptr;  // borrowed: the object of input 0
};

// A user's own source of random numbers: a seed, and the number of the next draw.
struct Generator {
  uint64_t seed = 67280421310721ull;
  int64_t counter = 0;
};

// Parses Python's arguments of one op. Immutable after construction.
class ArgParser {
 public:
  // Errors (internal): an op with more arguments than kMaxArgs.
  explicit ArgParser(const OpDef& op);

  // args, nargs and kwnames as a vectorcall gets them. Errors (TypeError): missing, unknown, duplicate or wrong
  // arguments, naming the op, the argument, what it got, and the signature.
  void parse(PyObject* const* args, size_t nargs, PyObject* kwnames, ReadyCall* call) const;

  // Whether the arguments can be those of this op, by their number, names and types. Never raises.
  bool fits(PyObject* const* args, size_t nargs, PyObject* kwnames) const;
  // Whether the arguments are the op's tensors, all of them, and nothing else.
  bool takes_as_it_stands(PyObject* const* args, size_t nargs) const;
  // Whether the keywords that the op cannot do without are among these.
  bool has_needed_keywords(PyObject* kwnames) const;
  bool needs_keywords() const { return !needed_keywords_.empty(); }

  const OpDef& op() const { return op_; }
  // The op's signature under its public name.
  const std::string& signature() const { return signature_; }
  // "(x, other, *, dim=None)"
  std::string text_signature() const;

  static constexpr size_t kMaxArgs = 32;

 private:
  // Python's arguments by the places of the op's.
  struct Placed {
    PyObject* given[kMaxArgs] = {};
    PyObject* const* rest = nullptr;  // the ints of int..., if they are several arguments
    size_t n_rest = 0;
    PyObject* generator = nullptr;  // of an op that draws
  };
  // False, or with raise TypeError, where they do not go to the op's.
  bool place(PyObject* const* args, size_t nargs, PyObject* kwnames, Placed* placed, bool raise) const;
  bool assign_keywords(PyObject* const* values, PyObject* kwnames, Placed* placed, bool raise) const;
  void take_generator(PyObject* generator, ReadyCall* call) const;
  bool accepts(size_t at, PyObject* o) const;
  void push(const ArgDef& a, PyObject* o, Attrs* attrs) const;
  void push_default(const ArgDef& a, Attrs* attrs) const;
  void use_scalar_overload(size_t place, PyObject* const* given, const Scalar& value, ReadyCall* call) const;
  void make_mask_bool(ReadyCall* call) const;
  void wrap_numbers(std::span<const std::pair<size_t, Scalar>> numbers, ReadyCall* call) const;
  int find(PyObject* name) const;
  [[noreturn]] void wrong(const ArgDef& a, PyObject* o) const;

  const OpDef& op_;
  const OpDef* scalar_op_ = nullptr;
  int scalar_value_ = -1, scalar_reverse_ = -1;
  size_t n_positional_ = 0;
  int variadic_ = -1;
  bool plain_tensors_ = false;  // nothing but required tensors
  int mask_ = -1;               // the input that is a mask: one of integers is taken for what is not 0
  std::string signature_;
  std::vector<PyObject*> names_;  // interned
  std::vector<PyObject*> needed_keywords_;
};

// The ops that share a public name: a call goes to the first whose arguments fit.
struct Overloads {
  std::string name;
  std::vector<const ArgParser*> parsers;
  // Errors (TypeError): none fits; the message lists them.
  const ArgParser& pick(PyObject* const* args, size_t nargs, PyObject* kwnames) const;
  // The overload of calls without keywords, where there is one such: the others add a keyword to it. Else nullptr.
  const ArgParser* plain() const;
};

// Runs the call and wraps what comes out: a Tensor, or a tuple, one with names where the op's outputs have them. An
// output that is input 0 itself comes back as the very same object.
PyObject* run(ReadyCall& call);

// A call by hand: OpCall("select").in(x).set("dim", 0).set("index", 3).run(). Errors (AttributeError): no such op.
class OpCall {
 public:
  explicit OpCall(const char* op);
  OpCall& in(const Tensor& t) {
    inputs_.push_back(t);
    return *this;
  }
  OpCall& set(const char* name, int64_t v);
  OpCall& set(const char* name, bool v);
  OpCall& set(const char* name, double v);
  OpCall& set(const char* name, const Scalar& v);
  OpCall& set(const char* name, DType v);
  OpCall& set(const char* name, Device v);
  OpCall& set(const char* name, Placement v);
  OpCall& set(const char* name, NdSbp v);
  OpCall& set(const char* name, std::span<const int64_t> v);
  // False where the op has no attribute of that name.
  bool has(const char* name) const;
  Tensor run();
  TensorVec run_all();
  Tensor run_in_place();

 private:
  Attrs& slot(const char* name);
  Attrs attrs() const;
  const OpDef& op_;
  TensorVec inputs_;
  std::vector<Attrs> values_;  // one each, empty: the default
};

}  // namespace holon::python
