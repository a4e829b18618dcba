// The sbp that results have by contract on two ranks, and what calls that cannot be meant say.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cases.h"
#include "holon/comm/run_ranks.h"
#include "holon/dispatch/dispatch.h"
#include "holon/ops/activation.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/cast.h"
#include "holon/ops/class_loss.h"
#include "holon/ops/create.h"
#include "holon/ops/index.h"
#include "holon/ops/matmul.h"
#include "holon/ops/norm.h"
#include "holon/ops/random.h"
#include "holon/ops/reduce.h"
#include "holon/ops/shape.h"
#include "holon/ops/sort.h"
#include "holon/ops/to_global.h"
#include "holon/ops/unary.h"

namespace holon::testing {
namespace {

using ::testing::HasSubstr;

Sbp sbp_of(const char* text) {
  if (text[0] == 'B') return sbp::broadcast();
  if (text[0] == 'P') return sbp::partial_sum();
  return sbp::split(text[1] - '0');
}

Tensor filled(const Dims& shape, const NdSbp& s) {
  Placement p = Placement::all("cpu");
  return to_global(randn(shape, {.placement = p, .sbp = NdSbp(sbp::broadcast())}), p, s);
}

struct Row {
  const char *x, *w, *y;
};

TEST(SbpInference, Matmul) {
  comm::run_ranks(2, [](int) {
    for (Row r : std::vector<Row>{{"S0", "B", "S0"},
                                  {"B", "S1", "S1"},
                                  {"S1", "S0", "P"},
                                  {"B", "B", "B"},
                                  {"P", "B", "P"},
                                  {"B", "P", "P"},
                                  {"S0", "S1", "S1"},
                                  {"S0", "S0", "P"},
                                  {"S1", "S1", "S1"}}) {
      Tensor x = filled({4, 5}, sbp_of(r.x)), w = filled({5, 8}, sbp_of(r.w));
      Tensor y = matmul(x, w);
      // For the last three an operand must move: which one is by cost, and not part of the contract.
      bool moves = r.x[0] == 'S' && r.w[0] == 'S' && !(r.x[1] == '1' && r.w[1] == '0');
      if (!moves) {
        EXPECT_EQ(y.nd_sbp()[0], sbp_of(r.y)) << r.x << " x " << r.w << " gives " << y.nd_sbp().str();
      }
      EXPECT_EQ(differs(values_of(y.full().array()), values_of(matmul(x.full(), w.full()).array()), 1e-5), "");
    }
  });
}

TEST(SbpInference, MatmulOnTwoAxes) {
  comm::run_ranks(4, [](int) {
    Placement p("cpu", {2, 2}, {0, 1, 2, 3});
    Sbp s0 = sbp::split(0), s1 = sbp::split(1), b = sbp::broadcast(), partial = sbp::partial_sum();
    Tensor x = randn({4, 5}, {.placement = p, .sbp = {s0, b}}), w = randn({5, 8}, {.placement = p, .sbp = {b, s1}});
    EXPECT_EQ(matmul(x, w).nd_sbp(), NdSbp({s0, s1}));
    EXPECT_EQ(matmul(to_global(x, p, {s0, s1}), to_global(w, p, {b, s0})).nd_sbp(), NdSbp({s0, partial}));
  });
}

TEST(SbpInference, Linear) {
  comm::run_ranks(2, [](int) {
    Tensor b = filled({8}, sbp::broadcast());
    auto run = [&](const char* x, const char* w, const char* bias) {
      return linear(filled({4, 5}, sbp_of(x)), filled({8, 5}, sbp_of(w)), filled({8}, sbp_of(bias))).nd_sbp()[0].str();
    };
    EXPECT_EQ(run("S0", "B", "B"), "S(0)");
    EXPECT_EQ(run("B", "S0", "S0"), "S(1)");
    EXPECT_EQ(run("S1", "S1", "B"), "P");
    EXPECT_EQ(run("B", "B", "B"), "B");
    EXPECT_EQ(run("P", "B", "B"), "P");
  });
}

TEST(SbpInference, ElementWise) {
  comm::run_ranks(2, [](int) {
    auto x = [](const char* s) { return filled({4, 6}, sbp_of(s)); };
    auto got = [](const Tensor& t) { return t.nd_sbp()[0].str(); };
    for (const char* s : {"S0", "S1", "B"}) {
      EXPECT_EQ(got(relu(x(s))), sbp_of(s).str());
      EXPECT_EQ(got(x(s) + 1.0), sbp_of(s).str());
      EXPECT_EQ(got(x(s) * x(s)), sbp_of(s).str());
      EXPECT_EQ(got(softmax(x(s), 0)), s[1] == '0' ? "S(1)" : sbp_of(s).str());
    }
    // Linear ones keep a partial sum, the others add it up into pieces.
    EXPECT_EQ(got(x("P") * 2.0), "P");
    EXPECT_EQ(got(x("P") + x("P")), "P");
    EXPECT_EQ(got(cast(x("P"), float64)), "P");
    EXPECT_EQ(got(reshape(x("P"), {3, 8})), "P");
    EXPECT_EQ(got(transpose(x("P"), 0, 1)), "P");
    EXPECT_EQ(got(cat({x("P"), x("P")})), "P");
    EXPECT_EQ(got(slice(x("P"), 0, 1, 3)), "P");
    EXPECT_EQ(got(clone(x("P"))), "P");
    for (const Tensor& t : {relu(x("P")), exp(x("P")), x("P") + 1.0, softmax(x("P"), -1), argmax(x("P"), -1)})
      EXPECT_EQ(got(t), "S(0)");
    EXPECT_EQ(got(x("S0") + x("P")), "S(0)");
    EXPECT_EQ(got(x("S1") * filled({4, 1}, sbp::broadcast())), "S(1)");
  });
}

TEST(SbpInference, Reductions) {
  comm::run_ranks(2, [](int) {
    auto got = [](const Tensor& t) { return t.nd_sbp()[0].str(); };
    Tensor s0 = filled({4, 6}, sbp::split(0)), s1 = filled({4, 6}, sbp::split(1)), b = filled({4, 6}, sbp::broadcast()),
           p = filled({4, 6}, sbp::partial_sum());
    for (auto reduce : {+[](const Tensor&t, const std::optional<Dims>&d) { return sum(t, d); },
                        +[](const Tensor&t, const std::optional<Dims>&d) { return mean(t, d); }}) {
      EXPECT_EQ(got(reduce(s0, {})), "P");
      EXPECT_EQ(got(reduce(s0, Dims{0})), "P");
      EXPECT_EQ(got(reduce(s0, Dims{1})), "S(0)");
      EXPECT_EQ(got(reduce(s1, Dims{0})), "S(0)");
      EXPECT_EQ(got(reduce(b, {})), "B");
      EXPECT_EQ(got(reduce(p, Dims{0})), "P");
    }
    EXPECT_EQ(got(amax(s0)), "B");
    EXPECT_EQ(got(amin(s0)), "B");
    EXPECT_EQ(got(amax(s0, Dims{1})), "S(0)");
    // A table that is split by rows gives partial sums, by columns pieces, whole the indices' pieces.
    Tensor index = randint(0, 4, {6}, {.placement = Placement::all("cpu"), .sbp = NdSbp(sbp::broadcast())});
    EXPECT_EQ(got(embedding(s0, index)), "P");
    EXPECT_EQ(got(embedding(s1, index)), "S(1)");
    EXPECT_EQ(got(embedding(b, to_global(index, index.placement(), NdSbp(sbp::split(0))))), "S(0)");
    Tensor target = randint(0, 6, {4}, {.placement = Placement::all("cpu"), .sbp = NdSbp(sbp::split(0))});
    EXPECT_EQ(got(cross_entropy(s0, target)), "P");
    EXPECT_EQ(got(cross_entropy(s0, target, {}, {.reduction = "none"})), "S(0)");
  });
}

template <class F>
void expect_error(F f, std::initializer_list<const char*> words, ErrorKind kind = ErrorKind::kRuntime) {
  try {
    f();
    ADD_FAILURE() << "no error; expected one with " << *words.begin();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), kind) << e.what();
    for (auto* w : words) EXPECT_THAT(e.what(), HasSubstr(w));
  }
}

