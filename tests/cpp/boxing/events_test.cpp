#include "holon/boxing/events.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "holon/base/context.h"
#include "holon/base/error.h"

namespace holon::boxing {
namespace {

class EventsTest : public testing::Test {
 protected:
  BoxingEvent event(Sbp from, Sbp to) {
    Placement p("cpu", {0, 1});
    return implicit_event("add", intern_spec(p, from), intern_spec(p, to), {5, 3}, float32);
  }
  Context context_{0, 2, 0, 2};
  ContextGuard guard_{context_};
};

TEST_F(EventsTest, AreCountedPerRank) {
  record_implicit(event(sbp::split(0), sbp::broadcast()));
  record_implicit(event(sbp::broadcast(), sbp::split(0)));
  EXPECT_EQ(boxing_counters().events, 2);
  EXPECT_EQ(boxing_counters().moves, 1);
  EXPECT_EQ(boxing_counters().bytes, 2 * 3 * 4);
  {
    Context other(1, 2, 1, 2);
    ContextGuard guard(other);
    EXPECT_EQ(boxing_counters().events, 0);
    record_implicit(event(sbp::split(0), sbp::broadcast()));
    EXPECT_EQ(boxing_counters().bytes, 3 * 3 * 4);
  }
  EXPECT_EQ(boxing_counters().events, 2);
  auto recent = recent_events();
  ASSERT_EQ(recent.size(), 2u);
  EXPECT_EQ(recent[0].bytes, 24);
  EXPECT_EQ(recent[0].max_bytes, 36);
  EXPECT_EQ(recent[1].max_bytes, 0);
  reset_boxing_counters();
  EXPECT_EQ(boxing_counters().events, 0);
  EXPECT_TRUE(recent_events().empty());
}

TEST_F(EventsTest, OnlyTheLastAreKept) {
  for (int i = 0; i < 100; ++i) {
    auto e = event(sbp::split(0), sbp::broadcast());
    e.bytes = i;
    record_implicit(e);
  }
  auto recent = recent_events();
  ASSERT_EQ(recent.size(), 64u);
  EXPECT_EQ(recent.front().bytes, 36);
  EXPECT_EQ(recent.back().bytes, 99);
  EXPECT_EQ(boxing_counters().events, 100);
}

TEST_F(EventsTest, RaisesWhereTheScopeSaysSo) {
  EXPECT_EQ(boxing_policy(), Policy::kSilent);
  {
    BoxingPolicyGuard guard("raise");
    EXPECT_NO_THROW(record_implicit(event(sbp::broadcast(), sbp::split(0))));
    try {
      record_implicit(event(sbp::split(0), sbp::broadcast()));
      FAIL();
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kRuntime);
      EXPECT_THAT(e.what(),
                  testing::HasSubstr("add: S(0) -> B on placement(type=\"cpu\", ranks=[0, 1]), float32 [5, 3], 24 "
                                     "bytes read by rank 0 of 2"));
      EXPECT_THAT(e.what(), testing::HasSubstr("to_global"));
    }
    EXPECT_EQ(boxing_counters().events, 1);
  }
  EXPECT_EQ(boxing_policy(), Policy::kSilent);
  EXPECT_NO_THROW(record_implicit(event(sbp::split(0), sbp::broadcast())));
}

TEST_F(EventsTest, WarnsWhereTheScopeSaysSo) {
  BoxingPolicyGuard guard(Policy::kWarn);
  testing::internal::CaptureStderr();
  record_implicit(event(sbp::broadcast(), sbp::split(0)));
  record_implicit(event(sbp::split(0), sbp::broadcast()));
  std::string text = testing::internal::GetCapturedStderr();
  EXPECT_THAT(text, testing::HasSubstr("implicit boxing: add: S(0) -> B"));
  EXPECT_THAT(text, testing::Not(testing::HasSubstr("B -> S(0)")));
}

TEST_F(EventsTest, PoliciesHaveNames) {
  EXPECT_EQ(parse_policy("warn"), Policy::kWarn);
  EXPECT_EQ(parse_policy("raise"), Policy::kRaise);
  EXPECT_THROW(parse_policy("loud"), Error);
  EXPECT_THROW(BoxingPolicyGuard("loud"), Error);
  EXPECT_THROW(ParameterPolicyGuard("loud"), Error);
  EXPECT_EQ(boxing_policy(), Policy::kSilent);
}

}  // namespace
}  // namespace holon::boxing
