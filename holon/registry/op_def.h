// One declaration per operator: everything else (C++ and Python functions, global dispatch, gradient recording,
// reference page, conformance tests) is derived from it.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/global/slice.h"
#include "holon/global/spec.h"
#include "holon/registry/attr_name.h"
#include "holon/registry/rule.h"
#include "holon/registry/schema.h"
#include "holon/tensor/node.h"

namespace holon {

struct OpDef;

// Access to a call's attributes by name, c.i("dim"_attr), shared by all functions of a declaration. Errors: the op has
// no such attribute (internal).
class AttrReader {
 public:
  AttrReader(const OpDef& op, const Attrs& attrs) : op_(&op), attrs_(&attrs) {}
  const OpDef& op() const { return *op_; }
  const Attrs& attrs() const { return *attrs_; }
  bool has(AttrName name) const { return attrs_->has(at(name)); }
  int64_t i(AttrName name) const { return attrs_->as_int(at(name)); }
  double f(AttrName name) const { return attrs_->as_float(at(name)); }
  bool b(AttrName name) const { return attrs_->as_bool(at(name)); }
  Scalar scalar(AttrName name) const { return attrs_->as_scalar(at(name)); }
  Device device(AttrName name) const { return attrs_->as_device(at(name)); }
  DType dtype(AttrName name) const { return attrs_->as_dtype(at(name)); }
  std::string_view text(AttrName name) const { return attrs_->as_text(at(name)); }
  std::span<const int64_t> ints(AttrName name) const { return attrs_->as_ints(at(name)); }

 protected:
  int at(AttrName name) const;
  const OpDef* op_;
  const Attrs* attrs_;
};

// Shape and dtype inference, on logical shapes. An absent optional input has an empty shape and present() is false.
class Infer : public AttrReader {
 public:
  Infer(const OpDef& op, const Attrs& attrs, std::span<const Meta> in, uint32_t present)
      : AttrReader(op, attrs), in_(in), present_(present) {}
  size_t n_in() const { return in_.size(); }
  const Meta& in(size_t i) const { return in_[i]; }
  const Dims& shape(size_t i) const { return in_[i].shape; }
  int ndim(size_t i) const { return in_[i].shape.size(); }
  DType dtype_of(size_t i) const { return in_[i].dtype; }
  bool present(size_t i) const { return present_ >> std::min<size_t>(i, 31) & 1; }
  // The attribute as an axis of input i, counted from 0.
  int axis(AttrName name, size_t input = 0) const;
  void out(const Dims& shape, DType dtype) { out_.push_back({shape, dtype}); }
  // Errors (ValueError): "matmul: inner sizes differ: x is [4, 5], w is [4, 8] (rank 1 of 2). Transpose one of them
  // first."
  void require(bool ok, std::string_view what, std::string_view remedy) const {
    if (!ok) [[unlikely]]
      refuse(ErrorKind::kValue, what, remedy);
  }
  // Errors (TypeError), likewise with the dtypes.
  void require_dtype(bool ok, std::string_view what, std::string_view remedy) const {
    if (!ok) [[unlikely]]
      refuse(ErrorKind::kType, what, remedy);
  }
  void require_floating(size_t input) const {
    if (!is_floating(in_[input].dtype)) [[unlikely]]
      refuse(ErrorKind::kType, "takes floating point tensors only", "Convert it first, e.g. x.to(float32).");
  }
  // Fills out_ by the op's own function. Errors (TypeError): an operand is of a float8 dtype, which the op does not
  // take.
  void run();
  SmallVec<Meta, 3> out_;

