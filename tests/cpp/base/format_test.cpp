#include "holon/base/format.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "holon/base/error.h"
#include "holon/base/fmt.h"

namespace holon {
namespace {

struct Point {
  int x, y;
  std::string str() const { return formatted("({}, {})", x, y); }
};

TEST(Format, EachKindOfArgument) {
  EXPECT_EQ(formatted("no arguments"), "no arguments");
  EXPECT_EQ(formatted("{} {} {}", int8_t{-1}, short{-2}, std::numeric_limits<int64_t>::min()),
            "-1 -2 -9223372036854775808");
  EXPECT_EQ(formatted("{} {}", uint8_t{200}, std::numeric_limits<uint64_t>::max()), "200 18446744073709551615");
  EXPECT_EQ(formatted("{} {} {}", 0.1f, 0.1, 1.0), "0.1 0.1 1");
  EXPECT_EQ(formatted("{} {} {}", true, false, 'c'), "true false c");
  const std::string text = "text";
  const char* pointer = "pointer";
  EXPECT_EQ(formatted("{} {} {} {}", text, pointer, "literal", std::string_view(text).substr(0, 2)),
            "text pointer literal te");
  EXPECT_EQ(formatted("{}", static_cast<const void*>(nullptr)), "0x0");
  EXPECT_EQ(formatted("{} to {}", Point{1, 2}, Point{3, 4}), "(1, 2) to (3, 4)");
}

TEST(Format, FieldsAndBraces) {
  EXPECT_EQ(formatted("{{{}}} }} {{", 7), "{7} } {");
  EXPECT_EQ(formatted("{:#04x} {:03} {:>4}|{:<4}|{:*^5}", uint8_t{10}, 7, 1, 2, 3), "0x0a 007    1|2   |**3**");
  EXPECT_EQ(formatted("{1} {0} {1:>2}", 1, 2), "2 1  2");
  EXPECT_EQ(formatted("{:.1f} {:+.3g} {:e}", 2.25, 1234.5, 1.0), "2.2 +1.23e+03 1.000000e+00");
  EXPECT_EQ(formatted("{:>5}|{:.2}|{:s}", "ab", "abc", std::string("s")), "   ab|ab|s");
}

// What messages say is what fmt makes of the same arguments.
TEST(Format, AsFmt) {
  for (double v : {0.0, -0.0, 1e-300, 1e300, 123456789.125, std::numeric_limits<double>::infinity()}) {
    EXPECT_EQ(formatted("{} {:g} {:.17g}", v, v, v), fmt::format("{} {:g} {:.17g}", v, v, v));
    const auto f = static_cast<float>(v);
    EXPECT_EQ(formatted("{} {:.9g}", f, f), fmt::format("{} {:.9g}", f, f));
  }
  EXPECT_EQ(fmt::format("{:>8}", Point{1, 2}), "  (1, 2)");
}

TEST(Format, Errors) {
  try {
    fail_value("{}: {} of {}", "here", 1, Point{1, 2});
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kValue);
    EXPECT_STREQ(e.what(), "here: 1 of (1, 2)");
  }
  const int line = __LINE__ + 2;
  try {
    HOLON_CHECK(1 > 2, "it is {}", "not");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kInternal);
    EXPECT_EQ(e.what(),
              fmt::format("internal error: it is not ({}:{}: 1 > 2). Please report it with the program.", __FILE__,
                          line));
  }
}

}  // namespace
}  // namespace holon
