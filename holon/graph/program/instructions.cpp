#include "holon/graph/program/instructions.h"

#include <algorithm>

#include "holon/array/device_runtime.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/index.h"
#include "holon/base/trace.h"
#include "holon/boxing/agree.h"
#include "holon/comm/device/device_communicator.h"
#include "holon/dispatch/dispatch.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/on_device.h"
#include "holon/kernels/optim.h"
#include "holon/optim/over_ranks.h"
#include "holon/optim/update.h"

namespace holon::graph {

std::string text_of(const Array& a) {
  return a.defined() ? fmt::format("{} {}", holon::name(a.dtype), a.shape) : "nothing";
}

KernelInstruction::KernelInstruction(const OpDef& op, const Attrs& attrs, SmallVec<const Array*, 4> in,
                                     SmallVec<Array*, 3> out, const KernelCall::GlobalPart* part)
    : op_(op), kernel_(op.kernel), attrs_(attrs), in_(std::move(in)), out_(std::move(out)) {
  HOLON_CHECK(op.kernel, "op {} has no kernel", op.name());
  call_.emplace(op_, attrs_, std::span<const Array* const>(in_), std::span<Array* const>(out_));
  on_device_ = runs_on_device(*call_);
  if (!part) return;
  part_ = *part;
  call_->set_global(&part_);
  communicates_ = op.communicates && op.communicates(*call_);
}

void KernelInstruction::draw(const Draws* draws, bool global, int64_t place) {
  draws_ = draws;
  draws_globally_ = global;
  place_ = place;
}

void KernelInstruction::run_draw() {
  const Draws& d = *draws_;
  const bool recorded = on_device_ && d.by == Draws::By::kRecording;
  attrs_.set_int(op_.seed_attr, recorded ? 0 : static_cast<int64_t>(draws_globally_ ? d.global_seed : d.local_seed));
  attrs_.set_int(op_.counter_attr, (recorded ? 0 : draws_globally_ ? d.global_base : d.local_base) + place_);
  if (!on_device_) return kernel_(*call_);
  if (d.by == Draws::By::kArguments) return run_on_device(op_, *call_, kernel_ == op_.adds);
  RecordedDraw draw;
  if (recorded) {
    draw.seed = draws_globally_ ? &d.there->global_seed : &d.there->local_seed;
    draw.base = draws_globally_ ? &d.there->global_base : &d.there->local_base;
  }
  {
    RecordedDrawScope scope(draw);
    run_on_device(op_, *call_, kernel_ == op_.adds);
  }
  draws_by_arguments_ = !draw.read;
  if (recorded && !draw.read) fail_runtime("{}: its draws cannot be recorded.", op_.name());
}

std::string KernelInstruction::str() const {
  std::string s = fmt::format("{}(", op_.name());
  for (size_t i = 0; i < in_.size(); ++i) s += fmt::format("{}{}", i ? ", " : "", text_of(*in_[i]));
  s += kernel_ == op_.adds ? ") added to" : ") ->";
  for (auto* a : out_) s += " " + text_of(*a);
  return s;
}

void CopyInstruction::run() { kernels::copy(*from_, *to_); }

std::string CopyInstruction::str() const { return fmt::format("copy({}) -> {}", text_of(*from_), what_); }

std::string BoxingInstruction::str() const {
  auto& plan = prepared_.plan();
  std::string steps;
  for (auto& s : plan.steps()) steps += (steps.empty() ? "" : ", ") + s.label;
  return fmt::format("boxing({}) {} -> {}: {}, {} bytes", text_of(*in_), plan.from()->str(), plan.to()->str(), steps,
                     prepared_.read_bytes());
}

std::string BatchInstruction::str() const {
  return fmt::format("boxing of {} tensors in one step: {} bytes", batch_.size(), batch_.read_bytes());
}

void SumInBackground::run() {
  if (on_device()) {
    comm::DeviceOverlapScope beside;
    return batch_.run(*in_, *out_);
  }
  work_ = comm::run_in_background([this] {
    tracing::Span span("sum in background", "graph");
    if (span) span.arg("does", str());
    batch_.run(*in_, *out_);
  });
}

void SumInBackground::wait() const {
  if (on_device()) return comm::join_device_communication();
  work_.wait();
}

std::string SumInBackground::str() const {
  return fmt::format("boxing of {} tensors in one step, in the background: {} bytes", batch_.size(),
                     batch_.read_bytes());
}

std::string SendInstruction::str() const {
  return fmt::format("send({}) to {}", text_of(*in_), transfer_.plan().to()->str());
}
std::string ReceiveInstruction::str() const {
  return fmt::format("receive -> {} from {}, {} bytes", text_of(*out_), transfer_.plan().from()->str(),
                     transfer_.read_bytes());
}
std::string ReleaseInstruction::str() const { return fmt::format("release to {}", transfer_.plan().to()->str()); }

std::string FusedInstruction::str() const {
  std::string s = "fused(";
  for (size_t i = 0; i < in_.size(); ++i) s += fmt::format("{}{}", i ? ", " : "", text_of(*in_[i]));
  s += ") ->";
  for (auto* a : out_) s += " " + text_of(*a);
  return s;
}

void AgreeInstruction::run() { kernels::copy(boxing::agree_on_value(*in_, spec_, shape_), *out_); }

std::string AgreeInstruction::str() const { return fmt::format("agree({}) on {}", text_of(*in_), spec_->str()); }

UnscaleInstruction::UnscaleInstruction(LossScale& scale, const std::vector<Gradient>& gradients) : scale_(scale) {
  size_t optimizers = 0;
  for (auto& g : gradients) optimizers = std::max(optimizers, to_size(g.optimizer + 1));
  arrays_.resize(optimizers + 1);
  specs_.resize(optimizers + 1);
  scale_.finite.assign(optimizers, 1);
  for (auto& g : gradients) {
    const auto o = g.optimizer < 0 ? optimizers : to_size(g.optimizer);
    if (g.in->defined()) {
      if (g.out != g.in) copies_.push_back({g.in, g.out});
      arrays_[o].push_back(*g.out);
    }
    if (!g.spec || g.optimizer < 0) continue;
    const GlobalSpec* row = intern_spec(g.spec->placement, NdSbp::filled(g.spec->nd_sbp.size(), sbp::split(0)));
    if (std::find(specs_[o].begin(), specs_[o].end(), row) == specs_[o].end()) specs_[o].push_back(row);
  }
  for (auto& specs : specs_) found_.resize(std::max(found_.size(), specs.size()));
}

void UnscaleInstruction::run() {
  for (auto& c : copies_) kernels::copy(*c.from, *c.to);
  for (size_t o = 0; o < arrays_.size(); ++o) {
    bool finite = true;
    kernels::scale_all(arrays_[o], scale_.factor, &finite);
    // Every rank's finding counts, whatever it holds.
    const std::span<double> found(found_.data(), specs_[o].size());
    std::fill(found.begin(), found.end(), finite ? 0 : 1);
    optim::combine_over_ranks(specs_[o], 1, optim::Combine::kLargest, true, found);
    for (double other : found) finite = finite && other == 0;
    if (o < scale_.finite.size()) scale_.finite[o] = finite;
  }
}

std::string UnscaleInstruction::str() const {
  size_t n = 0;
  for (auto& arrays : arrays_) n += arrays.size();
  return fmt::format("divide {} gradients by the scale of the loss", n);
}

ClipInstruction::ClipInstruction(const optim::Clip& how, const std::vector<Gradient>& gradients,
                                 const std::vector<bool>& changed, const Array& result, Array* out)
    : how_(how), result_(result), out_(out) {
  for (size_t i = 0; i < gradients.size(); ++i) {
    auto& g = gradients[i];
    parts_.push_back(*g.array);
    if (g.array->defined() && changed[i]) changed_.push_back(*g.array);
    specs_.push_back(g.spec);
    wide_ = wide_ || g.dtype == DType::kFloat64;
  }
  if (by_norm() && !result_.device.is_host()) on_device_.emplace(how_, specs_, wide_, result_.device);
}

void ClipInstruction::run() {
  if (!by_norm()) return kernels::clamp_all(changed_, -how_.limit, how_.limit);
  if (on_device_) {
    on_device_->run(parts_, result_);
    if (how_.error_if_nonfinite) optim::check_norm(how_, kernels::on_device(result_, {}).data<double>()[0]);
    if (!changed_.empty()) kernels::scale_by(changed_, result_.view({}, {}, 1));
    return kernels::copy(result_.view({}, {}, 0), *out_);
  }
  const auto [norm, factor] = optim::clipping_of(how_, parts_, specs_, wide_);
  if (factor < 1) kernels::scale_all(changed_, factor);
  result_.data<double>()[0] = norm, result_.data<double>()[1] = factor;
  kernels::fill(*out_, Scalar(norm));
}

void ClipInstruction::bind() {
  if (on_device_) on_device_->bind();
}

bool ClipInstruction::records() const {
  if (on_device_) return !how_.error_if_nonfinite && on_device_->communicates_on_devices();
  return !by_norm() && !changed_.empty() &&
      std::all_of(changed_.begin(), changed_.end(), [](const Array& a) { return !a.device.is_host(); });
}

std::vector<std::span<const int>> ClipInstruction::collectives() const {
  return on_device_ ? on_device_->collectives() : std::vector<std::span<const int>>();
}

std::string ClipInstruction::str() const {
  return fmt::format("clip {} gradients to {} {:g}", parts_.size(), by_norm() ? "the norm" : "values of", how_.limit);
}

void UpdateInstruction::run() {
  if (scale_ && !at_index(scale_->finite, group_.optimizer)) return;
  if (!group_.recording) {
    optim::update(group_.rule, group_.slots);
    if (records_ && !looked_) records_ = next_update(group_).fits;
    looked_ = true;
    return;
  }
  kernels::RecordedUpdate update;
  update.there = group_.there;
  {
    kernels::RecordedUpdateScope scope(update);
    optim::update(group_.rule, group_.slots);
  }
  if (!update.fits) fail_runtime("the update of {} parameters cannot be recorded.", group_.slots.size());
  group_.recorded_shape = update.shape;
}

kernels::RecordedUpdate next_update(UpdateGroup& group) {
  kernels::RecordedUpdate next;
  next.only_numbers = true;
  kernels::RecordedUpdateScope scope(next);
  optim::update(group.rule, group.slots);
  return next;
}

std::string UpdateInstruction::str() const { return fmt::format("update of {} parameters", group_.slots.size()); }

}  // namespace holon::graph