TEST(Errors, OfLayouts) {
  comm::run_ranks(3, [](int) {
    Placement two("cpu", {0, 1}), three("cpu", {0, 1, 2});
    Tensor local = ones({4, 5}), a = ones({4, 5}, {.placement = two, .sbp = NdSbp(sbp::broadcast())}),
           b = ones({4, 5}, {.placement = three, .sbp = NdSbp(sbp::broadcast())});
    expect_error([&] { add(local, a); }, {"inconsistent attributes", "local, global", "add"});
    expect_error([&] { matmul(a, transpose(local, 0, 1)); }, {"global, local", "matmul"});
    expect_error([&] { add(a, b); }, {"same placement", "positional 0", "positional 1", "[0, 1, 2]"});
    expect_error([&] { to_global(a, two, NdSbp(sbp::split(2))); }, {"axis", "2"});
    expect_error([&] { ones({4}, {.placement = two, .sbp = NdSbp(sbp::split(1))}); }, {"axis"});
    expect_error(
        [&] {
          ones({4}, {.placement = two, .sbp = {sbp::broadcast(), sbp::broadcast()}});
        },
        {"sbp"}, ErrorKind::kLayout);
    expect_error([&] { sbp::split(-1); }, {"negative", "-1"});
    expect_error([&] { to_local(local); }, {"Expected global tensor for to_local"});
    expect_error([&] { to_global(local, two); }, {"sbp"}, ErrorKind::kLayout);
    expect_error([&] { to_global(local, {}, NdSbp(sbp::broadcast())); }, {"placement"}, ErrorKind::kLayout);
    expect_error([&] { ones({4}, {.placement = two}); }, {"placement", "sbp"}, ErrorKind::kLayout);
    expect_error([&] { a.device(); }, {"Only local tensors have 'device'"});
    expect_error([&] { local.placement(); }, {"Only global tensors have 'placement'"});
    expect_error([&] { local.nd_sbp(); }, {"no sbp"});
  });
}

