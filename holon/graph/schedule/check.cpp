#include "holon/graph/schedule/check.h"

#include <algorithm>

#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/index.h"
#include "holon/graph/schedule/task_graph.h"

namespace holon::graph {

namespace {

size_t at(int i) { return to_size(i); }

int phases_of(const Schedule& s) { return s.splits_backward ? 3 : s.training ? 2 : 1; }

void check_sizes(const Schedule& s) {
  if (s.stages < 1 || s.devices < 1 || s.micro_batches < 1)
    fail_value("schedule {}: it has {} stages, {} devices and {} micro-batches, and needs at least one of each.",
               s.name, s.stages, s.devices, s.micro_batches);
  if (s.device_of_stage.size() != at(s.stages) || s.tasks.size() != at(s.devices))
    fail_value("schedule {}: device_of_stage has {} entries for {} stages, and tasks {} lists for {} devices.", s.name,
               s.device_of_stage.size(), s.stages, s.tasks.size(), s.devices);
  if (s.splits_backward && !s.training)
    fail_value("schedule {}: it splits backwards but has none. Set training, or splits_backward to false.", s.name);
  for (int stage = 0; stage < s.stages; ++stage)
    if (const int d = s.device_of_stage[at(stage)]; d < 0 || d >= s.devices)
      fail_value("schedule {}: stage {} is on device {}, and the devices are 0 to {}.", s.name, stage, d,
                 s.devices - 1);
}

// The first task of a device that cannot run waits for a result; that is made on a device which is stuck in turn.
std::string cycle_of(const Schedule& s, const TaskGraph& graph, const std::vector<int>& order) {
  std::vector<bool> runs(at(graph.size()));
  for (int id : order) runs[at(id)] = true;
  std::vector<int> stuck;  // by device; its end where it is not
  for (size_t d = 0; d < s.tasks.size(); ++d) {
    int id = graph.first(d);
    while (id < graph.first(d + 1) && runs[at(id)]) ++id;
    stuck.push_back(id);
  }
  auto wanted = [&](int id) {
    for (int input : graph.inputs(id))
      if (!runs[at(input)]) return input;
    HOLON_CHECK(false, "{} could run", graph.task(id).str());
    return id;
  };
  size_t d = 0;
  while (stuck[d] == graph.first(d + 1)) ++d;
  for (std::vector<bool> seen(stuck.size()); !seen[d]; d = at(graph.device(wanted(stuck[d])))) seen[d] = true;
  const size_t begin = d;
  std::string text = graph.task(stuck[d]).str();
  do {
    const int input = wanted(stuck[d]);
    text += (d == begin ? " waits for " : ", which waits for ") + graph.task(input).str();
    d = at(graph.device(input));
    if (stuck[d] != input)
      text += fmt::format(", which waits for {} before it on device {}", graph.task(stuck[d]).str(), d);
  } while (d != begin);
  return text;
}

}  // namespace

TaskGraph::TaskGraph(const Schedule& s)
    : stages_(s.stages), micro_batches_(s.micro_batches), device_of_stage_(s.device_of_stage) {
  check_sizes(s);
  const size_t phases = at(phases_of(s)), all = at(stages_) * at(micro_batches_) * phases;
  std::vector<int> next(at(stages_) * phases);
  for (size_t d = 0; d < s.tasks.size(); ++d) {
    first_.push_back(size());
    for (const Task& t : s.tasks[d]) {
      const size_t phase = to_size(t.phase);
      if (t.stage < 0 || t.stage >= stages_ || t.micro_batch < 0 || t.micro_batch >= micro_batches_)
        fail_value("schedule {}: device {} has {}, and there are {} stages and {} micro-batches, counted from 0.",
                   s.name, d, t.str(), stages_, micro_batches_);
      if (phase >= phases)
        fail_value("schedule {}: device {} has {}, and {}.", s.name, d, t.str(),
                   !s.training ? "a schedule for inference has only forwards (training is false)"
                               : "only a schedule that splits backwards has W (splits_backward is false)");
      if (device_of_stage_[at(t.stage)] != static_cast<int>(d))
        fail_value("schedule {}: device {} has {}, and the stage is on device {}.", s.name, d, t.str(),
                   device_of_stage_[at(t.stage)]);
      int& expected = next[at(t.stage) * phases + phase];
      if (t.micro_batch < expected)
        fail_value("schedule {}: device {} has {} twice or after a later one.", s.name, d, t.str());
      if (t.micro_batch > expected) {
        const Task missed{t.stage, expected, t.phase};
        if (std::find(s.tasks[d].begin(), s.tasks[d].end(), missed) == s.tasks[d].end())
          fail_value("schedule {}: device {} lacks {}.", s.name, d, missed.str());
        fail_value("schedule {}: {} comes before {}. Each phase of a stage must run in the order of the micro-batches, "
                   "so that sums of gradients do not depend on the schedule.",
                   s.name, t.str(), missed.str());
      }
      ++expected;
      tasks_.push_back(t);
    }
  }
  first_.push_back(size());
  for (int stage = 0; stage < stages_; ++stage)
    for (size_t phase = 0; phase < phases; ++phase)
      if (const int n = next[at(stage) * phases + phase]; n < micro_batches_)
        fail_value("schedule {}: device {} lacks {}.", s.name, device_of_stage_[at(stage)],
                   (Task{stage, n, static_cast<Phase>(phase)}).str());
  number_.assign(all, -1);
  for (int id = 0; id < size(); ++id) {
    const Task& t = task(id);
    number_[(to_size(t.phase) * at(stages_) + at(t.stage)) * at(micro_batches_) + at(t.micro_batch)] = id;
  }
}

int TaskGraph::find(int stage, int micro_batch, Phase phase) const {
  if (stage < 0 || stage >= stages_) return -1;
  const size_t i = (to_size(phase) * at(stages_) + at(stage)) * at(micro_batches_) + at(micro_batch);
  return i < number_.size() ? number_[i] : -1;
}

int TaskGraph::before(int id) const { return id == first_[at(device(id))] ? -1 : id - 1; }

std::vector<int> TaskGraph::inputs(int id) const {
  const auto [stage, m, phase] = task(id);
  std::vector<int> found;
  if (phase == Phase::kForward) found = {find(stage - 1, m, phase)};
  if (phase == Phase::kBackward) found = {find(stage, m, Phase::kForward), find(stage + 1, m, phase)};
  if (phase == Phase::kWeight) found = {find(stage, m, Phase::kBackward)};
  std::erase(found, -1);
  return found;
}

std::vector<int> TaskGraph::outputs(int id) const {
  const auto [stage, m, phase] = task(id);
  std::vector<int> found;
  if (phase == Phase::kForward) found = {find(stage + 1, m, phase), find(stage, m, Phase::kBackward)};
  if (phase == Phase::kBackward) found = {find(stage - 1, m, phase), find(stage, m, Phase::kWeight)};
  std::erase(found, -1);
  return found;
}

int TaskGraph::sender(int id) const {
  for (int input : inputs(id))
    if (device(input) != device(id)) return input;
  return -1;
}

int TaskGraph::receiver(int id) const {
  for (int output : outputs(id))
    if (device(output) != device(id)) return output;
  return -1;
}

std::vector<int> TaskGraph::order() const {
  std::vector<int> missing(at(size())), order;
  for (int id = 0; id < size(); ++id) {
    missing[at(id)] = static_cast<int>(inputs(id).size()) + (before(id) < 0 ? 0 : 1);
    if (missing[at(id)] == 0) order.push_back(id);
  }
  auto done_for = [&](int id) {
    if (--missing[at(id)] == 0) order.push_back(id);
  };
  for (size_t i = 0; i < order.size(); ++i) {
    const int id = order[i];
    for (int output : outputs(id)) done_for(output);
    if (id + 1 < size() && before(id + 1) == id) done_for(id + 1);
  }
  return order;
}

void check(const Schedule& schedule) {
  const TaskGraph graph(schedule);
  const std::vector<int> order = graph.order();
  if (static_cast<int>(order.size()) == graph.size()) return;
  fail_value(
      "schedule {}: the devices would wait for each other: {}. Reverse the order of two of these tasks on one device.",
      schedule.name, cycle_of(schedule, graph, order));
}

bool deadlock_free_with_rendezvous(const Schedule& schedule, std::string* why) {
  check(schedule);
  const TaskGraph graph(schedule);
  // Plays it. Each device is about to receive for a task, or to send after it; computing never waits. No device ever
  // has a choice, so the order in which they are played does not matter.
  struct Place {
    int id;
    bool sending = false;
  };
  std::vector<Place> places;
  for (int d = 0; d < schedule.devices; ++d) places.push_back({graph.first(at(d)), false});
  auto ended = [&](int d) { return places[at(d)].id == graph.first(at(d) + 1); };
  // Moves a device on to its next send or receive.
  auto settle = [&](int d) {
    Place& p = places[at(d)];
    for (; !ended(d); p = {p.id + 1, false}) {
      if (!p.sending && graph.sender(p.id) >= 0) return;
      p.sending = true;
      if (graph.receiver(p.id) >= 0) return;
    }
  };
  // The device that a device waits for.
  auto peer = [&](int d) {
    const Place& p = places[at(d)];
    return graph.device(p.sending ? graph.receiver(p.id) : graph.sender(p.id));
  };
  std::vector<int> changed;
  for (int d = 0; d < schedule.devices; ++d) {
    settle(d);
    changed.push_back(d);
  }
  while (!changed.empty()) {
    const int d = changed.back();
    changed.pop_back();
    if (ended(d)) continue;
    const int other = peer(d);
    if (ended(other)) continue;
    Place &a = places[at(d)], &b = places[at(other)];
    const bool paired =
        a.sending ? !b.sending && graph.receiver(a.id) == b.id : b.sending && graph.sender(a.id) == b.id;
    if (!paired) continue;
    Place &from = a.sending ? a : b, &to = a.sending ? b : a;
    from = {from.id + 1, false};
    to.sending = true;  // it has received, and computes
    if (graph.receiver(to.id) < 0) to = {to.id + 1, false};
    settle(d);
    settle(other);
    changed.push_back(d);
    changed.push_back(other);
  }
  int d = 0;
  while (d < schedule.devices && ended(d)) ++d;
  if (d == schedule.devices) return true;
  if (!why) return false;
  std::vector<bool> seen(at(schedule.devices));
  for (; !seen[at(d)]; d = peer(d)) seen[at(d)] = true;
  why->clear();
  const int begin = d;
  do {
    const Place& p = places[at(d)];
    *why += fmt::format("{}device {} {} {} and waits for device {}", why->empty() ? "" : ", ", d,
                        p.sending ? "sends the result of" : "receives for", graph.task(p.id).str(), peer(d));
    d = peer(d);
  } while (d != begin);
  return false;
}

}  // namespace holon::graph
