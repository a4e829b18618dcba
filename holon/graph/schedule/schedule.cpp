#include "holon/graph/schedule/schedule.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/hash.h"
#include "holon/base/index.h"
#include "holon/graph/schedule/check.h"
#include "holon/graph/schedule/runs.h"
#include "holon/graph/schedule/scheme.h"

namespace holon::graph {

namespace {

constexpr int64_t kMostTasks = int64_t{1} << 26;  // a table beyond that is a mistake, and would only fill the memory
constexpr int kMostDevices = 1 << 20;

void check_sizes(std::string_view caller, int64_t stages, int micro_batches) {
  if (stages < 1) fail_value("{}: a pipeline has at least 1 stage; got {}.", caller, stages);
  if (micro_batches < 1) fail_value("{}: a step has at least 1 micro-batch; got {}.", caller, micro_batches);
  if (stages > kMostTasks / 3 / micro_batches)
    fail_value("{}: {} stages with {} micro-batches have more than {} tasks. Use fewer micro-batches.", caller, stages,
               micro_batches, kMostTasks);
}

Mapping mapping_of(std::string_view caller, const std::vector<int>& device_of_stage, int micro_batches, bool training) {
  check_sizes(caller, static_cast<int64_t>(device_of_stage.size()), micro_batches);
  Mapping mapping{device_of_stage, 0, micro_batches, training};
  for (size_t s = 0; s < device_of_stage.size(); ++s) {
    const int device = device_of_stage[s];
    if (device < 0 || device >= kMostDevices)
      fail_value("{}: stage {} is on device {}. Devices are numbered from 0, and there are at most {}.", caller, s,
                 device, kMostDevices);
    mapping.devices = std::max(mapping.devices, device + 1);
  }
  return mapping;
}

// Without tasks.
Schedule empty_table(std::string_view name, const Mapping& mapping) {
  Schedule schedule;
  schedule.name = mapping.training ? name : "forward_only";
  schedule.stages = static_cast<int>(mapping.device_of_stage.size());
  schedule.devices = mapping.devices;
  schedule.micro_batches = mapping.micro_batches;
  schedule.training = mapping.training;
  schedule.device_of_stage = mapping.device_of_stage;
  return schedule;
}

}  // namespace

char letter(Phase phase) { return phase == Phase::kForward ? 'F' : phase == Phase::kBackward ? 'B' : 'W'; }

std::string Task::str() const { return fmt::format("stage {} {}({})", stage, letter(phase), micro_batch); }

uint64_t hash(const Schedule& s) {
  Hasher h;
  h.add_text(s.name).add(s.stages).add(s.devices).add(s.micro_batches).add(s.training).add(s.splits_backward);
  for (int device : s.device_of_stage) h.add(device);
  for (auto& list : s.tasks) {
    h.add(list.size());
    for (const Task& t : list) h.add(t.stage).add(t.micro_batch).add(t.phase);
  }
  return h.value();
}

std::vector<int> in_turn(std::string_view caller, int devices, int64_t stages, int micro_batches) {
  check_sizes(caller, stages, micro_batches);
  std::vector<int> device_of_stage(to_size(stages));
  for (size_t s = 0; s < device_of_stage.size(); ++s) device_of_stage[s] = static_cast<int>(s) % devices;
  return device_of_stage;
}

Schedule forward_only(const std::vector<int>& device_of_stage, int micro_batches) {
  const Mapping mapping = mapping_of("forward_only", device_of_stage, micro_batches, false);
  Schedule schedule = empty_table("forward_only", mapping);
  schedule.tasks = Runs(mapping).forwards(mapping);
  return schedule;
}

Schedule sequential(int stages, int micro_batches, bool training) {
  const Mapping mapping =
      mapping_of("sequential", in_turn("sequential", 1, stages, micro_batches), micro_batches, training);
  Schedule schedule = empty_table("sequential", mapping);
  TaskLists lists(1);
  for (int m = 0; m < micro_batches; ++m) {
    lists[0].push_back({0, m, Phase::kForward});
    if (training) lists[0].push_back({0, m, Phase::kBackward});
  }
  schedule.tasks = Runs(mapping).in_stages(lists);
  return schedule;
}

Schedule make_schedule(std::string_view caller, const Scheme& scheme, const std::vector<int>& device_of_stage,
                       int micro_batches, bool training) {
  const Mapping mapping = mapping_of(caller, device_of_stage, micro_batches, training);
  Schedule schedule = empty_table(scheme.name, mapping);
  schedule.splits_backward = training && scheme.splits_backward;
  schedule.tasks = scheme.lists(mapping);
  try {
    schedule.name = scheme.name;
    check(schedule);
  } catch (const Error& e) {
    throw Error(e.kind(),
                fmt::format("{} Correct the lists of tasks that '{}' returns for the devices {} of the stages, {} "
                            "micro-batches and {}.",
                            e.what(), scheme.name, fmt::join(device_of_stage, ", "), micro_batches,
                            training ? "training" : "inference"));
  }
  if (!training) schedule.name = "forward_only";
  return schedule;
}

Schedule make_schedule(std::string_view name, const std::vector<int>& device_of_stage, int micro_batches,
                       bool training) {
  return make_schedule("make_schedule", *find_scheme("make_schedule", name), device_of_stage, micro_batches, training);
}

std::vector<int> in_flight_bounds(std::string_view name, const std::vector<int>& device_of_stage, int micro_batches) {
  const auto scheme = find_scheme("in_flight_bounds", name);
  const Mapping mapping = mapping_of("in_flight_bounds", device_of_stage, micro_batches, true);
  return scheme->in_flight_bounds ? scheme->in_flight_bounds(mapping) : Runs(mapping).bounds_of_all(micro_batches);
}

}  // namespace holon::graph
