#include "holon/graph/schedule/simulate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/graph/schedule/check.h"
#include "holon/graph/schedule/scheme.h"
#include "holon/graph/schedule/task_graph.h"

namespace holon::graph {

namespace {

size_t at(int i) { return to_size(i); }

template <class T>
void check_costs(const char* what, const std::vector<T>& costs, int stages, bool optional) {
  if (optional && costs.empty()) return;
  if (costs.size() != at(stages)) fail_value("simulate: {} has {} entries for {} stages.", what, costs.size(), stages);
  for (size_t s = 0; s < costs.size(); ++s)
    if (!std::isfinite(static_cast<double>(costs[s])) || costs[s] < 0)
      fail_value("simulate: {} of stage {} is {}; it must be finite and at least 0.", what, s, costs[s]);
}

// Calls hold(task) and release(task) in the order of a device's list.
template <class Hold, class Release>
void walk(const Schedule& schedule, size_t device, Hold hold, Release release) {
  const Phase last = schedule.splits_backward ? Phase::kWeight : schedule.training ? Phase::kBackward : Phase::kForward;
  for (const Task& t : schedule.tasks[device]) {
    if (t.phase == Phase::kForward) hold(t);
    if (t.phase == last) release(t);
  }
}

}  // namespace

Costs Costs::equal(int stages, double forward, double backward, double weight, double send) {
  if (stages < 1) fail_value("Costs::equal: a pipeline has at least 1 stage; got {}.", stages);
  Costs costs;
  costs.forward.assign(at(stages), forward);
  costs.backward.assign(at(stages), backward);
  costs.weight.assign(at(stages), weight);
  costs.send = send;
  return costs;
}

std::vector<int> peak_in_flight(const Schedule& schedule) {
  check(schedule);
  std::vector<int> peak(at(schedule.stages)), held(at(schedule.stages));
  for (size_t d = 0; d < schedule.tasks.size(); ++d)
    walk(
        schedule, d, [&](const Task& t) { peak[at(t.stage)] = std::max(peak[at(t.stage)], ++held[at(t.stage)]); },
        [&](const Task& t) { --held[at(t.stage)]; });
  return peak;
}

Simulation simulate(const Schedule& schedule, const Costs& costs) {
  Simulation result;
  result.peak_in_flight = peak_in_flight(schedule);
  check_costs("forward", costs.forward, schedule.stages, false);
  check_costs("backward", costs.backward, schedule.stages, !schedule.training);
  check_costs("weight", costs.weight, schedule.stages, !schedule.training);
  check_costs("activation_bytes", costs.activation_bytes, schedule.stages, true);
  check_costs("weight_bytes", costs.weight_bytes, schedule.stages, true);
  if (!std::isfinite(costs.send) || costs.send < 0)
    fail_value("simulate: send is {}; it must be finite and at least 0.", costs.send);

  const TaskGraph graph(schedule);
  std::vector<Span> spans(at(graph.size()));
  result.busy.resize(at(schedule.devices));
  for (int id : graph.order()) {
    const Task& t = graph.task(id);
    double start = graph.before(id) < 0 ? 0 : spans[at(graph.before(id))].end;
    for (int input : graph.inputs(id))
      start = std::max(start, spans[at(input)].end + (graph.device(input) == graph.device(id) ? 0 : costs.send));
    double length = 0;
    if (t.phase == Phase::kForward) length = costs.forward[at(t.stage)];
    if (t.phase == Phase::kBackward)
      length = costs.backward[at(t.stage)] + (schedule.splits_backward ? 0 : costs.weight[at(t.stage)]);
    if (t.phase == Phase::kWeight) length = costs.weight[at(t.stage)];
    spans[at(id)] = {start, start + length};
    result.busy[at(graph.device(id))] += length;
    result.time = std::max(result.time, start + length);
  }
  if (result.time > 0)
    result.bubble = 1 - std::accumulate(result.busy.begin(), result.busy.end(), 0.0) / (schedule.devices * result.time);

  for (size_t d = 0; d < schedule.tasks.size(); ++d) {
    result.spans.emplace_back(spans.begin() + graph.first(d), spans.begin() + graph.first(d + 1));
    int held = 0, most = 0;
    walk(
        schedule, d, [&](const Task&) { most = std::max(most, ++held); }, [&](const Task&) { --held; });
    result.peak_on_device.push_back(most);
    // In bytes, B lets go of what W does not need.
    auto bytes = [](const std::vector<int64_t>& of, const Task& t) { return of.empty() ? 0 : of[at(t.stage)]; };
    int64_t now = 0, peak = 0;
    for (const Task& t : schedule.tasks[d]) {
      if (t.phase == Phase::kForward) now += bytes(costs.activation_bytes, t);
      peak = std::max(peak, now);
      if (t.phase == Phase::kBackward || !schedule.training) now -= bytes(costs.activation_bytes, t);
      if (t.phase == Phase::kBackward && schedule.splits_backward) now += bytes(costs.weight_bytes, t);
      peak = std::max(peak, now);
      if (t.phase == Phase::kWeight) now -= bytes(costs.weight_bytes, t);
    }
    result.peak_bytes.push_back(peak);
  }
  return result;
}

double bubble_formula(std::string_view name, int devices, int micro_batches, int chunks_per_device, double forward,
                      double backward, double weight) {
  if (devices < 1 || micro_batches < 1 || chunks_per_device < 1)
    fail_value("bubble_formula: got {} devices, {} micro-batches and {} chunks per device; each must be at least 1.",
               devices, micro_batches, chunks_per_device);
  if (!(forward >= 0 && backward >= 0 && weight >= 0 && std::isfinite(forward + backward + weight)))
    fail_value("bubble_formula: the costs {}, {} and {} must be finite and at least 0.", forward, backward, weight);
  std::vector<std::string> names;
  for (const auto& scheme : schemes()) {
    if (!scheme->bubble) continue;
    if (scheme->name == name)
      return scheme->bubble({devices, micro_batches, chunks_per_device, forward, backward, weight});
    names.push_back(scheme->name);
  }
  fail_value("bubble_formula: there is no formula for '{}'. There are {}. Play the table of another with simulate().",
             name, enumerated(names));
}

}  // namespace holon::graph
