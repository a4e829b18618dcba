#include "holon/boxing/step_chain.h"

#include <algorithm>

#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/base/trace.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/regions.h"

namespace holon::boxing {

namespace {

bool is_contiguous(const Dims& shape, const Dims& strides) {
  int64_t step = 1;
  for (int i = shape.size() - 1; i >= 0; --i) {
    if (shape[i] != 1 && strides[i] != step) return shape.numel() == 0;
    step *= shape[i];
  }
  return true;
}

}  // namespace

void check_part(const Array& a, const char* which, const Dims& shape, DType dtype, bool contiguous) {
  if (!a.defined()) {
    HOLON_CHECK(shape.numel() == 0, "prepared boxing: {} of {} should be {} {}, but is undefined", which, rank_text(),
                name(dtype), shape);
    return;
  }
  HOLON_CHECK(a.shape == shape && a.dtype == dtype, "prepared boxing: {} of {} should be {} {}, but is {} {}", which,
              rank_text(), name(dtype), shape, name(a.dtype), a.shape);
  HOLON_CHECK(!contiguous || a.is_contiguous(), "prepared boxing: {} of {} should be row-major, but has the strides {}",
              which, rank_text(), a.strides);
}

void check_scratch(std::span<const Array> scratch, std::span<const size_t> bytes) {
  HOLON_CHECK(scratch.size() >= bytes.size(), "prepared boxing: {} scratch arrays are needed, {} were given",
              bytes.size(), scratch.size());
  for (size_t i = 0; i < bytes.size(); ++i)
    HOLON_CHECK(bytes[i] == 0 ||
                    (scratch[i].defined() && scratch[i].nbytes() >= bytes[i] && scratch[i].is_contiguous()),
                "prepared boxing: scratch array {} should have {} contiguous bytes, but has {}", i, bytes[i],
                scratch[i].defined() ? scratch[i].nbytes() : 0);
}

StepChain::StepChain(const Plan& plan, size_t first, size_t last, int rank, Input input) : plan_(plan), input_(input) {
  auto& steps = plan.steps();
  const GlobalSpec& from = first < steps.size() ? *steps[first].from : *plan.to();
  const GlobalSpec& to = last > first ? *steps[last - 1].to : from;
  auto part = [&](const GlobalSpec& s, Dims* shape) {
    const int index = s.placement.index_of(rank);
    if (index >= 0) *shape = region_of(plan.shape(), s.placement, s.nd_sbp, index).shape;
    return index >= 0;
  };
  has_in_ = part(from, &in_shape_);
  has_out_ = part(to, &out_shape_);
  out_strides_ = contiguous_strides(out_shape_);
  is_view_ = has_in_ && has_out_;
  for (size_t i = first; i < last; ++i) {
    communicates_ |= steps[i].communicates();
    if (!steps[i].to->placement.contains(rank) && !steps[i].from->placement.contains(rank)) continue;
    ops_.push_back({RankStep(plan, i, rank)});
    const RankStep& op = ops_.back().step;
    is_view_ &= op.makes() == RankStep::Makes::kView;
    if (int index = steps[i].to->placement.index_of(rank); steps[i].communicates() && index >= 0)
      read_bytes_ += at_index(steps[i].read_bytes, index);
  }
  is_view_ &= !communicates_;
  on_device_ = holon::boxing::on_device(from) || holon::boxing::on_device(to);
  if (has_in_ || has_out_) plan_memory(input);
  // Devices' memory comes from their own allocator, in the stream's order.
  if (on_device_) scratch_bytes_.clear();
  in_device_ = from.placement.device();
}

// Parts take turns in two scratch arrays, with packed copies in a third.
void StepChain::plan_memory(Input input) {
  // The last new part is in `out` at once where all that comes after it is the same part.
  size_t last = ops_.size();
  for (size_t i = ops_.size(); i-- > 0;) {
    const RankStep& step = ops_[i].step;
    if (step.makes() == RankStep::Makes::kPart) {
      last = i;
      break;
    }
    const Dims& before = i > 0 ? ops_[i - 1].step.shape() : in_shape_;
    if (step.makes() == RankStep::Makes::kNothing || step.shape() != before) break;
  }
  int base = kIn;  // what the part is, or is a window on
  Dims shape = in_shape_;
  std::optional<Dims> strides;
  if (input == Input::kContiguous) strides = contiguous_strides(in_shape_);
  bool held = has_in_;
  auto place = [&](int other, size_t bytes) {
    int slot = 0;
    while (slot == base || slot == other) ++slot;
    if (scratch_bytes_.size() <= to_size(slot)) scratch_bytes_.resize(to_size(slot) + 1);
    auto& most = at_index(scratch_bytes_, slot);
    most = std::max(most, bytes);
    return slot;
  };
  for (size_t i = 0; i < ops_.size(); ++i) {
    Op& op = ops_[i];
    if (op.step.communicates() && held && !(strides && is_contiguous(shape, *strides)))
      op.pack = place(kNone, bytes_of(shape));
    shape = op.step.shape();
    held = op.step.makes() != RankStep::Makes::kNothing;
    if (op.step.makes() != RankStep::Makes::kPart) continue;
    op.part = i == last ? kOut : place(op.pack, bytes_of(shape));
    base = op.part;
    strides = contiguous_strides(shape);
  }
}

std::vector<std::span<const int>> StepChain::collectives() const {
  std::vector<std::span<const int>> all;
  for (const Op& op : ops_)
    if (op.step.communicates()) all.push_back(op.step.members());
  return all;
}

bool StepChain::communicates_on_devices() const {
  return std::all_of(ops_.begin(), ops_.end(), [](const Op& op) {
    const Step& s = op.step.step();
    return !op.step.communicates() || on_alike_devices(*s.from, *s.to);
  });
}

Array StepChain::view_of(const Array& in) const {
  HOLON_CHECK(is_view_, "this boxing is not a view on {}", rank_text());
  check_part(in, "the part", in_shape_, plan_.dtype(), false);
  Array part = in;
  for (auto& op : ops_) part = part.view(op.step.shape(), part.strides, op.step.view_at(part.strides));
  return part;
}

void StepChain::bind() {
  const Context* here = &Context::current();
  if (bound_ == here) return;
  for (Op& op : ops_)
    if (op.step.communicates() && !on_device_) op.group = &comm::communicator(op.step.members());
  bound_ = here;
}

void StepChain::check(const Array& in, const Array& out, std::span<const Array> scratch) const {
  if (has_in_) check_part(in, "the part", in_shape_, plan_.dtype(), input_ == Input::kContiguous);
  if (has_out_) check_part(out, "the result", out_shape_, plan_.dtype(), true);
  check_scratch(scratch, scratch_bytes_);
}

void StepChain::run(const Array& in, const Array& out, std::span<const Array> scratch) {
  if (!has_in_ && !has_out_) return;
  check(in, out, scratch);
  if (on_device_) {
    run_on_device(in, out);
    return;
  }
  const bool given = has_in_ && in.defined();
  run_on(given ? in.bytes() : nullptr, given ? in.strides : contiguous_strides(in_shape_),
         has_out_ ? memory_of(out) : nullptr, scratch);
}

Array StepChain::run_on_device(const Array& in, const Array& into) {
  Array part = has_in_ ? in : Array{};
  if (has_in_ && !in.defined()) part = Array::empty(in_shape_, plan_.dtype(), in_device_);
  for (const Op& op : ops_) {
    tracing::Span span(op.step.step().label, "boxing");
    part = op.step.run_on_device(part, op.part == kOut ? into : Array{});
  }
  if (!has_out_) return {};
  if (!into.defined() || part.bytes() == into.bytes()) return part;
  Array out = into;
  kernels::copy(part, out);
  return out;
}

void StepChain::run_on(const std::byte* in, const Dims& in_strides, std::byte* out, std::span<const Array> scratch) {
  bind();
  const auto item = static_cast<int64_t>(size_bytes(plan_.dtype()));
  auto memory = [&](int where) { return where == kOut ? out : memory_of(at_index(scratch, where)); };

  const std::byte* part = in;
  Dims shape = in_shape_, strides = in_strides;
  for (Op& op : ops_) {
    tracing::Span span(op.step.step().label, "boxing");
    const std::byte* shown = part;
    if (op.pack != kNone && !is_contiguous(shape, strides)) {
      std::byte* packed = memory(op.pack);
      kernels::copy_region(packed, contiguous_strides(shape), part, strides, shape, item);
      shown = packed;
    }
    const bool makes_part = op.step.makes() == RankStep::Makes::kPart;
    std::byte* fresh = makes_part ? memory(op.part) : nullptr;
    op.step.run(op.group, shown, strides, shown ? bytes_of(shape) : 0, fresh);
    shape = op.step.shape();
    if (makes_part) {
      part = fresh;
      strides = contiguous_strides(shape);
    } else if (op.step.makes() == RankStep::Makes::kView) {
      part += op.step.view_at(strides) * item;
    } else {
      part = nullptr;
    }
  }
  if (has_out_ && part != out) kernels::copy_region(out, out_strides_, part, strides, out_shape_, item);
}

}  // namespace holon::boxing
