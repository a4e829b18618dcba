// Derived signatures: each is right (the kernel on the parts gives the parts of the result, with no boxing), and none
// that needs no communication is missing.
#include "holon/dispatch/signature.h"

#include <gtest/gtest.h>

#include <map>

#include "cases.h"
#include "holon/conformance/rules.h"

namespace holon::testing {
namespace {

TEST(Signatures, AreRight) {
  int checked = 0;
  for (auto& c : cases())
    for (auto& wrong : wrong_signatures(c, &checked)) ADD_FAILURE() << c.name() << ": " << wrong;
  EXPECT_GT(checked, 1000);
}

// Through dispatch: inputs that lie as a signature wants them are not moved, and the outputs lie as it says.
TEST(Signatures, RunWithoutBoxing) {
  for (auto& c : cases())
    for (auto& wrong : redistributing_signatures(c)) ADD_FAILURE() << c.name() << ": " << wrong;
}

struct Known {
  const char* op;
  const char* reason;
};
// Signatures that would be right, and are left out on purpose.
const std::vector<Known> kLeftOut{
    {"fill", "it keeps the sbp of what it writes into"},
    {"zero", "likewise"},
    {"replace_nonfinite", "of finite addends only"},
    {"xlogy", "0 log 0 is 0 for a whole 0, not for addends"},
    {"xlogy_scalar", "likewise"},
    {"cross_entropy_joined", "its logits are there for the gradient only, and could lie in any way"},
};

TEST(Signatures, AreComplete) {
  std::map<std::string, std::string> missing;
  for (auto& c : cases())
    for (auto& s : missing_signatures(c)) missing[c.op] += "\n    " + c.name() + ": " + s;
  for (auto& known : kLeftOut) {
    EXPECT_EQ(missing.count(known.op), 1u) << known.op << " misses nothing: take it from the list";
    missing.erase(known.op);
  }
  std::string text;
  for (auto& [op, list] : missing) text += "\n  " + op + list;
  EXPECT_EQ(text, "") << "signatures that need no communication and that the rules lack";
}

}  // namespace
}  // namespace holon::testing
