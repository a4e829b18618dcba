// All passes on random programs in random layouts.
#include <cstdlib>
#include <random>

#include "holon/base/error.h"
#include "holon/graph/step.h"
#include "tests/cpp/graph/random_programs.h"

namespace holon::graph {
namespace {

using namespace testing;

void check(const Placement& p, unsigned seed) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 draw(seed * 7919 + 1);
  const int micro_batches = 1 << draw() % 3;
  CompileOptions o;
  o.verify = true;
  o.zero_stage = static_cast<int>(draw() % 4);
  o.bucket_bytes = draw() % 2 ? 600 : 0;
  if (draw() % 2) o.recompute = {"model.block0"};
  Captured before = RandomProgram(p, seed).capture(micro_batches),
           after = RandomProgram(p, seed).capture(micro_batches);
  if (o.zero_stage == 3) store_shards(after.g, o);
  CompileOptions plain = only({"stages", "accumulate"});
  run_passes(before.g, plain);
  if (draw() % 3 == 0) {
    Graph copy = after.g;
    CompileOptions none = o;
    run_passes(copy, none);
    o.memory_budget_bytes = estimate_peak_bytes(copy) * 9 / 10;
    try {
      copy = after.g;
      run_passes(copy, o);
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::kValue) throw;
      o.memory_budget_bytes = 0;
    }
  }
  const std::string text = str(after.g);
  run_passes(after.g, o);
  Course a = run(before), b = run(after);
  expect_equal(a, b, 2e-2);  // casts to bfloat16 round sums that were taken in another order
  if (::testing::Test::HasFailure() && Context::current().rank() == 0)
    ADD_FAILURE() << "zero " << o.zero_stage << ", micro-batches " << micro_batches << "\n"
                  << text << "\n"
                  << str(after.g);
}

// HOLON_TEST_MORE=10: ten times as many.
unsigned many(unsigned n) {
  const char* more = std::getenv("HOLON_TEST_MORE");
  return n * (more ? static_cast<unsigned>(std::atoi(more)) : 1);
}

TEST(RandomGraphs, Local) {
  for (unsigned seed = 0; seed < many(15) && !HasFailure(); ++seed) check({}, seed);
}

TEST(RandomGraphs, OnTwoRanks) {
  for (unsigned seed = 0; seed < many(25) && !HasFailure(); ++seed)
    comm::run_ranks(2, [&](int) { check(Placement("cpu", {0, 1}), seed); });
}

// The compiled step against the interpreter, and with several micro-batches against the step without most passes.
void check_step(const Placement& p, unsigned seed) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 draw(seed * 104729 + 1);
  const int micro_batches = 1 << draw() % 3;
  CompileOptions o;
  o.verify = true;
  o.zero_stage = static_cast<int>(draw() % 4);
  o.bucket_bytes = draw() % 2 ? 600 : 0;
  if (draw() % 2) o.recompute = {"model.block0"};
  Captured a = RandomProgram(p, seed).capture(micro_batches), b = RandomProgram(p, seed).capture(micro_batches);
  auto course = [](Captured& c, const CompileOptions& options, std::string* text) {
    Step step(std::move(c.g), options);
    *text = str(step.graph()) + step.plan();
    Course course;
    manual_seed(3);
    for (int s = 0; s < 3; ++s) {
      auto out = step.run(c.inputs);
      course.losses.push_back(out[0]);
      for (size_t i = 1; i < out.size(); ++i) course.others.push_back(out[i]);
    }
    course.parameters = c.parameters;
    return course;
  };
  Course expected;
  std::string plain, text;
  if (micro_batches == 1) {
    expected = run(a);
  } else {
    CompileOptions few;
    few.disabled_passes = only({"stages", "accumulate"}).disabled_passes;
    expected = course(a, few, &plain);
  }
  expect_equal(expected, course(b, o, &text), 2e-2);
  if (::testing::Test::HasFailure() && Context::current().rank() == 0)
    ADD_FAILURE() << "zero " << o.zero_stage << ", micro-batches " << micro_batches << "\n" << plain << "\n" << text;
}

TEST(RandomSteps, Local) {
  for (unsigned seed = 0; seed < many(10) && !HasFailure(); ++seed) check_step({}, seed);
}

TEST(RandomSteps, OnTwoRanks) {
  for (unsigned seed = 0; seed < many(25) && !HasFailure(); ++seed)
    comm::run_ranks(2, [&](int) { check_step(Placement("cpu", {0, 1}), seed); });
}

TEST(RandomSteps, OnAGrid) {
  for (unsigned seed = 0; seed < many(10) && !HasFailure(); ++seed)
    comm::run_ranks(4, [&](int) { check_step(Placement::nested("cpu", {{0, 1}, {2, 3}}), seed); });
}

TEST(RandomGraphs, OnAGrid) {
  for (unsigned seed = 0; seed < many(10) && !HasFailure(); ++seed)
    comm::run_ranks(4, [&](int) { check(Placement::nested("cpu", {{0, 1}, {2, 3}}), seed); });
}

}  // namespace
}  // namespace holon::graph