 private:
  [[noreturn]] void refuse(ErrorKind kind, std::string_view what, std::string_view remedy) const;
  std::span<const Meta> in_;
  uint32_t present_;
};

// The sharding rule of one call.
class RuleCall : public AttrReader {
 public:
  RuleCall(const OpDef& op, const Attrs& attrs, std::span<const Meta> in, std::span<const Meta> out, Rule& rule)
      : AttrReader(op, attrs), in(in), out(out), rule(rule) {}
  std::span<const Meta> in, out;
  Rule& rule;
};

// What a kernel gets: local arrays, and where they are in the logical tensors.
class KernelCall : public AttrReader {
 public:
  KernelCall(const OpDef& op, const Attrs& attrs, std::span<const Array* const> in, std::span<Array* const> out)
      : AttrReader(op, attrs), in_(in), out_(out) {}
  size_t n_in() const { return in_.size(); }
  size_t n_out() const { return out_.size(); }
  const Array& in(size_t i) const { return *in_[i]; }
  bool present(size_t i) const { return in_[i]->defined(); }
  Array& out(size_t i = 0) const { return *out_[i]; }
  // The logical shape of an operand and the place of the local part in it.
  const Dims& logical_in(size_t i) const { return global_ ? global_->in_shape[i] : in_[i]->shape; }
  const Dims& logical_out(size_t i = 0) const { return global_ ? global_->out_shape[i] : out_[i]->shape; }
  Dims offset_in(size_t i) const { return global_ ? global_->in_offset[i] : Dims::filled(in_[i]->ndim(), 0); }
  Dims offset_out(size_t i = 0) const { return global_ ? global_->out_offset[i] : Dims::filled(out_[i]->ndim(), 0); }
  // How an input is divided among which ranks, for kernels that exchange data between them (Signature::communicates);
  // nullptr in a call on local tensors and for an absent input.
  const GlobalSpec* spec_in(size_t i) const {
    return global_ && i < global_->in_spec.size() ? global_->in_spec[i] : nullptr;
  }
  // False on ranks whose addend of a partial sum must leave out what is to be counted once (a bias).
  bool counts_once() const { return !global_ || global_->counts_once; }

  struct GlobalPart {
    SmallVec<Dims, 4> in_shape, in_offset, out_shape, out_offset;
    SmallVec<const GlobalSpec*, 4> in_spec;  // nullptr for an absent input
    bool counts_once = true;
  };
  void set_global(const GlobalPart* part) { global_ = part; }
  // The same call on other arrays, which the caller keeps.
  KernelCall with_inputs(std::span<const Array* const> in) const { return with_arrays(in, out_); }
  KernelCall with_arrays(std::span<const Array* const> in, std::span<Array* const> out) const {
    KernelCall call(*op_, *attrs_, in, out);
    call.global_ = global_;
    return call;
  }

 private:
  std::span<const Array* const> in_;
  std::span<Array* const> out_;
  const GlobalPart* global_ = nullptr;
};

// A view: the output's array, which begins as input 0's, becomes a window on that, or a copy. shape: the local shape of
// the output.
class ViewCall : public AttrReader {
 public:
  ViewCall(const OpDef& op, const Attrs& attrs, const Array& in, const Dims& shape)
      : AttrReader(op, attrs), in(in), shape(shape) {}
  const Array& in;
  const Dims& shape;
};

// A body: an op made of other ops.
class BodyCall : public AttrReader {
 public:
  BodyCall(const OpDef& op, const Attrs& attrs, std::span<const Tensor> in) : AttrReader(op, attrs), in_(in) {}
  size_t n_in() const { return in_.size(); }
  const Tensor& in(size_t i) const { return in_[i]; }
  std::span<const Tensor> inputs() const { return in_; }
  bool present(size_t i) const { return in_[i].defined(); }
  TensorVec out;

 private:
  std::span<const Tensor> in_;
};

// The shapes and dtypes of a call's operands, of the parts on one rank where they are split. An absent input has an
// empty shape.
class CallShapes : public AttrReader {
 public:
  CallShapes(const OpDef& op, const Attrs& attrs, std::span<const Meta> in, std::span<const Meta> out)
      : AttrReader(op, attrs), in_(in), out_(out) {}
  const Dims& in(size_t i) const { return in_[i].shape; }
  const Dims& out(size_t i = 0) const { return out_[i].shape; }

