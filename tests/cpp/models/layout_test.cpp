#include "holon/models/layout.h"

#include <gtest/gtest.h>

#include "error_of.h"
#include "holon/comm/run_ranks.h"

namespace holon::models {
namespace {

using comm::run_ranks;

bool contains(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

TEST(Layout, StagesHaveTheirRanksInAGrid) {
  run_ranks(8, [](int) {
    auto layouts = Layout::over({.dp = 2, .tp = 2, .pp = 2});
    ASSERT_EQ(layouts.size(), 2u);
    EXPECT_EQ(layouts[0].placement, Placement("cpu", Dims{2, 2}, {0, 1, 2, 3}));
    EXPECT_EQ(layouts[1].placement, Placement("cpu", Dims{2, 2}, {4, 5, 6, 7}));
    EXPECT_EQ(layouts[0].rows.str(), "(S(0), B)");
    EXPECT_EQ(layouts[0].tensor_parallel(0).str(), "(B, S(0))");
    EXPECT_EQ(layouts[0].tensor_parallel(1).str(), "(B, S(1))");
  });
}

TEST(Layout, ExpertsHaveAnAxisOfTheirOwn) {
  run_ranks(8, [](int) {
    const Layout l = Layout::over({.dp = 2, .tp = 2, .ep = 2})[0];
    EXPECT_EQ(l.placement.hierarchy(), (Dims{2, 2, 2}));
    EXPECT_EQ(l.rows.str(), "(S(0), S(0), B)");
    EXPECT_EQ(l.expert_tensor_parallel(2).str(), "(B, S(0), S(2))");
    EXPECT_EQ(l.tensor_parallel(0).str(), "(B, B, S(0))");
  });
}

TEST(Layout, PositionsHaveAnAxisOfTheirOwn) {
  run_ranks(8, [](int) {
    const Layout l = Layout::over({.dp = 2, .tp = 2, .cp = 2})[0];
    EXPECT_EQ(l.placement.hierarchy(), (Dims{2, 2, 2}));
    EXPECT_EQ(l.rows.str(), "(S(0), S(1), B)");
    EXPECT_EQ(l.tensor_parallel(0).str(), "(B, B, S(0))");
    EXPECT_EQ(l.with_positions(l.whole, sbp::split(0)).str(), "(B, S(0), B)");
    EXPECT_EQ(l.with_positions(l.rows, sbp::broadcast()).str(), "(S(0), B, B)");
    const Layout all = Layout::over({.tp = 2, .ep = 2, .cp = 2})[0];
    EXPECT_EQ(all.rows.str(), "(S(0), S(0), S(1), B)");
    EXPECT_EQ(all.expert_tensor_parallel(2).str(), "(B, S(0), B, S(2))");
    const Layout none = Layout::over({.dp = 8})[0];
    EXPECT_EQ(none.with_positions(none.rows, sbp::broadcast()), none.rows);
  });
}

TEST(Layout, LayersAreSharedByStages) {
  run_ranks(3, [](int) {
    auto layouts = Layout::over({.pp = 3});
    std::vector<int64_t> stages;
    for (int64_t i = 0; i < 5; ++i) stages.push_back(stage_of(i, 5, layouts));
    EXPECT_EQ(stages, (std::vector<int64_t>{0, 0, 1, 1, 2}));
    EXPECT_TRUE(
        contains(value_error_of([&] { check_stages("X", 2, layouts); }), "2 layers are fewer than the 3 stages"));
  });
}

TEST(Layout, SizesThatDoNotFitAreErrors) {
  run_ranks(2, [](int) {
    EXPECT_TRUE(contains(value_error_of([] { Layout::over({.dp = 2, .tp = 2}); }), "are 4 ranks; 2 are running"));
    EXPECT_TRUE(contains(value_error_of([] { Layout::over({.tp = 0}); }), "tp is 0"));
    EXPECT_TRUE(contains(value_error_of([] { Layout::over({.dp = 2, .cp = 2}); }), "x cp 2 are 4 ranks"));
    EXPECT_TRUE(contains(value_error_of([] { check_stages("X", 1, Layout::over({.cp = 2})); }), "X: cp is 2"));
    check_stages("X", 1, Layout::over({.cp = 2}), true);
  });
}

TEST(Layout, LocalInputsAreWholeOnEachRank) {
  run_ranks(2, [](int) {
    const Layout l = Layout::over({.dp = 2})[0];
    const Tensor x = Tensor::local(Array::empty({3, 4}, int64));
    EXPECT_EQ(by_rows(x, l, 3).shape(), (Dims{3, 4}));
    EXPECT_EQ(by_rows(x, l, 3).nd_sbp(), l.rows);
    const Tensor row = Tensor::local(Array::empty({1, 4}, int64));
    EXPECT_EQ(by_rows(row, l, 3).nd_sbp(), l.whole);
    const Layout c = Layout::over({.cp = 2})[0];
    EXPECT_EQ(by_rows(x, c, 3).nd_sbp().str(), "(S(0), S(1), B)");
    EXPECT_EQ(by_rows(row, c, 3).nd_sbp().str(), "(B, S(1), B)");
  });
}

}  // namespace
}  // namespace holon::models
