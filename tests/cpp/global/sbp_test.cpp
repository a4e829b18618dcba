#include "holon/global/sbp.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "holon/base/error.h"
#include "holon/global/nd_sbp.h"

namespace holon {
namespace {

TEST(Sbp, PrintsAndCompares) {
  EXPECT_EQ(sbp::split(1).str(), "S(1)");
  EXPECT_EQ(sbp::broadcast().str(), "B");
  EXPECT_EQ(sbp::partial_sum().str(), "P");
  EXPECT_EQ(sbp::split(1).long_str(), "split(dim=1)");
  EXPECT_EQ(sbp::broadcast().long_str(), "broadcast");
  EXPECT_EQ(sbp::partial_sum().long_str(), "partial_sum");
  EXPECT_EQ(sbp::split(2), sbp::split(2));
  EXPECT_FALSE(sbp::split(2) == sbp::split(1));
  EXPECT_FALSE(sbp::split(0) == sbp::broadcast());
  EXPECT_FALSE(sbp::partial_sum() == sbp::broadcast());
}

TEST(Sbp, ANegativeAxisIsRefused) {
  try {
    sbp::split(-1);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kRuntime);
    EXPECT_THAT(e.what(), testing::HasSubstr("Split axis must not be negative, but got -1!"));
  }
  EXPECT_THROW(sbp::split(1000), Error);
}

TEST(NdSbp, EqualListsAreOneObject) {
  NdSbp a{sbp::split(0), sbp::broadcast()}, b(std::vector<Sbp>{sbp::split(0), sbp::broadcast()});
  EXPECT_EQ(a, b);
  EXPECT_EQ(a.id(), b.id());
  EXPECT_FALSE((a == NdSbp{sbp::broadcast(), sbp::split(0)}));
  EXPECT_FALSE(a == NdSbp(sbp::split(0)));
  EXPECT_FALSE((NdSbp{sbp::split(0), sbp::split(1)} == NdSbp{sbp::split(1), sbp::split(0)}));
  EXPECT_EQ(NdSbp(sbp::partial_sum()), NdSbp{sbp::partial_sum()});
  EXPECT_EQ(NdSbp::filled(2, sbp::broadcast()), (NdSbp{sbp::broadcast(), sbp::broadcast()}));
  EXPECT_EQ(a.with(1, sbp::partial_sum()), (NdSbp{sbp::split(0), sbp::partial_sum()}));
}

TEST(NdSbp, KnowsWhatIsInIt) {
  NdSbp a{sbp::split(0), sbp::partial_sum()};
  EXPECT_EQ(a.size(), 2);
  EXPECT_TRUE(a[1].is_partial());
  EXPECT_TRUE(a.has_partial());
  EXPECT_FALSE(a.is_broadcast());
  EXPECT_TRUE(NdSbp::filled(3, sbp::broadcast()).is_broadcast());
  EXPECT_EQ(a.str(), "(S(0), P)");
  EXPECT_EQ(NdSbp(sbp::split(3)).str(), "S(3)");
  int n = 0;
  for (Sbp s : a) n += s.is_split() ? 1 : 10;
  EXPECT_EQ(n, 11);
}

TEST(NdSbp, NullAndEmpty) {
  NdSbp none;
  EXPECT_FALSE(none);
  EXPECT_EQ(none.size(), 0);
  EXPECT_EQ(none.begin(), none.end());
  EXPECT_FALSE(none.has_partial());
  EXPECT_THROW(NdSbp(std::vector<Sbp>{}), Error);
  EXPECT_THROW(NdSbp(std::vector<Sbp>(9)), Error);
}

}  // namespace
}  // namespace holon
