#include "holon/dispatch/record.h"

#include <algorithm>
#include <optional>
#include <typeinfo>

#include "holon/boxing/events.h"
#include "holon/dispatch/recorded_site.h"
#include "holon/dispatch/stretch.h"
#include "holon/op_names/cast.h"
#include "holon/op_names/shape.h"
#include "holon/tensor/parameter.h"

namespace holon {

namespace {

class OpNode final : public Node {
 public:
  OpNode(const OpDef& op, const Attrs& attrs) : op_(op), attrs_(attrs) {}

  const char* name() const override { return op_.name(); }
  const OpDef& op() const { return op_; }

  void keep(std::span<const Tensor> inputs, std::span<Tensor> outputs, std::span<const Tensor> saved) {
    if (!saved.empty()) parameters_ = boxing::parameter_policy();
    for (size_t i = 0; i < inputs.size(); ++i) {
      auto& x = saved.empty() ? inputs[i] : saved[i];
      in_meta_.push_back(x.defined() ? Meta{x.shape(), x.dtype()} : Meta{});
      bool saved = op_.saves_in >> std::min<size_t>(i, 31) & 1;
      in_.emplace_back(saved ? SavedTensor(x, false) : SavedTensor());
    }
    for (size_t o = 0; o < outputs.size(); ++o) {
      out_meta_.push_back({outputs[o].shape(), outputs[o].dtype()});
      out_.emplace_back(op_.saves_out >> o & 1 ? SavedTensor(outputs[o], true) : SavedTensor());
    }
  }

  TensorVec backward(std::span<const Tensor> grads) override {
    if (released_)
      fail_runtime("backward of {}: its values were freed by an earlier backward. Pass retain_graph=True to that call "
                   "to go through the graph again.",
                   name());
    Ref<Node> self(this);
    TensorVec x, y;
    uint32_t needs = 0;
    for (size_t i = 0; i < in_.size(); ++i) {
      x.push_back(in_[i].unpack(self, name()));
      if (edges[i].valid()) needs |= 1u << std::min<size_t>(i, 31);
    }
    for (auto& o : out_) y.push_back(o.unpack(self, name()));
    Grad g(op_, attrs_, grads, x, y, in_meta_, out_meta_, needs);
    std::optional<boxing::ParameterPolicyGuard> as_in_forward;
    if (parameters_) as_in_forward.emplace(*parameters_);
    op_.grad(g);
    return std::move(g.dx_);
  }

  std::optional<Stretch> stretch() const override {
    const AttrReader call(op_, attrs_);
    if (&op_ == &op::slice.def()) return stretch_of(call, in_meta_[0].shape);
    if (&op_ == &op::select.def()) return element_of(call, in_meta_[0].shape);
    return std::nullopt;
  }

  void free_saved() override {
    for (auto& s : in_) s.reset();
    for (auto& s : out_) s.reset();
    released_ = op_.saves_in || op_.saves_out;  // what kept nothing can be gone through again
  }

 private:
  const OpDef& op_;
  Attrs attrs_;
  SmallVec<Meta, 3> in_meta_;
  SmallVec<Meta, 2> out_meta_;
  SmallVec<SavedTensor, 3> in_;
  SmallVec<SavedTensor, 2> out_;
  std::optional<boxing::ParameterPolicy> parameters_;  // where backward redistributes again
  bool released_ = false;
};

class NoGradientNode final : public Node {
 public:
  explicit NoGradientNode(const OpDef& op) : op_(op) {}
  const char* name() const override { return op_.name(); }
  TensorVec backward(std::span<const Tensor>) override {
    fail(ErrorKind::kNotImplemented,
         "backward of {}: it has no gradient here, as some ops have none or no second derivative. Detach its "
         "result, or compute with other ops.",
         op_.name());
  }
  void free_saved() override {}

 private:
  const OpDef& op_;
};

}  // namespace

void record_node(const Ref<Node>& node, std::span<const Tensor> inputs, std::span<Tensor> outputs) {
  for (auto& x : inputs) {
    node->edges.push_back(edge_of(x));
    const auto& below = node->edges.back().node;
    if (below && below->sequence >= node->sequence) [[unlikely]]
      node->number_after(*below);
  }
  keep_recorded_site(*node);
  for (size_t o = 0; o < outputs.size(); ++o) {
    node->output_dtypes.push_back(outputs[o].dtype());
    if (!is_floating(outputs[o].dtype())) continue;
    outputs[o].impl()->set_grad_fn(true, node, static_cast<uint32_t>(o));
  }
}

void record(const OpDef& op, const Attrs& attrs, std::span<const Tensor> inputs, std::span<Tensor> outputs,
            std::span<const Tensor> saved) {
  auto made = make_ref<OpNode>(op, attrs);
  OpNode* op_node = made.get();
  const Ref<Node> node = std::move(made);
  record_node(node, inputs, outputs);
  op_node->keep(inputs, outputs, saved);
}

bool shows_parameter(const OpDef& op) { return op.view || &op == op::cast; }

bool is_recorded_view(const Tensor& t) {
  const Node* node = t.impl()->grad_fn().get();
  return node && typeid(*node) == typeid(OpNode) && static_cast<const OpNode*>(node)->op().view;
}

bool is_parameter(const Tensor& t) {
  const Node* node = t.impl()->grad_fn().get();
  if (!node) return t.requires_grad() || is_marked_parameter(t);
  for (;;) {
    if (typeid(*node) != typeid(OpNode) || !shows_parameter(static_cast<const OpNode*>(node)->op())) return false;
    const Edge& below = node->edges[0];
    if (!below.node) return static_cast<bool>(below.leaf);
    node = below.node.get();
  }
}

void record_without_gradient(const OpDef& op, std::span<const Tensor> inputs, std::span<Tensor> outputs) {
  record_node(make_ref<NoGradientNode>(op), inputs, outputs);
}

}  // namespace holon
