// One rank as a process, for tests: does what its argument says. Exit status 0, or 1 with "error: ..." on stderr.
#include <cstdio>
#include <functional>
#include <map>
#include <string>

#include "boxing/device_point_to_point_cases.h"
#include "boxing/point_to_point_cases.h"
#include "boxing/prepared_cases.h"
#include "holon/base/context.h"
#include "holon/comm/core/communicator.h"

namespace holon::testing_boxing {
namespace {

const std::map<std::string, std::function<void()>> kModes = {
    {"prepared", check_prepared},
    {"point_to_point", check_transfers},
    {"point_to_point_hosts", check_transfers_between_hosts},
    {"private_memory", check_private_memory},
    {"pipeline", [] { check_pipeline(4, 8); }},
    {"die", die_before_posting},
    {"device_pairs", check_device_pairs},
    {"device_orders", check_device_orders},
    {"device_circles", check_device_circles},
    {"device_pipeline", check_device_pipeline},
    {"device_links", check_device_links},
    {"device_background", check_device_background},
    {"sender_dies", sender_dies},
    {"sender_dies_after_sending", sender_dies_after_sending},
    {"receiver_does_not_come", receiver_does_not_come},
    {"receiver_dies", receiver_dies},
};

}  // namespace
}  // namespace holon::testing_boxing

int main(int argc, char** argv) {
  using namespace holon;
  try {
    testing_boxing::kModes.at(argc > 1 ? argv[1] : "")();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "rank %d error: %s\n", Context::current().rank(), e.what());
    comm::abort_world(e.what());
    return 1;
  }
  std::printf("rank %d ok\n", Context::current().rank());
  return 0;
}
