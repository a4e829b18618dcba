#include "holon/contract/entry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../error_of.h"
#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/contract/document.h"

namespace holon::contract {
namespace {

class EntryTest : public testing::Test {
 protected:
  Context context_{0, 8, 0, 8};
  ContextGuard guard_{context_};
  const Placement all_{"cpu", {0, 1, 2, 3}};
  const Placement grid_ = Placement::nested("cpu", {{0, 1}, {2, 3}});
  const GlobalSpec* on(const Placement& p, const NdSbp& s) { return intern_spec(p, s); }
};

TEST_F(EntryTest, PlacementsAndLayoutsComeBackFromTheirText) {
  for (const Placement& p : {all_, grid_, Placement("cpu", {5}), Placement("cpu", {0, 2, 3, 4, 7}),
                             Placement("cpu", {3, 2, 1, 0}), Placement("cpu", {2, 1, 2}, {4, 5, 6, 7})})
    EXPECT_TRUE(parse_placement(text_of(p)) == p) << text_of(p);
  EXPECT_EQ(text_of(grid_), "cpu:2x2:0-3");
  for (const NdSbp& s : {NdSbp(sbp::split(3)), NdSbp(sbp::broadcast()), NdSbp(sbp::partial_sum()),
                         NdSbp{sbp::split(0), sbp::broadcast()}, NdSbp{sbp::partial_sum(), sbp::split(11 % 8)}})
    EXPECT_TRUE(parse_nd_sbp(s.str()) == s) << s.str();
}

TEST_F(EntryTest, LinesComeBackWithTheirPlans) {
  const Placement other("cpu", {4, 5, 6, 7});
  std::vector<std::pair<const GlobalSpec*, const GlobalSpec*>> pairs = {
      {on(all_, sbp::split(0)), on(all_, sbp::broadcast())},
      {on(all_, sbp::partial_sum()), on(all_, sbp::broadcast())},
      {on(all_, sbp::broadcast()), on(all_, sbp::split(1))},
      {on(grid_, {sbp::partial_sum(), sbp::split(0)}), on(grid_, {sbp::broadcast(), sbp::broadcast()})},
      {on(grid_, {sbp::split(0), sbp::split(1)}), on(other, sbp::broadcast())},
      {on(all_, sbp::split(0)), on(other, sbp::split(0))},
      {on(grid_, {sbp::partial_sum(), sbp::partial_sum()}), on(grid_, {sbp::split(0), sbp::split(0)})}};
  for (auto [from, to] : pairs)
    for (const Dims& shape : {Dims{8, 12}, Dims{4096, 513}, Dims{3, 5}}) {
      const auto plan = boxing::find_plan(from, to, shape, float32, Machine{});
      Entry e = entry_of("matmul.w (S(0), -, B)", plan);
      e.least = 0, e.most = 12;
      const Entry back = parse_entry(e.str());
      EXPECT_EQ(back.str(), e.str());
      EXPECT_EQ(back.key(), e.key());
      EXPECT_EQ(back.path, e.path);
      // The path alone gives the plan, with the same bytes on every rank.
      const auto again = boxing::plan_along(from, to, shape, float32, back.path, Machine{});
      for (int r = 0; r < 8; ++r) EXPECT_EQ(again.read_bytes(r), plan.read_bytes(r)) << e.str();
      EXPECT_EQ(again.links(), plan.links());
    }
}

TEST_F(EntryTest, APathGoesInThePhasesThatItNames) {
  auto *from = on(all_, sbp::partial_sum()), *to = on(all_, sbp::broadcast());
  for (const Dims& shape : {Dims{5}, Dims{1 << 20}})
    for (bool two_phase : {false, true}) {
      const std::vector<boxing::PathStep> path{{to, two_phase}};
      const auto plan = boxing::plan_along(from, to, shape, float32, path, Machine{});
      EXPECT_EQ(boxing::path_of(plan), path);
      int64_t linked = 0, read = 0;
      for (auto& link : plan.links()) linked += link.bytes;
      for (int r = 0; r < 4; ++r) read += plan.read_bytes(r);
      EXPECT_EQ(linked, read);
      EXPECT_EQ(read, 4 * shape.numel() * (two_phase ? 6 : 12)) << two_phase;
    }
}

TEST_F(EntryTest, TellsWhatAnOpTakes) {
  Entry e;
  e.what = "backward of matmul: mul.y ((S(0), B), -, (B, P))";
  EXPECT_EQ(op_of(e), "backward of matmul: mul");
  const auto targets = targets_of(e);
  ASSERT_EQ(targets.size(), 3u);
  EXPECT_TRUE(targets[0] == NdSbp({sbp::split(0), sbp::broadcast()}));
  EXPECT_FALSE(targets[1]);
  e.what = "to_global";
  EXPECT_EQ(op_of(e), "");
}

TEST_F(EntryTest, WrongLinesSayWhatIsWrong) {
  using testing::HasSubstr;
  auto text = [](const char* line) { return error_of([&] { parse_entry(line); }); };
  EXPECT_THAT(text("  x1  to_global  float32 [4]"), HasSubstr("found 3"));
  EXPECT_THAT(text("  12  to_global  float32 [4]  P -> B cpu:0-3  all_reduce  most 1, all 2 bytes"), HasSubstr("x12"));
  EXPECT_THAT(text("  x1  to_global  float31 [4]  P -> B cpu:0-3  all_reduce  most 1, all 2 bytes"),
              HasSubstr("\"float31\" is not a dtype"));
  EXPECT_THAT(text("  x1  to_global  float32 [4]  P -> Q cpu:0-3  all_reduce  most 1, all 2 bytes"),
              HasSubstr("\"Q\" is not an sbp"));
  EXPECT_THAT(text("  x1  to_global  float32 [4]  P -> B cpu:0-9  all_reduce  most 1, all 2 bytes"), HasSubstr("rank"));
  EXPECT_THAT(text("  x1  to_global  float32 [4]  P -> B cpu:0-3  all_reduce  1 bytes"), HasSubstr("bytes such as"));
}

TEST_F(EntryTest, ADocumentComesBackFromItsText) {
  Document d;
  d.ranks = 8;
  d.machine = text_of(MachineCosts{});
  Section s{Section::Kind::kStep, "train.py  main  optimizer.step()", 3, {}};
  Entry e =
      entry_of("to_global",
               boxing::find_plan(on(all_, sbp::split(0)), on(all_, sbp::broadcast()), {4, 8}, float32, Machine{}));
  e.least = e.most = 1;
  s.add({"model.py", "Block.forward", "y = self.fc(x) # twice", 31, ""}, e);
  s.add({"model.py", "Block.forward", "y = self.fc(x) # twice", 31, ""}, e);
  d.sections.push_back(s);
  const Document back = parse_document(d.str(), "f");
  EXPECT_EQ(back.str(), d.str());
  EXPECT_EQ(back.sections.at(0).lines.at(0).entries.at(0).most, 2);
  EXPECT_EQ(back.sections.at(0).lines.at(0).site.line, 31);
  EXPECT_THAT(error_of([&] { parse_document(d.str() + "  x1  nonsense\n", "train.contract"); }),
              testing::HasSubstr("contract train.contract, line"));
  EXPECT_THAT(error_of([] { parse_document("", "f"); }), testing::HasSubstr("line 1: a contract begins"));
}

}  // namespace
}  // namespace holon::contract
