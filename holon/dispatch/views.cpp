#include "holon/dispatch/views.h"

#include <algorithm>
#include <array>
#include <vector>

#include "holon/dispatch/dispatch.h"
#include "holon/dispatch/record.h"
#include "holon/op_names/cast.h"
#include "holon/op_names/compare.h"
#include "holon/op_names/create.h"
#include "holon/op_names/shape.h"
#include "holon/tensor/node.h"
#include "holon/tensor/tracer.h"

namespace holon {

namespace {

// How a view was made of the tensor before it in its chain.
struct ViewStep {
  Tensor view(const Tensor& x) const { return dispatch_one(*op, {x}, attrs); }
  // dy at its place in zeros like x.
  Tensor put(const Tensor& dy, const Tensor& x) const {
    const Meta in{x.shape(), x.dtype()}, out{dy.shape(), dy.dtype()};
    const Tensor none;
    Grad g(*op, attrs, {&dy, 1}, {&none, 1}, {&none, 1}, {&in, 1}, {&out, 1}, 1);
    op->grad(g);
    return g.dx_[0];
  }

  const OpDef* op;  // nullptr: unknown
  Attrs attrs;
};

// A longer chain would keep all of its views, and be released by recursion.
constexpr int kMostSteps = 64;

class ViewImpl final : public TensorImpl {
 public:
  // op: nullptr where it is not known how the view was made.
  ViewImpl(const OpDef* op, const Attrs& attrs, TensorImpl* parent, int number)
      : parent_(parent), step_{op, attrs}, number_(number) {
    base = parent->base ? parent->base : parent;
    set_grad_fn(false, nullptr, 0);
  }

  // How many steps there are from the base to here.
  int number() const { return number_; }
  // They themselves, or none if one is unknown.
  std::vector<ViewStep> steps() const {
    std::vector<ViewStep> steps;
    for (const ViewImpl* v = this;; v = static_cast<const ViewImpl*>(v->parent_.get())) {
      if (!v->step_.op) return {};
      steps.push_back(v->step_);
      if (v->parent_.get() == base) break;
    }
    std::reverse(steps.begin(), steps.end());
    return steps;
  }
  bool is_tracked() const {
    for (const ViewImpl* v = this; v->step_.op; v = static_cast<const ViewImpl*>(v->parent_.get()))
      if (v->parent_.get() == base) return true;
    return false;
  }

  void forget() {
    base = nullptr;
    parent_ = nullptr;
  }

 private:
  void record_again() override;

  Ref<TensorImpl> parent_;
  const ViewStep step_;
  const int number_;
};

// nullptr: none whose base is known.
ViewImpl* as_view(const Tensor& t) { return t.impl()->base ? static_cast<ViewImpl*>(t.impl()) : nullptr; }

// base with a value in place of a view: inputs base and value.
class WriteNode final : public Node {
 public:
  explicit WriteNode(std::vector<ViewStep> steps) : steps_(std::move(steps)) {}
  const char* name() const override { return "write_to_view"; }
  TensorVec backward(std::span<const Tensor> grads) override {
    const Tensor& dy = grads[0];
    TensorVec result(2);
    if (!dy.defined()) return result;
    std::vector<Tensor> chain{dy};
    for (const auto& step : steps_) chain.push_back(step.view(chain.back()));
    if (edges[0].valid()) {
      Tensor written;
      {
        NoGradGuard no_grad;
        Attrs like;
        like.push_none(), like.push_bool(false), like.push_bool(false);
        written = dispatch_one(op::ones_like, {chain.back().detach()}, like);
        for (size_t i = steps_.size(); i-- > 0;) written = steps_[i].put(written, chain[i]);
        Attrs zero;
        zero.push_scalar(Scalar(0.0)), zero.push_bool(false);
        written = dispatch_one(op::ne_scalar, {written}, zero);
      }
      Attrs zero;
      zero.push_scalar(Scalar(0.0));
      result[0] = dispatch_one(op::masked_fill, {dy, written}, zero);
    }
    if (edges[1].valid()) result[1] = chain.back();
    return result;
  }
  void free_saved() override {}

