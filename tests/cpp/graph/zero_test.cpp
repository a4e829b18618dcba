// Optimizer states in shards: how parameters come together again.
#include <gtest/gtest.h>

#include <string>

#include "holon/comm/run_ranks.h"
#include "holon/graph/passes/pass.h"
#include "holon/graph/program/instructions.h"
#include "holon/graph/program/program.h"
#include "holon/graph/step.h"
#include "small_graphs.h"

namespace holon::graph::testing {
namespace {

// Where an axis of one rank "splits" rows, shards are rows all the same, and these are gathered where the parameter is.
TEST(Zero, GathersParametersInPlace) {
  comm::run_ranks(2, [](int) {
    const auto b = sbp::broadcast();
    const Layout one_tensor_rank{
        Placement::nested("cpu", {{0}, {1}}), {sbp::split(0), b}, {b, sbp::split(1)}, {b, sbp::split(0)}, {b, b}};
    for (const Layout& l : {data_parallel(), one_tensor_rank}) {
      Captured c = mlp(l);
      CompileOptions options;
      options.zero_stage = 1;
      options.verify = true;
      run_passes(c.g, options);
      Step step(c.g, options);
      int gathers = 0;
      for (const auto& instruction : step.program().instructions) {
        const std::string text = instruction->str();
        gathers += text.find("all_gather") != std::string::npos;
        EXPECT_TRUE(!text.starts_with("copy(") || text.ends_with("bucket")) << text;  // gradients are put together
      }
      EXPECT_GT(gathers, 1);
    }
  });
}

}  // namespace
}  // namespace holon::graph::testing
