#include "holon/tensor/tensor.h"

#include <mutex>
#include <utility>

#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/fork.h"
#include "holon/tensor/node.h"
#include "holon/tensor/parameter.h"
#include "holon/tensor/tracer.h"

namespace holon {

void TensorImpl::become_local() {
  shape = array.shape;
  dtype = array.dtype;
  device = array.device;
}

void TensorImpl::become_global(const Dims& of_all, DType of_elements, const GlobalSpec* where) {
  shape = of_all;
  dtype = of_elements;
  device.type = where->placement.device_type();
  spec = where;
}

TensorImpl::~TensorImpl() = default;

void TensorImpl::set_grad_fn(bool requires_grad, Ref<Node> grad_fn, uint32_t output_index) {
  requires_grad_ = requires_grad;
  grad_fn_ = std::move(grad_fn);
  output_index_ = output_index;
  if (base) ignore_writes();
}

void TensorImpl::set_grad_fn_of(TensorImpl& other) {
  set_grad_fn(other.requires_grad(), other.grad_fn(), other.output_index());
}

void TensorImpl::set_seen(bool requires_grad, Ref<Node> grad_fn, uint32_t output_index) {
  static ProcessMutex& mutex = *new ProcessMutex;
  std::lock_guard lock(mutex);
  if (base->writes() != writes()) set_grad_fn(requires_grad, std::move(grad_fn), output_index);
}

void mark_parameter(const Tensor& t) {
  if (!t.impl()->grad_fn()) t.impl()->set_grad_fn(t.impl()->requires_grad(), nullptr, kParameterMark);
}

Tensor Tensor::local(Array array) {
  auto impl = make_ref<TensorImpl>();
  impl->array = std::move(array);
  impl->become_local();
  return Tensor(std::move(impl));
}

Tensor Tensor::global(Array local_part, const Dims& shape, DType dtype, const GlobalSpec* spec) {
  auto impl = make_ref<TensorImpl>();
  impl->array = std::move(local_part);
  impl->become_global(shape, dtype, spec);
  return Tensor(std::move(impl));
}

Tensor Tensor::without_data(const Dims& shape, DType dtype, const GlobalSpec* spec, Device device) {
  if (spec) return global({}, shape, dtype, spec);
  auto impl = make_ref<TensorImpl>();
  impl->shape = shape;
  impl->dtype = dtype;
  impl->device = device;
  return Tensor(std::move(impl));
}

void Tensor::fail_undefined() {
  fail_runtime("an undefined tensor was read ({}): a Tensor that was created without a value, or the gradient of one "
               "that has none yet. Check defined() first, or call backward() before reading a gradient.",
               rank_text());
}

void Tensor::fail_symbolic(const char* what) const {
  if (!Context::current().tracer())
    fail_runtime("{}: the tensor {} {} was created in a graph's build() during capture and has no value outside of it. "
                 "Return it from build() and use what the graph's call returns.",
                 what, name(dtype()), shape());
  fail_runtime("{}: the tensor {} {} is part of a graph that is being captured and has no value yet: a value cannot "
               "decide what build() does. Use ops on tensors instead (e.g. where), return the tensor and read it "
               "outside, or compute this part before the graph is called.",
               what, name(dtype()), shape());
}

namespace {
[[noreturn]] void fail_without_values(const char* what, const std::string& found) {
  fail_runtime("{}: {}this rank is one of a world that is not there, and nothing is computed. Leave out what needs "
               "values, or run the program on real ranks.",
               what, found);
}
}  // namespace

void require_real_rank(const char* what) {
  if (tracer() && tracer()->alone()) fail_without_values(what, "");
}

void Tensor::require_memory(const char* what) const {
  require_value(what);
  // Local constants of a graph are looked at while it is captured.
  if (Tracer* t = tracer(); t && t->alone() && (t->eager() || is_global() || impl_->array.is_placeholder()))
      [[unlikely]]
    fail_without_values(what, fmt::format("the tensor {} {} has a shape and no value: ", name(dtype()), shape()));
}

void Tensor::require_constant(const char* what) const {
  require_memory(what);
  if (Tracer* tracer = Context::current().tracer(); tracer && tracer->varies(*impl_)) [[unlikely]]
    fail_runtime("{}: the tensor {} {} is a parameter or buffer of a graph that is being captured: its current value "
                 "would be used in every later call. Use ops on tensors instead, or read it outside build().",
                 what, name(dtype()), shape());
}

int64_t Tensor::size(int64_t dim) const {
  if (ndim() == 0) fail(ErrorKind::kIndex, "size: a tensor of shape [] has no axis {}.", dim);
  return shape()[normalize_axis(dim, ndim(), "size")];
}

Device Tensor::device() const {
  if (is_global())
    fail_runtime("Only local tensors have 'device'; this one is global. Use .placement, or .to_local() first.");
  return impl_->device;
}

const Placement& Tensor::placement() const {
  if (is_local())
    fail_runtime("Only global tensors have 'placement'; this one is local. Use .device, or .to_global(...) first.");
  return impl_->spec->placement;
}

const NdSbp& Tensor::nd_sbp() const {
  if (is_local()) fail_runtime("Local tensor has no sbp property; use .to_global(placement, sbp) first.");
  return impl_->spec->nd_sbp;
}

void Tensor::check_data(DType wanted) const {
  require_memory("data");
  if (dtype() != wanted)
    fail_type("data<{}>() of a tensor of {}. Use the tensor's own type, or convert it by to().", name(wanted),
              name(dtype()));
  if (!impl_->device.is_host())
    fail_type("data() of a tensor on {}, whose memory the host cannot read. Copy it to the host first: to_vector(x), "
              "or to_device(x, Device()).",
              impl_->device);
  if (impl_->array.defined() && !impl_->array.is_contiguous())
    fail_value("data() of a tensor whose elements are not in row-major order. Call contiguous() first.");
}

Tensor& Tensor::set_requires_grad(bool on) {
  if (on && !is_floating(dtype()))
    fail_runtime("requires_grad on a tensor of {}: only floating point tensors have gradients. Convert it first, e.g. "
                 "x.to(float32).",
                 name(dtype()));
  if (!on && !is_leaf())
    fail_runtime("requires_grad can be turned off on leaf tensors only; use detach() on the result of an op.");
  // One that is frozen stays a parameter.
  if (!on && requires_grad()) mark_parameter(*this);
  here().set_requires_grad(on);
  return *this;
}

Tensor Tensor::grad() const {
  if (!impl_) [[unlikely]]
    fail_undefined();
  if (Tracer* tracer = capturing_tracer()) [[unlikely]]
    if (is_leaf()) return tracer->gradient_of(*impl_);
  return impl_->meta ? impl_->meta->grad : Tensor();
}

namespace {
AutogradMeta& meta_of(TensorImpl& impl) {
  if (!impl.meta) impl.meta = make_ref<AutogradMeta>();
  return *impl.meta;
}
}  // namespace

void Tensor::set_grad(Tensor grad) {
  if (!impl_) [[unlikely]]
    fail_undefined();
  if (Tracer* tracer = capturing_tracer()) [[unlikely]] {
    // Each call of a graph begins without gradients, so that there is nothing to clear.
    if (!grad.defined() && !tracer->gradient_of(*impl_).defined()) return;
    fail_runtime(
        "grad of a tensor {} {} is set while a graph is captured: a graph's gradients are those that backward() "
        "computes in build(). Change the loss, or use the options of the optimizer's groups (clip_grad_max_norm).",
        name(dtype()), shape());
  }
  if (grad.defined()) {
    if (grad.shape() != shape() || grad.dtype() != dtype() || grad.is_global() != is_global())
      fail_value("grad of a tensor {} {} must have the same shape, dtype and layout; found {} {}{}.", shape(),
                 name(dtype()), grad.shape(), name(grad.dtype()),
                 grad.is_global() == is_global() ? ""
                     : grad.is_global()          ? ", global"
                                                 : ", local");
  } else if (!impl_->meta) {
    return;
  }
  meta_of(*impl_).grad = std::move(grad);
}

void Tensor::retain_grad() {
  if (!requires_grad()) fail_runtime("retain_grad() of a tensor that does not require grad.");
  if (is_leaf()) return;
  if (!impl_->meta || (!impl_->meta->retain_grad && impl_->meta->hooks.empty()))
    impl_->grad_fn()->retained.push_back({impl_->output_index(), Ref<AutogradMeta>(&meta_of(*impl_))});
  meta_of(*impl_).retain_grad = true;
}

void Tensor::add_hook(Ref<GradHook> hook) {
  if (!requires_grad()) fail_runtime("register_hook() of a tensor that does not require grad.");
  if (!is_leaf() && (!impl_->meta || (!impl_->meta->retain_grad && impl_->meta->hooks.empty())))
    impl_->grad_fn()->retained.push_back({impl_->output_index(), Ref<AutogradMeta>(&meta_of(*impl_))});
  meta_of(*impl_).hooks.push_back(std::move(hook));
}

Tensor Tensor::detach() const {
  if (!impl_) [[unlikely]]
    fail_undefined();
  auto impl = make_ref<TensorImpl>();
  impl->array = impl_->array;
  impl->shape = impl_->shape;
  impl->dtype = impl_->dtype;
  impl->device = impl_->device;
  impl->spec = impl_->spec;
  impl->copied = impl_->copied;
  impl->capture = impl_->capture;
  impl->symbol = impl_->symbol;
  Tensor copy(std::move(impl));
  if (Tracer* tracer = Context::current().tracer()) [[unlikely]]
    tracer->detached(*this, copy);
  return copy;
}

bool grad_enabled() { return Context::current().part<GradMode>().enabled; }
void set_grad_enabled(bool on) { Context::current().part<GradMode>().enabled = on; }

Edge edge_of(const Tensor& t) {
  Edge e;
  if (!t.defined() || !t.requires_grad()) return e;
  if (const auto& node = t.impl()->grad_fn()) {
    e.node = node;
    e.index = t.impl()->output_index();
  } else {
    e.leaf = t.impl()->alias_of ? t.impl()->alias_of : t.ref();
  }
  return e;
}

SavedTensor::SavedTensor(const Tensor& t, bool is_output) : is_output_(is_output) {
  if (!t.defined()) return;
  value_ = is_output ? t.detach() : t;
  output_index_ = t.impl()->output_index();
  if (t.array().defined()) version_ = t.array().storage->version;
}

Tensor SavedTensor::unpack(const Ref<Node>& owner, const char* op) const {
  if (!value_.defined()) return {};
  if (value_.array().defined() && value_.array().storage->version != version_)
    fail_runtime("backward of {}: a tensor {} that it needs was changed in place after the forward pass. Change a "
                 "clone() instead.",
                 op, value_.shape());
  if (!is_output_) return value_;
  Tensor t = value_.detach();
  t.impl()->set_grad_fn(true, owner, output_index_);
  return t;
}

namespace {
struct SequenceCounter {
  uint64_t next = 0;
};

// A long chain of nodes must not be released by recursion, which would run out of stack.
struct Graveyard {
  std::vector<Ref<Node>> nodes;
  bool active = false;
};
thread_local Graveyard graveyard;
}  // namespace

Node::Node() {
  Context& context = Context::current();
  sequence = context.part<SequenceCounter>().next++;
  if (Tracer* tracer = context.tracer()) [[unlikely]]
    mark = tracer->mark();
}

void Node::number_after(const Node& below) {
  if (sequence > below.sequence) [[likely]]
    return;
  sequence = below.sequence + 1;
  Context::current().part<SequenceCounter>().next = sequence + 1;
}

Node::NumbersApart::NumbersApart() : next_(std::exchange(Context::current().part<SequenceCounter>().next, 0)) {}
Node::NumbersApart::~NumbersApart() { Context::current().part<SequenceCounter>().next = next_; }

Node::~Node() {
  bool last_of_some = false;
  for (auto& e : edges) last_of_some |= e.node && e.node->use_count() == 1;
  if (!last_of_some) return;
  for (auto& e : edges)
    if (e.node && e.node->use_count() == 1) graveyard.nodes.push_back(std::move(e.node));
  if (graveyard.active) return;
  graveyard.active = true;
  while (!graveyard.nodes.empty()) {
    Ref<Node> last = std::move(graveyard.nodes.back());
    graveyard.nodes.pop_back();
  }
  graveyard.active = false;
}

}  // namespace holon