 private:
  std::vector<ViewStep> steps_;
};

// A view that may show the value from before a write or the one after it.
class UnknownNode final : public Node {
 public:
  const char* name() const override { return "view"; }
  TensorVec backward(std::span<const Tensor>) override {
    fail_runtime(
        "backward of a view: the tensor that it was made of was changed in place, and whether the view shows the "
        "change is not known on all ranks. Make the view after the change, or change a clone().");
  }
  void free_saved() override {}
};

// Whether a reshape adds or removes axes of size 1 only: then it never copies.
bool keeps_elements_in_order(const Dims& from, const Dims& to) {
  auto without_ones = [](const Dims& d) {
    Dims s;
    for (int64_t n : d)
      if (n != 1) s.push_back(n);
    return s;
  };
  return without_ones(from) == without_ones(to);
}

void ViewImpl::record_again() {
  // After x.data = y the views of x still show what it was.
  if (!base->spec && array.storage != base->array.storage) return ignore_writes();
  if (!base->requires_grad()) return set_seen(false, nullptr, 0);
  const TracerPause eager;
  const NoGradGuard recording(true);
  const Node::NumbersApart numbers;
  Tensor t{Ref<TensorImpl>(base)};
  if (const auto chain = steps(); !chain.empty()) {
    for (const ViewStep& step : chain) t = step.view(t);
  } else {
    std::array<Tensor, 1> input{t}, result{Tensor::without_data(shape, dtype, spec, device)};
    record_node(make_ref<UnknownNode>(), input, result);
    t = result[0];
  }
  set_seen(t.requires_grad(), t.impl()->grad_fn(), t.impl()->output_index());
}

}  // namespace

Ref<TensorImpl> new_view(const OpDef& op, const Attrs& attrs, const Tensor& input, const Dims& shape, DType dtype,
                         bool moved) {
  TensorImpl* const from = input.impl();
  auto untracked = [&] {
    auto made = make_ref<TensorImpl>();
    // What may copy anywhere is written to as it is.
    made->copied = moved ? &op != op::reshape : from->copied && &op != op::contiguous;
    return made;
  };
  if (moved || !is_floating(dtype) || !op.grad || !grad_enabled()) return untracked();
  const ViewImpl* const chain = as_view(input);
  // A leaf that requires grad cannot be changed in place anyway: neither it nor its views are tracked.
  if (!chain && (input.is_leaf() ? input.requires_grad() : is_recorded_view(input))) return untracked();
  // A reshape copies where the strides of a rank's part need it: only what all ranks know is relied on.
  const bool known = input.is_local() ||
      (&op != op::contiguous && (op.view_kind != ViewKind::kReshape || keeps_elements_in_order(input.shape(), shape)));
  const int before = chain ? chain->number() : 0;
  Ref<ViewImpl> made = known && before < kMostSteps ? make_ref<ViewImpl>(&op, attrs, from, before + 1)
                                                    : make_ref<ViewImpl>(nullptr, attrs, chain ? from->base : from, 1);
  made->copied = from->copied && &op != op::contiguous;
  return made;
}

void is_no_view(TensorImpl& made) {
  if (made.base) static_cast<ViewImpl&>(made).forget();
}

bool is_tracked_view(const Tensor& t) {
  const ViewImpl* view = as_view(t);
  return view && view->is_tracked();
}

Tensor base_of(const Tensor& t) { return t.impl()->base ? Tensor(Ref<TensorImpl>(t.impl()->base)) : Tensor(); }

void record_views_again(const Tensor& base) {
  if (base.requires_grad()) base.impl()->count_write();
}

void record_write(const Tensor& view, const Tensor& value) {
  const Tensor base = base_of(view);
  if (!value.requires_grad() && !base.requires_grad()) return;
  std::array<Tensor, 2> inputs{base, value};
  std::array<Tensor, 1> result{base};
  record_node(make_ref<WriteNode>(as_view(view)->steps()), inputs, result);
  record_views_again(base);
}

}  // namespace holon
