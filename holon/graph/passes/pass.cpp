#include "holon/graph/passes/pass.h"

#include <algorithm>
#include <chrono>

#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/graph/passes/fuse.h"

namespace holon::graph {

namespace {

constexpr Pass kPasses[] = {
    {"stages", assign_stages},
    {"dead_code", drop_dead_code},
    {"constant_fold", fold_constants},
    {"cse", merge_common},
    {"choose_sbp", choose_sbps, false},
    {"boxing", merge_boxing},
    {"zero", shard_updates},
    {"parameter_copies", free_parameter_copies},
    {"hoist", hoist_once},
    {"recompute", recompute},
    {"accumulate", accumulate_gradients},
    {"buckets", bucket_gradients},
    {"split_weight", split_weight},
    {"narrow_gradients", narrow_gradients},
    {"join_slices", join_slices},
    {"fuse_epilogue", fuse_epilogue, false},
    {"fuse_norm", fuse_norm, false},
    {"fuse_matrices", fuse_matrices},
    {"fuse_elementwise", fuse_elementwise},
    {"dead_code_again", drop_dead_code},
};

}  // namespace

std::span<const Pass> passes() { return kPasses; }

void run_passes(Graph& g, const CompileOptions& options, std::vector<PassReport>* reports) {
  for (auto& name : options.disabled_passes)
    if (std::none_of(std::begin(kPasses), std::end(kPasses), [&](const Pass& p) { return name == p.name; })) {
      std::string all;
      for (auto& p : kPasses) all += (all.empty() ? "" : ", ") + std::string(p.name);
      fail_value("there is no pass \"{}\" to leave out. The passes are {}.", name, all);
    }
  if (options.verify) verify(g, "capture");
  for (auto& pass : kPasses) {
    if (std::find(options.disabled_passes.begin(), options.disabled_passes.end(), pass.name) !=
            options.disabled_passes.end() ||
        (!pass.layout_free && Context::current().layout_free()))
      continue;
    const auto nodes = static_cast<int64_t>(g.nodes.size());
    const auto begin = std::chrono::steady_clock::now();
    try {
      pass.run(g, options);
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::kInternal) throw;
      throw Error(e.kind(), fmt::format("pass {}: {}", pass.name, e.what()));
    }
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
    if (reports) reports->push_back({pass.name, took.count(), nodes, static_cast<int64_t>(g.nodes.size())});
    if (options.verify) verify(g, pass.name);
  }
}

}  // namespace holon::graph
