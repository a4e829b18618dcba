// Gradients of chunks as one cat: where the pass puts it, where sums stay, and that results stay.
#include "tests/cpp/graph/small_graphs.h"

#include <functional>

#include "holon/ops/activation.h"
#include "holon/ops/matmul.h"
#include "holon/ops/reduce.h"
#include "holon/ops/shape.h"

namespace holon::graph {
namespace {

using namespace testing;

using Mix = std::function<Tensor(const std::vector<Tensor>& pieces)>;

// x = x w, cut along an axis into pieces that `mix` brings together again, and its training step.
Captured pieces(const Layout& l, int axis, const std::vector<int64_t>& sizes, const Mix& mix, int micro_batches = 1) {
  Captured c;
  c.parameters = {parameter(l, {6, 12}, l.up, 1)};
  c.inputs = {random(l, {8, 4, 6}, l.data, 1000)};
  Capture capture;
  capture.set_micro_batches(micro_batches);
  Tensor x = capture.input_like(c.inputs[0]);
  Tensor y = mix(split(matmul(x, c.parameters[0]), sizes, axis));
  Tensor loss = mean(y * y);
  return trained(std::move(c), capture, loss);
}

const Mix gated = [](const std::vector<Tensor>& p) { return p[0] * sigmoid(p[1]) + p[2]; };

void expect_joined(const Graph& g, int64_t cats) {
  EXPECT_EQ(count_op(g, "cat"), cats) << str(g);
  EXPECT_EQ(count_op(g, "slice_backward"), 0) << str(g);
}

TEST(JoinSlices, GradientsOfAllPieces) {
  for (int axis : {2, -1}) {
    Captured after = expect_unchanged([&] { return pieces(local(), axis, {4}, gated); }, only({"join_slices"}));
    expect_joined(after.g, 1);
    EXPECT_EQ(count_op(after.g, "add"), 2) << "of the forward pass and of y * y; " << str(after.g);
  }
  auto uneven = [](const std::vector<Tensor>& p) {
    return sum(p[0], Dims{-1}) * sum(p[1], Dims{-1}) + sum(tanh(p[2]), Dims{-1});
  };
  expect_joined(expect_unchanged([&] { return pieces(local(), -1, {7, 1, 4}, uneven); }, only({"join_slices"})).g, 1);
}

TEST(JoinSlices, OnSeveralRanks) {
  auto same = [&](const Layout& l, int axis) {
    for (int m : {1, 2}) {
      CompileOptions all;
      all.verify = true;
      // Heads of four columns each: along them a split weight needs no other ranks.
      auto make = [&] {
        return pieces(
            l, axis, axis == 1 ? std::vector<int64_t>{2, 1, 1} : std::vector<int64_t>{4},
            [&](auto& p) { return p[0] * sigmoid(p[1]) + p[2]; }, m);
      };
      Captured before = make(), after = make();
      if (m > 1) run_passes(before.g, only({"accumulate"}));
      run_passes(after.g, all);
      expect_equal(run(before), run(after), 4e-6);
      EXPECT_EQ(count_op(after.g, "slice_backward"), 0) << str(after.g);
    }
  };
  comm::run_ranks(2, [&](int) {
    for (int axis : {1, 2}) {
      same(data_parallel(), axis);
      same(tensor_parallel(), axis);
    }
  });
  comm::run_ranks(4, [&](int) { same(grid(), 2); });
}

TEST(JoinSlices, OtherSumsStay) {
  struct Case {
    const char* what;
    std::vector<int64_t> sizes;
    Mix mix;
  };
  const Case cases[] = {
      {"a piece that has no gradient", {4}, [](auto& p) { return p[0] * p[2]; }},
      {"pieces of pieces", {6}, [](auto& p) { return narrow(p[0], -1, 0, 3) * narrow(p[1], -1, 3, 3); }},
  };
  for (auto& c : cases) {
    Captured after = expect_unchanged([&] { return pieces(local(), -1, c.sizes, c.mix); }, only({"join_slices"}));
    EXPECT_GT(count_op(after.g, "slice_backward"), 0) << c.what << "; " << str(after.g);
  }
  // Whole and pieces: the sum of both is no cat.
  auto both = [](bool joined) {
    return expect_unchanged(
        [&] {
          Captured c;
          c.parameters = {parameter({}, {6, 12}, {}, 1)};
          c.inputs = {random({}, {8, 6}, {}, 1000)};
          Capture capture;
          Tensor y = matmul(capture.input_like(c.inputs[0]), c.parameters[0]);
          auto p = split(y, {6}, -1);
          Tensor loss = joined ? mean(p[0] * p[1]) + mean(y * y) : mean(p[0] * p[1] + narrow(y, -1, 3, 6));
          return trained(std::move(c), capture, loss);
        },
        only({"join_slices"}));
  };
  both(true);
  EXPECT_EQ(count_op(both(false).g, "slice_backward"), 3) << "they overlap";
}

}  // namespace
}  // namespace holon::graph
