#include "holon/graph/program/gradient_changes.h"

#include <algorithm>
#include <memory>

#include "holon/graph/ir/gradients.h"
#include "holon/graph/ir/node_kind.h"

namespace holon::graph {

bool GradientChanges::may_change(ValueId v) {
  const Buffer& b = values_.buffer_of(v, 0);
  if (b.kind != Buffer::Kind::kArena || values_.reads(v) != 1 || !values_.array(v, 0)->is_dense()) return false;
  if (b.pending == 1) return true;
  // Others in the buffer are its neighbours in a bucket, unless it is a window on one of them.
  const Node& producer = at_index(g_.nodes, at_index(values_.made_by, v));
  const bool agrees = producer.kind == NodeKind::kAgree, batch = producer.in.size() > 1;
  return !is_view(producer) || agrees || (producer.kind == NodeKind::kBoxing && batch);
}

void GradientChanges::find_clips() {
  const auto gradients = taken_gradients(g_);
  results_.resize(g_.clips.size());
  for (size_t c = 0; c < g_.clips.size(); ++c) {
    for (auto& at : g_.clips[c].of) clips_[at].push_back(c);
    if (g_.clips[c].how.by == optim::Clip::By::kNorm)
      results_[c] = Array::placeholder({2}, {1}, DType::kFloat64, clip_device(g_.clips[c], gradients));
  }
}

bool GradientChanges::scaled_by_its_update(const GradClip::Of& at) const {
  const auto clips = clips_.find(at);
  if (clips == clips_.end() || clips->second.size() != 1 || at_index(g_.updates, at.update).idle) return false;
  const Array &result = results_[clips->second[0]], &gradient = *own_.at(at).array;
  return result.defined() && !result.device.is_host() && (!gradient.defined() || gradient.device == result.device);
}

Array GradientChanges::scale_of(const Node& update, size_t i) const {
  const GradClip::Of at{update.target, static_cast<int32_t>(i)};
  if (!own_.contains(at) || !scaled_by_its_update(at)) return {};
  return results_[clips_.at(at)[0]].view({}, {}, 1);
}

void GradientChanges::begin(std::span<const NodeId> once_after) {
  if (begun_ || !any()) return;
  begun_ = true;
  find_clips();
  std::vector<UnscaleInstruction::Gradient> scaled;
  for (NodeId id : once_after) {
    const Node& n = at_index(g_.nodes, id);
    if (n.kind != NodeKind::kUpdate) continue;
    for (size_t i = 0; i < n.in.size(); ++i) {
      const GradClip::Of at{n.target, static_cast<int32_t>(i)};
      if (!g_.scaled && !clips_.contains(at)) continue;
      const ValueId v = n.in[i];
      need_(v);
      Array* in = const_cast<Array*>(values_.array(v, 0));
      Array* out = in;
      int32_t buffer = -1;
      own_[at] = {in, -1, &g_.value(v)};
      const bool changes = g_.scaled || !scaled_by_its_update(at);
      if (changes && in->defined() && !may_change(v)) {
        Array a = Array::placeholder(in->shape, contiguous_strides(in->shape), in->dtype, in->device);
        buffer = values_.new_buffer(a.nbytes(), a.device);
        a.storage = values_.buffer(buffer).storage;
        out = values_.keep(std::move(a));
        if (!g_.scaled) values_.emit<CopyInstruction>(&n, 0, in, out, "a gradient that is clipped");
      }
      own_[at] = {out, buffer, &g_.value(v)};
      scaled.push_back({in, out, g_.value(v).spec, at_index(g_.updates, n.target).optimizer});
    }
  }
  if (!g_.scaled) return;
  values_.program.loss_scale = std::make_unique<LossScale>();
  values_.emit<UnscaleInstruction>(nullptr, 0, *values_.program.loss_scale, scaled);
}

void GradientChanges::clip(const Node& n, Array* out) {
  const GradClip& clip = at_index(g_.clips, n.target);
  std::vector<ClipInstruction::Gradient> gradients;
  std::vector<bool> changed;
  for (auto& at : clip.of) {
    auto& [array, buffer, value] = own_.at(at);
    gradients.push_back({array, value->spec, value->dtype});
    changed.push_back(!scaled_by_its_update(at));
  }
  const Array& result = at_index(results_, n.target);
  if (result.defined()) values_.program.norms.push_back(result);
  values_.emit<ClipInstruction>(&n, 0, clip.how, gradients, changed, result, out);
}

const Array* GradientChanges::taken(const Node& update, size_t i, bool idle) {
  auto own = own_.find({update.target, static_cast<int32_t>(i)});
  if (own == own_.end()) return nullptr;
  if (own->second.buffer >= 0) values_.buffer(own->second.buffer).life.last = idle ? values_.now() - 1 : values_.now();
  return own->second.array;
}

}  // namespace holon::graph
