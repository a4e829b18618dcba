#include "holon/boxing/executor.h"

#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/base/trace.h"
#include "holon/boxing/live_log.h"
#include "holon/boxing/rank_step.h"
#include "holon/comm/core/communicator.h"
#include "holon/kernels/copy.h"

namespace holon::boxing {

namespace {

void describe(tracing::Span& span, const Step& step, int rank) {
  const int index = step.to->placement.index_of(rank);
  span.arg("from", step.from->str());
  span.arg("to", step.to->str());
  span.arg("bytes", step.communicates() && index >= 0 ? at_index(step.read_bytes, index) : int64_t{0});
  span.arg("predicted_us", step.predicted_s * 1e6);
}

Array run_step(const Plan& plan, const RankStep& step, const Array& part) {
  if (step.on_device()) return step.run_on_device(part);
  comm::Communicator* group = nullptr;
  const Array* shown = &part;
  Array packed, out;
  // Whatever may fail by lack of memory comes before peers begin to wait.
  if (step.communicates()) {
    group = &comm::communicator(step.members());
    if (part.defined() && !part.is_contiguous()) {
      packed = kernels::contiguous(part);
      shown = &packed;
    }
  }
  const bool makes_part = step.makes() == RankStep::Makes::kPart;
  if (makes_part)
    out = Array::empty(step.shape(), plan.dtype(), step.step().to->placement.device());
  else if (step.makes() == RankStep::Makes::kView)
    out = part.view(step.shape(), part.strides, step.view_at(part.strides));
  const bool has = shown->defined();
  step.run(group, has ? shown->bytes() : nullptr, shown->strides, has ? shown->nbytes() : 0,
           makes_part ? out.bytes() : nullptr);
  return out;
}

}  // namespace

Array execute(const Plan& plan, const Array& in) {
  LiveLog live(plan);
  const int rank = Context::current().rank();
  if (!plan.from()->placement.contains(rank) && !plan.to()->placement.contains(rank)) return {};
  const RankPlan& mine = plan.of_rank(rank);
  if (mine.from_index >= 0)
    HOLON_CHECK(in.defined() && in.shape == mine.in_shape && in.dtype == plan.dtype(),
                "the part of {} on {} should be {} {}, but is {} {}", plan.shape(), rank_text(),
                holon::name(plan.dtype()), mine.in_shape, holon::name(in.dtype), in.shape);
  Array part = in;
  for (const RankStep& step : mine.steps) {
    tracing::Span span(step.step().label, "boxing");
    if (span) describe(span, step.step(), rank);
    part = run_step(plan, step, part);
  }
  return mine.to_index >= 0 ? part : Array{};
}

Array redistribute(const GlobalSpec* from, const GlobalSpec* to, const Dims& shape, DType dtype, const Array& in) {
  if (from == to) return in;
  return execute(plan(from, to, shape, dtype), in);
}

}  // namespace holon::boxing
