#include "holon/dispatch/layout_free.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/dispatch/deterministic.h"
#include "holon/dispatch/signature.h"

namespace holon {
namespace {

std::vector<Signature> signatures(const char* name, std::vector<Meta> in, const Meta& out) {
  const OpDef& op = find_op(name);
  return signatures_of(op, op.schema.defaults, in, {&out, 1});
}

// Of ranks that get partial sums by splitting axis `axis` of input 0; 1: none do.
int64_t parts(const std::vector<Signature>& all, int axis) {
  for (auto& s : all)
    if (s.in[0].is_split(axis) && s.out[0].is_partial()) return s.even_units;
  return 1;
}

bool lets_partial_sums_through(const std::vector<Signature>& all) {
  return std::any_of(all.begin(), all.end(), [](auto& s) {
    return std::any_of(s.in.begin(), s.in.end(), [](Sbp sbp) { return sbp.is_partial(); });
  });
}

TEST(LayoutFree, TheGuardSetsTheModeForItsScope) {
  EXPECT_FALSE(layout_free());
  {
    DeterministicGuard guard({.layout_free = true});
    EXPECT_TRUE(layout_free());
    {
      DeterministicGuard inner({});
      EXPECT_FALSE(layout_free());
    }
    EXPECT_TRUE(layout_free());
  }
  EXPECT_FALSE(layout_free());
  deterministic({.layout_free = true});
  EXPECT_TRUE(layout_free());
  deterministic({});
  EXPECT_FALSE(layout_free());
}

TEST(LayoutFree, ContractionsSplitIntoSubtrees) {
  DeterministicGuard guard({.layout_free = true});
  auto of = [](int64_t k) { return parts(signatures("matmul", {{{4, k}}, {{k, 5}}}, {{4, 5}}), 1); };
  EXPECT_EQ(of(64), 8);
  EXPECT_EQ(of(96), 16);
  EXPECT_EQ(of(8), 1);    // a leaf
  EXPECT_EQ(of(63), 1);   // odd
  EXPECT_EQ(of(252), 4);  // 4 * 63
  // Of sums each term is a subtree.
  EXPECT_EQ(parts(signatures("sum", {{{8, 3}}}, {{}}), 0), 8);
  // Only the outermost axis of what is added up: the parts of others are not adjacent.
  EXPECT_EQ(parts(signatures("sum", {{{8, 16}}}, {{}}), 1), 1);
}

TEST(LayoutFree, PartialSumsPassThroughMovesOnly) {
  DeterministicGuard guard({.layout_free = true});
  EXPECT_FALSE(lets_partial_sums_through(signatures("add", {{{4}}, {{4}}}, {{4}})));
  EXPECT_FALSE(lets_partial_sums_through(signatures("matmul", {{{4, 4}}, {{4, 4}}}, {{4, 4}})));
  EXPECT_TRUE(lets_partial_sums_through(signatures("clone", {{{4}}}, {{4}})));
}

TEST(LayoutFree, ABiasIsNotAddedToAPartialSum) {
  DeterministicGuard guard({.layout_free = true});
  EXPECT_EQ(parts(signatures("linear", {{{4, 64}}, {{5, 64}}, {}}, {{4, 5}}), 1), 8);
  EXPECT_EQ(parts(signatures("linear", {{{4, 64}}, {{5, 64}}, {{5}}}, {{4, 5}}), 1), 1);
}

TEST(LayoutFree, SumsOfTwoByteDtypesAreRefused) {
  DeterministicGuard guard({.layout_free = true});
  try {
    signatures("matmul", {{{4, 8}, bfloat16}, {{8, 5}, bfloat16}}, {{4, 5}, bfloat16});
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kType);
    EXPECT_NE(std::string(e.what()).find("matmul of bfloat16"), std::string::npos) << e.what();
  }
}

TEST(LayoutFree, TermsAreThoseOfTheContractedAxes) {
  const OpDef& op = find_op("linear_weight_grad");
  const std::array<Meta, 2> in{Meta{{6, 7, 4}}, Meta{{6, 7, 5}}};
  const Meta out{{4, 5}};
  EXPECT_EQ(terms_of_sums(op, op.schema.defaults, in, {&out, 1}), 42);
  const OpDef& none = find_op("tanh");
  const Meta same{{4, 5}};
  EXPECT_EQ(terms_of_sums(none, none.schema.defaults, {&same, 1}, {&same, 1}), 0);
}

}  // namespace
}  // namespace holon
