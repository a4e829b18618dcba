// One step of a plan as one rank does it: what the eager executor and prepared boxings share.
#pragma once

#include <cstddef>
#include <vector>

#include "holon/array/array.h"
#include "holon/boxing/planner.h"
#include "holon/comm/core/communicator.h"

namespace holon::boxing {

// What the members of a step pull.
class StepPulls final : public comm::GroupPulls {
 public:
  // Pre: the plan outlives it; mine is that of the rank.
  StepPulls(const Plan& plan, size_t number, const Transfer& mine)
      : plan_(plan), step_(plan.steps()[number]), mine_(mine), number_(number) {}
  int phases() const override { return step_.two_phase ? 2 : 1; }
  std::span<const comm::Pull> mine(int phase) const override { return of(mine_, phase); }
  std::vector<comm::Pull> of(int member, int phase) const override;
  uint64_t key() const override { return step_.fingerprint; }
  comm::Collective collective() const override;

 private:
  std::span<const comm::Pull> of(const Transfer& t, int phase) const;

  const Plan& plan_;
  const Step& step_;
  const Transfer& mine_;
  const size_t number_;
};

class RankStep {
 public:
  enum class Makes : uint8_t {
    kNothing,  // this rank is not in the step's target
    kView,     // its new part is a window on the one before
    kPart,     // a new part
  };

  // Pre: rank is in one of the plan's placements. The plan outlives the step.
  RankStep(const Plan& plan, size_t number, int rank);

  const Step& step() const { return *step_; }
  Makes makes() const { return makes_; }
  bool communicates() const { return transfer_ != nullptr; }  // this rank takes part in the collective
  std::span<const int> members() const { return transfer_->members; }
  const Dims& shape() const { return shape_; }  // of the new part; {} without one
  // Where the window begins in a part with these strides, in elements. Pre: makes() is kView.
  int64_t view_at(const Dims& strides) const;

  // Does the step. in: the part before, row-major where communicates(); null where there is none. out receives the new
  // part, row-major; null where none is made. Collective among members() where communicates(), in their communicator.
  void run(comm::Communicator* group, const std::byte* in, const Dims& in_strides, size_t in_bytes,
           std::byte* out) const;

  // The same where on_device(): on arrays. into: where a new part goes, row-major; undefined: in memory of its
  // own. Returns the part that comes out: new, a window, or undefined. Waits for peers' calls at most, not for the
  // devices.
  Array run_on_device(const Array& part, const Array& into = {}) const;
  // Memory of a device is read or written.
  bool on_device() const { return on_device_; }

 private:
  const Plan* plan_;
  const Step* step_;
  const Transfer* transfer_ = nullptr;
  size_t number_;
  Makes makes_ = Makes::kNothing;
  bool on_device_ = false;
  bool zeros_ = false;  // fills with zeros, and copies the part before into them where copies_
  bool copies_ = false;
  Dims shape_, copied_shape_;
  Dims at_;  // where the window begins in the part before or, with zeros, where that part begins in the new one
};

// All steps of a plan, as one rank does them.
struct RankPlan {
  // Pre: as RankStep's.
  RankPlan(const Plan& plan, int rank);

  const Plan plan;
  int from_index;  // the rank's place in the plan's source and target; -1: not in it
  int to_index;
  Dims in_shape;  // of the part before; {} without one
  std::vector<RankStep> steps;
};

// Its parts are in memory of a device, which is not the host's.
inline bool on_device(const GlobalSpec& spec) { return !spec.placement.device().is_host(); }
// Both on devices of one type, between which data need not pass through the host.
inline bool on_alike_devices(const GlobalSpec& from, const GlobalSpec& to) {
  return on_device(from) && on_device(to) && from.placement.device_type() == to.placement.device_type();
}
// Some step reads or writes memory of a device.
bool on_device(const Plan& plan);

// What a rank shows in errors of the step, and what is compared.
comm::CallInfo call_info(const Plan& plan, const Step& step);

}  // namespace holon::boxing
