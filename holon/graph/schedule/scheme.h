// A scheme: the rule by which a pipeline's devices order their tasks, as one value. Each is defined in one source file
// and registered by name; configs, passes, the executor and pictures know schemes only by what is said here.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "holon/graph/schedule/schedule.h"

namespace holon::graph {

// What a table is to be made for. Devices are numbered from 0; one between others may be without a stage.
struct Mapping {
  std::vector<int> device_of_stage;
  int devices = 0;
  int micro_batches = 0;
  bool training = true;  // false: only forwards
};

using TaskLists = std::vector<std::vector<Task>>;  // by device, in the order in which it runs them

// Equal stages whose tasks take so long, and sends that take no time.
struct BubbleCase {
  int devices = 1, micro_batches = 1, chunks_per_device = 1;
  double forward = 1, backward = 1, weight = 1;  // of a stage
};

struct Scheme {
  std::string name{};
  std::string doc{};                   // one line: what it does
  std::vector<std::string> aliases{};  // other names of it
  bool splits_backward = false;        // gradients of weights are tasks, W, behind those of the stage's input, B
  bool automatic = false;              // kAutoSchedule means it: one scheme with splits_backward, and one without
  // Pure, and the same on every rank. For any mapping; what it cannot do it refuses by a ValueError. The lists are
  // checked (check.h) before anything uses them.
  std::function<TaskLists(const Mapping&)> lists{};
  // As in_flight_bounds() in schedule.h; none: all that a device is to run.
  std::function<std::vector<int>(const Mapping&)> in_flight_bounds{};
  // The idle share of all devices' time; none: nobody has a formula. Errors (ValueError): a case that it does not
  // cover.
  std::function<double(const BubbleCase&)> bubble{};
};

// From here on the scheme is found by its name and its aliases. Returns true, to be called from a static initialiser.
// Thread-safe. Errors (ValueError): a name that is empty, taken or kAutoSchedule, no lists, a second automatic scheme.
bool register_scheme(Scheme scheme);
// Graphs that are compiled keep their tables. Errors (ValueError): no scheme has the name; an alias.
void unregister_scheme(std::string_view name);

// Errors (ValueError): there is none; `caller` begins the message.
std::shared_ptr<const Scheme> find_scheme(std::string_view caller, std::string_view name);
// What kAutoSchedule means for a graph whose weight gradients are split, or not.
std::shared_ptr<const Scheme> automatic_scheme(bool splits_backward);
std::vector<std::shared_ptr<const Scheme>> schemes();  // by name
// For messages: "'a', 'b' and 'c'".
std::string enumerated(const std::vector<std::string>& names);

// The scheme's table. Errors: those of make_schedule(name, ...), which begin with `caller`.
Schedule make_schedule(std::string_view caller, const Scheme& scheme, const std::vector<int>& device_of_stage,
                       int micro_batches, bool training);

// The mapping of `stages` stages, stage s on device s mod devices. Errors (ValueError): none of one of the three, or
// more tasks than a table may have.
std::vector<int> in_turn(std::string_view caller, int devices, int64_t stages, int micro_batches);

}  // namespace holon::graph
