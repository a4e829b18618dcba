// Steps between parts of which some are in memory of devices.
#include "holon/base/error.h"
#include "holon/boxing/device_exchange.h"
#include "holon/boxing/rank_step.h"
#include "holon/comm/device_communicator.h"
#include "holon/kernels/copy.h"

namespace holon::boxing {

Array RankStep::run_on_device(const Array& part, const Array& into) const {
  const Device device = step_->to->placement.device();
  Array out;
  if (makes_ == Makes::kPart) out = into.defined() ? into : Array::empty(shape_, plan_->dtype(), device);
  if (communicates()) {
    comm::note_bytes(static_cast<uint64_t>(read_bytes_));
    out = communicate_on_device(part, std::move(out));
  }
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

Array RankStep::communicate_on_device(const Array& part, Array out) const {
  const Device device = step_->to->placement.device();
  if (!on_alike_devices(*step_->from, *step_->to)) return communicate_through_host(part, std::move(out));
  comm::DeviceCommunicator* group = comm::device_communicator(members(), device);
  if (!group) return communicate_through_host(part, std::move(out));
  const comm::CallInfo info = call_info(*plan_, *step_);
  const Array packed = part.defined() ? kernels::contiguous(part) : Array{};
  exchange_of(*plan_, number_, *transfer_)->run(*group, info, packed, out);
  return out;
}

// By copies on the CPU: between kinds of devices, and where the devices have no way of their own.
Array RankStep::communicate_through_host(const Array& part, Array out) const {
  comm::Communicator& group = comm::communicator(members());
  Array shown, arrived;
  if (part.defined()) {
    shown = part.device.is_host() ? kernels::contiguous(part) : Array::empty(part.shape, part.dtype);
    if (!part.device.is_host()) kernels::copy(part, shown);
  }
  const bool makes_part = makes_ == Makes::kPart;
  if (makes_part) arrived = out.device.is_host() ? out : Array::empty(out.shape, out.dtype);
  communicate(group, shown.defined() ? shown.bytes() : nullptr, shown.defined() ? shown.nbytes() : 0,
              makes_part ? arrived.bytes() : nullptr);
  if (makes_part && !out.device.is_host()) kernels::copy(arrived, out);
  return out;
}

}  // namespace holon::boxing
