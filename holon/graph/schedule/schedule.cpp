#include "holon/graph/schedule/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>

#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/graph/schedule/list_scheduler.h"

namespace holon::graph {

namespace {

constexpr int64_t kMostTasks = int64_t{1} << 26;  // a table beyond that is a mistake, and would only fill the memory
constexpr int kMostDevices = 1 << 20;

enum class Scheme { kGpipe, k1f1b, kZeroBubble };
using Lists = std::vector<std::vector<Task>>;

size_t at(int i) { return to_size(i); }

Scheme scheme_of(std::string_view caller, std::string_view name) {
  if (name == "gpipe") return Scheme::kGpipe;
  if (name == "1f1b" || name == "interleaved") return Scheme::k1f1b;
  if (name == "zero_bubble") return Scheme::kZeroBubble;
  fail_value("{}: there is no schedule '{}'. There are 'gpipe', '1f1b', 'interleaved' and 'zero_bubble'.", caller,
             name);
}

void check_sizes(std::string_view caller, int64_t stages, int micro_batches) {
  if (stages < 1) fail_value("{}: a pipeline has at least 1 stage; got {}.", caller, stages);
  if (micro_batches < 1) fail_value("{}: a step has at least 1 micro-batch; got {}.", caller, micro_batches);
  if (stages > kMostTasks / 3 / micro_batches)
    fail_value("{}: {} stages with {} micro-batches have more than {} tasks. Use fewer micro-batches.", caller, stages,
               micro_batches, kMostTasks);
}

// Runs of consecutive stages on one device: between them nothing is sent, so they are scheduled as one stage.
struct Runs {
  std::vector<int> first;   // stage, and one past the last run the number of stages
  std::vector<int> device;  // by run
  int devices = 0;
  std::vector<int> device_of_stage;

