#include "holon/graph/schedule/runs.h"

#include <algorithm>
#include <array>

#include "holon/base/error.h"

namespace holon::graph {

namespace {

constexpr int64_t kMostHeld = int64_t{1} << 26;

size_t at(int i) { return to_size(i); }

}  // namespace

Runs::Runs(const Mapping& mapping) : devices_(mapping.devices) {
  const std::vector<int>& of_stage = mapping.device_of_stage;
  for (size_t s = 0; s < of_stage.size(); ++s) {
    if (s > 0 && of_stage[s - 1] == of_stage[s]) continue;
    first_.push_back(static_cast<int>(s));
    device_.push_back(of_stage[s]);
  }
  first_.push_back(static_cast<int>(of_stage.size()));
}

std::optional<int> Runs::period() const {
  std::vector<bool> seen(at(devices_));
  int period = 0;
  while (period < size() && !seen[at(device(period))]) seen[at(device(period++))] = true;
  if (size() % period != 0) return std::nullopt;
  for (int r = period; r < size(); ++r)
    if (device(r) != device(r - period)) return std::nullopt;
  return period;
}

TaskLists Runs::in_stages(const TaskLists& lists) const {
  TaskLists all(lists.size());
  for (size_t d = 0; d < lists.size(); ++d)
    for (const Task& t : lists[d])
      for (int i = 0, n = length(t.stage); i < n; ++i)
        all[d].push_back({first_[at(t.stage)] + (t.phase == Phase::kForward ? i : n - 1 - i), t.micro_batch, t.phase});
  return all;
}

TaskLists Runs::list_scheduled(const Mapping& mapping, ListRules rules) const {
  std::vector<int> lengths;
  for (int r = 0; r < size(); ++r) lengths.push_back(length(r));
  rules.backward = mapping.training;
  rules.splits_backward = rules.splits_backward && mapping.training;
  return in_stages(list_schedule(device_, devices_, lengths, mapping.micro_batches, rules));
}

TaskLists Runs::forwards(const Mapping& mapping) const {
  Mapping inference = mapping;
  inference.training = false;
  if (!one_each()) return list_scheduled(inference, {});
  TaskLists lists(at(devices_));
  for (int r = 0; r < size(); ++r)
    for (int m = 0; m < mapping.micro_batches; ++m) lists[at(device(r))].push_back({r, m, Phase::kForward});
  return in_stages(lists);
}

std::vector<int> Runs::counts() const {
  std::vector<int> number(at(devices_));
  for (int r = 0; r < size(); ++r) ++number[at(device(r))];
  return number;
}

std::vector<int> Runs::capped(std::vector<int> bounds, int micro_batches) const {
  const std::vector<int> all = bounds_of_all(micro_batches);
  for (size_t d = 0; d < bounds.size(); ++d) bounds[d] = std::min(bounds[d], all[d]);
  return bounds;
}

std::vector<int> Runs::bounds_of_all(int micro_batches) const {
  std::vector<int> bounds = counts();
  for (int& b : bounds) b *= micro_batches;
  return bounds;
}

std::vector<int> Runs::until_first_backward() const {
  const std::vector<int> number = counts();
  std::vector<int> last(at(devices_)), bounds(at(devices_));
  for (int r = 0; r < size(); ++r) last[at(device(r))] = r;
  const auto active = std::count_if(number.begin(), number.end(), [](int n) { return n > 0; });
  for (size_t d = 0; d < bounds.size(); ++d) {
    if (number[d] == 0) continue;
    const int64_t behind = size() - 1 - last[d];
    const int64_t bound = number[d] == 1 ? behind + 1 : int64_t{number[d] - 1} * active + 2 * behind + 1;
    bounds[d] = static_cast<int>(std::min(bound, kMostHeld));
  }
  return bounds;
}

std::vector<int> Runs::bounds_of_1f1b(int micro_batches) const { return capped(until_first_backward(), micro_batches); }

std::vector<int> Runs::bounds_of_deferred_weights(int micro_batches) const {
  std::vector<int> bounds = until_first_backward();
  std::vector<int64_t> longest(bounds.size(), 1);
  for (int r = 0; r < size(); ++r) longest[at(device(r))] = std::max<int64_t>(longest[at(device(r))], length(r));
  int64_t fullest = 0;
  for (size_t d = 0; d < bounds.size(); ++d) fullest = std::max(fullest, bounds[d] * longest[d]);
  for (size_t d = 0; d < bounds.size(); ++d)
    bounds[d] = std::max(bounds[d], static_cast<int>(std::min(fullest / longest[d], kMostHeld)));
  return capped(std::move(bounds), micro_batches);
}

std::optional<int> v_shape(const Mapping& mapping) {
  const std::vector<int>& device = mapping.device_of_stage;
  const int p = static_cast<int>(device.size() / 2);
  if (p == 0 || device.size() % 2 != 0 || mapping.devices != p) return std::nullopt;
  for (int d = 0; d < p; ++d)
    if (at_index(device, d) != d || at_index(device, 2 * p - 1 - d) != d) return std::nullopt;
  return p;
}

std::vector<Task> spelled(std::span<const int> chunks, int micro_batches, std::span<const Pattern> patterns) {
  std::vector<std::array<int, 3>> next(chunks.size());
  std::vector<Task> list;
  for (const Pattern& pattern : patterns)
    for (int i = 0; i < pattern.times; ++i)
      for (const char* c = pattern.tasks; *c; ++c) {
        if (*c == ' ') continue;
        const Phase phase = *c == 'F' ? Phase::kForward : *c == 'B' ? Phase::kBackward : Phase::kWeight;
        const size_t chunk = to_size(*++c - '0');
        HOLON_CHECK(chunk < chunks.size(), "'{}' names chunk {} of {}", pattern.tasks, chunk, chunks.size());
        int& micro_batch = at_index(next[chunk], phase);
        if (micro_batch < micro_batches) list.push_back({chunks[chunk], micro_batch++, phase});
      }
  return list;
}

}  // namespace holon::graph
