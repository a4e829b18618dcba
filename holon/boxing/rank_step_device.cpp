// Steps between parts of which some are in memory of devices.
#include "holon/boxing/exchange.h"
#include "holon/boxing/rank_step.h"
#include "holon/kernels/copy.h"

namespace holon::boxing {

Array RankStep::run_on_device(const Array& part, const Array& into) const {
  const Device device = step_->to->placement.device();
  Array out;
  if (makes_ == Makes::kPart) out = into.defined() ? into : Array::empty(shape_, plan_->dtype(), device);
  if (communicates())
    exchange(members(), call_info(*plan_, *step_), StepPulls(*plan_, number_, *transfer_),
             on_alike_devices(*step_->from, *step_->to) ? std::optional(device) : std::nullopt, part, out);
  if (makes_ == Makes::kView) return part.view(shape_, part.strides, view_at(part.strides));
  if (communicates() || makes_ == Makes::kNothing) return out;

  if (!zeros_) {
    if (copies_) kernels::copy(part.view(copied_shape_, part.strides, view_at(part.strides)), out);
    return out;
  }
  // Where the part before covers the new one, zeros would be written over at once.
  if (!(copies_ && copied_shape_ == shape_))
    kernels::fill(out, plan_->dtype() == boolean ? Scalar(false) : Scalar(int64_t{0}));
  if (copies_) {
    Array region = out.view(copied_shape_, out.strides, view_at(out.strides));
    kernels::copy(part.view(copied_shape_, part.strides), region);
  }
  return out;
}

}  // namespace holon::boxing