  int size() const { return static_cast<int>(device.size()); }
  int length(int run) const { return first[at(run) + 1] - first[at(run)]; }
};

Runs runs_of(std::string_view caller, const std::vector<int>& device_of_stage, int micro_batches) {
  check_sizes(caller, static_cast<int64_t>(device_of_stage.size()), micro_batches);
  Runs runs;
  runs.device_of_stage = device_of_stage;
  for (size_t s = 0; s < device_of_stage.size(); ++s) {
    const int device = device_of_stage[s];
    if (device < 0 || device >= kMostDevices)
      fail_value("{}: stage {} is on device {}. Devices are numbered from 0, and there are at most {}.", caller, s,
                 device, kMostDevices);
    runs.devices = std::max(runs.devices, device + 1);
    if (s > 0 && device_of_stage[s - 1] == device) continue;
    runs.first.push_back(static_cast<int>(s));
    runs.device.push_back(device);
  }
  runs.first.push_back(static_cast<int>(device_of_stage.size()));
  return runs;
}

// The number of devices when they come in the same order again and again, a whole number of times.
std::optional<int> period_of(const Runs& runs) {
  std::vector<bool> seen(at(runs.devices));
  int period = 0;
  while (period < runs.size() && !seen[at(runs.device[at(period)])]) seen[at(runs.device[at(period++)])] = true;
  if (runs.size() % period != 0) return std::nullopt;
  for (int r = period; r < runs.size(); ++r)
    if (runs.device[at(r)] != runs.device[at(r - period)]) return std::nullopt;
  return period;
}

// One device's list of 1F1B at position r of p, with v stages: r, r + p, ... With v > 1 the micro-batches, a multiple
// of p, go in rounds of p: a device runs its first stage for all of a round, then the next.
std::vector<Task> one_f_one_b_list(int r, int p, int v, int micro_batches) {
  const int round = v == 1 ? 1 : p, all = micro_batches * v;
  const int warm_up = std::min(all, v == 1 ? p - 1 - r : (v - 1) * p + 2 * (p - 1 - r));
  std::vector<Task> list;
  auto add = [&](int i, Phase phase) {
    const int chunk = i % (round * v) / round, micro_batch = i / (round * v) * round + i % round;
    list.push_back({(phase == Phase::kForward ? chunk : v - 1 - chunk) * p + r, micro_batch, phase});
  };
  for (int i = 0; i < all + warm_up; ++i) {
    if (i < all) add(i, Phase::kForward);
    if (i >= warm_up) add(i - warm_up, Phase::kBackward);
  }
  return list;
}

// ZB-H1 at position s of p. A stage's first W waits until it holds as many micro-batches as it may: p where stages are
// equal.
std::vector<Task> zero_bubble_list(int s, int p, int bound, int micro_batches) {
  std::vector<Task> list;
  int forwards = 0, backwards = 0, weights = 0;
  auto add = [&](int& next, Phase phase) { list.push_back({s, next++, phase}); };
  while (forwards < std::min(p - s, micro_batches)) add(forwards, Phase::kForward);
  while (backwards < micro_batches) {
    add(backwards, Phase::kBackward);
    if (forwards - weights == bound || forwards == micro_batches) add(weights, Phase::kWeight);
    if (forwards < micro_batches) add(forwards, Phase::kForward);
  }
  while (weights < micro_batches) add(weights, Phase::kWeight);
  return list;
}

std::vector<Task> gpipe_list(int stage, int micro_batches, bool training) {
  std::vector<Task> list;
  for (int m = 0; m < micro_batches; ++m) list.push_back({stage, m, Phase::kForward});
  for (int m = 0; m < micro_batches && training; ++m) list.push_back({stage, m, Phase::kBackward});
  return list;
}

// 1F1B's bound for any mapping: as many forwards as a device has time for until the first backward comes back to it.
std::vector<int> bounds_of(Scheme scheme, const Runs& runs, int micro_batches) {
  std::vector<int> number(at(runs.devices)), last(at(runs.devices));
  for (int r = 0; r < runs.size(); ++r) ++number[at(runs.device[at(r)])], last[at(runs.device[at(r)])] = r;
  const int active = static_cast<int>(std::count_if(number.begin(), number.end(), [](int n) { return n > 0; }));
  std::vector<int> bounds(at(runs.devices));
  for (size_t d = 0; d < bounds.size(); ++d) {
    if (number[d] == 0) continue;
    const int64_t behind = runs.size() - 1 - last[d];
    const int64_t bound = number[d] == 1 ? behind + 1 : int64_t{number[d] - 1} * active + 2 * behind + 1;
    bounds[d] = static_cast<int>(std::min<int64_t>(bound, kMostTasks));
  }
  if (scheme == Scheme::kZeroBubble) {
    // W may wait while no device holds more stages than 1F1B's fullest one.
    std::vector<int64_t> longest(bounds.size(), 1);
    for (int r = 0; r < runs.size(); ++r)
      longest[at(runs.device[at(r)])] = std::max<int64_t>(longest[at(runs.device[at(r)])], runs.length(r));
    int64_t fullest = 0;
    for (size_t d = 0; d < bounds.size(); ++d) fullest = std::max(fullest, bounds[d] * longest[d]);
    for (size_t d = 0; d < bounds.size(); ++d)
      bounds[d] = std::max(bounds[d], static_cast<int>(std::min(fullest / longest[d], kMostTasks)));
  }
  for (size_t d = 0; d < bounds.size(); ++d) {
    const int all = number[d] * micro_batches;
    bounds[d] = scheme == Scheme::kGpipe ? all : std::min(bounds[d], all);
  }
  return bounds;
}

// The lists in runs, as if each run were a stage.
Lists lists_of(Scheme scheme, const Runs& runs, int micro_batches, bool training) {
  const std::optional<int> period = period_of(runs);
  const bool once = period && *period == runs.size();  // each device has one run: a plain pipeline
  const bool textbook = once || (period && scheme == Scheme::k1f1b && training && micro_batches % *period == 0);
  if (!textbook) {
    ListRules rules;
    rules.backward = training;
    rules.splits_backward = training && scheme == Scheme::kZeroBubble;
    rules.forwards_first = scheme == Scheme::kGpipe;
    rules.bounds = bounds_of(scheme, runs, micro_batches);
    std::vector<int> lengths;
    for (int r = 0; r < runs.size(); ++r) lengths.push_back(runs.length(r));
    return list_schedule(runs.device, runs.devices, lengths, micro_batches, rules);
  }
  Lists lists(at(runs.devices));
  const std::vector<int> bounds = bounds_of(scheme, runs, micro_batches);
  for (int r = 0; r < *period; ++r) {
    std::vector<Task>& list = lists[at(runs.device[at(r)])];
    if (scheme == Scheme::kGpipe || !training)
      list = gpipe_list(r, micro_batches, training);
    else if (scheme == Scheme::k1f1b)
      list = one_f_one_b_list(r, *period, runs.size() / *period, micro_batches);
    else
      list = zero_bubble_list(r, *period, bounds[at(runs.device[at(r)])], micro_batches);
  }
  return lists;
}

Schedule schedule_of(std::string name, Scheme scheme, const Runs& runs, int micro_batches, bool training) {
  Schedule schedule;
  schedule.name = training ? std::move(name) : "forward_only";
  schedule.stages = runs.first.back();
  schedule.devices = runs.devices;
  schedule.micro_batches = micro_batches;
  schedule.training = training;
  schedule.splits_backward = training && scheme == Scheme::kZeroBubble;
  schedule.device_of_stage = runs.device_of_stage;
  schedule.tasks.resize(at(runs.devices));
  const Lists lists = lists_of(scheme, runs, micro_batches, training);
  for (size_t d = 0; d < lists.size(); ++d)
    for (const Task& t : lists[d])
      for (int i = 0, n = runs.length(t.stage); i < n; ++i)
        schedule.tasks[d].push_back(
            {runs.first[at(t.stage)] + (t.phase == Phase::kForward ? i : n - 1 - i), t.micro_batch, t.phase});
  return schedule;
}

std::vector<int> in_turn(int devices, int64_t stages) {
  std::vector<int> device_of_stage(to_size(stages));
  for (size_t s = 0; s < device_of_stage.size(); ++s) device_of_stage[s] = static_cast<int>(s) % devices;
  return device_of_stage;
}

Schedule plain(std::string_view caller, std::string name, Scheme scheme, int stages, int micro_batches, bool training) {
  check_sizes(caller, stages, micro_batches);
  const Runs runs = runs_of(caller, in_turn(stages, stages), micro_batches);
  return schedule_of(std::move(name), scheme, runs, micro_batches, training);
}

}  // namespace

char letter(Phase phase) { return phase == Phase::kForward ? 'F' : phase == Phase::kBackward ? 'B' : 'W'; }

std::string Task::str() const { return fmt::format("stage {} {}({})", stage, letter(phase), micro_batch); }

Schedule gpipe(int stages, int micro_batches, bool training) {
  return plain("gpipe", "gpipe", Scheme::kGpipe, stages, micro_batches, training);
}

Schedule one_f_one_b(int stages, int micro_batches, bool training) {
  return plain("one_f_one_b", "1f1b", Scheme::k1f1b, stages, micro_batches, training);
}

Schedule zero_bubble_h1(int stages, int micro_batches) {
  return plain("zero_bubble_h1", "zero_bubble", Scheme::kZeroBubble, stages, micro_batches, true);
}

Schedule interleaved_1f1b(int devices, int chunks_per_device, int micro_batches) {
  if (devices < 1 || chunks_per_device < 1)
    fail_value("interleaved_1f1b: needs at least 1 device and 1 chunk per device; got {} and {}.", devices,
               chunks_per_device);
  const int64_t stages = int64_t{devices} * chunks_per_device;
  check_sizes("interleaved_1f1b", stages, micro_batches);
  return schedule_of("interleaved", Scheme::k1f1b, runs_of("interleaved_1f1b", in_turn(devices, stages), micro_batches),
                     micro_batches, true);
}

Schedule forward_only(const std::vector<int>& device_of_stage, int micro_batches) {
  return schedule_of("forward_only", Scheme::k1f1b, runs_of("forward_only", device_of_stage, micro_batches),
                     micro_batches, false);
}

Schedule sequential(int stages, int micro_batches, bool training) {
  check_sizes("sequential", stages, micro_batches);
  return schedule_of("sequential", Scheme::k1f1b, runs_of("sequential", in_turn(1, stages), micro_batches),
                     micro_batches, training);
}

Schedule make_schedule(std::string_view name, const std::vector<int>& device_of_stage, int micro_batches,
                       bool training) {
  const Scheme scheme = scheme_of("make_schedule", name);
  return schedule_of(std::string(name), scheme, runs_of("make_schedule", device_of_stage, micro_batches), micro_batches,
                     training);
}

std::vector<int> in_flight_bounds(std::string_view name, const std::vector<int>& device_of_stage, int micro_batches) {
  const Scheme scheme = scheme_of("in_flight_bounds", name);
  return bounds_of(scheme, runs_of("in_flight_bounds", device_of_stage, micro_batches), micro_batches);
}

}  // namespace holon::graph