 private:
  std::span<const Meta> in_, out_;
};

// The gradient: a composition of ops. x(i) and y(i) are the inputs and outputs that .saves() names; the others have a
// shape only. dy(i) is defined for at least one output; needs(i) tells whether input i's gradient is requested.
class Grad : public AttrReader {
 public:
  Grad(const OpDef& op, const Attrs& attrs, std::span<const Tensor> dy, std::span<const Tensor> x,
       std::span<const Tensor> y, std::span<const Meta> in_meta, std::span<const Meta> out_meta, uint32_t needs)
      : AttrReader(op, attrs), dy_(dy), x_(x), y_(y), in_meta_(in_meta), out_meta_(out_meta), needs_(needs) {
    dx_.resize(in_meta.size());
  }
  size_t n_in() const { return in_meta_.size(); }
  bool needs(size_t i) const { return needs_ >> std::min<size_t>(i, 31) & 1; }
  bool has_dy(size_t i = 0) const { return dy_[i].defined(); }
  const Tensor& dy(size_t i = 0) const { return dy_[i]; }
  const Tensor& x(size_t i = 0) const;
  const Tensor& y(size_t i = 0) const;
  bool present(size_t i) const { return x_[i].defined(); }
  const Dims& in_shape(size_t i = 0) const { return in_meta_[i].shape; }
  DType in_dtype(size_t i = 0) const { return in_meta_[i].dtype; }
  const Dims& out_shape(size_t i = 0) const { return out_meta_[i].shape; }
  void dx(size_t i, Tensor gradient) { dx_[i] = std::move(gradient); }
  TensorVec dx_;

