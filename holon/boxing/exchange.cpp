#include "holon/boxing/exchange.h"

#include <algorithm>

#include "holon/base/context.h"
#include "holon/base/trace.h"
#include "holon/comm/device/device_communicator.h"
#include "holon/kernels/copy.h"

namespace holon::boxing {

namespace {

bool is_elsewhere(const Array& a) { return a.defined() && !a.device.is_host(); }

int64_t elements_of(const comm::GroupPulls& pulls) {
  int64_t n = 0;
  for (int phase = 0; phase < pulls.phases(); ++phase)
    for (const comm::Pull& p : pulls.mine(phase)) n += p.shape.numel();
  return n;
}

}  // namespace

void exchange(std::span<const int> ranks, const comm::CallInfo& info, const comm::GroupPulls& pulls,
              std::optional<Device> devices, const Array& in, const Array& out) {
  const Array part = in.defined() ? kernels::contiguous(in) : in;
  if (devices)
    if (comm::DeviceCommunicator* group = comm::device_communicator(ranks, *devices))
      return group->pull(info, pulls, part, out);

  Array shown = part, arrived = out;
  if (is_elsewhere(part)) {
    shown = Array::empty(part.shape, part.dtype);
    kernels::copy(part, shown);
  }
  if (is_elsewhere(out)) {
    const bool in_place = part.defined() && out.bytes() == part.bytes();
    arrived = in_place ? shown : Array::empty(out.shape, out.dtype);
    if (!in_place && elements_of(pulls) < out.numel()) kernels::copy(out, arrived);
  }
  const bool shows = shown.defined(), pulls_any = arrived.defined();
  comm::communicator(ranks).pull(info, pulls, shows ? shown.bytes() : nullptr, shows ? shown.nbytes() : 0,
                                 pulls_any ? arrived.bytes() : nullptr, pulls_any ? arrived.nbytes() : 0);
  if (!is_elsewhere(out)) return;
  Array result = out;
  kernels::copy(arrived, result);
}

void exchange_inside(std::span<const int> ranks, const comm::CallInfo& info, const comm::GroupPulls& pulls,
                     std::optional<Device> devices, const Array& in, const Array& out) {
  tracing::Span span(info.op, "boxing");
  if (span) [[unlikely]] {
    const auto me = std::find(ranks.begin(), ranks.end(), Context::current().rank());
    span.arg("bytes",
             pulls.elements_read(static_cast<int>(me - ranks.begin())) * static_cast<int64_t>(size_bytes(info.dtype)));
  }
  exchange(ranks, info, pulls, devices, in, out);
}

}  // namespace holon::boxing
