// What is done to a captured graph before it is lowered: named functions graph -> graph, in a fixed order. Each keeps
// what the graph computes: the same values, the same draws of random numbers, the same order of in-place writes. All
// are pure functions of the graph and its options, so that every rank gets the same.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "holon/graph/ir/graph.h"

namespace holon::graph {

// Whether gradients of parameters become Section::kWeight, as zero-bubble schedules want it. It pays where each stage
// has its own ranks.
enum class SplitWeight : uint8_t { kNo, kWhereItPays, kYes };

struct PassOptions {
  std::vector<std::string> disabled;  // names of passes that are left out
  bool verify = false;                // check the graph after each pass

  int zero_stage = 0;             // 0: off; 1: states of optimizers are sharded; 2: gradients too; 3: parameters too
  int zero_axis = -1;             // the axis of the placements' hierarchy to shard along; -1: the first that replicates
  int64_t zero_min_elements = 1;  // parameters with fewer stay whole

  std::vector<std::string> recompute;  // paths of modules whose inner values backward computes again
  int64_t memory_budget_bytes =
      0;  // what is kept for backward is computed again until a rank holds no more; 0: no limit

  int64_t bucket_bytes = 0;  // gradients are redistributed together in buckets of about this size; 0: one by one
  SplitWeight split_weight = SplitWeight::kNo;
  bool choose_sbp = true;                 // signatures are reconsidered over the whole graph
  bool keep_parameters = true;            // and no split parameter is redistributed to another layout for it
  bool sum_last = false;                  // gradients are summed over micro-batches right before the update
  int64_t fold_bytes = int64_t{1} << 20;  // the largest constant that is computed while compiling
};

struct Pass {
  const char* name;
  void (*run)(Graph&, const PassOptions&);
};

struct PassReport {
  std::string name;
  double us = 0;
  int64_t nodes_before = 0, nodes_after = 0;
};

// All passes, in order.
std::span<const Pass> passes();

// Runs those that are not disabled. reports: one for each that ran, or nullptr.
// Errors: a disabled name that is not a pass (ValueError, naming the passes there are); what a pass refuses, unchanged;
// a broken promise of one (internal), naming it.
void run_passes(Graph& g, const PassOptions& options, std::vector<PassReport>* reports = nullptr);

// Gives each node the stage of the pipeline that it belongs to: nodes without one take that of their placement, or of
// what they read. Errors (ValueError): numbers of stages that leave one out; a stage that reads forward what a later
// one makes.
void assign_stages(Graph& g, const PassOptions& options);

// Drops nodes of which nothing comes.
void drop_dead_code(Graph& g, const PassOptions& options);

// Evaluates nodes that depend on constants alone, into new constants.
void fold_constants(Graph& g, const PassOptions& options);

// One node for all that compute the same of the same: one gather serves several readers.
void merge_common(Graph& g, const PassOptions& options);

// Chooses other signatures of ops where that lowers what all boxings cost together. What the user requested by
// to_global stays.
void choose_sbps(Graph& g, const PassOptions& options);

// Chains of boxings become one, boxings to where a value is already go, and values move in their narrower dtype.
void merge_boxing(Graph& g, const PassOptions& options);

// ZeRO as sbp: gradients go to shards, shards are updated, and their new values are gathered.
void shard_updates(Graph& g, const PassOptions& options);

// Backward makes the copies of split parameters in other layouts again that forward has made, so that none lives until
// then.
void free_parameter_copies(Graph& g, const PassOptions& options);

// ZeRO 3: the layout in which to store each external, nullptr where it stays. The caller converts the tensors
// (External::tensor) before the passes run; they redistribute them back where they are read.
std::vector<const GlobalSpec*> zero3_specs(const Graph& g, const PassOptions& options);

// Backward computes again what is inside the given modules, or what a memory budget does not allow to keep.
// Errors (ValueError): a path under which there is nothing; a budget that cannot be met, with the least that can.
void recompute(Graph& g, const PassOptions& options);

// The most bytes that any rank holds of values of a step at once, by the order of the nodes: without parameters, and
// before memory is shared between values that live one after the other.
int64_t estimate_peak_bytes(const Graph& g);

// What depends on parameters and constants alone is computed once per step, not for each micro-batch.
void hoist_once(Graph& g, const PassOptions& options);

// With several micro-batches: each gradient is summed over them, before what is linear and costs communication.
void accumulate_gradients(Graph& g, const PassOptions& options);

// Gradients that are redistributed alike are redistributed together, in the order in which backward makes them.
void bucket_gradients(Graph& g, const PassOptions& options);

// What no earlier stage waits for becomes Section::kWeight.
void split_weight(Graph& g, const PassOptions& options);

}  // namespace holon::graph
