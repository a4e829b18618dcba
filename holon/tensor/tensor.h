// Tensor: a cheap handle to one logical tensor.
//
// A local tensor lives on one device of this rank. A global tensor has a placement and an nd_sbp; it exists, with its
// logical shape, dtype and sbp, on every rank of the world, and holds a local part on the ranks of its placement. One
// that was made without a value, or represents a gradient that is not there, is undefined: reading it is an error
// (RuntimeError).
//
// Threads: handles of one tensor may be copied, read and passed to ops in several threads at a time. Whoever writes to
// it (in place, by data(), set_grad(), hooks, backward() into a leaf) is the only one who uses it meanwhile. Whether
// ops are recorded (GradMode) is a setting of the thread.
#pragma once

#include <initializer_list>
#include <iosfwd>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "holon/array/array.h"
#include "holon/array/scalar.h"
#include "holon/base/index.h"
#include "holon/base/ref.h"
#include "holon/base/small_vec.h"
#include "holon/global/spec.h"

namespace holon {

class Node;
class Tensor;
struct AutogradMeta;
namespace indexing {
struct Index;
}

// What the handles of one tensor share.
class TensorImpl : public RefCounted {
 public:
  ~TensorImpl() override;

  Array array;  // this rank's local data; undefined on a rank outside the placement
  Dims shape;   // logical
  DType dtype = DType::kFloat32;
  Device device;
  const GlobalSpec* spec = nullptr;  // nullptr: local
  uint32_t capture = 0;              // which capture of a graph this tensor is a symbol in, without a value; 0: none
  int32_t symbol = -1;               // its number there
  Ref<TensorImpl> alias_of;          // the leaf whose value this is, under another sbp: gradients go there
  Ref<AutogradMeta> meta;            // what only leaves and hooked tensors have (holon/tensor/node.h)
  // Of a view that the tape knows (holon/dispatch/views.h): the tensor at the start of its chain of views, which the
  // view keeps.
  TensorImpl* base = nullptr;
  // The result of an op that is a view elsewhere, but here of an input that was redistributed first: a copy.
  bool copied = false;

  // A local tensor, described by its array; a global one.
  void become_local();
  void become_global(const Dims& of_all, DType of_elements, const GlobalSpec* where);

  // Whether backward() computes a gradient; the node that made the tensor, and which of its outputs it is. Of a view:
  // as after the last write into its base's memory.
  bool requires_grad() {
    see_writes();
    return requires_grad_;
  }
  const Ref<Node>& grad_fn() {
    see_writes();
    return grad_fn_;
  }
  uint32_t output_index() {
    see_writes();
    return output_index_;
  }
  void set_requires_grad(bool on) {
    see_writes();
    requires_grad_ = on;
  }
  // grad_fn: nullptr where it is a leaf, or needs no gradient.
  void set_grad_fn(bool requires_grad, Ref<Node> grad_fn, uint32_t output_index);
  // As another tensor's.
  void set_grad_fn_of(TensorImpl& other);
  // A recorded op wrote into the memory of this tensor, which is not a view: its views must see it.
  void count_write() { ++writes_; }

 protected:
  uint32_t writes() const { return __atomic_load_n(&writes_, __ATOMIC_ACQUIRE); }  // of writes_, in any thread
  // Of a view whose base was written to: what its grad_fn is now, or that it stays as it is. Several threads may call
  // them.
  void set_seen(bool requires_grad, Ref<Node> grad_fn, uint32_t output_index);
  void ignore_writes() { __atomic_store_n(&writes_, base->writes(), __ATOMIC_RELEASE); }

 private:
  void see_writes() {
    if (base && base->writes() != writes()) [[unlikely]]
      record_again();
  }
  // Calls set_seen() or ignore_writes().
  virtual void record_again() {}

  bool requires_grad_ = false;
  uint32_t output_index_ = 0;
  // Recorded writes into this tensor's memory; of a view: those into its base that its grad_fn has seen.
  uint32_t writes_ = 0;
  Ref<Node> grad_fn_;
};

// What Tensor::register_hook() is given, of whatever type: std::function takes longer to compile than all of this.
class GradHook;

class Tensor {
 public:
  Tensor() = default;
  explicit Tensor(Ref<TensorImpl> impl) : impl_(std::move(impl)) {}
  Tensor(const Tensor&) = default;
  Tensor(Tensor&&) noexcept = default;
  ~Tensor() = default;
  // Of variables only: x[0] = y would change nothing but the handle that x[0] returned. index_put_(x, {0}, y) writes.
  Tensor& operator=(const Tensor&) & = default;
  Tensor& operator=(Tensor&&) & noexcept = default;
  // A tensor of this rank's array.
  static Tensor local(Array array);
  // local_part: this rank's part of the logical tensor; undefined outside the placement.
  static Tensor global(Array local_part, const Dims& shape, DType dtype, const GlobalSpec* spec);
  // One without data, which a capture makes a symbol. spec: nullptr for a local one.
  static Tensor without_data(const Dims& shape, DType dtype, const GlobalSpec* spec, Device device);

