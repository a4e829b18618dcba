#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

#include "holon/array/device_runtime.h"
#include "holon/base/context.h"
#include "holon/boxing/executor.h"
#include "holon/contract/moves.h"
#include "holon/dispatch/dispatch.h"
#include "holon/dispatch/gradient_forms.h"
#include "holon/dispatch/on_device.h"
#include "holon/dispatch/record.h"
#include "holon/dispatch/redistribute_input.h"
#include "holon/dispatch/views.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/device.h"
#include "holon/op_names/cast.h"
#include "holon/op_names/create.h"
#include "holon/op_names/shape.h"
#include "holon/tensor/observer.h"
#include "holon/tensor/tracer.h"

namespace holon {

namespace {

bool any_requires_grad(std::span<const Tensor> inputs) {
  for (auto& t : inputs)
    if (t.defined() && t.requires_grad()) return true;
  return false;
}

// Writes straight into the input's memory: for elementwise kernels on local tensors of one dtype.
bool try_direct(const OpDef& op, TensorVec& inputs, const Attrs& attrs) {
  if (!op.elementwise || !op.kernel || inputs[0].is_global()) return false;
  // A number and integers may make the result floating point.
  if (op.promotes && !is_floating(inputs[0].dtype()) && common_dtype(op, inputs, attrs) != inputs[0].dtype())
    return false;
  SmallVec<Meta, 4> metas;
  SmallVec<const Array*, 4> in;
  uint32_t present = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined() || inputs[i].is_global() || inputs[i].dtype() != inputs[0].dtype()) return false;
    // Another window on the same memory could be read after it was written.
    if (i > 0 && inputs[i].array().storage == inputs[0].array().storage && inputs[i].ref() != inputs[0].ref())
      return false;
    metas.push_back({inputs[i].shape(), inputs[i].dtype()});
    in.push_back(&inputs[i].array());
    present |= 1u << i;
  }
  Infer infer(op, attrs, metas, present);
  infer.run();
  if (infer.out_.size() != 1 || infer.out_[0].shape != inputs[0].shape() || infer.out_[0].dtype != inputs[0].dtype())
    return false;
  Array* out = &inputs[0].impl()->array;
  KernelCall call(op, attrs, in, {&out, 1});
  if (runs_on_device(call))
    run_on_device(op, call);
  else
    op.kernel(call);
  ++out->storage->version;
  return true;
}

// copy_() between different memory: what its body does, without a value in between.
bool try_copy(const OpDef& op, const TensorVec& inputs, const Attrs& attrs) {
  if (&op != op::copy || !inputs[1].defined() || inputs[0].is_global() || inputs[1].is_global()) return false;
  Array& to = inputs[0].impl()->array;
  const Array& from = inputs[1].array();
  if (from.shape != to.shape || from.storage == to.storage) return false;
  if (!from.device.is_host() || !to.device.is_host()) {
    const bool waits = !attrs.as_bool(op.attr("non_blocking"_attr));
    const Device device = to.device.is_host() ? from.device : to.device;
    device_runtime(device)->set_op("copy_");
    kernels::copy_on_devices(from, to, waits);
    device_runtime(device)->check(device.index);
  } else {
    kernels::copy(from, to);
  }
  ++to.storage->version;
  return true;
}

// The same tensor of the graph with its own memory.
Tensor copy_of(const Tensor& t) {
  Array a = Array::empty_strided(t.array().shape,
                                 t.array().is_dense() ? t.array().strides : contiguous_strides(t.array().shape),
                                 t.dtype(), t.impl()->device);
  kernels::copy(t.array(), a);
  Tensor copy = t.is_global() ? Tensor::global(a, t.shape(), t.dtype(), t.spec()) : Tensor::local(a);
  copy.impl()->set_grad_fn_of(*t.impl());
  return copy;
}

void take_place_on_tape(const Tensor& self, const Tensor& result) {
  if (!grad_enabled() || !is_floating(self.dtype())) return;
  if (is_tracked_view(self)) return record_write(self, result);
  if (result.requires_grad()) {
    self.impl()->set_grad_fn_of(*result.impl());
  } else if (self.requires_grad()) {
    // The old value is gone, and its gradient is 0.
    std::array<Tensor, 1> overwritten{self};
    record(op::zero, {}, overwritten, overwritten);
  }
  record_views_again(self);
}

// mul_(x, 2) is the same to a user as mul_(x, y).
std::string_view as_called(std::string_view op) {
  if (op.ends_with("_scalar")) op.remove_suffix(7);
  return op;
}

// Whether an element of memory is at two places of the array.
bool repeats(const Array& a) {
  for (int d = 0; d < a.ndim(); ++d)
    if (a.strides[d] == 0 && a.shape[d] > 1) return true;
  return false;
}

