// Transfers between devices of ranks that are threads. tests/cuda/test_point_to_point.py runs these, and the same of
// processes.
#include <gtest/gtest.h>

#include "boxing/device_point_to_point_cases.h"
#include "holon/array/device_runtime.h"
#include "holon/comm/run_ranks.h"

namespace holon::testing_boxing {
namespace {

void on_devices(int ranks, void (*check)()) {
  const DeviceType cuda = parse_device_type("cuda");
  if (!device_runtime(cuda)) GTEST_SKIP() << why_no_device(cuda);
  if (device_runtime(cuda)->device_count() < ranks) GTEST_SKIP() << ranks << " devices are needed";
  comm::run_ranks(ranks, [&](int) { check(); });
}

TEST(DevicePointToPoint, EveryPairIsThatOfTheCpu) { on_devices(4, check_device_pairs); }
TEST(DevicePointToPoint, PostsAreTakenInAnyOrder) { on_devices(2, check_device_orders); }
TEST(DevicePointToPoint, CirclesOfPosts) { on_devices(3, check_device_circles); }
TEST(DevicePointToPoint, APipelineInTheOrderOf1F1B) { on_devices(4, check_device_pipeline); }
TEST(DevicePointToPoint, NothingMeetsTheHost) { on_devices(2, check_device_links); }
TEST(DevicePointToPoint, OnTheBackgroundThread) { on_devices(2, check_device_background); }

}  // namespace
}  // namespace holon::testing_boxing