  // Whether it has a value at all; the object that handles share.
  bool defined() const { return static_cast<bool>(impl_); }
  TensorImpl* impl() const { return impl_.get(); }
  const Ref<TensorImpl>& ref() const { return impl_; }

  // Of the whole tensor, on every rank. Errors of size(): an axis that is out of range.
  const Dims& shape() const { return here().shape; }
  int64_t size(int64_t dim) const;
  int ndim() const { return here().shape.size(); }
  int64_t numel() const { return here().shape.numel(); }
  DType dtype() const { return here().dtype; }
  // Which kind it is; spec(): placement and nd_sbp of a global tensor, nullptr for a local one.
  bool is_local() const { return !here().spec; }
  bool is_global() const { return here().spec; }
  const GlobalSpec* spec() const { return here().spec; }
  // Errors: a global tensor has no device, a local one no placement and no sbp (RuntimeError).
  Device device() const;
  const Placement& placement() const;
  const NdSbp& nd_sbp() const;
  const Array& array() const { return here().array; }
  // This rank's data is in pinned memory (see the op pin_memory).
  bool is_pinned() const { return here().array.is_pinned(); }
  // This rank's data as it is in memory, for as long as the tensor is there, so not of a temporary one. Errors: T is
  // not the dtype; the tensor is not contiguous here; it is on a device.
  template <class T>
  std::span<T> data() & {
    return data_as<T>();
  }
  template <class T>
  std::span<const T> data() const& {
    return data_as<T>();
  }
  template <class T>
  void data() const&& = delete;

  // Whether backward() computes a gradient for it.
  bool requires_grad() const { return here().requires_grad(); }
  // Errors: a tensor of integers; turning it off on a result of a recorded op.
  Tensor& set_requires_grad(bool on = true);
  bool is_leaf() const { return !here().grad_fn(); }
  // A stand-in inside a graph that is being captured: it has a shape and a layout, but no value.
  bool is_symbolic() const { return here().capture != 0; }
  // Errors: a symbolic tensor (RuntimeError). what: for the message, e.g. "item".
  void require_value(const char* what) const {
    if (is_symbolic()) [[unlikely]]
      fail_symbolic(what);
  }
  // The same where this rank's memory is used: on a virtual rank (holon/graph/virtual_rank.h) there is none.
  void require_memory(const char* what) const;
  // The same for values that a program looks at: while a graph is captured, parameters and buffers have none either.
  void require_constant(const char* what) const;
  // The gradient that backward() has accumulated, or undefined; retain_grad() keeps that of a tensor which is not a
  // leaf.
  Tensor grad() const;
  void set_grad(Tensor grad);
  void retain_grad();
  // Called with the gradient of this tensor during backward; what it returns, if defined, replaces the gradient.
  // Errors: this tensor requires no grad.
  template <class F>
  requires std::is_invocable_r_v<Tensor, F&, const Tensor&>
  void register_hook(F hook);
  // The same values, outside the recorded graph; shares memory.
  Tensor detach() const;

  // Computes the gradients of all leaves that this tensor depends on. Errors: it requires no grad; it is not a scalar
  // and no gradient is given. Collective where it depends on global tensors. (Defined in holon/autograd.)
  void backward(const Tensor& gradient = {}, bool retain_graph = false, bool create_graph = false) const;

  // The handles are of one tensor. (== compares elements.)
  bool is_same(const Tensor& o) const { return impl_ == o.impl_; }

