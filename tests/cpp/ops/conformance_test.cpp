// Every sample on every layout: values and gradients of the global call equal the local ones.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>

#include "cases.h"
#include "holon/base/error.h"
#include "holon/conformance/layouts.h"

namespace holon::conformance {
void PrintTo(const World& w, std::ostream* out) { *out << w.name; }
}  // namespace holon::conformance

namespace holon::testing {
namespace {

// The cases that run: all, or what HOLON_TEST_CASES says: "2/7", each seventh beginning with number 2, or a part of
// their names.
std::vector<const Case*> chosen_cases() {
  const char* wanted = std::getenv("HOLON_TEST_CASES");
  if (wanted && !*wanted) wanted = nullptr;
  size_t first = 0, step = 1;
  const bool numbers = wanted && std::sscanf(wanted, "%zu/%zu", &first, &step) == 2;
  if (numbers && (step == 0 || first >= step))
    fail_value("HOLON_TEST_CASES={}: the first number is less than the second.", wanted);
  std::vector<const Case*> chosen;
  for (size_t i = 0; i < cases().size(); ++i) {
    const Case& c = cases()[i];
    if (!wanted || (numbers ? i % step == first : c.name().find(wanted) != std::string::npos)) chosen.push_back(&c);
  }
  if (chosen.empty()) fail_value("HOLON_TEST_CASES={}: no case has such a name.", wanted);
  return chosen;
}

class Conformance : public ::testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(Worlds, Conformance, ::testing::ValuesIn(worlds()), [](auto& info) {
  std::string s = info.param.name;
  std::replace(s.begin(), s.end(), ' ', '_');
  return s;
});

TEST_P(Conformance, GlobalEqualsLocal) {
  for (const Case* chosen : chosen_cases()) {
    const Subject subject(*chosen);
    SCOPED_TRACE(subject.name);
    if (std::getenv("HOLON_TEST_VERBOSE"))
      std::fprintf(stderr, "%s\n", subject.name.c_str());  // a crash leaves the last one
    try {
      for (auto& wrong : differing_layouts(subject, GetParam(), test_device()))
        ADD_FAILURE() << subject.name << " of " << wrong;
    } catch (const Error& e) {
      ADD_FAILURE() << subject.name << " by itself: " << e.what();
    }
  }
}

TEST(Cases, EveryOpHasOne) {
  std::map<std::string, int> seen;
  for (auto& c : cases()) ++seen[c.op];
  if (std::getenv("HOLON_TEST_LIST"))  // for ./dev op
    for (auto& [op, n] : seen) std::printf("cases of %s: %d\n", op.c_str(), n);
  for (auto& e : exempt_ops()) {
    EXPECT_TRUE(try_find_op(e.op)) << e.op;
    EXPECT_EQ(seen.count(e.op), 0u) << e.op << " has cases and is exempt";
    ++seen[e.op];
  }
  std::string missing;
  for (auto* op : all_ops())
    if (!seen.count(op->name())) missing += std::string(" ") + op->name();
  EXPECT_EQ(missing, "") << "ops without a case in cases.cpp";
}

}  // namespace
}  // namespace holon::testing
