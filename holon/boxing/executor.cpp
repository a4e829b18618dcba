#include "holon/boxing/executor.h"

#include <algorithm>
#include <cstring>

#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/small_vec.h"
#include "holon/base/trace.h"
#include "holon/boxing/hosts.h"
#include "holon/boxing/live_log.h"
#include "holon/comm/communicator.h"
#include "holon/kernels/cpu/add_n.h"
#include "holon/kernels/cpu/boxes.h"
#include "holon/kernels/cpu/copy.h"
#include "holon/kernels/cpu/stream.h"

namespace holon::boxing {

namespace {

using Peers = std::span<const std::byte* const>;

comm::CallInfo call_info(const Step& step, const Plan& plan) {
  return {step.label.c_str(), plan.dtype(), plan.shape(), step.fingerprint};
}

// The window of this rank's part that is its part of the target. Pre: it holds all of that.
Array window(const Step& step, const Dims& shape, DType dtype, int rank, const Array& in) {
  int index = step.to->placement.index_of(rank), own = step.from->placement.index_of(rank);
  Device device = step.to->placement.device();
  Slice dst = slice_of(shape, step.to->placement, step.to->nd_sbp, index);
  if (dst.shape.numel() == 0 || own < 0) return Array::empty(dst.shape, dtype, device);
  Slice src = slice_of(shape, step.from->placement, step.from->nd_sbp, own);
  int64_t at = 0;
  for (int i = 0; i < dst.offset.size(); ++i) at += (dst.offset[i] - src.offset[i]) * in.strides[i];
  Array view = in.view(dst.shape, in.strides, at);
  if (step.from->placement.device_type() == step.to->placement.device_type()) return view;
  // Tensors on different devices share no memory, simulated ones neither.
  Array copy = Array::empty(dst.shape, dtype, device);
  kernels::copy_box(copy.bytes(), copy.strides, view.bytes(), view.strides, view.shape, static_cast<int64_t>(size_bytes(dtype)));
  return copy;
}

Array zero_fill(const Step& step, const Dims& shape, DType dtype, int rank, const Array& in) {
  auto& placement = step.to->placement;
  int index = placement.index_of(rank);
  Dims at = placement.coordinate(index);
  bool gives = true;
  for (int a = 0; a < at.size(); ++a)
    if (step.from->nd_sbp[a].is_broadcast() && step.to->nd_sbp[a].is_partial()) gives &= at[a] == 0;
  Slice dst = slice_of(shape, placement, step.to->nd_sbp, index);
  if (gives && in.shape == dst.shape) return in;

  Array out = Array::empty(dst.shape, dtype, placement.device());
  std::memset(out.bytes(), 0, out.nbytes());
  if (!gives) return out;
  Slice src = slice_of(shape, placement, step.from->nd_sbp, index);
  Array hole = out.view(in.shape, out.strides);
  for (int i = 0; i < src.offset.size(); ++i) hole.offset += (src.offset[i] - dst.offset[i]) * out.strides[i];
  kernels::copy_box(hole.bytes(), hole.strides, in.bytes(), in.strides, in.shape, static_cast<int64_t>(size_bytes(dtype)));
  return out;
}

// Every rank sums one piece and then takes the others' sums.
Array two_phase_all_reduce(const Plan& plan, const Step& step, const Transfer& t, comm::Communicator& group,
                           const Array& in) {
  DType dtype = plan.dtype();
  auto item = static_cast<int64_t>(size_bytes(dtype));
  Array out = Array::empty(t.shape, dtype, step.to->placement.device());
  int64_t n = out.numel();
  // Without elements there are no pulls, but the group still meets: its other steps are those of larger groups.
  std::span<const int> owners;
  if (n) owners = t.pulls[0].owners;
  auto parts = static_cast<int64_t>(owners.size());
  auto place = std::find(owners.begin(), owners.end(), t.me) - owners.begin();

  auto info = call_info(step, plan);
  Peers peers = group.open(info, in.bytes(), in.nbytes());
  if (n) {
    Interval mine = balanced_split(n, parts, place);
    SmallVec<const void*, 16> addends;
    for (int owner : owners) addends.push_back(peers[static_cast<size_t>(owner)] + mine.begin * item);
    kernels::add_n(out.bytes() + mine.begin * item, addends, mine.size, dtype);
  }
  peers = group.open(info, out.bytes(), out.nbytes());  // this closes the first phase
  for (int64_t p = 0; p < parts; ++p) {
    Interval piece = balanced_split(n, parts, p);
    if (p == place || piece.size == 0) continue;
    kernels::copy_bytes(out.bytes() + piece.begin * item,
                        peers[static_cast<size_t>(owners[static_cast<size_t>(p)])] + piece.begin * item,
                        static_cast<size_t>(piece.size * item), out.nbytes());
  }
  group.close();
  return out;
}

void pull_all(const Transfer& t, DType dtype, Peers peers, Array& out) {
  auto item = static_cast<int64_t>(size_bytes(dtype));
  for (auto& pull : t.pulls) {
    std::byte* dst = out.bytes() + pull.dst_start * item;
    int64_t start = pull.src_start * item;
    if (pull.owners.size() == 1) {
      kernels::copy_box(dst, out.strides, peers[static_cast<size_t>(pull.owners[0])] + start, pull.src_strides, pull.shape, item,
               out.nbytes());
      continue;
    }
    SmallVec<const std::byte*, 16> sources;
    for (int owner : pull.owners) sources.push_back(peers[static_cast<size_t>(owner)] + start);
    kernels::sum_box(dst, out.strides, sources, pull.src_strides, pull.shape, dtype);
  }
}

Array meet(const Plan& plan, size_t number, int rank, const Array& in) {
  const Step& step = plan.steps()[number];
  const Transfer& t = plan.transfer(number, rank);
  auto& group = comm::communicator(t.members);
  // Whatever may fail by lack of memory comes before peers begin to wait.
  Array part = in.defined() ? kernels::contiguous(in) : in;
  int index = step.to->placement.index_of(rank);
  if (index >= 0) comm::note_bytes(static_cast<uint64_t>(step.read_bytes[static_cast<size_t>(index)]));
  if (auto* across = group.across_hosts()) return meet_across_hosts(plan, number, rank, *across, part);
  if (step.two_phase) return two_phase_all_reduce(plan, step, t, group, part);

  Array out;
  bool view = index >= 0 && t.whole_own && step.from->placement.device_type() == step.to->placement.device_type();
  if (view)
    out = window(step, plan.shape(), plan.dtype(), rank, in);
  else if (index >= 0)
    out = Array::empty(t.shape, plan.dtype(), step.to->placement.device());
  Peers peers = part.defined() ? group.open(call_info(step, plan), part.bytes(), part.nbytes())
                               : group.open(call_info(step, plan), nullptr, 0);
  if (!view && index >= 0) pull_all(t, plan.dtype(), peers, out);
  group.close();
  return out;
}

void describe(tracing::Span& span, const Step& step, int rank) {
  const int index = step.to->placement.index_of(rank);
  span.arg("from", step.from->str());
  span.arg("to", step.to->str());
  span.arg("bytes", step.meets() && index >= 0 ? step.read_bytes[static_cast<size_t>(index)] : int64_t{0});
  span.arg("predicted_us", step.predicted_s * 1e6);
}

}  // namespace

Array execute(const Plan& plan, const Array& in) {
  LiveLog live(plan);
  int rank = Context::current().rank();
  if (int index = plan.from()->placement.index_of(rank); index >= 0) {
    Dims expected = slice_of(plan.shape(), plan.from()->placement, plan.from()->nd_sbp, index).shape;
    HOLON_CHECK(in.defined() && in.shape == expected && in.dtype == plan.dtype(),
                "the part of {} on {} should be {} {}, but is {} {}", plan.shape(), rank_text(),
                holon::name(plan.dtype()), expected, holon::name(in.dtype), in.shape);
  }
  Array part = in;
  auto& steps = plan.steps();
  for (size_t i = 0; i < steps.size(); ++i) {
    const Step& step = steps[i];
    tracing::Span span(step.label, "boxing");
    if (span) describe(span, step, rank);
    bool target = step.to->placement.contains(rank);
    if (!target && !step.from->placement.contains(rank))
      part = {};
    else if (step.meets())
      part = meet(plan, i, rank, part);
    else if (!target)
      part = {};
    else if (step.kind == StepKind::kSlice)
      part = window(step, plan.shape(), plan.dtype(), rank, part);
    else
      part = zero_fill(step, plan.shape(), plan.dtype(), rank, part);
  }
  return plan.to()->placement.contains(rank) ? part : Array{};
}

Array box(const GlobalSpec* from, const GlobalSpec* to, const Dims& shape, DType dtype, const Array& in) {
  if (from == to) return in;
  return execute(plan(from, to, shape, dtype), in);
}

}  // namespace holon::boxing