  // Short forms of the most used ops (defined in holon/ops).
  // x[0], x[Slice(1, 3)], x[{0, Slice(1, 3)}], x[mask]: see index() in holon/ops/indexing.h.
  Tensor operator[](const indexing::Index& key) const;
  Tensor operator[](std::initializer_list<indexing::Index> key) const;
  Tensor operator+(const Tensor& o) const;
  Tensor operator-(const Tensor& o) const;
  Tensor operator*(const Tensor& o) const;
  Tensor operator/(const Tensor& o) const;
  Tensor operator+(Scalar s) const;
  Tensor operator-(Scalar s) const;
  Tensor operator*(Scalar s) const;
  Tensor operator/(Scalar s) const;
  Tensor operator-() const;
  // Element by element, as a tensor of bool.
  Tensor operator==(const Tensor& o) const;
  Tensor operator!=(const Tensor& o) const;
  Tensor operator<(const Tensor& o) const;
  Tensor operator<=(const Tensor& o) const;
  Tensor operator>(const Tensor& o) const;
  Tensor operator>=(const Tensor& o) const;
  Tensor operator==(Scalar s) const;
  Tensor operator!=(Scalar s) const;
  Tensor operator<(Scalar s) const;
  Tensor operator<=(Scalar s) const;
  Tensor operator>(Scalar s) const;
  Tensor operator>=(Scalar s) const;
  // In place: every handle of the tensor sees it. Errors: as of add_() and its like.
  Tensor& operator+=(const Tensor& o);
  Tensor& operator-=(const Tensor& o);
  Tensor& operator*=(const Tensor& o);
  Tensor& operator/=(const Tensor& o);
  Tensor& operator+=(Scalar s);
  Tensor& operator-=(Scalar s);
  Tensor& operator*=(Scalar s);
  Tensor& operator/=(Scalar s);
  Tensor sum() const;
  Tensor mean() const;
  Tensor matmul(const Tensor& o) const;
  Tensor reshape(const Dims& shape) const;
  Tensor transpose(int64_t dim0, int64_t dim1) const;
  Tensor to(DType dtype) const;
  // See ops/to_global.cpp. Collective over the world's ranks.
  Tensor to_global(const Placement& placement, const NdSbp& sbp) const;
  Tensor to_local() const;
  // The only element. Collective for a global tensor. Errors: not exactly one element.
  Scalar item() const;
  // The same as a number of C++. Errors: T does not hold it (see Scalar::to).
  template <class T>
  T item() const {
    return item().to<T>();
  }
  // The whole logical value as a contiguous local tensor, on every rank. Collective for a global tensor.
  Tensor full() const;

 private:
  TensorImpl& here() const {
    if (!impl_) [[unlikely]]
      fail_undefined();
    return *impl_;
  }
  template <class T>
  std::span<T> data_as() const {
    check_data(DTypeOf<T>::value);
    return {impl_->array.defined() ? impl_->array.data<T>() : nullptr,
            to_size(impl_->array.defined() ? impl_->array.numel() : 0)};
  }
  [[noreturn]] static void fail_undefined();
  void check_data(DType wanted) const;
  [[noreturn]] void fail_symbolic(const char* what) const;
  void add_hook(Ref<GradHook> hook);
  Ref<TensorImpl> impl_;
};

// See Tensor::register_hook().
class GradHook : public RefCounted {
 public:
  virtual Tensor operator()(const Tensor& grad) = 0;
};

template <class F>
requires std::is_invocable_r_v<Tensor, F&, const Tensor&>
void Tensor::register_hook(F hook) {
  struct Hook final : GradHook {
    explicit Hook(F f) : f(std::move(f)) {}
    Tensor operator()(const Tensor& grad) override { return f(grad); }
    F f;
  };
  add_hook(make_ref<Hook>(std::move(hook)));
}

// A short list of tensors, such as the results of build().
using TensorVec = SmallVec<Tensor, 4>;

// Tensors as an argument: a vector, an array, {x, y}. It is a view, for the time of a call. What functions return is a
// std::vector<Tensor>.
class TensorList : public std::span<const Tensor> {
 public:
  using std::span<const Tensor>::span;
  TensorList(std::span<const Tensor> tensors) : span(tensors) {}
  TensorList(std::initializer_list<Tensor> tensors) : span(tensors.begin(), tensors.size()) {}
};

// Whether ops on this rank record for backward.
struct GradMode {
  bool enabled = true;
};
bool grad_enabled();
void set_grad_enabled(bool on);
class NoGradGuard {
 public:
  explicit NoGradGuard(bool enabled = false) : before_(grad_enabled()) { set_grad_enabled(enabled); }
  ~NoGradGuard() { set_grad_enabled(before_); }
  NoGradGuard(const NoGradGuard&) = delete;
  NoGradGuard& operator=(const NoGradGuard&) = delete;

 private:
  bool before_;
};

// Text of a tensor, as in `tensor([1., 2.], dtype=holon.float32)`. Never communicates: a global tensor shows its whole
// value where this rank has it, otherwise this rank's part, marked as such.
std::string to_string(const Tensor& t);
std::ostream& operator<<(std::ostream& to, const Tensor& t);
void print(const Tensor& t);

}  // namespace holon

#include "holon/tensor/indexing.h"  // the type of the keys of x[...], which needs Tensor
