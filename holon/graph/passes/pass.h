// What is done to a captured graph before it is lowered: named functions graph -> graph, in a fixed order. Each keeps
// what the graph computes: the same values, the same draws of random numbers, the same order of in-place writes. All
// are pure functions of the graph and its options, so that every rank gets the same.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "holon/graph/ir/graph.h"
#include "holon/graph/options/options.h"

namespace holon::graph {

struct Pass {
  const char* name;
  void (*run)(Graph&, const CompileOptions&);
  bool layout_free = true;  // whether it keeps the order of sums of deterministic(layout_free=True)
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
void run_passes(Graph& g, const CompileOptions& options, std::vector<PassReport>* reports = nullptr);

// Gives each node the stage of the pipeline that it belongs to: nodes without one take that of their placement, or of
// what they read. Errors (ValueError): numbers of stages that leave one out; a stage that reads forward what a later
// one makes.
void assign_stages(Graph& g, const CompileOptions& options);

// Drops nodes of which nothing comes.
void drop_dead_code(Graph& g, const CompileOptions& options);

// Evaluates nodes that depend on constants alone, into new constants.
void fold_constants(Graph& g, const CompileOptions& options);

// One node for all that compute the same of the same: one gather serves several readers.
void merge_common(Graph& g, const CompileOptions& options);

// Chooses other signatures of ops where that lowers what all boxings cost together. What the user requested by
// to_global stays.
void choose_sbps(Graph& g, const CompileOptions& options);

// Chains of boxings become one, boxings to where a value is already go, and values move in their narrower dtype.
void merge_boxing(Graph& g, const CompileOptions& options);

// ZeRO as sbp: gradients go to shards, shards are updated, and their new values are gathered.
void shard_updates(Graph& g, const CompileOptions& options);

// Backward makes the copies of split parameters in other layouts again that forward has made, so that none lives until
// then.
void free_parameter_copies(Graph& g, const CompileOptions& options);

// ZeRO 3: the layout in which to store each external, nullptr where it stays. The caller converts the tensors
// (External::tensor) before the passes run; they redistribute them back where they are read.
std::vector<const GlobalSpec*> zero3_specs(const Graph& g, const CompileOptions& options);

// Backward computes again what is inside the given modules, or what a memory budget does not allow to keep.
// Errors (ValueError): a path under which there is nothing; a budget that cannot be met, with the least that can.
void recompute(Graph& g, const CompileOptions& options);

// The most bytes that any rank holds of values of a step at once, by the order of the nodes: without parameters, and
// before memory is shared between values that live one after the other.
int64_t estimate_peak_bytes(const Graph& g);

// What depends on parameters and constants alone is computed once per step, not for each micro-batch.
void hoist_once(Graph& g, const CompileOptions& options);

// With several micro-batches: each gradient is summed over them, before what is linear and costs communication.
void accumulate_gradients(Graph& g, const CompileOptions& options);

// Gradients that are redistributed alike are redistributed together, in the order in which backward makes them.
void bucket_gradients(Graph& g, const CompileOptions& options);

// Updates on devices read gradients of two bytes as they are, instead of copies in float32: their kernels convert.
void narrow_gradients(Graph& g, const CompileOptions& options);

// What no earlier stage waits for becomes Section::kWeight, where the schedule splits backwards; kAutoSchedule does
// where each stage has its own ranks.
void split_weight(Graph& g, const CompileOptions& options);

}  // namespace holon::graph
