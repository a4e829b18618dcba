#include "holon/boxing/rank_step.h"

#include <cstring>

#include "holon/base/index.h"
#include "holon/kernels/regions.h"

namespace holon::boxing {

bool on_device(const Plan& plan) { return on_device(*plan.from()) || on_device(*plan.to()); }

comm::CallInfo call_info(const Plan& plan, const Step& step) {
  return {step.label.c_str(), plan.dtype(), plan.shape(), step.fingerprint};
}

std::vector<comm::Pull> StepPulls::of(int member, int phase) const {
  const auto pulls = of(plan_.transfer(number_, at_index(mine_.members, member)), phase);
  return {pulls.begin(), pulls.end()};
}

std::span<const comm::Pull> StepPulls::of(const Transfer& t, int phase) const {
  if (step_.two_phase) return phase == 0 ? t.sums : t.shares;
  // A window on what the rank has is not pulled.
  if (t.whole_own && step_.from->placement.device_type() == step_.to->placement.device_type()) return {};
  return t.pulls;
}

comm::Collective StepPulls::collective() const {
  switch (step_.kind) {
    case StepKind::kAllReduce: return comm::Collective::kAllReduce;
    case StepKind::kAllGather: return comm::Collective::kAllGather;
    case StepKind::kReduceScatter: return comm::Collective::kReduceScatter;
    default: return comm::Collective::kNone;
  }
}

RankStep::RankStep(const Plan& plan, size_t number, int rank)
    : plan_(&plan), step_(&plan.steps()[number]), number_(number) {
  auto &from = *step_->from, &to = *step_->to;
  const int index = to.placement.index_of(rank), own = from.placement.index_of(rank);
  const bool one_device = from.placement.device_type() == to.placement.device_type();
  on_device_ = holon::boxing::on_device(from) || holon::boxing::on_device(to);
  if (step_->communicates() && (index >= 0 || own >= 0)) transfer_ = &plan.transfer(number, rank);
  if (index < 0) return;

  makes_ = Makes::kPart;
  if (communicates() && !(transfer_->whole_own && one_device)) {
    shape_ = transfer_->shape;
    return;
  }
  const Region dst = region_of(plan.shape(), to.placement, to.nd_sbp, index);
  shape_ = dst.shape;
  zeros_ = step_->kind == StepKind::kZeroFill;
  if ((!zeros_ && dst.shape.numel() == 0) || own < 0) return;
  const Region src = region_of(plan.shape(), from.placement, from.nd_sbp, own);
  at_.resize(dst.shape.size());
  if (!zeros_) {
    for (int i = 0; i < at_.size(); ++i) at_[i] = dst.offset[i] - src.offset[i];
    copied_shape_ = dst.shape;
    copies_ = true;
    // Tensors on different devices share no memory, simulated ones neither.
    if (one_device) makes_ = Makes::kView;
    return;
  }
  // Of the copies along an axis of B that becomes P, the first rank's stays.
  const Dims place = to.placement.coordinate(index);
  copies_ = true;
  for (int a = 0; a < place.size(); ++a)
    if (from.nd_sbp[a].is_broadcast() && to.nd_sbp[a].is_partial()) copies_ &= place[a] == 0;
  if (copies_ && src.shape == dst.shape) makes_ = Makes::kView;
  for (int i = 0; i < at_.size(); ++i) at_[i] = makes_ == Makes::kView ? 0 : src.offset[i] - dst.offset[i];
  copied_shape_ = src.shape;
}

RankPlan::RankPlan(const Plan& of, int rank)
    : plan(of), from_index(plan.from()->placement.index_of(rank)), to_index(plan.to()->placement.index_of(rank)) {
  if (from_index >= 0)
    in_shape = region_of(plan.shape(), plan.from()->placement, plan.from()->nd_sbp, from_index).shape;
  for (size_t i = 0; i < plan.steps().size(); ++i) steps.emplace_back(plan, i, rank);
}

int64_t RankStep::view_at(const Dims& strides) const {
  int64_t at = 0;
  for (int i = 0; i < at_.size(); ++i) at += at_[i] * strides[i];
  return at;
}

void RankStep::run(comm::Communicator* group, const std::byte* in, const Dims& in_strides, size_t in_bytes,
                   std::byte* out) const {
  if (communicates()) {
    const size_t out_bytes = makes_ == Makes::kPart ? to_size(shape_.numel()) * size_bytes(plan_->dtype()) : 0;
    return group->pull(call_info(*plan_, *step_), StepPulls(*plan_, number_, *transfer_), in, in_bytes, out, out_bytes);
  }
  if (makes_ != Makes::kPart) return;
  const auto item = static_cast<int64_t>(size_bytes(plan_->dtype()));
  const Dims out_strides = contiguous_strides(shape_);
  if (!zeros_) {
    if (copies_)
      kernels::copy_region(out, out_strides, in + view_at(in_strides) * item, in_strides, copied_shape_, item);
    return;
  }
  if (int64_t bytes = shape_.numel() * item) std::memset(out, 0, to_size(bytes));
  if (copies_)
    kernels::copy_region(out + view_at(out_strides) * item, out_strides, in, in_strides, copied_shape_, item);
}

}  // namespace holon::boxing
