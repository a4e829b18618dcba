#include "holon/boxing/point_to_point.h"

#include <algorithm>

#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/base/trace.h"
#include "holon/boxing/live_log.h"
#include "holon/boxing/point_to_point_device.h"
#include "holon/boxing/step_chain.h"
#include "holon/comm/point_to_point.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/regions.h"

namespace holon::boxing {

namespace {

// The step between the placements; the number of steps if there is one placement.
size_t crossing_of(const Plan& plan) {
  auto& steps = plan.steps();
  auto it =
      std::find_if(steps.begin(), steps.end(), [](const Step& s) { return s.from->placement != s.to->placement; });
  return to_size(it - steps.begin());
}

std::vector<int> sorted_ranks(const GlobalSpec& s) {
  std::vector<int> ranks(s.placement.ranks().begin(), s.placement.ranks().end());
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

}  // namespace

struct PointToPoint::Data {
  Data(const Plan& p, int number, Input with)
      : plan(p),
        rank(Context::current().rank()),
        channel(number),
        input(with),
        steps(plan.steps().size()),
        crossing(crossing_of(plan)),
        crosses(crossing < steps && plan.steps()[crossing].communicates()),
        first(crossing < steps ? crossing : 0),
        before(plan, 0, first, rank, input),
        after(plan, crosses ? crossing + 1 : first, steps, rank, crosses || first > 0 ? Input::kContiguous : input) {
    const auto item = size_bytes(plan.dtype());
    device = on_device(plan);
    if (device && crosses && (before.has_in() || after.has_out()))
      device_crossing = std::make_unique<DeviceCrossing>(plan, crossing, rank, channel);
    read_bytes = before.read_bytes() + after.read_bytes();
    // What is shown is in the first array, where it is not the input itself.
    if (before.has_in() && (first > 0 || (crosses && input == Input::kAnyStrides)))
      send_scratch.push_back(to_size(before.out_shape().numel()) * item);
    if (first > 0) add(send_scratch, before.scratch_bytes());
    if (!crosses) {
      add(receive_scratch, after.scratch_bytes());
      return;
    }
    const Step& step = plan.steps()[crossing];
    const int index = step.to->placement.index_of(rank);
    if (index < 0) return;
    crossing_bytes = at_index(step.read_bytes, index);
    read_bytes += crossing_bytes;
    crossed = after.in_shape();
    crossed_bytes = to_size(crossed.numel()) * item;
    // What has been pulled is in the first array, where more is to be done with it.
    if (crossing + 1 == steps) return;
    receive_scratch.push_back(crossed_bytes);
    add(receive_scratch, after.scratch_bytes());
  }

  static void add(std::vector<size_t>& list, std::span<const size_t> more) {
    list.insert(list.end(), more.begin(), more.end());
  }

  bool has_in() const { return before.has_in(); }
  bool has_out() const { return after.has_out(); }
  const Dims& in_shape() const { return before.in_shape(); }
  bool receives_own() const { return !crosses && has_in() && has_out(); }

  comm::PointToPoint& bound() {
    if (!object) make();
    return *object;
  }

  void make() {
    const Step& step = plan.steps()[crossing];
    const std::vector<int> senders = sorted_ranks(*step.from), receivers = sorted_ranks(*step.to);
    auto pulls_of = [&](int receiver) {
      const Transfer& t = plan.transfer(crossing, at_index(receivers, receiver));
      std::vector<comm::Pull> pulls = t.pulls;
      for (auto& pull : pulls)
        for (int& owner : pull.owners) {
          const int owner_rank = at_index(t.members, owner);
          owner = static_cast<int>(std::lower_bound(senders.begin(), senders.end(), owner_rank) - senders.begin());
        }
      return pulls;
    };
    object = std::make_unique<comm::PointToPoint>(senders, receivers, channel, plan.dtype(), pulls_of);
  }

  void send(const Array& in, std::span<const Array> scratch) {
    check_part(in, "the part", in_shape(), plan.dtype(), input == Input::kContiguous);
    if (device) return send_on_device(in);
    check_scratch(scratch, send_scratch);
    if (receives_own() && sent != received)
      fail_runtime("transfer: {} sends again before it has received what it sent to itself. Receive first.",
                   rank_text());
    if (crosses) bound();
    const std::byte* shown = memory_of(in);
    Dims strides = in.defined() ? in.strides : contiguous_strides(in_shape());
    if (first > 0 || (crosses && in.defined() && !in.is_contiguous())) {
      if (object) object->release();  // the scratch memory that is written now
      std::byte* packed = memory_of(scratch[0]);
      if (first > 0)
        before.run_on(shown, strides, packed, scratch.subspan(1));
      else
        kernels::copy_region(packed, contiguous_strides(in.shape), shown, strides, in.shape,
                             static_cast<int64_t>(size_bytes(plan.dtype())));
      shown = packed;
      strides = contiguous_strides(before.out_shape());
    }
    if (!crosses) {
      kept = shown;
      kept_strides = strides;
      ++sent;
      return;
    }
    const Step& step = plan.steps()[crossing];
    tracing::Span span("send", "boxing");
    if (span) span.arg("step", step.label);
    const size_t bytes = to_size(before.out_shape().numel()) * size_bytes(plan.dtype());
    object->send(call_info(plan, step), shown, bytes);
  }

