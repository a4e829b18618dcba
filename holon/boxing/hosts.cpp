#include "holon/boxing/hosts.h"

#include <algorithm>
#include <memory>
#include <unordered_map>

#include "holon/base/context.h"
#include "holon/base/index.h"

namespace holon::boxing {

namespace {

// What members pull: in one go, or in the two phases of a large all_reduce.
enum class Phase : uint64_t { kWhole, kSum, kShare };

comm::MemberPulls pulls_of(const Plan& plan, size_t step, int rank, Phase phase) {
  const Transfer& t = plan.transfer(step, rank);
  const Step& s = plan.steps()[step];
  // What a member has, it does not pull. (Nobody else's work depends on that.)
  const bool view = t.whole_own && s.from->placement.device_type() == s.to->placement.device_type();
  if (phase == Phase::kWhole) return {view ? std::vector<comm::Pull>{} : t.pulls, contiguous_strides(t.shape)};
  comm::MemberPulls all;
  int64_t n = t.shape.numel();
  if (n == 0) return all;
  const std::vector<int>& owners = t.pulls[0].owners;
  auto parts = static_cast<int64_t>(owners.size());
  auto place = std::find(owners.begin(), owners.end(), t.me) - owners.begin();
  for (int64_t p = 0; p < parts; ++p) {
    Interval piece = balanced_split(n, parts, p);
    if (phase == Phase::kSum && p == place)
      all.pulls.push_back({owners, piece.begin, {1}, piece.begin, {piece.size}});
    else if (phase == Phase::kShare && p != place)
      all.pulls.push_back({{at_index(owners, p)}, piece.begin, {1}, piece.begin, {piece.size}});
  }
  return all;
}

// Schedules of this rank, by step.
struct ScheduleCache {
  std::unordered_map<uint64_t, std::shared_ptr<const comm::HostSchedule>> known;
};

std::shared_ptr<const comm::HostSchedule> schedule_of(const Plan& plan, size_t step, const Transfer& t,
                                                      const comm::HostsCommunicator& group, Phase phase) {
  auto& known = Context::current().part<ScheduleCache>().known;
  constexpr size_t kMost = 4096;
  if (known.size() > kMost) known.clear();
  auto& found = known[plan.steps()[step].fingerprint * 4 + static_cast<uint64_t>(phase)];
  if (!found)
    found = std::make_shared<comm::HostSchedule>(comm::make_schedule(
        group.host_of(), t.me, [&](int member) { return pulls_of(plan, step, at_index(t.members, member), phase); },
        static_cast<int64_t>(size_bytes(plan.dtype()))));
  return found;
}

}  // namespace

void run_across_hosts(const Plan& plan, size_t number, const Transfer& t, comm::HostsCommunicator& group,
                      const std::byte* in, size_t in_bytes, std::byte* out) {
  const Step& step = plan.steps()[number];
  comm::CallInfo info{step.label.c_str(), plan.dtype(), plan.shape(), step.fingerprint};
  const Dims strides = step.two_phase ? Dims{1} : contiguous_strides(t.shape);
  auto sched = [&](Phase phase) { return schedule_of(plan, number, t, group, phase); };
  if (!step.two_phase) {
    group.pull(info, *sched(Phase::kWhole), in, in_bytes, out, strides);
    return;
  }
  const size_t out_bytes = to_size(t.shape.numel()) * size_bytes(plan.dtype());
  group.pull(info, *sched(Phase::kSum), in, in_bytes, out, strides);
  group.pull(info, *sched(Phase::kShare), out, out_bytes, out, strides);
  --comm::stats().calls;
}

}  // namespace holon::boxing