 private:
  std::span<const Tensor> dy_, x_, y_;
  std::span<const Meta> in_meta_, out_meta_;
  uint32_t needs_;
};

// What a view shows: all elements of its input in row-major order, in another shape; all of them with the axes in
// another order; something else, such as a part.
enum class ViewKind : uint8_t { kReshape, kPermute, kOther };

enum class Layout : uint8_t { kContiguous, kLikeInput, kChannelsLast };

// What happens to floating point inputs in a region of automatic casts: nothing; they come in the region's dtype; in
// float32, if they have two bytes; in the widest of their dtypes. float64 stays as it is in all of them.
//
// kLower is for products, which gain most and lose least; kFloat32 for what adds up many numbers or magnifies their
// errors; kPromote for ops that want inputs of one dtype.
enum class Autocast : uint8_t { kNone, kLower, kFloat32, kPromote };

// Which kernels run with others on windows of a tensor: none; of elements; of whole matrices, the last two axes; along
// one of the last two axes.
enum class Fuses : uint8_t { kNo, kElements, kMatrices, kLastAxes };

// The order in which an op adds up what its rule contracts, under deterministic(layout_free=True): of its own, so that
// a partial sum is not the same bits as the whole; the tree of kernels/sum_tree.h, by the index of the contracted axes
// of its first input in their order; or there is at most one term that is not 0.
enum class Sums : uint8_t { kOwnOrder, kTree, kOneTerm };

struct OpDef {
  Schema schema;
  std::string doc, example;
  std::string family;  // the source file of the declaration, without folders and ending
  std::function<void(Infer&)> infer;
  std::function<void(RuleCall&)> rule;
  void (*kernel)(KernelCall&) = nullptr;
  void (*adds)(KernelCall&) =
      nullptr;  // adds to its outputs what the kernel would write; float32 and float64, contiguous
  void (*view)(ViewCall&, Array& out) = nullptr;
  ViewKind view_kind = ViewKind::kOther;
  bool (*communicates)(const KernelCall&) = nullptr;  // whether the kernel exchanges data with other ranks; nullptr: no
  double (*flops)(const CallShapes&) = nullptr;  // multiplications and additions, where they are what takes the time
  void (*body)(BodyCall&) = nullptr;
  bool (*body_if)(std::span<const Tensor> inputs) = nullptr;  // of which calls the body is; nullptr: of all
  void (*grad)(Grad&) = nullptr;
  uint32_t joint = 0, each = 0;          // inputs that let a partial sum through
  uint32_t saves_in = 0, saves_out = 0;  // what backward needs
  bool promotes = false;                 // inputs are cast to their common dtype (with the numbers promote_attrs) first
  uint32_t promoted_inputs = ~0u;        // which of them
  int mask_input = -1;                   // Python's integers are taken for what is not 0 there
  bool promotes_to_float = false;        // and integers to float32
  bool in_place = false;                 // has an overload name_() that writes into input 0
  std::string in_place_name;             // if it is another name: then the op is bound under this one only
  bool gives_number = false;             // Python gets its one element as a number
  bool elementwise = false;              // its kernel may write over input 0
  bool takes_float8 = false;             // it only moves or converts elements; views need not say so
  uint32_t writes_over = 0;              // inputs that its kernel may write outputs over
  bool method = true, function = true;   // bound in Python as Tensor.name, as holon.name
  bool cpp_function = true;              // tools/generate_ops.py writes a function for C++
  bool wraps_numbers = false;            // a Python number may represent a tensor: one without axes is made of it
  bool unwraps = false;                  // a list of one output is that output in Python
  std::string unwraps_unless;            // ... unless this bool attribute is true
  bool on_host = false;                  // its kernel reads arrays itself, as only the CPU can
  bool random = false;                   // draws numbers: its "seed" and "counter" attributes are filled on call
  Layout layout = Layout::kContiguous;
  Autocast autocast = Autocast::kNone;
  uint32_t float8_inputs = 0;  // the factors of a product, which are rounded in a region of a float8 dtype
  Fuses fuses = Fuses::kNo;
  Sums sums = Sums::kOwnOrder;
  int64_t (*terms_inside)(const CallShapes&) = nullptr;
  bool writes_strides = false;            // its kernel writes an output of any strides as fast
  std::string scalar_overload;            // the op that takes over when an argument is a number
  std::string overload_of;                // the public name that it shares with other ops
  std::string no_rule_reason;             // for ops that only run whole (all broadcast)
  std::string rule_text = "by function";  // for the reference: the factors, or in a word where the rule is from
  // Places of the attributes that dispatch itself reads; -1 where the op has none.
  int placement_attr = -1, sbp_attr = -1, device_attr = -1, pin_memory_attr = -1, requires_grad_attr = -1,
      seed_attr = -1, counter_attr = -1;
  int fuses_along_attr = -1;        // the axis of kLastAxes
  SmallVec<int, 2> promote_attrs;   // the numbers that count in a promotion
  SmallVec<int, 4> required_attrs;  // those that have no default
  std::vector<int8_t> attr_places;  // by the number of the name; -1: not one of its attributes
  // The place of an attribute. Errors: the op has none of that name (internal).
  int attr(AttrName name) const {
    const auto n = to_size(name.number());
    if (n >= attr_places.size() || attr_places[n] < 0) [[unlikely]]
      fail_attr(name);
    return attr_places[n];
  }
  const char* name() const { return schema.name.c_str(); }
  // Whether such a call is made of others.
  bool is_composed(std::span<const Tensor> inputs) const { return body && (!body_if || body_if(inputs)); }
  // What users call it by.
  const char* public_name() const { return overload_of.empty() ? name() : overload_of.c_str(); }

