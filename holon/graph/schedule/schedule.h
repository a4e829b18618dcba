// Pipeline schedules as values: for each device, the list of tasks that it runs in order. The functions that make them
// are pure, so every rank finds the same table without a word, and one executor runs all of them.
//
// A stage may be on any device, and a device may have any stages. Consecutive stages of one device are scheduled as
// one. Errors (ValueError): no stages or micro-batches, and what a function's line names.
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

// All forwards, then all backwards. A stage holds the activations of all micro-batches.
// https://arxiv.org/abs/1811.06965
Schedule gpipe(int stages, int micro_batches, bool training = true);

// Warm-up, then a forward and a backward in turn, then cool-down: stage s of p holds the activations of at most
// min(p - s, micro_batches). https://arxiv.org/abs/2104.04473
Schedule one_f_one_b(int stages, int micro_batches, bool training = true);

// 1F1B with devices * chunks_per_device stages, stage s on device s mod devices, which makes the bubble smaller by
// chunks_per_device. Device d of p with v > 1 chunks holds the activations of at most (v - 1) p + 2 (p - 1 - d) + 1
// pairs of a stage and a micro-batch. Any number of micro-batches: where p does not divide it, a list schedule within
// the same bound. https://arxiv.org/abs/2104.04473
Schedule interleaved_1f1b(int devices, int chunks_per_device, int micro_batches);

// ZB-H1: 1F1B whose W wait, so that B come earlier and W fill the cool-down. A stage holds what W needs of at most
// min(stages, micro_batches) micro-batches, the peak of 1F1B, which there only stage 0 has.
// https://arxiv.org/abs/2401.10241
Schedule zero_bubble_h1(int stages, int micro_batches);

// Inference: only forwards.
Schedule forward_only(const std::vector<int>& device_of_stage, int micro_batches);

// Gradient accumulation on one device with all stages: micro-batch after micro-batch, forwards in order and backwards
// in reverse.
Schedule sequential(int stages, int micro_batches, bool training = true);

// zero_bubble if each stage has its own ranks, else 1f1b; make_schedule() does not know this name.
inline constexpr const char* kAutoSchedule = "auto";

// The schedule named "gpipe", "1f1b", "interleaved" or "zero_bubble" for any device_of_stage. With one run of
// consecutive stages a device it is the function above; "1f1b" and "interleaved" are the same scheme, as the mapping
// says which one it is. Other mappings (a device that comes up again in another order) get a list schedule with the
// scheme's priorities and 1F1B's bound of activations in flight: see in_flight_bounds. Errors: another name, devices
// below 0.
Schedule make_schedule(std::string_view name, const std::vector<int>& device_of_stage, int micro_batches,
                       bool training = true);

// What make_schedule's table never exceeds, by device: the runs of consecutive stages, times micro-batches, whose
// activations it holds at once.
std::vector<int> in_flight_bounds(std::string_view name, const std::vector<int>& device_of_stage, int micro_batches);

// The table as text, a line for each device: "0: F0 F1 B0 B1". Devices with several stages: "0: F0@0 F0@2 B0@2", with
// the stage behind the @.
std::string str(const Schedule& schedule);

char letter(Phase phase);  // 'F', 'B' or 'W'

}  // namespace holon::graph
