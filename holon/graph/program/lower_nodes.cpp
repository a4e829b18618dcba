// Each kind of node as instructions.
#include <algorithm>
#include <bit>
#include <map>

#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/dispatch/layout_free.h"
#include "holon/graph/program/lowering.h"
#include "holon/op_names/arithmetic.h"

namespace holon::graph {

void Lowering::lower_op(const Node& n, int m) {
  SmallVec<const Array*, 4> in;
  SmallVec<Meta, 4> metas;
  SmallVec<const GlobalSpec*, 4> specs;
  for (ValueId v : n.in) {
    in.push_back(values_.array(v, m));
    metas.push_back(v == kNoValue ? Meta{} : Meta{g_.value(v).shape, g_.value(v).dtype});
    specs.push_back(v == kNoValue ? nullptr : g_.value(v).spec);
  }
  const bool global = g_.value(n.out[0]).is_global();
  LocalCall call;
  if (global) {
    SmallVec<Meta, 3> out;
    SmallVec<const GlobalSpec*, 3> out_specs;
    for (ValueId v : n.out) {
      out.push_back({g_.value(v).shape, g_.value(v).dtype});
      out_specs.push_back(g_.value(v).spec);
    }
    call = local_call(metas, specs, out, out_specs, values_.rank);
    if (!call.member) return;
  } else {
    for (ValueId v : n.out) call.out_shape.push_back(g_.value(v).shape);
  }
  if (n.op->view) return lower_view(n, m, *in[0], call.out_shape[0]);
  SmallVec<Array*, 3> out;
  // In an order of sums that no layout changes, each micro-batch has its own (accumulate_in_tree()).
  const bool in_tree = layout_free(),
             adds = !in_tree && m > 0 && n.op->adds && sums_can_be_added_to(n, m, call.out_shape);
  uint32_t over = n.op->writes_over | (n.op->elementwise && n.out.size() == 1 ? 1u : 0u);
  for (size_t o = 0; o < n.out.size(); ++o) {
    if (adds) {
      out.push_back(in_sum(n.out[o], m));
      continue;
    }
    Dims strides = strides_.of(n, call.out_shape[o]);
    if (strides.empty()) strides = output_strides(*n.op, call.out_shape[o], in);
    // The first gradient is written to where the sum has its place among others.
    if (auto sum = sum_of_.find(n.out[o]); m == 0 && !in_tree && sum != sum_of_.end() &&
        memory_.has_place(sum->second) && strides == contiguous_strides(call.out_shape[o])) {
      memory_.fresh(sum->second, m, call.out_shape[o], strides);
      out.push_back(in_sum(n.out[o], m));
      continue;
    }
    Array* a = in_place_of_input(n, m, o, call.out_shape[o], strides, over);
    out.push_back(a ? a : memory_.fresh(n.out[o], m, call.out_shape[o], strides));
  }
  auto& i = values_.emit<KernelInstruction>(&n, m, *n.op, n.attrs, std::move(in), std::move(out),
                                            global ? &call.part : nullptr);
  if (adds) i.add_to_outputs();
  if (n.draw >= 0)
    i.draw(&p_->draws, global,
           n.draw + (per_micro_batch(n.section) ? m : 0) * (global ? g_.global_draws : g_.local_draws));
}

bool Lowering::sums_can_be_added_to(const Node& n, int m, std::span<const Dims> shapes) {
  for (size_t o = 0; o < n.out.size(); ++o) {
    auto sum = sum_of_.find(n.out[o]);
    if (sum == sum_of_.end()) return false;
    const Array* a = values_.array(sum->second, m);
    if (!a->defined() || !a->is_contiguous() || !(a->shape == shapes[o]) ||
        (a->dtype != float32 && a->dtype != float64))
      return false;
  }
  return true;
}

Array* Lowering::in_sum(ValueId v, int m) {
  const LoweredValues::Instance sum = values_.instance(sum_of_.at(v), m);
  return values_.set(v, m, at_index(p_->arrays, sum.array), sum.buffer);
}

Array* Lowering::in_place_of_input(const Node& n, int m, size_t o, const Dims& shape, const Dims& strides,
                                   uint32_t& inputs) {
  for (size_t i = 0; i < n.in.size(); ++i) {
    Array* a = inputs >> i & 1 ? over_input(n, m, i, o, shape, strides) : nullptr;
    if (!a) continue;
    inputs &= ~(1u << i);
    return a;
  }
  return nullptr;
}

bool Lowering::replaces_external(const Node& n, size_t i, size_t o) const {
  const Value& from = g_.value(n.in[i]);
  if (from.kind != ValueKind::kExternal || g_.micro_batches > 1 || !n.op || !(n.op->writes_over >> i & 1)) return false;
  return std::any_of(g_.nodes.begin(), g_.nodes.end(), [&](const Node& w) {
    return w.kind == NodeKind::kAssign && w.in[0] == n.out[o] && at_index(g_.externals, w.target).value == n.in[i];
  });
}

Array* Lowering::over_input(const Node& n, int m, size_t i, size_t o, const Dims& shape, const Dims& strides) {
  if (n.in[i] == kNoValue || memory_.has_place(n.out[o])) return nullptr;
  const Array* in = values_.array(n.in[i], m);
  if (!in->defined() || in->shape != shape || in->strides != strides || in->dtype != g_.value(n.out[o]).dtype)
    return nullptr;
  const LoweredValues::Instance own = values_.instance(n.in[i], m);
  Buffer& b = values_.buffer(own.buffer);
  if (b.kind != Buffer::Kind::kArena && !replaces_external(n, i, o)) return nullptr;
  int64_t reads = 0;
  for (ValueId v : n.in) {
    if (v == kNoValue || values_.instance(v, m).buffer != own.buffer) continue;
    if (values_.instance(v, m).array != own.array) return nullptr;
    ++reads;
  }
  if (b.pending != reads) return nullptr;
  return values_.set(n.out[o], m, *in, own.buffer);
}

void Lowering::lower_view(const Node& n, int m, const Array& in, const Dims& shape) {
  Array out = in;
  ViewCall call(*n.op, n.attrs, in, shape);
  n.op->view(call, out);
  if (out.storage == in.storage) {
    values_.set(n.out[0], m, std::move(out), values_.instance(n.in[0], m).buffer);
    return;
  }
  // Strides did not allow a view: a copy in row-major order, seen in the new shape.
  HOLON_CHECK(out.is_contiguous() && out.numel() == in.numel(), "the view {} of {} is neither a window nor a copy",
              n.op->name(), in.shape);
  Array* made = memory_.fresh(n.out[0], m, out.shape, out.strides);
  Array as_given = *made;
  as_given.shape = in.shape;
  as_given.strides = contiguous_strides(in.shape);
  values_.emit<CopyInstruction>(&n, m, values_.array(n.in[0], m), values_.keep(std::move(as_given)), n.op->name());
}

const Array* Lowering::gathered_in_place(const Node& n, int m, const boxing::Plan& plan) {
  if (plan.steps().size() != 1 || plan.steps()[0].kind != boxing::StepKind::kAllGather ||
      !plan.to()->placement.device().is_host())
    return nullptr;
  const auto reader = std::find_if(g_.nodes.begin(), g_.nodes.end(),
                                   [&](const Node& r) { return r.kind == NodeKind::kAssign && r.in[0] == n.out[0]; });
  if (reader == g_.nodes.end() || values_.reads(n.out[0]) != 1) return nullptr;
  const ValueId parameter = at_index(g_.externals, reader->target).value;
  const Array *part = values_.array(n.in[0], m), *whole = values_.array(parameter, 0);
  if (!part->defined() || !whole->defined() || part->storage != whole->storage || !part->is_contiguous() ||
      !whole->is_contiguous())
    return nullptr;
  return values_.set(n.out[0], m, *whole, values_.instance(parameter, 0).buffer);
}

void Lowering::lower_boxing(const Node& n, int m) {
  if (n.in.size() > 1) return memory_.lower(n, m);
  for (size_t k = 0; k < n.in.size(); ++k) {
    const Value &from = g_.value(n.in[k]), &to = g_.value(n.out[k]);
    const Array* in = values_.array(n.in[k], m);
    auto prepared = boxing::Prepared::prepare(from.spec, to.spec, from.shape, from.dtype,
                                              !in->defined() || in->is_contiguous() ? boxing::Input::kContiguous
                                                                                    : boxing::Input::kAnyStrides);
    if (prepared.is_view() && prepared.has_in() && prepared.has_out() && !prepared.communicates()) {
      values_.set(n.out[k], m, prepared.view_of(*in), values_.instance(n.in[k], m).buffer);
      continue;
    }
    if (!prepared.communicates() && !prepared.has_out()) continue;
    const Array* in_place = gathered_in_place(n, m, prepared.plan());
    const Array* out = in_place ? in_place
        : prepared.has_out()
        ? memory_.fresh(n.out[k], m, prepared.out_shape(), contiguous_strides(prepared.out_shape()))
        : &kUndefined;
    auto scratch = values_.scratch_of(prepared.scratch_bytes(), LoweredValues::device_of(from));
    values_.emit<BoxingInstruction>(&n, m, std::move(prepared), in, out, std::move(scratch));
  }
}

void Lowering::lower_relabel(const Node& n, int m) {
  const Value& to = g_.value(n.out[0]);
  if (!values_.member(n.out[0])) return;
  const Array* in = values_.array(n.in[0], m);
  if (in->defined()) {
    values_.set(n.out[0], m, *in, values_.instance(n.in[0], m).buffer);
    return;
  }
  memory_.fresh(n.out[0], m, to.shape,
                contiguous_strides(to.shape));  // a rank outside the placement: a local tensor without elements
}

void Lowering::lower_agree(const Node& n, int m) {
  if (!values_.member(n.out[0])) return;
  Array* out = memory_.fresh(n.out[0], m, values_.array(n.in[0], m)->shape,
                             contiguous_strides(values_.array(n.in[0], m)->shape));
  const Value& to = g_.value(n.out[0]);
  values_.emit<AgreeInstruction>(&n, m, values_.array(n.in[0], m), out, to.spec, to.shape);
}

void Lowering::lower_accumulate(const Node& n, int m) {
  const Array* in = values_.array(n.in[0], m);
  if (!in->defined()) return;
  if (layout_free()) return accumulate_in_tree(n, m);
  if (const LoweredValues::Instance sum = values_.instance(n.out[0], m); sum.array >= 0 &&
      sum.buffer == values_.instance(n.in[0], m).buffer && at_index(p_->arrays, sum.array).offset == in->offset)
    return;  // it has been added, or written, there
  if (m == 0) {
    LoweredValues::Instance i = values_.instance(n.in[0], m);
    Buffer& b = values_.buffer(i.buffer);
    // The first micro-batch's gradient is the sum so far.
    if (b.kind == Buffer::Kind::kArena && b.pending == 1 && in->is_dense() && !memory_.has_place(n.out[0])) {
      values_.set(n.out[0], m, *in, i.buffer);
      return;
    }
    Array* out = memory_.fresh(n.out[0], m, in->shape, in->is_dense() ? in->strides : contiguous_strides(in->shape));
    values_.emit<CopyInstruction>(&n, m, in, out, "the sum over micro-batches");
    return;
  }
  Array* sum = const_cast<Array*>(values_.array(n.out[0], m));
  values_.emit<KernelInstruction>(&n, m, op::add, op::add->schema.defaults, SmallVec<const Array*, 4>{sum, in},
                                  SmallVec<Array*, 3>{sum}, nullptr);
}

void Lowering::accumulate_in_tree(const Node& n, int m) {
  Pending& pending = pending_[n.out[0]];
  // From the first to the last or the other way: the tree is the same.
  const int micro_batches = values_.micro_batches;
  if (pending.taken == 0) pending.reverse = m != 0;
  const int number = pending.reverse ? micro_batches - 1 - m : m;
  if (number != pending.taken++)
    fail_runtime("deterministic(layout_free=True): schedule {} has micro-batch {} backward after {}. Choose one that "
                 "goes through them in order, such as \"1f1b\".",
                 pipeline_.schedule().name, m, pending.last);
  pending.last = m;
  const Array* carried = values_.array(n.in[0], m);
  const int levels = std::countr_one(static_cast<unsigned>(number));
  auto place = [&](int level) -> Array* {
    if (1 << level == micro_batches)
      return memory_.fresh(n.out[0], m, carried->shape, contiguous_strides(carried->shape));
    while (to_size(level) >= pending.levels.size()) {
      Array a = Array::placeholder(carried->shape, contiguous_strides(carried->shape), carried->dtype, carried->device);
      pending.buffers.push_back(values_.new_buffer(a.nbytes(), a.device));
      a.storage = values_.buffer(pending.buffers.back()).storage;
      pending.levels.push_back(values_.keep(std::move(a)));
    }
    return pending.levels[to_size(level)];
  };
  if (levels == 0) values_.emit<CopyInstruction>(&n, m, carried, place(0), "a part of the sum over micro-batches");
  for (int l = 0; l < levels; ++l) {
    Array* to = place(l + 1 == levels ? levels : l);
    values_.emit<KernelInstruction>(&n, m, op::add, op::add->schema.defaults,
                                    SmallVec<const Array*, 4>{pending.levels[to_size(l)], carried},
                                    SmallVec<Array*, 3>{to}, nullptr);
    carried = to;
  }
  if (pending.taken == micro_batches)
    for (int32_t b : pending.buffers) values_.buffer(b).life.last = values_.now() - 1;
}

void Lowering::lower_assign(const Node& n, int m) {
  const External& x = at_index(g_.externals, n.target);
  const Array *in = values_.array(n.in[0], m), *to = values_.array(x.value, 0);
  if (!to->defined() || !in->defined()) return;
  if (in->storage == to->storage && in->offset == to->offset && in->strides == to->strides) return;
  values_.emit<CopyInstruction>(&n, m, in, const_cast<Array*>(to),
                                x.name.empty() ? "a tensor from outside" : x.name.c_str());
}

void Lowering::lower_clip(const Node& n, int m) {
  gradients_.begin(list(Section::kOnceAfter, 0, 0));
  gradients_.clip(n, n.out.empty() ? nullptr : memory_.fresh(n.out[0], m, {}, {}));
}

void Lowering::lower_update(const Node& n, int m) {
  gradients_.begin(list(Section::kOnceAfter, 0, 0));
  const Update& u = at_index(g_.updates, n.target);
  UpdateGroup& group = at_index(p_->updates, n.target);
  // Kernels convert gradients of two bytes (narrow_gradients) that are laid out like their parameters.
  std::map<size_t, const Array*> converted;
  std::vector<int32_t> held;
  for (size_t i = 0; i < n.in.size() && !u.idle; ++i) {
    const Array &grad = *values_.array(n.in[i], m),
                &param = *values_.array(at_index(g_.externals, u.externals[i]).value, 0);
    if (!grad.defined() || grad.dtype == param.dtype || !param.defined() || grad.strides == param.strides) continue;
    Array a = Array::placeholder(grad.shape, contiguous_strides(grad.shape), param.dtype, grad.device);
    held.push_back(values_.new_buffer(a.nbytes(), a.device));
    a.storage = values_.buffer(held.back()).storage;
    Array* to = values_.keep(std::move(a));
    values_.emit<CopyInstruction>(&n, m, &grad, to, "a gradient in its parameter's dtype");
    converted[i] = to;
  }
  size_t next_out = 0;
  for (size_t i = 0; i < n.in.size(); ++i) {
    const Value& v = g_.value(n.in[i]);
    const External& x = at_index(g_.externals, u.externals[i]);
    const Array* grad = gradients_.taken(n, i, u.idle);
    if (!grad) grad = values_.array(n.in[i], m);
    if (u.idle) continue;
    if (converted.contains(i)) grad = converted[i];
    optim::Slot slot;
    slot.narrow = v.dtype != x.tensor.dtype();
    slot.gradient_scale = gradients_.scale_of(n, i);
    slot.grad =
        v.spec ? Tensor::global(*grad, v.shape, grad->defined() ? grad->dtype : v.dtype, v.spec) : Tensor::local(*grad);
    slot.param = x.tensor;
    if (u.shards[i]) {
      const ValueId out = n.out[next_out++];
      Array part;
      if (values_.member(out)) {
        const Array& whole = *values_.array(x.value, 0);
        part = window(whole, v.shape, x.tensor.spec(), u.shards[i]);
        values_.set(out, m, part, values_.instance(x.value, 0).buffer);
      }
      slot.param = Tensor::global(part, v.shape, v.dtype, u.shards[i]);
    }
    group.slots.push_back(std::move(slot));
  }
  if (!u.idle) values_.emit<UpdateInstruction>(&n, m, group, p_->loss_scale.get());
  for (int32_t b : held) values_.buffer(b).life.last = values_.now() - 1;
}

Array Lowering::window(const Array& a, const Dims& shape, const GlobalSpec* from, const GlobalSpec* to) const {
  Region have = region_of(shape, from->placement, from->nd_sbp, from->placement.index_of(values_.rank));
  Region want = region_of(shape, to->placement, to->nd_sbp, to->placement.index_of(values_.rank));
  int64_t at = 0;
  for (int d = 0; d < shape.size(); ++d) at += (want.offset[d] - have.offset[d]) * a.strides[d];
  return a.view(want.shape, a.strides, at);
}

void Lowering::lower_fused(const Node& n, int m) {
  if (!values_.member(n.out[0])) return;
  SmallVec<const Array*, 4> in;
  std::vector<FusedChain::Operand> in_like, out_like;
  for (ValueId v : n.in) {
    const Array* a = values_.array(v, m);
    in.push_back(a);
    in_like.push_back({a->shape, a->strides, a->dtype});
  }
  for (ValueId v : n.out) {
    const Dims shape = values_.local_shape(g_.value(v));
    Dims strides = contiguous_strides(shape);
    for (auto* a : in)
      if (a->shape == shape) {
        if (a->is_dense()) strides = a->strides;
        break;
      }
    out_like.push_back({shape, strides, g_.value(v).dtype});
  }
  FusedChain chain(at_index(g_.bodies, n.target), in_like, out_like);
  SmallVec<Array*, 3> out;
  for (size_t o = 0; o < n.out.size(); ++o) {
    Array* over = nullptr;
    for (size_t i = 0; i < n.in.size() && !over; ++i)
      if (chain.may_overwrite(i, o)) over = over_input(n, m, i, o, out_like[o].shape, out_like[o].strides);
    out.push_back(over ? over : memory_.fresh(n.out[o], m, out_like[o].shape, out_like[o].strides));
  }
  values_.emit<FusedInstruction>(&n, m, std::move(chain), std::move(in), std::move(out));
}

}  // namespace holon::graph
