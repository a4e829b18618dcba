#include "holon/boxing/rank_step.h"

#include <algorithm>
#include <cstring>

#include "holon/base/index.h"
#include "holon/base/small_vec.h"
#include "holon/boxing/hosts.h"
#include "holon/kernels/add_n.h"
#include "holon/kernels/cpu/stream.h"
#include "holon/kernels/regions.h"

namespace holon::boxing {

namespace {

using Peers = std::span<const std::byte* const>;

}  // namespace

bool on_device(const Plan& plan) { return on_device(*plan.from()) || on_device(*plan.to()); }

comm::CallInfo call_info(const Plan& plan, const Step& step) {
  return {step.label.c_str(), plan.dtype(), plan.shape(), step.fingerprint};
}

RankStep::RankStep(const Plan& plan, size_t number, int rank)
    : plan_(&plan), step_(&plan.steps()[number]), number_(number) {
  auto &from = *step_->from, &to = *step_->to;
  const int index = to.placement.index_of(rank), own = from.placement.index_of(rank);
  const bool one_device = from.placement.device_type() == to.placement.device_type();
  on_device_ = holon::boxing::on_device(from) || holon::boxing::on_device(to);
  if (step_->communicates() && (index >= 0 || own >= 0)) {
    transfer_ = &plan.transfer(number, rank);
    if (index >= 0) read_bytes_ = at_index(step_->read_bytes, index);
  }
  if (index < 0) return;

  makes_ = Makes::kPart;
  if (communicates() && !(transfer_->whole_own && one_device)) {
    shape_ = transfer_->shape;
    return;
  }
  const Slice dst = slice_of(plan.shape(), to.placement, to.nd_sbp, index);
  shape_ = dst.shape;
  zeros_ = step_->kind == StepKind::kZeroFill;
  if ((!zeros_ && dst.shape.numel() == 0) || own < 0) return;
  const Slice src = slice_of(plan.shape(), from.placement, from.nd_sbp, own);
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

int64_t RankStep::view_at(const Dims& strides) const {
  int64_t at = 0;
  for (int i = 0; i < at_.size(); ++i) at += at_[i] * strides[i];
  return at;
}

void RankStep::run(comm::Communicator* group, const std::byte* in, const Dims& in_strides, size_t in_bytes,
                   std::byte* out) const {
  if (communicates()) {
    comm::note_bytes(static_cast<uint64_t>(read_bytes_));
    return communicate(*group, in, in_bytes, out);
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

// Every rank sums one piece and then takes the others' sums.
void RankStep::reduce_in_two_phases(comm::Communicator& group, const std::byte* in, size_t in_bytes,
                                    std::byte* out) const {
  const DType dtype = plan_->dtype();
  auto item = static_cast<int64_t>(size_bytes(dtype));
  const int64_t n = shape_.numel();
  // Without elements there are no pulls, but the group still communicates: its other steps are those of larger groups.
  std::span<const int> owners;
  if (n) owners = transfer_->pulls[0].owners;
  auto parts = static_cast<int64_t>(owners.size());
  auto place = std::find(owners.begin(), owners.end(), transfer_->me) - owners.begin();

  const comm::CallInfo info = call_info(*plan_, *step_);
  Peers peers = group.open(info, in, in_bytes);
  if (n) {
    Interval mine = balanced_split(n, parts, place);
    SmallVec<const void*, 64> addends;
    for (int owner : owners) addends.push_back(at_index(peers, owner) + mine.begin * item);
    kernels::add_n(out + mine.begin * item, addends, mine.size, dtype);
  }
  const auto out_bytes = to_size(n * item);
  peers = group.open(info, out, out_bytes);  // this closes the first phase
  for (int64_t p = 0; p < parts; ++p) {
    Interval piece = balanced_split(n, parts, p);
    if (p == place || piece.size == 0) continue;
    const std::byte* from = at_index(peers, at_index(owners, p)) + piece.begin * item;
    kernels::copy_bytes(out + piece.begin * item, from, to_size(piece.size * item), out_bytes);
  }
  group.close();
}

void RankStep::communicate(comm::Communicator& group, const std::byte* in, size_t in_bytes, std::byte* out) const {
  if (auto* across = group.across_hosts())
    return run_across_hosts(*plan_, number_, *transfer_, *across, in, in_bytes, out);
  if (step_->two_phase) return reduce_in_two_phases(group, in, in_bytes, out);
  Peers peers = group.open(call_info(*plan_, *step_), in, in_bytes);
  if (makes_ == Makes::kPart)
    comm::pull_all(transfer_->pulls, plan_->dtype(), peers, out, contiguous_strides(shape_),
                   to_size(shape_.numel()) * size_bytes(plan_->dtype()));
  group.close();
}

}  // namespace holon::boxing