  void receive(const Array& out, std::span<const Array> scratch) {
    check_part(out, "the result", after.out_shape(), plan.dtype(), true);
    if (device) return receive_on_device(out);
    check_scratch(scratch, receive_scratch);
    if (!crosses) {
      if (receives_own() && sent == received)
        fail_runtime("transfer: {} receives what it has not sent yet. Send first.", rank_text());
      after.run_on(kept, kept_strides, memory_of(out), scratch);
      ++received;
      return;
    }
    const Step& step = plan.steps()[crossing];
    const bool more = crossing + 1 < steps;
    std::byte* to = more ? memory_of(scratch[0]) : memory_of(out);
    {
      tracing::Span span("receive", "boxing");
      if (span) {
        span.arg("step", step.label);
        span.arg("bytes", crossing_bytes);
      }
      bound().receive(call_info(plan, step), to, crossed_bytes);
      comm::note_bytes(static_cast<uint64_t>(crossing_bytes));
    }
    if (more) after.run_on(to, contiguous_strides(crossed), memory_of(out), scratch.subspan(1));
  }

  void send_on_device(const Array& in) {
    if (receives_own() && sent != received)
      fail_runtime("transfer: {} sends again before it has received what it sent to itself. Receive first.",
                   rank_text());
    Array part = first > 0 ? before.run_on_device(in, {}) : in;
    if (!crosses) {
      kept_part = part;
      ++sent;
      return;
    }
    tracing::Span span("send", "boxing");
    if (span) span.arg("step", plan.steps()[crossing].label);
    device_crossing->send(part.defined() ? kernels::contiguous(part) : part);
  }

  void receive_on_device(const Array& out) {
    if (!crosses) {
      if (receives_own() && sent == received)
        fail_runtime("transfer: {} receives what it has not sent yet. Send first.", rank_text());
      after.run_on_device(kept_part, out);
      kept_part = {};
      ++received;
      return;
    }
    const Step& step = plan.steps()[crossing];
    const Array arrived =
        crossing + 1 == steps && out.defined() ? out : Array::empty(crossed, plan.dtype(), step.to->placement.device());
    {
      tracing::Span span("receive", "boxing");
      if (span) {
        span.arg("step", step.label);
        span.arg("bytes", crossing_bytes);
      }
      device_crossing->receive(arrived);
      comm::note_bytes(static_cast<uint64_t>(crossing_bytes));
    }
    if (crossing + 1 < steps) after.run_on_device(arrived, out);
  }

  const Plan plan;
  const int rank, channel;
  const Input input;
  const size_t steps, crossing;
  const bool
      crosses;  // ranks communicate in the step between the placements; else a rank receives what it has sent itself
  const size_t first;  // so many steps come before
  StepChain before, after;
  int64_t read_bytes = 0, crossing_bytes = 0;
  Dims crossed;  // this rank's part behind the crossing
  size_t crossed_bytes = 0;
  std::vector<size_t> send_scratch, receive_scratch;
  std::unique_ptr<comm::PointToPoint> object;
  bool device = false;  // some part is on a device; there:
  std::unique_ptr<DeviceCrossing> device_crossing;
  Array kept_part;  // where nothing crosses: what receive() will use
  // Where nothing crosses: what receive() will use.
  const std::byte* kept = nullptr;
  Dims kept_strides;
  uint64_t sent = 0, received = 0;
};

PointToPoint PointToPoint::prepare(const GlobalSpec* from, const GlobalSpec* to, const Dims& shape, DType dtype,
                                   int channel, Input input) {
  if (channel < 0) fail_value("transfer on channel {}: a channel must be 0 or more.", channel);
  return PointToPoint(std::make_shared<Data>(boxing::plan(from, to, shape, dtype), channel, input));
}

const Plan& PointToPoint::plan() const { return data_->plan; }
bool PointToPoint::has_in() const { return data_->has_in(); }
bool PointToPoint::has_out() const { return data_->has_out(); }
const Dims& PointToPoint::in_shape() const { return data_->in_shape(); }
const Dims& PointToPoint::out_shape() const { return data_->after.out_shape(); }
int64_t PointToPoint::read_bytes() const { return data_->read_bytes; }
bool PointToPoint::send_communicates() const { return data_->before.communicates(); }
bool PointToPoint::receive_communicates() const { return data_->after.communicates(); }
std::span<const size_t> PointToPoint::send_scratch_bytes() const {
  return data_->device ? std::span<const size_t>() : data_->send_scratch;
}
std::span<const size_t> PointToPoint::receive_scratch_bytes() const {
  return data_->device ? std::span<const size_t>() : data_->receive_scratch;
}

void PointToPoint::send(const Array& in, std::span<const Array> scratch) {
  if (has_in()) data_->send(in, scratch);
}

void PointToPoint::receive(const Array& out, std::span<const Array> scratch) {
  if (!has_out()) return;
  LiveLog live(data_->plan);
  data_->receive(out, scratch);
}

bool PointToPoint::try_release() {
  if (!data_->crosses) return !data_->receives_own() || data_->sent == data_->received;
  if (data_->device_crossing) return data_->device_crossing->try_release();
  return !data_->object || data_->object->try_release();
}

void PointToPoint::release() {
  Data& d = *data_;
  if (d.device_crossing) {
    d.device_crossing->release();
  } else if (d.crosses) {
    if (d.object) d.object->release();
  } else if (!try_release()) {
    fail_runtime("transfer: {} releases what it has not received yet. Receive first.", rank_text());
  }
}

void PointToPoint::bind() {
  Data& d = *data_;
  if (!has_in() && !has_out()) return;
  d.before.bind();
  d.after.bind();
  if (d.device_crossing)
    d.device_crossing->bind();
  else if (d.crosses)
    d.bound();
}

}  // namespace holon::boxing
