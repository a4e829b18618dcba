#include "holon/graph/schedule/list_scheduler.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>
#include <queue>
#include <tuple>

#include "holon/base/error.h"
#include "holon/base/index.h"

namespace holon::graph {

namespace {

class Player {
 public:
  Player(const std::vector<int>& device_of_stage, int devices, const std::vector<int>& lengths, int micro_batches,
         const ListRules& rules)
      : device_of_stage_(device_of_stage),
        lengths_(lengths),
        rules_(rules),
        micro_batches_(micro_batches),
        devices_(to_size(devices)) {
    for (size_t s = 0; s < device_of_stage.size(); ++s)
      devices_[at(device_of_stage[s])].stages.push_back(static_cast<int>(s));
    stages_.resize(device_of_stage.size());
    round_ = static_cast<int>(
        std::count_if(devices_.begin(), devices_.end(), [](const Device& device) { return !device.stages.empty(); }));
    for (size_t d = 0; d < devices_.size(); ++d)
      HOLON_CHECK(!rules.backward || rules.bounds[d] >= static_cast<int>(devices_[d].stages.size()),
                  "device {} may hold {} activations, fewer than its stages", d, rules.bounds[d]);
  }

  std::vector<std::vector<Task>> play() {
    const size_t phases = rules_.backward ? rules_.splits_backward ? 3 : 2 : 1;
    const size_t all = stages_.size() * to_size(micro_batches_) * phases;
    std::vector<std::vector<Task>> lists(devices_.size());
    size_t begun = 0;
    std::vector<int> woken(devices_.size());  // the devices for which something has changed
    std::iota(woken.begin(), woken.end(), 0);
    for (long now = 0;;) {
      for (int device : woken) {
        const size_t d = at(device);
        const std::optional<Task> task = devices_[d].busy ? std::nullopt : best(d);
        if (!task) continue;
        lists[d].push_back(*task);
        ++begun;
        devices_[d].busy = true;
        if (task->phase != Phase::kWeight) devices_[d].forward_next = task->phase == Phase::kBackward;
        ++counts(*task).begun;
        running_.push({now + duration(*task), d, *task});
      }
      if (running_.empty()) break;
      now = running_.top().end;
      woken.clear();
      while (!running_.empty() && running_.top().end == now) {
        const auto [end, d, task] = running_.top();
        running_.pop();
        ++counts(task).ended;
        devices_[d].busy = false;
        for (int s = task.stage - 1; s <= task.stage + 1; ++s)
          if (s >= 0 && at(s) < stages_.size()) woken.push_back(device_of_stage_[at(s)]);
      }
    }
    HOLON_CHECK(begun == all, "the list scheduler is stuck after {} of {} tasks", begun, all);
    return lists;
  }

 private:
  struct Count {  // tasks of a stage and phase run in the order of micro-batches, so that counts say it all
    int begun = 0, ended = 0;
  };
  struct Stage {
    Count phases[3];
  };
  struct Device {
    std::vector<int> stages;
    bool busy = false;
    bool forward_next = false;  // a backward was last: forwards and backwards take turns
  };
  struct Running {
    long end;
    size_t device;
    Task task;
    bool operator>(const Running& other) const { return std::tie(end, device) > std::tie(other.end, other.device); }
  };

  static size_t at(int i) { return to_size(i); }
  Count& counts(const Task& t) { return at_index(stages_[at(t.stage)].phases, t.phase); }
  const Count& count(int stage, Phase phase) const { return at_index(stages_[at(stage)].phases, phase); }

  long duration(const Task& t) const {
    return lengths_[at(t.stage)] * (t.phase == Phase::kBackward && !rules_.splits_backward ? 2L : 1L);
  }

  bool ready(const Task& t, const Device& device) const {
    const int last = static_cast<int>(stages_.size()) - 1, m = t.micro_batch;
    if (m >= micro_batches_) return false;
    switch (t.phase) {
      case Phase::kForward: return t.stage == 0 || count(t.stage - 1, Phase::kForward).ended > m;
      case Phase::kBackward:
        if (rules_.forwards_first)
          for (int s : device.stages)
            if (count(s, Phase::kForward).ended < micro_batches_) return false;
        return count(t.stage, Phase::kForward).ended > m &&
            (t.stage == last || count(t.stage + 1, Phase::kBackward).ended > m);
      default: return count(t.stage, Phase::kBackward).ended > m;
    }
  }

  // Whether the device can hold one more forward of this stage and still finish the oldest micro-batch that has
  // forwards to come: those after it must leave room for all stages of the device.
  bool fits(int stage, size_t d) const {
    if (!rules_.backward) return true;
    const Phase release = rules_.splits_backward ? Phase::kWeight : Phase::kBackward;
    const std::vector<int>& own = devices_[d].stages;
    auto forwards = [&](int s) { return count(s, Phase::kForward).begun + (s == stage ? 1 : 0); };
    int held = 0, oldest = micro_batches_;
    for (int s : own) {
      held += forwards(s) - count(s, release).ended;
      oldest = std::min(oldest, forwards(s));
    }
    if (held > rules_.bounds[d]) return false;
    if (oldest == micro_batches_) return true;
    int younger = 0;
    for (int s : own) younger += std::max(0, forwards(s) - std::max(count(s, release).ended, oldest + 1));
    return younger + static_cast<int>(own.size()) <= rules_.bounds[d];
  }

  // Smaller is sooner. Micro-batches go in rounds of as many as there are devices at work, so that a device comes back
  // to the next of its stages when the first of a round arrives there.
  std::tuple<int, int, int, int> priority(const Task& t, const Device& device) const {
    const int round = rules_.forwards_first ? 0 : t.micro_batch / round_;
    switch (t.phase) {
      case Phase::kForward: return {device.forward_next ? 0 : 1, round, t.stage, t.micro_batch};
      case Phase::kBackward: return {device.forward_next ? 1 : 0, round, -t.stage, t.micro_batch};
      default: return {2, t.micro_batch, -t.stage, 0};
    }
  }

  std::optional<Task> best(size_t d) const {
    std::optional<Task> best;
    for (int s : devices_[d].stages)
      for (Phase phase : {Phase::kForward, Phase::kBackward, Phase::kWeight}) {
        if ((phase != Phase::kForward && !rules_.backward) || (phase == Phase::kWeight && !rules_.splits_backward))
          continue;
        const Task t{s, count(s, phase).begun, phase};
        if (!ready(t, devices_[d]) || (best && priority(*best, devices_[d]) < priority(t, devices_[d]))) continue;
        if (phase == Phase::kForward && !fits(s, d)) continue;
        best = t;
      }
    return best;
  }

  const std::vector<int>& device_of_stage_;
  const std::vector<int>& lengths_;
  const ListRules& rules_;
  int micro_batches_;
  int round_ = 1;
  std::vector<Stage> stages_;
  std::vector<Device> devices_;
  std::priority_queue<Running, std::vector<Running>, std::greater<>> running_;
};

}  // namespace

std::vector<std::vector<Task>> list_schedule(const std::vector<int>& device_of_stage, int devices,
                                             const std::vector<int>& lengths, int micro_batches,
                                             const ListRules& rules) {
  return Player(device_of_stage, devices, lengths, micro_batches, rules).play();
}

}  // namespace holon::graph