 private:
  [[noreturn]] void fail_attr(AttrName name) const;
};

inline int AttrReader::at(AttrName name) const { return op_->attr(name); }

inline void Infer::run() {
  const bool takes_float8 = op_->takes_float8 || op_->view;
  auto check = [&](std::span<const Meta> operands) {
    for (const Meta& m : operands)
      if (is_float8(m.dtype) && !takes_float8) [[unlikely]]
        refuse(ErrorKind::kType, "does not compute with float8, which is for storage",
               "Convert it first, e.g. x.to(float32), and what comes out by to(float8_e4m3fn).");
  };
  check(in_);
  op_->infer(*this);
  check(std::span<const Meta>(out_.begin(), out_.end()));
}

class OpBuilder {
 public:
  explicit OpBuilder(OpDef* def) : def_(def) {}
  OpBuilder& doc(std::string_view text, std::string_view example = {});
  OpBuilder& infer(std::function<void(Infer&)> f) {
    def_->infer = std::move(f);
    return *this;
  }
  OpBuilder& infer_like(size_t input = 0);  // the output is like an input
  OpBuilder& infer_broadcast();             // the inputs' common shape and dtype
  OpBuilder& rule(std::string_view text);
  OpBuilder& rule(std::function<void(RuleCall&)> f) {
    def_->rule = std::move(f);
    return *this;
  }
  OpBuilder& rule_elementwise();
  OpBuilder& only_whole(std::string_view reason);
  OpBuilder& linear() {
    def_->joint = ~0u;
    return *this;
  }                                                         // jointly in all inputs
  OpBuilder& linear_in(std::initializer_list<int> inputs);  // in each of these, the others fixed
  OpBuilder& kernel(void (*f)(KernelCall&)) {
    def_->kernel = f;
    return *this;
  }
  OpBuilder& kernel_that_adds(void (*f)(KernelCall&)) {
    def_->adds = f;
    return *this;
  }
  OpBuilder& view(void (*f)(ViewCall&, Array&), ViewKind kind = ViewKind::kOther) {
    def_->view = f;
    def_->view_kind = kind;
    return *this;
  }
  OpBuilder& body(void (*f)(BodyCall&)) {
    def_->body = f;
    return *this;
  }
  // A body for some calls only; the others have a kernel, which saves them the way through a second op.
  OpBuilder& body_if(bool (*applies)(std::span<const Tensor> inputs), void (*f)(BodyCall&)) {
    def_->body_if = applies;
    return body(f);
  }
  OpBuilder& grad(void (*f)(Grad&)) {
    def_->grad = f;
    return *this;
  }
  OpBuilder& saves(std::initializer_list<int> inputs, std::initializer_list<int> outputs = {});
  OpBuilder& promotes(bool to_float = false) {
    def_->promotes = true;
    def_->promotes_to_float = to_float;
    return *this;
  }
  OpBuilder& promotes_only(std::initializer_list<int> inputs) {
    def_->promotes = true;
    def_->promoted_inputs = 0;
    for (int i : inputs) def_->promoted_inputs |= 1u << i;
    return *this;
  }
  // The numbers that count in the promotion. Errors: the schema has no such number.
  OpBuilder& promotes_with(std::initializer_list<std::string_view> numbers);
  // The input of this name is a mask. Errors: the schema has no such tensor.
  OpBuilder& mask(std::string_view input);
  OpBuilder& elementwise() {
    def_->elementwise = true;
    def_->fuses = Fuses::kElements;
    def_->layout = Layout::kLikeInput;
    return rule_elementwise();
  }
  OpBuilder& takes_float8() {
    def_->takes_float8 = true;
    return *this;
  }
  OpBuilder& writes_over(std::initializer_list<int> inputs) {
    for (int i : inputs) def_->writes_over |= 1u << i;
    return *this;
  }
  OpBuilder& wraps_numbers() {
    def_->wraps_numbers = true;
    return *this;
  }
  OpBuilder& in_place(std::string_view name = {}) {
    def_->in_place = true;
    def_->in_place_name = name;
    return *this;
  }
  OpBuilder& gives_number() {
    def_->gives_number = true;
    return *this;
  }
  OpBuilder& layout(Layout l) {
    def_->layout = l;
    return *this;
  }
  OpBuilder& autocast(Autocast c) {
    def_->autocast = c;
    return *this;
  }
  // Such calls' kernel is a collective of the ranks that share the work: all of them make it, in the same order.
  OpBuilder& communicates(bool (*f)(const KernelCall&)) {
    def_->communicates = f;
    return *this;
  }
  // The factors of a product: in an autocast region of a float8 dtype they are rounded to it.
  OpBuilder& float8(std::initializer_list<int> inputs) {
    for (int i : inputs) def_->float8_inputs |= 1u << i;
    return *this;
  }
  OpBuilder& flops(double (*f)(const CallShapes&)) {
    def_->flops = f;
    return *this;
  }
  OpBuilder& fuses(Fuses f) {
    def_->fuses = f;
    return *this;
  }
  // kLastAxes, where this attribute is one of them. Errors: the schema has no such int.
  OpBuilder& fuses_along(std::string_view axis);
  // Its float32 kernel adds up in a tree where Context::layout_free() is set. inside: how many terms each index of the
  // contracted axes has; 1 if it is not given.
  OpBuilder& sums_in_tree(int64_t (*inside)(const CallShapes&) = nullptr) {
    def_->sums = Sums::kTree;
    def_->terms_inside = inside;
    return *this;
  }
  // All terms of its sums but one are 0, on each rank but one.
  OpBuilder& sums_one_term() {
    def_->sums = Sums::kOneTerm;
    return *this;
  }
  OpBuilder& writes_strides() {
    def_->writes_strides = true;
    return *this;
  }
  OpBuilder& function_only() {
    def_->method = false;
    return *this;
  }
  OpBuilder& hidden() {
    def_->method = def_->function = false;
    return *this;
  }  // for gradients of other ops
  OpBuilder& on_host() {
    def_->on_host = true;
    return *this;
  }
  OpBuilder& random() {
    def_->random = true;
    return *this;
  }
  OpBuilder& scalar_overload(std::string_view op) {
    def_->scalar_overload = op;
    return *this;
  }
  // The op is one of several under a public name, and has none of its own: a call of that name goes to the first whose
  // arguments fit, the op that is called so itself before others, then in the order of declaration (in one family).
  OpBuilder& overload_of(std::string_view name);
  // Has no C++ function: its arguments would be taken for those of the other overloads.
  OpBuilder& python_only() {
    def_->cpp_function = false;
    return *this;
  }
  // A list of one output comes to Python as that tensor, except calls with the named bool attribute true.
  OpBuilder& unwraps(std::string_view unless = {}) {
    def_->unwraps = true;
    def_->unwraps_unless = unless;
    return *this;
  }

