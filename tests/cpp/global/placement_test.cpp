#include "holon/global/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <thread>

#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/global/spec.h"

namespace holon {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class PlacementTest : public testing::Test {
 protected:
  static std::string error_of(auto make) {
    try {
      make();
    } catch (const Error& e) {
      return e.what();
    }
    return "no error";
  }
  Context context_{0, 4, 0, 4};
  ContextGuard guard_{context_};
};

TEST_F(PlacementTest, EqualOnesAreOneObject) {
  Placement a("cpu", {0, 1}), b("cpu", {0, 1});
  EXPECT_EQ(a, b);
  EXPECT_EQ(a.id(), b.id());
  EXPECT_NE(a, Placement("cpu", {1, 0}));
  EXPECT_NE(a, Placement("cpu", {0, 1, 2}));
  EXPECT_NE(a, Placement("cpu", Dims{2, 1}, {0, 1}));
  EXPECT_NE(Placement("cpu", Dims{1, 2}, {0, 1}), Placement("cpu", Dims{2, 1}, {0, 1}));
  EXPECT_FALSE(Placement());
  EXPECT_TRUE(a);
}

TEST_F(PlacementTest, InterningHoldsAcrossThreads) {
  std::vector<const void*> ids(8);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < ids.size(); ++i)
    threads.emplace_back([&, i] {
      ContextGuard guard(context_);
      for (int n = 0; n < 100; ++n) {
        NdSbp s{sbp::split(n % 5), sbp::broadcast()};
        ids[i] = intern_spec(Placement::nested("cpu", {{3, 1}, {0, 2}}), s);
      }
    });
  for (auto& t : threads) t.join();
  for (auto* id : ids) EXPECT_EQ(id, ids[0]);
}

TEST_F(PlacementTest, OrderIsKept) {
  Placement p("cpu", {2, 0, 3});
  EXPECT_THAT(p.ranks(), ElementsAre(2, 0, 3));
  EXPECT_EQ(p.index_of(2), 0);
  EXPECT_EQ(p.index_of(3), 2);
  EXPECT_EQ(p.index_of(1), -1);
  EXPECT_EQ(p.index_of(-1), -1);
  EXPECT_EQ(p.index_of(100), -1);
  EXPECT_TRUE(p.contains(0));
  EXPECT_FALSE(p.contains(1));
  EXPECT_EQ(p.str(), "placement(type=\"cpu\", ranks=[2, 0, 3])");
}

TEST_F(PlacementTest, GridsHaveCoordinatesAndGroups) {
  auto p = Placement::nested("cpu", {{0, 2}, {1, 3}});
  EXPECT_EQ(p.hierarchy(), (Dims{2, 2}));
  EXPECT_EQ(p.size(), 4);
  EXPECT_EQ(p.coordinate(2), (Dims{1, 0}));
  EXPECT_THAT(p.group(0, 0), ElementsAre(0, 1));
  EXPECT_THAT(p.group(3, 0), ElementsAre(2, 3));
  EXPECT_THAT(p.group(3, 1), ElementsAre(1, 3));
  EXPECT_EQ(p.str(), "placement(type=\"cpu\", ranks=[[0, 2], [1, 3]])");
  EXPECT_EQ(Placement::nested("cpu", {{0}, {1}}).str(), "placement(type=\"cpu\", ranks=[[0], [1]])");
}

TEST_F(PlacementTest, GroupsOfThreeAxes) {
  Context eight(0, 8, 0, 8);
  ContextGuard guard(eight);
  Placement p("cpu", Dims{2, 2, 2}, {0, 1, 2, 3, 4, 5, 6, 7});
  EXPECT_THAT(p.group(5, 0), ElementsAre(1, 5));
  EXPECT_THAT(p.group(5, 1), ElementsAre(5, 7));
  EXPECT_THAT(p.group(5, 2), ElementsAre(4, 5));
  EXPECT_EQ(p.coordinate(5), (Dims{1, 0, 1}));
}

TEST_F(PlacementTest, AllIsTheWorld) {
  EXPECT_THAT(Placement::all("cpu").ranks(), ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(Placement::all("cpu"), Placement("cpu", {0, 1, 2, 3}));
}

TEST_F(PlacementTest, ErrorsSayWhatToDo) {
  EXPECT_THAT(error_of([] { Placement("cpu", {5}); }),
              HasSubstr("rank 5 is not in the world of 4 ranks: start more ranks"));
  EXPECT_THAT(error_of([] { Placement("cpu", {int64_t{1} << 40}); }), HasSubstr("is not in the world of 4 ranks"));
  EXPECT_THAT(error_of([] { Placement("cpu", {0, 1, 0}); }), HasSubstr("rank 0 is given twice"));
  EXPECT_THAT(error_of([] { Placement("cpu", {-1}); }), HasSubstr("rank -1 is negative"));
  EXPECT_THAT(error_of([] { Placement("cpu", {0, -1}); }), HasSubstr("rank -1 is negative"));
  EXPECT_THAT(error_of([] { Placement("cpu", std::vector<int64_t>{}); }), HasSubstr("empty"));
  EXPECT_THAT(error_of([] {
                Placement("cpu", Dims{2, 2}, {0, 1, 2});
              }),
              HasSubstr("3 ranks do not fill a grid of [2, 2]"));
  EXPECT_THAT(error_of([] { Placement("cpu", Dims{}, {0}); }), HasSubstr("do not fill a grid"));
  EXPECT_THAT(error_of([] { Placement::nested("cpu", {{0, 1}, {2}}); }), HasSubstr("rows have 2 and 1 ranks"));
  EXPECT_THAT(error_of([] { Placement("tpu", {0}); }), HasSubstr("Expected one of cpu, cuda device type"));
}

TEST_F(PlacementTest, CudaIsSimulatedOrRefused) {
  unsetenv("HOLON_SIMULATE");
  EXPECT_THAT(error_of([] { Placement("cuda", {0}); }), HasSubstr("HOLON_SIMULATE=cuda"));
  setenv("HOLON_SIMULATE", "cuda", 1);
  Placement p("gpu", {0, 1});
  unsetenv("HOLON_SIMULATE");
  EXPECT_TRUE(p.simulated());
  EXPECT_EQ(p.device_type(), parse_device_type("cuda"));
  EXPECT_NE(p, Placement("cpu", {0, 1}));
  EXPECT_TRUE(p.device().simulated);
  EXPECT_EQ(p.str(), "placement(type=\"cuda\", ranks=[0, 1])");
}

TEST_F(PlacementTest, SpecsAreInterned) {
  Placement p("cpu", {0, 1}), q("cpu", {1, 0});
  auto* a = intern_spec(p, sbp::split(0));
  EXPECT_EQ(a, intern_spec(Placement("cpu", {0, 1}), NdSbp{sbp::split(0)}));
  EXPECT_NE(a, intern_spec(q, sbp::split(0)));
  EXPECT_NE(a, intern_spec(p, sbp::broadcast()));
  EXPECT_EQ(a->str(), "S(0) on placement(type=\"cpu\", ranks=[0, 1])");
  // More of them than any small cache holds keep their identity.
  std::vector<const GlobalSpec*> many;
  for (int round = 0; round < 2; ++round)
    for (int i = 0; i < 500; ++i) {
      auto* s =
          intern_spec(i % 2 ? p : q, NdSbp{sbp::split(i / 2 % 128), i < 256 ? sbp::broadcast() : sbp::partial_sum()});
      if (round == 0)
        many.push_back(s);
      else
        EXPECT_EQ(s, many[static_cast<size_t>(i)]);
    }
}

}  // namespace
}  // namespace holon