TEST(Errors, OfShapesAndDtypes) {
  Tensor x = ones({4, 5}), i = ones({4, 5}, {.dtype = int64});
  auto value = ErrorKind::kValue;
  expect_error([&] { matmul(x, x); }, {"matmul", "inner sizes", "[4, 5]"}, value);
  expect_error([&] { add(x, ones({4, 3})); }, {"add", "[4, 5]", "[4, 3]"}, value);
  expect_error([&] { reshape(x, {3, 7}); }, {"reshape", "20", "21"}, value);
  expect_error([&] { linear(x, ones({3, 4})); }, {"linear", "[3, 4]"}, value);
  expect_error([&] { cat({x, ones({4, 4})}); }, {"cat", "sizes differ"}, value);
  expect_error([&] { cat({}); }, {"cat", "empty"}, value);
  expect_error([&] { expand(x, {4, 6}); }, {"expand", "5", "6"}, value);
  expect_error([&] { permute(x, {0, 0}); }, {"permute"}, value);
  expect_error([&] { sum(x, Dims{0, -2}); }, {"sum", "twice"}, value);
  expect_error([&] { amax(ones({0, 3})); }, {"amax", "without elements"}, value);
  expect_error([&] { zeros({-1}); }, {"zeros", "negative"}, value);
  expect_error([&] { softmax(x, 2); }, {"softmax", "2"}, ErrorKind::kIndex);
  expect_error([&] { sum(x, Dims{2}); }, {"sum", "2"}, ErrorKind::kIndex);
  expect_error([&] { select(x, 0, 4); }, {"select", "4"}, ErrorKind::kIndex);
  expect_error([&] { embedding(x, full({2}, 7)); }, {"embedding", "7"}, ErrorKind::kIndex);
  expect_error([&] { gather(x, 0, full({4, 5}, -5)); }, {"gather", "-5"}, ErrorKind::kIndex);
  expect_error([&] { index_select(x, 0, full({2}, 4)); }, {"index_select", "4"}, ErrorKind::kIndex);
  expect_error([&] { one_hot(full({2}, 4), 3); }, {"one_hot", "4"}, ErrorKind::kIndex);
  auto type = ErrorKind::kType;
  expect_error([&] { softmax(i); }, {"softmax", "int64"}, type);
  expect_error([&] { gelu(i); }, {"gelu", "int64"}, type);
  expect_error([&] { where(i, x, x); }, {"where", "bool"}, type);
  expect_error([&] { embedding(x, x); }, {"embedding", "float32"}, type);
  expect_error([&] { linear(x, cast(x, float64)); }, {"linear", "float64"}, type);
  expect_error([&] { add(x, Tensor()); }, {"add", "missing"}, type);
  expect_error([&] { mean(i); }, {"mean", "int64"});
  expect_error([&] { find_op("no_such"); }, {"no_such"}, ErrorKind::kAttribute);
  expect_error([&] { floor_divide(i, zeros({5}, {.dtype = int64})); }, {"zero"}, value);
}

// An index that is out of range on one rank only is an error there, and ends the others' waiting.
TEST(Errors, OnOneRankReachAll) {
  expect_error(
      [] {
        comm::run_ranks(2, [](int rank) {
          Placement p = Placement::all("cpu");
          Tensor index = to_global(full({2}, rank == 1 ? 9 : 0), p, NdSbp(sbp::split(0)));
          embedding(ones({4, 3}, {.placement = p, .sbp = NdSbp(sbp::broadcast())}), index).full();
        });
      },
      {"embedding", "9"}, ErrorKind::kIndex);
}

}  // namespace
}  // namespace holon::testing
