// What a schedule would take: time, idle time and memory, by playing its table with costs.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "holon/graph/schedule/schedule.h"

namespace holon::graph {

// Times in any one unit, by stage. A backward that is not split takes backward + weight, so that the same costs serve
// all schedules.
struct Costs {
  std::vector<double> forward, backward, weight;
  double send = 0;  // from the end of a task to when its result is on another device; sends overlap with work
  // Optional, in bytes for one micro-batch: what a forward leaves for the backward, and how much of that W still needs
  // once B has run.
  std::vector<int64_t> activation_bytes, weight_bytes;

  // The same for all stages.
  static Costs equal(int stages, double forward = 1, double backward = 1, double weight = 1, double send = 0);
};

struct Span {
  double start = 0, end = 0;
};

struct Simulation {
  double time = 0;
  std::vector<double> busy;              // by device
  double bubble = 0;                     // idle share of all devices' time
  std::vector<int> peak_in_flight;       // by stage: see peak_in_flight
  std::vector<int> peak_on_device;       // by device: the same over all of its stages together
  std::vector<int64_t> peak_bytes;       // by device: activations held; 0 without activation_bytes
  std::vector<std::vector<Span>> spans;  // of schedule.tasks, place by place
};

// Runs each task as soon as its device is free and its inputs are there. Errors (ValueError): those of check; costs of
// another length than the number of stages, below 0 or not finite.
Simulation simulate(const Schedule& schedule, const Costs& costs);

// The micro-batches whose activations a stage holds at once: from the start of F(s, m) to the end of B(s, m), or of
// W(s, m) where backwards are split; to the end of F where there are none. It follows from the table alone, whatever
// tasks cost.
std::vector<int> peak_in_flight(const Schedule& schedule);

// The bubble by the formula of the scheme of this name (Scheme::bubble), with equal stages on p devices, for m
// micro-batches, when sends take no time. With p = devices, m = micro_batches and v = chunks_per_device:
//   "gpipe", "1f1b"  (p - 1) / (m + p - 1)
//   "interleaved"    (p - 1) / (v m + p - 1), for m a multiple of p
// The others' formulas are of an idle time a device, and are in their files. Errors (ValueError): a name that no
// scheme or one without a formula has, a case that the formula does not cover, a size below 1, costs below 0 or not
// finite.
double bubble_formula(std::string_view name, int devices, int micro_batches, int chunks_per_device = 1,
                      double forward = 1, double backward = 1, double weight = 1);

}  // namespace holon::graph
