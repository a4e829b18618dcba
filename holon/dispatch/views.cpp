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

namespace holon {

namespace {

// How a view was made of the tensor before it in its chain.
class ViewStep final : public RefCounted {
 public:
  ViewStep(const OpDef& op, const Attrs& attrs) : op(op), attrs(attrs) {}
  Tensor view(const Tensor& x) const { return dispatch_one(op, {x}, attrs); }
  // dy at its place in zeros like x.
  Tensor put(const Tensor& dy, const Tensor& x) const {
    const Meta in{x.shape(), x.dtype()}, out{dy.shape(), dy.dtype()};
    const Tensor none;
    Grad g(op, attrs, {&dy, 1}, {&none, 1}, {&none, 1}, {&in, 1}, {&out, 1}, 1);
    op.grad(g);
    return g.dx_[0];
  }

  const OpDef& op;
  const Attrs attrs;
};

const AutogradMeta::View* view_of(const Tensor& t) {
  const AutogradMeta* meta = t.impl()->meta.get();
  return meta && meta->view.base ? &meta->view : nullptr;
}

// The steps from the base to a view, or nothing if one is unknown.
std::vector<Ref<ViewStep>> steps_to(const Tensor& view) {
  std::vector<Ref<ViewStep>> steps;
  for (const AutogradMeta::View* v = view_of(view); v; v = view_of(Tensor(v->parent))) {
    if (!v->step) return {};
    steps.emplace_back(static_cast<ViewStep*>(v->step.get()));
  }
  std::reverse(steps.begin(), steps.end());
  return steps;
}

// base with a value in place of a view: inputs base and value.
class WriteNode final : public Node {
 public:
  explicit WriteNode(std::vector<Ref<ViewStep>> steps) : steps_(std::move(steps)) {}
  const char* name() const override { return "write_to_view"; }
  TensorVec backward(std::span<const Tensor> grads) override {
    const Tensor& dy = grads[0];
    TensorVec result(2);
    if (!dy.defined()) return result;
    std::vector<Tensor> chain{dy};
    for (const auto& step : steps_) chain.push_back(step->view(chain.back()));
    if (edges[0].valid()) {
      Tensor written;
      {
        NoGradGuard no_grad;
        Attrs like;
        like.push_none(), like.push_bool(false), like.push_bool(false);
        written = dispatch_one(op::ones_like, {chain.back().detach()}, like);
        for (size_t i = steps_.size(); i-- > 0;) written = steps_[i]->put(written, chain[i]);
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
  std::vector<Ref<ViewStep>> steps_;
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

}  // namespace

void track_view(const OpDef& op, const Attrs& attrs, const Tensor& input, const Tensor& view, bool moved) {
  if (!grad_enabled() || !is_floating(view.dtype()) || moved || !op.grad) return;
  // A leaf that requires grad cannot be changed in place anyway: neither it nor its views are tracked.
  if (!base_of(input).defined() && (input.is_leaf() ? input.requires_grad() : is_recorded_view(input))) return;
  bool known = true;
  if (view.is_local()) {
    if (view.array().storage != input.array().storage) return;
  } else {
    // A reshape copies where the strides of a rank's part need it: only what all ranks know is relied on.
    const bool reshapes = op.view_kind == ViewKind::kReshape;
    known = &op != op::contiguous && (!reshapes || keeps_elements_in_order(input.shape(), view.shape()));
  }
  // A longer chain would keep all of its views, and be released by recursion.
  constexpr int kMostSteps = 64;
  int steps = 0;
  for (const AutogradMeta::View* v = view_of(input); v && steps < kMostSteps; v = view_of(Tensor(v->parent))) ++steps;
  if (known && steps < kMostSteps)
    link_view(view, input, make_ref<ViewStep>(op, attrs));
  else
    link_view(view, base_of(input).defined() ? base_of(input) : input, {});
}

bool is_tracked_view(const Tensor& t) { return view_of(t) && !steps_to(t).empty(); }

Tensor base_of(const Tensor& t) {
  const AutogradMeta::View* v = view_of(t);
  return v ? Tensor(v->base) : Tensor();
}

void record_views_again(const Tensor& base) {
  if (!base.requires_grad()) return;
  for (Tensor& view : views_of(base)) {
    if (base.is_local() && view.array().storage != base.array().storage) continue;
    Tensor t = base;
    const auto steps = steps_to(view);
    if (steps.empty()) {
      std::array<Tensor, 1> result{view}, input{base};
      record_node(make_ref<UnknownNode>(), input, result);
      continue;
    }
    for (const auto& step : steps) t = step->view(t);
    view.impl()->requires_grad = true;
    view.impl()->grad_fn = t.impl()->grad_fn;
    view.impl()->output_index = t.impl()->output_index;
  }
}

void record_write(const Tensor& view, const Tensor& value) {
  const Tensor base = base_of(view);
  if (!value.requires_grad() && !base.requires_grad()) return;
  std::array<Tensor, 2> inputs{base, value};
  std::array<Tensor, 1> result{base};
  record_node(make_ref<WriteNode>(steps_to(view)), inputs, result);
  record_views_again(base);
}

}  // namespace holon