void write_symbolic(Tracer& trace, const char* op, const Tensor& self, const Tensor& result) {
  Tensor value = result;
  if (value.dtype() != self.dtype()) {
    Attrs a;
    a.push_dtype(self.dtype());
    value = dispatch_one(op::cast, {value}, a);
  }
  if (self.is_global() && value.spec() != self.spec()) value = redistribute_input(op, value, self.spec(), {});
  trace.write(op, self, value);
  take_place_on_tape(self, value);
}

}  // namespace

void check_shows_input(const char* called, const Tensor& self) {
  if (self.impl()->copied) [[unlikely]]
    fail_runtime(
        "{}_: the tensor {} is a copy, not a view of the tensor that it was made of, which is split along the axis "
        "that "
        "was cut and had to be redistributed; a write would not reach it. Write into that tensor by index (x[...] = "
        "value), make the view of x.to_global(placement, broadcast), or change a clone().",
        as_called(called), self.shape());
}

void check_in_place(const char* called, const Tensor& self) {
  const std::string_view op = as_called(called);
  const Tensor base = base_of(self);
  if (self.requires_grad() && self.is_leaf())
    fail_runtime("{}_: a leaf tensor {} that requires grad cannot be changed in place while ops are recorded. Do it "
                 "under no_grad().",
                 op, self.shape());
  const bool of_leaf =
      base.defined() ? base.is_leaf() && base.requires_grad() : is_recorded_view(self) && is_parameter(self);
  if (of_leaf)
    fail_runtime(
        "{}_: a view {} of a leaf tensor that requires grad cannot be changed in place while ops are recorded. "
        "Do it under no_grad().",
        op, self.shape());
  if (!is_tracked_view(self) && (base.defined() || is_recorded_view(self)))
    fail_runtime(
        "{}_: the view {} cannot be changed in place while ops are recorded: it may be a copy on some ranks, or "
        "is a view of too many views, and its gradient would be lost. Use {}() instead, or no_grad().",
        op, self.shape(), op);
}

void write_in_place(const char* op, const Tensor& self, const Tensor& result) {
  GradientForms::forget();
  if (result.shape() != self.shape())
    fail_value("{}_: the result has shape {}, the tensor to write into {}. Use {}() instead.", op, result.shape(),
               self.shape(), op);
  if (category(result.dtype()) > category(self.dtype()))
    fail_type("{}_: the result is {}, which the tensor's {} cannot hold. Use {}() instead.", op, name(result.dtype()),
              name(self.dtype()), op);
  if (Tracer* trace = capturing_tracer()) [[unlikely]]
    return write_symbolic(*trace, op, self, result);
  Array value = result.array();
  std::optional<boxing::Plan> plan;
  if (self.is_global() && result.spec() != self.spec())
    plan = contract::plan_move({op, result.spec(), self.spec(), self.shape(), result.dtype(), contract::Why::kWritten});
  if (tracer()) [[unlikely]]
    return take_place_on_tape(self, result);
  if (plan) value = boxing::execute(*plan, value);
  if (self.array().defined()) {
    kernels::copy(value, self.impl()->array);
    ++self.array().storage->version;
  }
  take_place_on_tape(self, result);
  if (Observer* o = observer()) [[unlikely]]
    o->wrote(op, {&result, 1}, self);
}

Tensor dispatch_in_place(const OpDef& op, TensorVec inputs, const Attrs& attrs) {
  Tensor self = inputs[0];
  if (!self.defined()) fail_type("{}_: there is no tensor to write into.", op.public_name());
  if (!tracer()) [[likely]]
    for (auto& t : inputs)
      if (t.defined()) t.require_value(op.public_name());
  if (self.array().defined() && repeats(self.array()))
    fail_runtime("{}_: several elements of the tensor {} are at one place in memory (after expand()). Change a clone() "
                 "instead.",
                 as_called(op.public_name()), self.shape());
  check_shows_input(op.public_name(), self);
  const Tensor base = base_of(self);
  bool recording = grad_enabled() && (any_requires_grad(inputs) || (base.defined() && base.requires_grad()));
  if (recording) check_in_place(op.public_name(), self);
  if (!recording && !tracer() && (try_direct(op, inputs, attrs) || try_copy(op, inputs, attrs))) {
    GradientForms::forget();
    if (Observer* o = observer()) [[unlikely]]
      o->wrote(op.public_name(), inputs, self);
    return self;
  }
  // The gradient reads the tensor as it was, also where it is another input too.
  if (recording && (op.body || op.saves_in) && self.array().defined() && !self.array().is_placeholder()) {
    Tensor before;
    for (size_t i = 0; i < inputs.size(); ++i)
      if (inputs[i].is_same(self) && (op.body || (op.saves_in >> std::min<size_t>(i, 31) & 1))) {
        if (!before.defined()) before = copy_of(self);
        inputs[i] = before;
      }
  }
  Tensor result = dispatch_one(op, std::move(inputs), attrs);
  if (!result.is_same(self)) write_in_place(op.public_name(), self, result);
  return self;
}

}  // namespace holon
