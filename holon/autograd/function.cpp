#include "holon/autograd/function.h"

#include <algorithm>

#include "holon/base/context.h"
#include "holon/boxing/events.h"
#include "holon/dispatch/record.h"
#include "holon/dispatch/redistribute_input.h"
#include "holon/dispatch/signature.h"
#include "holon/kernels/copy.h"
#include "holon/ops/cast.h"
#include "holon/tensor/observer.h"
#include "holon/tensor/tracer.h"

namespace holon::autograd {

namespace {

Tensor redistributed(const char* name, const Tensor& t, const GlobalSpec* to, const InputOf& input = {}) {
  return t.spec() == to ? t : redistribute_input(name, t, to, input, t.nd_sbp().has_split() && is_parameter(t));
}

const GlobalSpec* with_sbps(const GlobalSpec* spec, const std::vector<Sbp>& sbps) {
  return intern_spec(spec->placement, NdSbp(sbps));
}

// What a gradient is, axis by axis, when its tensor is of the given sbp: that of a part is a part, and that of an
// addend is whole, since each addend goes into the sum as it is.
const GlobalSpec* gradient_spec(const GlobalSpec* spec) {
  std::vector<Sbp> sbps;
  for (int a = 0; a < spec->nd_sbp.size(); ++a)
    sbps.push_back(spec->nd_sbp[a].is_split() ? spec->nd_sbp[a] : sbp::broadcast());
  return with_sbps(spec, sbps);
}

class FunctionNode final : public Node {
 public:
  FunctionNode(FunctionCall call, std::span<const Tensor> inputs, std::span<const Tensor> outputs, bool on_parts)
      : call_(std::move(call)), on_parts_(on_parts) {
    for (auto& t : inputs) in_.push_back({t.shape(), t.is_global() ? t.spec() : nullptr});
    for (auto& t : outputs) out_.push_back({t.shape(), t.is_global() ? t.spec() : nullptr});
    if (!on_parts) return;
    for (auto& i : in_) gradient_.push_back(input_gradient_spec(i.spec));
  }

  const char* name() const override { return call_.name.c_str(); }

  TensorVec backward(std::span<const Tensor> grads) override {
    if (!call_.backward)
      fail_runtime("backward of {}: its values were freed by an earlier backward. Pass retain_graph=True to that call "
                   "to go through the graph again.",
                   name());
    if (!on_parts_) return checked(call_.backward(grads), [&](size_t i) { return in_[i].shape; });
    TensorVec parts;
    bool member = in_[0].spec->placement.index_of(Context::current().rank()) >= 0;
    for (size_t o = 0; o < grads.size(); ++o) {
      if (!grads[o].defined()) {
        parts.emplace_back();
        continue;
      }
      Tensor g = redistributed(name(), grads[o], gradient_spec(out_[o].spec));
      parts.push_back(member ? Tensor::local(g.array()) : Tensor());
    }
    TensorVec given(in_.size());
    if (member) {
      int index = in_[0].spec->placement.index_of(Context::current().rank());
      given = checked(call_.backward(parts), [&](size_t i) {
        return region_of(in_[i].shape, in_[i].spec->placement, in_[i].spec->nd_sbp, index).shape;
      });
      for (size_t i = 0; i < given.size(); ++i)
        if (given[i].defined() && given[i].dtype() != dtypes_[i]) given[i] = cast(given[i], dtypes_[i]);
    }
    // Ranks agree on which gradients there are by which are requested: an input that needs one gets one.
    TensorVec result(in_.size());
    for (size_t i = 0; i < in_.size(); ++i) {
      if (!edges[i].valid()) continue;
      if (member && !given[i].defined()) given[i] = Tensor::local(zeros_for(i));
      result[i] = Tensor::global(member ? given[i].array() : Array(), in_[i].shape, dtypes_[i], gradient_[i]);
    }
    return result;
  }

  void free_saved() override { call_.backward = nullptr; }

  void keep_dtypes(std::span<const Tensor> inputs) {
    for (auto& t : inputs) dtypes_.push_back(t.dtype());
  }

 private:
  struct Operand {
    Dims shape;
    const GlobalSpec* spec;
  };

  // An input that every rank holds whole, where the call is divided otherwise, adds to each rank's result by itself.
  const GlobalSpec* input_gradient_spec(const GlobalSpec* spec) const {
    std::vector<Sbp> sbps;
    for (int a = 0; a < spec->nd_sbp.size(); ++a) {
      bool divided = false;
      for (auto* list : {&in_, &out_})
        for (auto& x : *list) divided |= x.spec->nd_sbp[a].is_split();
      Sbp s = spec->nd_sbp[a];
      sbps.push_back(s.is_split() ? s : s.is_partial() || !divided ? sbp::broadcast() : sbp::partial_sum());
    }
    return with_sbps(spec, sbps);
  }

  Array zeros_for(size_t i) const {
    int index = in_[i].spec->placement.index_of(Context::current().rank());
    Array a = Array::empty(region_of(in_[i].shape, in_[i].spec->placement, in_[i].spec->nd_sbp, index).shape,
                           dtypes_[i], in_[i].spec->placement.device());
    kernels::fill(a, 0);
    return a;
  }

  template <class Shape>
  TensorVec checked(std::vector<Tensor> result, Shape shape_of) const {
    TensorVec given{std::span<const Tensor>(result)};
    if (given.size() != in_.size())
      fail_runtime(
          "backward of {}: returned {} gradients for {} inputs. Return one for each, undefined for those without.",
          name(), given.size(), in_.size());
    for (size_t i = 0; i < given.size(); ++i)
      if (given[i].defined() && given[i].shape() != shape_of(i))
        fail_runtime("backward of {}: gradient {} has shape {}, its input {} ({}). They must be the same.", name(), i,
                     given[i].shape(), shape_of(i), rank_text());
    return given;
  }

