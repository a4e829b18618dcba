// What is asked of a graph's compilation, from the config of a graph to the last pass, as one struct and one table: a
// new option is a field here and a row in options.cpp. Configs set options by name, ranks compare their text.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "holon/array/dtype.h"
#include "holon/graph/schedule/schedule.h"

namespace holon::graph {

// The options of one compilation.
struct CompileOptions {
  // Of the capture.
  std::optional<DType> amp;   // build() runs in an autocast region of this dtype
  int64_t micro_batches = 1;  // into which the inputs' rows are cut
  bool uneven = false;        // they may have unequal rows

  // Of the passes and of lowering.
  std::string schedule = kAutoSchedule;     // of stages and micro-batches: a scheme's name (schedule/scheme.h)
  int64_t zero_stage = 0;                   // 1: states of optimizers are sharded, 2: gradients too, 3: parameters too
  int64_t zero_min_elements = 1;            // parameters with fewer stay whole
  std::vector<std::string> recompute;       // modules' paths whose inner values backward computes again
  int64_t memory_budget_bytes = 0;          // more is computed again until a rank needs no more than this; 0: no limit
  int64_t bucket_bytes = int64_t{4} << 20;  // gradients are redistributed together in buckets of about this size; 0:
                                            // one by one
  std::vector<std::string> disabled_passes;
  bool verify = false;   // the graph is checked after each pass
  std::string contract;  // the file that the graph is held to when it is compiled; "": the one in force, if any

  // For tests and measurements.
  int64_t zero_axis = -1;                 // the axis of the hierarchy to shard along; -1: the first that replicates
  bool choose_sbp = true;                 // signatures are reconsidered over the whole graph
  bool keep_parameters = true;            // and no split parameter is redistributed to another layout for it
  bool sum_last = false;                  // gradients are summed over micro-batches right before the update
  int64_t fold_bytes = int64_t{1} << 20;  // the largest constant that is computed while compiling

  bool operator==(const CompileOptions&) const = default;
};

// A value of any option.
using OptionValue = std::variant<bool, int64_t, std::optional<DType>, std::string, std::vector<std::string>>;

// One option of the table.
struct Option {
  const char* name;  // of the field: "bucket_bytes"
  const char* text;  // "buckets of {} bytes", once for each entry of a list; "": nobody need know
  bool local;        // ranks may differ in it
  OptionValue (*get)(const CompileOptions&);
  void (*set)(CompileOptions*, OptionValue);  // Pre: the type of get()'s
  void (*check)(const CompileOptions&);       // raises a ValueError for a value that the option cannot have; or nullptr
};
std::span<const Option> option_table();

// By the option's name. Errors (ValueError): there is no such option, naming those there are; a value of another type,
// or one that the option cannot have, which leaves the options as they were.
void set_option(CompileOptions* options, std::string_view name, OptionValue value);
OptionValue get_option(const CompileOptions& options, std::string_view name);

// What differs from the defaults: "4 micro-batches, schedule 1f1b"; "" for nothing.
std::string str(const CompileOptions& options);
// All that ranks have to agree on.
std::string agreed_text(const CompileOptions& options);

}  // namespace holon::graph