 private:
  OpDef* def_;
};

// Raised whenever OpDef, OpBuilder or what a declaration's functions are given changes its layout.
inline constexpr int kOpVersion = 11;

// Declares an op. Errors: a schema that does not follow the grammar; the name is taken; a caller compiled with another
// version. file: of the declaration, whose name tells the op's family (Clang 14 has no std::source_location).
OpBuilder define_op(std::string_view schema, int version = kOpVersion, const char* file = __builtin_FILE());
// A second name of an op, for functions and methods.
bool define_alias(std::string_view alias, std::string_view op);

// Errors (AttributeError): no op of that name.
const OpDef& find_op(std::string_view name);
const OpDef* try_find_op(std::string_view name);
std::vector<const OpDef*> all_ops();  // by name
// The ops that share a public name, in the order in which they are tried; empty where an op has the name for itself.
std::vector<const OpDef*> overloads_of(std::string_view name);
std::vector<std::pair<std::string, const OpDef*>> all_aliases();

}  // namespace holon

// HOLON_OP(name, "name(...) -> Tensor").doc(...)...;  The schema is in the macro as plain text, because
// tools/generate_ops.py reads it there.
#define HOLON_OP(name, schema) static const ::holon::OpBuilder holon_op_##name = ::holon::define_op(schema)
#define HOLON_ALIAS(alias, name) static const bool holon_alias_##alias = ::holon::define_alias(#alias, #name)
