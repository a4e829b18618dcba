// Pipeline schedules as values: for each device, the list of tasks that it runs in order. The functions that make them
// are pure, so every rank finds the same table without communication, and one executor runs all of them.
//
// A stage may be on any device, and a device may have any stages. Errors (ValueError): no stages or micro-batches, and
// what a function's line names.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace holon::graph {

// kBackward is the whole backward or, in schedules that split it, the gradient of the stage's input (B); kWeight is
// then the gradients of its weights (W).
enum class Phase : uint8_t { kForward, kBackward, kWeight };

struct Task {
  int stage = 0;
  int micro_batch = 0;
  Phase phase = Phase::kForward;
  bool operator==(const Task&) const = default;
  std::string str() const;  // "stage 1 F(2)"
};

struct Schedule {
  std::string name;
  int stages = 0, devices = 0, micro_batches = 0;
  bool training = true;          // false: only forwards
  bool splits_backward = false;  // every B has a W
  std::vector<int> device_of_stage;
  std::vector<std::vector<Task>> tasks;  // by device, in the order in which it runs them
  bool operator==(const Schedule&) const = default;
};

// Inference: only forwards.
Schedule forward_only(const std::vector<int>& device_of_stage, int micro_batches);

// Gradient accumulation on one device with all stages: micro-batch after micro-batch, forwards in order and backwards
// in reverse.
Schedule sequential(int stages, int micro_batches, bool training = true);

// The name by which a graph lets the library choose: the scheme of split backwards that is marked as automatic where
// the graph's weight gradients are split, else the one of whole backwards (scheme.h). make_schedule() does not know it.
inline constexpr const char* kAutoSchedule = "auto";

// The table of the scheme of this name (scheme.h) for any device_of_stage. Errors: no scheme has the name, devices
// below 0, lists by the scheme that are not a schedule (check.h), naming the scheme, the device and the task.
Schedule make_schedule(std::string_view name, const std::vector<int>& device_of_stage, int micro_batches,
                       bool training = true);

// What make_schedule's table never exceeds, by device: the runs of consecutive stages, times micro-batches, whose
// activations it holds at once. Errors: as make_schedule.
std::vector<int> in_flight_bounds(std::string_view name, const std::vector<int>& device_of_stage, int micro_batches);

// Of all that the table says, the same on every rank that has the same table.
uint64_t hash(const Schedule& schedule);

// The table as text, a line for each device: "0: F0 F1 B0 B1". Devices with several stages: "0: F0@0 F0@2 B0@2", with
// the stage behind the @.
std::string str(const Schedule& schedule);

char letter(Phase phase);  // 'F', 'B' or 'W'

}  // namespace holon::graph
