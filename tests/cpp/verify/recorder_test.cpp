#include "holon/verify/recorder.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "holon/base/fmt.h"
#include "holon/comm/run_ranks.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/create.h"
#include "holon/ops/matmul.h"
#include "holon/ops/reduce.h"
#include "holon/ops/shape.h"
#include "holon/optim/optimizer.h"

namespace holon::verify {
namespace {

// "matmul(0, 1)" for each record, as kinds and makers of inputs.
std::vector<std::string> record(const std::function<void()>& program, RecorderOptions options = {}) {
  const auto path = std::filesystem::temp_directory_path() / fmt::format("holon_recorder_{}", getpid());
  comm::run_ranks(1, [&](int) {
    Recorder recorder(path.string(), options);
    try {
      program();
    } catch (const std::string& end) {
    }
    recorder.end("");
  });
  std::vector<std::string> lines;
  const char* kinds[] = {"",      "write ", "input ",  "made ", "read ", "gradient of ", "backward of ",
                         "leaf ", "use ",   "update ", "norm ", "state "};
  for (auto& r : read_recording(path.string()).records) {
    std::string inputs;
    for (int i : r.inputs) inputs += (inputs.empty() ? "" : ", ") + std::to_string(i);
    lines.push_back(kinds[static_cast<int>(r.kind)] + r.op + "(" + inputs + ")");
  }
  std::filesystem::remove(path);
  return lines;
}

TEST(Recorder, KnowsWhatMadeEachInput) {
  const auto found = record([] {
    Tensor x = ones(Dims{2, 2});
    Tensor y = x * x;
    y += Scalar(1);                      // in place
    Tensor first = y[0], second = x[1];  // views
    first + second;
  });
  EXPECT_EQ(found,
            (std::vector<std::string>{"ones()", "mul(0, 0)", "write add_scalar_(1, 1)", "select(2)", "select(0)",
                                      "add(3, 4)"}));
}

TEST(Recorder, FollowsGradientsToTheirLeaves) {
  const auto found = record([] {
    Tensor w = ones(Dims{2, 2}, {.requires_grad = true});
    (w * w).sum().backward();
  });
  // The two gradients that mul gives come together in the leaf.
  EXPECT_EQ(found,
            (std::vector<std::string>{"ones()", "mul(0, 0)", "sum(1)", "read backward(2)", "gradient of sum()",
                                      "backward of sum(4, 2, 1)", "gradient of mul(5)", "backward of mul(6, 1, 0, 0)",
                                      "backward of mul(6, 1, 0, 0)", "leaf gradient(7, 8)"}));
}

TEST(Recorder, EndsAfterItsSteps) {
  int steps = 0;
  auto program = [&] {
    Tensor w = ones(Dims{2}, {.requires_grad = true});
    optim::SGD sgd({w}, {.lr = 0.1, .momentum = 0.9});
    for (;; ++steps) {
      sgd.zero_grad();
      w.sum().backward();
      sgd.step();
    }
  };
  const auto found = record(program, {.steps = 2, .on_end = [] { throw std::string("end"); }});
  EXPECT_EQ(steps, 2);
  EXPECT_EQ(std::count_if(found.begin(), found.end(), [](auto& f) { return f.starts_with("update SGD"); }), 4);
}

TEST(Recorder, IsSilentOutsideOfItsScope) {
  EXPECT_EQ(observer(), nullptr);
  record([] { EXPECT_NE(observer(), nullptr); });
  EXPECT_EQ(observer(), nullptr);
}

}  // namespace
}  // namespace holon::verify
