// Counts what this program allocates.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

namespace holon::testing_boxing {

// By this thread, with new, so far. (Every array has a Storage that is made so.)
int64_t allocations_here();

// Runs f some times, so that what is made once is made, and then counts.
template <class F>
void expect_no_allocation(const std::string& what, F&& f, int times = 1000) {
  for (int i = 0; i < 3; ++i) f();
  const int64_t before = allocations_here();
  for (int i = 0; i < times; ++i) f();
  EXPECT_EQ(allocations_here() - before, 0) << what;
}

}  // namespace holon::testing_boxing
