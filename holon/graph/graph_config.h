// What is asked of an nn::Graph's compilation.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "holon/dispatch/float8_recipe.h"
#include "holon/global/placement.h"
#include "holon/graph/options/options.h"

namespace holon::nn {

// A change counts from the next call on, which captures again.
class GraphConfig {
 public:
  // Any option by its name (options.h); the calls below are those for which a name says too little. Errors:
  // set_option().
  void set(std::string_view name, graph::OptionValue value);
  graph::OptionValue get(std::string_view name) const { return get_option(options_, name); }

  // build() runs in an autocast region; parameters stay as they are. recipe: of a float8 dtype; the graph calls its
  // update() after each step that has an optimizer. Errors: none of autocast's dtypes; a recipe with one that is not
  // float8.
  void enable_amp(bool on = true, DType dtype = bfloat16, std::shared_ptr<Float8Recipe> recipe = {});
  // The inputs' rows are cut into n micro-batches, each with its share of the mean gradient (backward() divides by n).
  // uneven: where n does not divide each rank's rows, the first micro-batches have a row more, and where there are
  // fewer rows than n there are fewer micro-batches. Gradients are then weighed by rows, and so is an output without
  // rows, such as a mean loss: the mean over its micro-batches is that of the batch. Errors: n < 1.
  void set_gradient_accumulation_steps(int n, bool uneven = false) {
    set("micro_batches", int64_t{n});
    set("uneven", uneven);
  }
  // Splits over data-parallel ranks the state of optimizers (stage 1), gradients too (2), parameters too (3).
  // Parameters of fewer than min_elements stay whole.
  void enable_zero(bool on = true, int stage = 1, int64_t min_elements = 1);
  // Inner values are computed again in backward until a rank needs no more than this. 0: no limit.
  void set_memory_budget(int64_t bytes) { set("memory_budget_bytes", bytes); }
  // How stages and micro-batches follow each other: the name of a scheme (schedule/scheme.h), such as "gpipe", "1f1b",
  // "interleaved" or "zero_bubble", or "auto": zero_bubble where each stage has its own ranks, else 1f1b. Errors: no
  // scheme has the name.
  void set_schedule(const std::string& schedule) { set("schedule", schedule); }
  // The graph's modules are cut into so many stages by cost, where none has its own stage, and their parameters
  // moved to the stages' placements: those given, else those of the parameters cut along their first axis. A block that
  // is cut between is a direct child of a registered module, or in a Sequential or ModuleList, whose children are
  // numbered. Counts for the first capture. Errors: n < 1; another number of placements.
  void set_stages(int n, std::vector<Placement> placements = {});
  void set_contract(const std::string& file) { set("contract", file); }
  void set_bucket_bytes(int64_t bytes) { set("bucket_bytes", bytes); }
  void disable_passes(std::vector<std::string> names) { set("disabled_passes", std::move(names)); }
  // The graph is checked after each pass.
  void verify(bool on = true) { set("verify", on); }

  // What is set; revision() counts the changes.
  const graph::CompileOptions& options() const { return options_; }
  int micro_batches() const { return static_cast<int>(options_.micro_batches); }
  int stages() const { return stages_; }
  const std::vector<Placement>& placements() const { return placements_; }
  const std::shared_ptr<Float8Recipe>& float8_recipe() const { return float8_recipe_; }
  uint64_t revision() const { return revision_; }
  // What differs from the defaults: "4 micro-batches, schedule 1f1b"; "" for nothing.
  std::string str() const { return graph::str(options_); }

 private:
  int stages_ = 0;
  std::vector<Placement> placements_;
  std::shared_ptr<Float8Recipe> float8_recipe_;
  graph::CompileOptions options_;
  uint64_t revision_ = 0;
};

}  // namespace holon::nn
