// Each kind of node as instructions.
#include "holon/base/index.h"
#include "holon/graph/program/lowering.h"
#include "holon/op_names.h"

namespace holon::graph {

void Lowering::lower_op(const Node& n, int m) {
  SmallVec<const Array*, 4> in;
  SmallVec<Meta, 4> metas;
  SmallVec<const GlobalSpec*, 4> specs;
  for (ValueId v : n.in) {
    in.push_back(array(v, m));
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
    call = local_call(metas, specs, out, out_specs, rank_);
    if (!call.member) return;
  } else {
    for (ValueId v : n.out) call.out_shape.push_back(g_.value(v).shape);
  }
  if (n.op->view) return lower_view(n, m, *in[0], call.out_shape[0]);
  SmallVec<Array*, 3> out;
  const bool adds = m > 0 && n.op->adds && sums_can_be_added_to(n, m, call.out_shape);
  uint32_t over = n.op->writes_over | (n.op->elementwise && n.out.size() == 1 ? 1u : 0u);
  for (size_t o = 0; o < n.out.size(); ++o) {
    if (adds) {
      out.push_back(in_sum(n.out[o], m));
      continue;
    }
    Dims strides = strides_.of(n, call.out_shape[o]);
    if (strides.empty()) strides = output_strides(*n.op, call.out_shape[o], in);
    // The first gradient is written to where the sum has its place among others.
    if (auto sum = sum_of_.find(n.out[o]); m == 0 && sum != sum_of_.end() && place_in_bucket_.contains(sum->second) &&
        strides == contiguous_strides(call.out_shape[o])) {
      fresh(sum->second, m, call.out_shape[o], strides);
      out.push_back(in_sum(n.out[o], m));
      continue;
    }
    Array* a = in_place_of_input(n, m, o, call.out_shape[o], strides, over);
    out.push_back(a ? a : fresh(n.out[o], m, call.out_shape[o], strides));
  }
  auto& i =
      emit<KernelInstruction>(&n, m, *n.op, n.attrs, std::move(in), std::move(out), global ? &call.part : nullptr);
  if (adds) i.add_to_outputs();
  if (n.draw >= 0)
    i.draw(&p_->draws, global,
           n.draw + (per_micro_batch(n.section) ? m : 0) * (global ? g_.global_draws : g_.local_draws));
}

bool Lowering::sums_can_be_added_to(const Node& n, int m, std::span<const Dims> shapes) {
  for (size_t o = 0; o < n.out.size(); ++o) {
    auto sum = sum_of_.find(n.out[o]);
    if (sum == sum_of_.end()) return false;
    const Array* a = array(sum->second, m);
    if (!a->defined() || !a->is_contiguous() || !(a->shape == shapes[o]) ||
        (a->dtype != float32 && a->dtype != float64))
      return false;
  }
  return true;
}

Array* Lowering::in_sum(ValueId v, int m) {
  const Instance sum = instance(sum_of_.at(v), m);
  return set(v, m, at_index(p_->arrays, sum.array), sum.buffer);
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

Array* Lowering::over_input(const Node& n, int m, size_t i, size_t o, const Dims& shape, const Dims& strides) {
  if (n.in[i] == kNoValue || place_in_bucket_.contains(n.out[o])) return nullptr;
  const Array* in = array(n.in[i], m);
  if (!in->defined() || in->shape != shape || in->strides != strides || in->dtype != g_.value(n.out[o]).dtype)
    return nullptr;
  const Instance own = instance(n.in[i], m);
  Buffer& b = at_index(p_->buffers, own.buffer);
  if (b.kind != Buffer::Kind::kArena) return nullptr;
  int64_t reads = 0;
  for (ValueId v : n.in) {
    if (v == kNoValue || instance(v, m).buffer != own.buffer) continue;
    if (instance(v, m).array != own.array) return nullptr;
    ++reads;
  }
  if (b.pending != reads) return nullptr;
  return set(n.out[o], m, *in, own.buffer);
}

void Lowering::lower_view(const Node& n, int m, const Array& in, const Dims& shape) {
  Array out = in;
  ViewCall call(*n.op, n.attrs, in, shape);
  n.op->view(call, out);
  if (out.storage == in.storage) {
    set(n.out[0], m, std::move(out), instance(n.in[0], m).buffer);
    return;
  }
  // Strides did not allow a view: a copy in row-major order, seen in the new shape.
  HOLON_CHECK(out.is_contiguous() && out.numel() == in.numel(), "the view {} of {} is neither a window nor a copy",
              n.op->name(), in.shape);
  Array* made = fresh(n.out[0], m, out.shape, out.strides);
  Array as_given = *made;
  as_given.shape = in.shape;
  as_given.strides = contiguous_strides(in.shape);
  emit<CopyInstruction>(&n, m, array(n.in[0], m), keep(std::move(as_given)), n.op->name());
}

void Lowering::lower_boxing(const Node& n, int m) {
  if (n.in.size() > 1) return lower_batch(n, m);
  for (size_t k = 0; k < n.in.size(); ++k) {
    const Value &from = g_.value(n.in[k]), &to = g_.value(n.out[k]);
    const Array* in = array(n.in[k], m);
    auto prepared = boxing::Prepared::prepare(from.spec, to.spec, from.shape, from.dtype,
                                              !in->defined() || in->is_contiguous() ? boxing::Input::kContiguous
                                                                                    : boxing::Input::kAnyStrides);
    if (prepared.is_view() && prepared.has_in() && prepared.has_out() && !prepared.communicates()) {
      set(n.out[k], m, prepared.view_of(*in), instance(n.in[k], m).buffer);
      continue;
    }
    if (!prepared.communicates() && !prepared.has_out()) continue;
    const Array* out = prepared.has_out()
        ? fresh(n.out[k], m, prepared.out_shape(), contiguous_strides(prepared.out_shape()))
        : &kUndefined;
    auto scratch = scratch_of(prepared.scratch_bytes(), device_of(from));
    emit<BoxingInstruction>(&n, m, std::move(prepared), in, out, std::move(scratch));
  }
}

void Lowering::lower_relabel(const Node& n, int m) {
  const Value& to = g_.value(n.out[0]);
  if (!member(n.out[0])) return;
  const Array* in = array(n.in[0], m);
  if (in->defined()) {
    set(n.out[0], m, *in, instance(n.in[0], m).buffer);
    return;
  }
  fresh(n.out[0], m, to.shape,
        contiguous_strides(to.shape));  // a rank outside the placement: a local tensor without elements
}

void Lowering::lower_agree(const Node& n, int m) {
  if (!member(n.out[0])) return;
  Array* out = fresh(n.out[0], m, array(n.in[0], m)->shape, contiguous_strides(array(n.in[0], m)->shape));
  const Value& to = g_.value(n.out[0]);
  emit<AgreeInstruction>(&n, m, array(n.in[0], m), out, to.spec, to.shape);
}

void Lowering::lower_accumulate(const Node& n, int m) {
  const Array* in = array(n.in[0], m);
  if (!in->defined()) return;
  if (const Instance sum = instance(n.out[0], m); sum.array >= 0 && sum.buffer == instance(n.in[0], m).buffer &&
      at_index(p_->arrays, sum.array).offset == in->offset)
    return;  // it has been added, or written, there
  if (m == 0) {
    Instance i = instance(n.in[0], m);
    Buffer& b = at_index(p_->buffers, i.buffer);
    // The first micro-batch's gradient is the sum so far.
    if (b.kind == Buffer::Kind::kArena && b.pending == 1 && in->is_dense() && !place_in_bucket_.contains(n.out[0])) {
      set(n.out[0], m, *in, i.buffer);
      return;
    }
    Array* out = fresh(n.out[0], m, in->shape, in->is_dense() ? in->strides : contiguous_strides(in->shape));
    emit<CopyInstruction>(&n, m, in, out, "the sum over micro-batches");
    return;
  }
  Array* sum = const_cast<Array*>(array(n.out[0], m));
  emit<KernelInstruction>(&n, m, op::add, op::add->schema.defaults, SmallVec<const Array*, 4>{sum, in},
                          SmallVec<Array*, 3>{sum}, nullptr);
}

void Lowering::lower_assign(const Node& n, int m) {
  const External& x = at_index(g_.externals, n.target);
  const Array *in = array(n.in[0], m), *to = array(x.value, 0);
  if (!to->defined() || !in->defined()) return;
  if (in->storage == to->storage && in->offset == to->offset && in->strides == to->strides) return;
  emit<CopyInstruction>(&n, m, in, const_cast<Array*>(to), x.name.empty() ? "a tensor from outside" : x.name.c_str());
}

void Lowering::put_updates_last() {
  auto& nodes = list(Section::kOnceAfter, 0, 0);
  const std::vector<bool> after = after_gradients(g_);
  std::stable_partition(nodes.begin(), nodes.end(), [&](NodeId n) { return !at_index(after, n); });
}

bool Lowering::may_change(ValueId v) {
  const Instance& own = instance(v, 0);
  const Buffer& b = at_index(p_->buffers, own.buffer);
  if (b.kind != Buffer::Kind::kArena || at_index(reads_, v) != 1 || !array(v, 0)->is_dense()) return false;
  if (b.pending == 1) return true;
  // Others in the buffer are its neighbours in a bucket, unless it is a window on one of them.
  const NodeId by = at_index(made_by_, v);
  const Node& producer = at_index(g_.nodes, by);
  const bool window = producer.kind == NodeKind::kRelabel || (producer.op && producer.op->view) ||
      (producer.kind == NodeKind::kBoxing && producer.in.size() == 1);
  return !window;
}

void Lowering::own_gradients() {
  std::vector<UnscaleInstruction::Gradient> scaled;
  for (NodeId id : list(Section::kOnceAfter, 0, 0)) {
    const Node& n = at_index(g_.nodes, id);
    if (n.kind != NodeKind::kUpdate) continue;
    for (size_t i = 0; i < n.in.size(); ++i) {
      const GradClip::Of at{n.target, static_cast<int32_t>(i)};
      const bool clipped = std::any_of(g_.clips.begin(), g_.clips.end(), [&](const GradClip& c) {
        return std::find(c.of.begin(), c.of.end(), at) != c.of.end();
      });
      if (!g_.scaled && !clipped) continue;
      const ValueId v = n.in[i];
      need(v, 0);
      Array* in = const_cast<Array*>(array(v, 0));
      Array* out = in;
      int32_t buffer = -1;
      if (in->defined() && !may_change(v)) {
        Array a = Array::placeholder(in->shape, contiguous_strides(in->shape), in->dtype, in->device);
        buffer = new_buffer(a.nbytes(), a.device);
        a.storage = at_index(p_->buffers, buffer).storage;
        out = keep(std::move(a));
        if (!g_.scaled) emit<CopyInstruction>(&n, 0, in, out, "a gradient that is clipped");
      }
      own_gradients_[at] = {out, buffer, &g_.value(v)};
      scaled.push_back({in, out, g_.value(v).spec, at_index(g_.updates, n.target).optimizer});
    }
  }
  if (!g_.scaled) return;
  p_->loss_scale = std::make_unique<LossScale>();
  emit<UnscaleInstruction>(nullptr, 0, *p_->loss_scale, scaled);
}

void Lowering::lower_clip(const Node& n, int m) {
  if (own_gradients_.empty()) own_gradients();
  const GradClip& clip = at_index(g_.clips, n.target);
  std::vector<ClipInstruction::Gradient> gradients;
  for (auto& at : clip.of) {
    auto& [array, buffer, value] = own_gradients_.at(at);
    gradients.push_back({array, value->spec, value->dtype});
  }
  double* norm = nullptr;
  if (clip.how.by == optim::Clip::By::kNorm) norm = &p_->norms.emplace_back();
  emit<ClipInstruction>(&n, m, clip.how, gradients, norm, n.out.empty() ? nullptr : fresh(n.out[0], m, {}, {}));
}

void Lowering::lower_update(const Node& n, int m) {
  if (changes_gradients() && own_gradients_.empty()) own_gradients();
  const Update& u = at_index(g_.updates, n.target);
  UpdateGroup& group = at_index(p_->updates, n.target);
  size_t next_out = 0;
  for (size_t i = 0; i < n.in.size(); ++i) {
    const Value& v = g_.value(n.in[i]);
    const External& x = at_index(g_.externals, u.externals[i]);
    const Array* grad = array(n.in[i], m);
    if (auto own = own_gradients_.find({n.target, static_cast<int32_t>(i)}); own != own_gradients_.end()) {
      grad = own->second.array;
      if (own->second.buffer >= 0) at_index(p_->buffers, own->second.buffer).life.last = u.idle ? now() - 1 : now();
    }
    if (u.idle) continue;
    optim::Slot slot;
    slot.grad = v.spec ? Tensor::global(*grad, v.shape, v.dtype, v.spec) : Tensor::local(*grad);
    slot.param = x.tensor;
    if (u.shards[i]) {
      const ValueId out = n.out[next_out++];
      Array part;
      if (member(out)) {
        const Array& whole = *array(x.value, 0);
        part = window(whole, v.shape, x.tensor.spec(), u.shards[i]);
        set(out, m, part, instance(x.value, 0).buffer);
      }
      slot.param = Tensor::global(part, v.shape, v.dtype, u.shards[i]);
    }
    group.slots.push_back(std::move(slot));
  }
  if (!u.idle) emit<UpdateInstruction>(&n, m, group, p_->loss_scale.get());
}

Array Lowering::window(const Array& a, const Dims& shape, const GlobalSpec* from, const GlobalSpec* to) const {
  Slice have = slice_of(shape, from->placement, from->nd_sbp, from->placement.index_of(rank_));
  Slice want = slice_of(shape, to->placement, to->nd_sbp, to->placement.index_of(rank_));
  int64_t at = 0;
  for (int d = 0; d < shape.size(); ++d) at += (want.offset[d] - have.offset[d]) * a.strides[d];
  return a.view(want.shape, a.strides, at);
}

void Lowering::lower_fused(const Node& n, int m) {
  if (!member(n.out[0])) return;
  SmallVec<const Array*, 4> in;
  std::vector<FusedChain::Operand> in_like, out_like;
  for (ValueId v : n.in) {
    const Array* a = array(v, m);
    in.push_back(a);
    in_like.push_back({a->shape, a->strides, a->dtype});
  }
  for (ValueId v : n.out) {
    const Dims shape = local_shape(g_.value(v));
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
    out.push_back(over ? over : fresh(n.out[o], m, out_like[o].shape, out_like[o].strides));
  }
  emit<FusedInstruction>(&n, m, std::move(chain), std::move(in), std::move(out));
}

}  // namespace holon::graph
