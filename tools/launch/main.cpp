#include <cstdio>

#include "holon/base/error.h"
#include "holon/comm/bootstrap/launcher.h"

int main(int argc, char** argv) {
  try {
    return holon::comm::launch(holon::comm::parse_launch_options(argc, argv));
  } catch (const std::exception& e) {
    std::fprintf(stderr, "holon-launch: %s\n", e.what());
    return 2;
  }
}