  FunctionCall call_;
  bool on_parts_;
  SmallVec<Operand, 3> in_, out_;
  SmallVec<DType, 3> dtypes_;
  SmallVec<const GlobalSpec*, 3> gradient_;
};

// forward on the local parts; inputs become the redistributed ones.
std::vector<Tensor> run_on_parts(const FunctionCall& call, TensorVec& inputs) {
  SmallVec<Meta, 4> in;
  SmallVec<const GlobalSpec*, 4> specs;
  std::vector<Dims> shapes;
  for (auto& t : inputs) {
    if (!t.is_global())
      fail_runtime(
          "{}: local and global tensors are mixed ({}). Make the local ones global by to_global(placement, sbp).",
          call.name, rank_text());
    if (!(t.spec()->placement == inputs[0].spec()->placement))
      fail_runtime("{}: the inputs are on different placements, {} and {}. Move one by to_global.", call.name,
                   inputs[0].placement(), t.placement());
    in.push_back({t.shape(), t.dtype()});
    specs.push_back(t.spec());
    shapes.push_back(t.shape());
  }
  std::vector<Dims> out_shapes = call.infer ? call.infer(shapes) : shapes_by_rule(call.rule, shapes, call.name.c_str());
  SmallVec<Meta, 3> out;
  for (auto& s : out_shapes) out.push_back({s, in[0].dtype});
  OpDef op;  // only for its sharding rule
  op.schema.name = call.name;
  op.rule = [&](RuleCall& r) { apply_rule_text(call.rule, r.in, r.out, r.rule, call.name.c_str()); };
  op.joint = call.linear ? ~0u : 0;
  InputRoles roles;
  if (boxing::parameter_policy() == boxing::ParameterPolicy::kKeep)
    for (size_t i = 0; i < inputs.size(); ++i)
      if (inputs[i].nd_sbp().has_split() && is_parameter(inputs[i])) roles.parameters |= 1u << std::min<size_t>(i, 31);
  ChosenSignature chosen = choose_signature(op, {}, in, out, specs, roles);
  const Placement& placement = specs[0]->placement;
  int index = placement.index_of(Context::current().rank());
  TensorVec parts;
  for (size_t i = 0; i < inputs.size(); ++i) {
    inputs[i] = redistributed(op.name(), inputs[i], chosen.in[i], {input_name(op, i), chosen.in});
    if (index >= 0) parts.push_back(Tensor::local(inputs[i].array()));
  }
  std::vector<Tensor> given;
  if (index >= 0) {
    given = call.forward(parts);
    if (given.size() != out.size())
      fail_runtime("{}: forward returned {} tensors, its rule \"{}\" has {} outputs.", call.name, given.size(),
                   call.rule, out.size());
  }
  std::vector<Tensor> outs;
  for (size_t o = 0; o < out.size(); ++o) {
    Array part;
    if (index >= 0) {
      if (!given[o].defined() || given[o].is_global())
        fail_runtime("{}: forward must return local tensors.", call.name);
      // Ranks outside the placement know it without running forward.
      if (given[o].dtype() != out[o].dtype)
        fail_type("{}: output {} is {}; with a sharding rule the outputs have the dtype of the first input, {}.",
                  call.name, o, name(given[o].dtype()), name(out[o].dtype));
      Dims want = region_of(out[o].shape, placement, chosen.out[o]->nd_sbp, index).shape;
      if (given[o].shape() != want)
        fail_runtime("{}: output {} has shape {} on {}; by the rule \"{}\" the logical shape is {} and, under {}, this "
                     "part's is {}. Fix the rule or give infer.",
                     call.name, o, given[o].shape(), rank_text(), call.rule, out[o].shape, chosen.out[o]->nd_sbp, want);
      part = given[o].array();
    }
    outs.push_back(Tensor::global(std::move(part), out[o].shape, out[o].dtype, chosen.out[o]));
  }
  return outs;
}

}  // namespace

std::vector<Tensor> apply_function(FunctionCall call, TensorList given) {
  TensorVec inputs(given);
  if (inputs.empty()) fail_value("{}: no tensor was passed.", call.name);
  bool global = false, needed = false;
  for (auto& t : inputs) {
    global |= t.is_global();
    needed |= t.requires_grad();
  }
  bool on_parts = global && !call.rule.empty();
  if (on_parts) require_real_rank(call.name.c_str());
  if (on_parts && tracer())
    fail(ErrorKind::kNotImplemented,
         "{}: a function with a sharding rule cannot be part of a captured graph: its code runs on this rank's parts. "
         "Declare it as an op "
         "(docs/guides/adding-an-op.md), or leave out the rule.",
         call.name);
  std::vector<Tensor> outs;
  const std::string name = observer() ? call.name : std::string();
  {
    NoGradGuard no_grad;
    outs = on_parts ? run_on_parts(call, inputs) : call.forward(inputs);
  }
  auto tell = [&] {
    if (Observer* o = observer()) [[unlikely]]
      o->op(name.c_str(), {.composed = true}, inputs, outs);
  };
  if (!needed || !grad_enabled()) {
    tell();
    return outs;
  }
  // What forward hands through from outside gets its own handle, so that its own place in the graph stays.
  for (auto& t : outs) t = t.detach();
  auto node = make_ref<FunctionNode>(std::move(call), inputs, outs, on_parts);
  node->keep_dtypes(inputs);
  record_node(Ref<Node>(node.get()), inputs, outs);
  tell();
  return outs;
}

}  // namespace holon::autograd
