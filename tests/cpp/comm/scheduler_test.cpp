#include "holon/comm/bootstrap/scheduler.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "holon/base/error.h"

namespace holon::comm {
namespace {

TEST(Scheduler, FirstOfANodelist) {
  EXPECT_EQ(first_of_nodelist("gpu07"), "gpu07");
  EXPECT_EQ(first_of_nodelist("gpu07,gpu09"), "gpu07");
  EXPECT_EQ(first_of_nodelist("gpu[07-09,12],login"), "gpu07");
  EXPECT_EQ(first_of_nodelist("rack[1-2]node[03,07-09]"), "rack1node03");
  EXPECT_EQ(first_of_nodelist("n[5]-ib"), "n5-ib");
  EXPECT_EQ(first_of_nodelist("[12"), "12");
  EXPECT_EQ(first_of_nodelist(""), "");
}

TEST(Scheduler, APortThatIsNone) {
  for (const char* text : {"0", "65536", "a", "12x"}) {
    setenv("MASTER_PORT", text, 1);
    EXPECT_THROW(rendezvous_address(), Error) << text;
  }
  setenv("MASTER_PORT", "4711", 1);
  EXPECT_EQ(rendezvous_address().port, 4711);
  unsetenv("MASTER_PORT");
  EXPECT_EQ(rendezvous_address().port, 29500);
}

}  // namespace
}  // namespace holon::comm
