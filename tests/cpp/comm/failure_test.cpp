#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <thread>
#include <vector>

#include "holon/base/error.h"
#include "holon/comm/core/communicator.h"
#include "holon/comm/core/world.h"
#include "holon/comm/run_ranks.h"
#include "tests/cpp/comm/messages.h"

namespace holon::comm {
namespace {

using test::messages;

// Sets a variable for a scope. No rank runs while it changes.
class Environment {
 public:
  Environment(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Environment() { unsetenv(name_); }

 private:
  const char* name_;
};

Communicator& group(std::vector<int> ranks) { return communicator(ranks); }

TEST(Failure, DifferentCallsAreShownOnEveryRank) {
  auto heard = messages(3, [](int rank) {
    auto& g = group({0, 1, 2});
    g.barrier();
    float x[4] = {}, y[12];
    set_call_site(rank == 1 ? "train.py:31" : "train.py:30");
    std::vector<int64_t> counts = {4, 4, 4};
    if (rank == 1)
      g.all_gather(x, y, counts, float32);
    else
      g.all_reduce(x, y, 4, float32);
  });
  for (auto& text : heard) {
    EXPECT_HAS(text, "the ranks disagree on what to call");
    EXPECT_HAS(text, "ranks 0, 2 called all_reduce [4] float32 (16 bytes) at train.py:30");
    EXPECT_HAS(text, "rank 1 called all_gather [4] float32 (16 bytes) at train.py:31");
    EXPECT_HAS(text, "group [0-2], call 2");
  }
}

TEST(Failure, DifferentDTypesAndSizesAndTheGroupGoesOn) {
  auto heard = messages(2, [](int rank) {
    auto& g = group({0, 1});
    double x[8] = {}, y[8];
    std::string all;
    try {
      g.all_reduce(x, y, 4, rank ? float64 : float32);
    } catch (const Error& e) {
      all += e.what();
    }
    try {
      g.all_reduce(x, y, rank ? 4 : 3, float32);
    } catch (const Error& e) {
      all += e.what();
    }
    float one = 1, sum = 0;
    g.all_reduce(&one, &sum, 1, float32);
    fail_runtime("{} sum {}", all, sum);
  });
  for (auto& text : heard) {
    EXPECT_HAS(text, "disagree on dtype: rank 0 called all_reduce [4] float32");
    EXPECT_HAS(text, "disagree on the call's arguments: rank 0 called all_reduce [3] float32");
    EXPECT_HAS(text, "sum 2");
  }
}

TEST(Failure, ARankThatEndsIsNamed) {
  auto start = std::chrono::steady_clock::now();
  auto heard = messages(3, [](int rank) {
    auto& g = group({0, 1, 2});
    g.barrier();
    if (rank != 1) g.barrier();
  });
  EXPECT_HAS(heard[0], "barrier: rank 1 has ended without joining this call (group [0-2], call 2");
  EXPECT_HAS(heard[2], "rank 1 has ended");
  EXPECT_EQ(heard[1], "");
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(1));
}

TEST(Failure, ALateRankIsNamedAndTheGroupStaysClosed) {
  Environment limit("HOLON_COMM_TIMEOUT_S", "0.5");
  auto heard = messages(3, [](int rank) {
    auto& g = group({0, 1, 2});
    g.barrier();
    if (rank == 2) std::this_thread::sleep_for(std::chrono::milliseconds(1000));
    std::vector<float> x(2000), y(2000);
    g.all_reduce(x.data(), y.data(), 2000, float32);
  });
  for (int rank : {0, 1}) {
    auto& text = heard[static_cast<size_t>(rank)];
    EXPECT_HAS(text,
               "all_reduce: rank 2 did not arrive within 0.5 s (group [0-2], call 2, [2000] float32, 8000 bytes)");
    EXPECT_HAS(text, "Arrived: 0, 1.");
    EXPECT_HAS(text, "HOLON_COMM_TIMEOUT_S raises the limit");
  }
  EXPECT_HAS(heard[0], " Rank 2 sleeps in ");
  EXPECT_HAS(heard[0], "nanosleep");  // its stack
  EXPECT_HAS(heard[0], "Its last call was barrier [] uint8 (0 bytes), call 1 of group [0-2].");
  // The late rank must not go on with the buffers of ranks that have given up.
  EXPECT_HAS(heard[2], "rank 2 did not arrive within 0.5 s");
  EXPECT_HAS(heard[2], "(found by rank ");
}

TEST(Failure, WhereRanksWaitIsShownWhereItDiffers) {
  Environment limit("HOLON_COMM_TIMEOUT_S", "0.3");
  auto heard = messages(3, [](int rank) {
    auto& g = group({0, 1, 2});
    set_call_site(rank == 0 ? "train.py:30" : "train.py:31");
    if (rank == 2) std::this_thread::sleep_for(std::chrono::milliseconds(600));
    g.barrier();
  });
  // Whoever is first to give up speaks for all.
  const bool by_me = heard[0].find("(found by rank 1)") == std::string::npos;
  EXPECT_HAS(heard[0],
             by_me ? "at train.py:30). Arrived: 0, 1 (at train.py:31)."
                   : "at train.py:31). Arrived: 0 (at train.py:30), 1.");
  EXPECT_HAS(heard[0], "It has called no collective yet.");
}

TEST(Failure, ARankThatComesWhileItIsAskedIsNotLate) {
  Environment limit("HOLON_COMM_TIMEOUT_S", "0.3");
  for (int ms : {295, 300, 305, 310}) {
    auto heard = messages(2, [&](int rank) {
      auto& g = group({0, 1});
      g.barrier();
      if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(ms));
      g.barrier();
      g.barrier();  // where who waited had given up and then found the other one there, this one fails
    });
    EXPECT_EQ(heard[0].empty(), heard[1].empty()) << heard[0] << heard[1];  // both go on, or none
  }
}

TEST(Failure, TheWaitOfOneRankIsAskedOfByManyAndTheyAllHear) {
  Environment limit("HOLON_COMM_TIMEOUT_S", "0.2");
  auto heard = messages(6, [](int rank) {
    auto& g = group({0, 1, 2, 3, 4, 5});
    if (rank == 5) std::this_thread::sleep_for(std::chrono::milliseconds(900));
    g.barrier();
  });
  for (int rank = 0; rank < 5; ++rank) EXPECT_HAS(heard[static_cast<size_t>(rank)], "nanosleep");
}

TEST(Failure, ARankThatWaitsElsewhereIsTold) {
  Environment limit("HOLON_COMM_TIMEOUT_S", "0.3");
  auto heard = messages(3, [](int rank) {
    if (rank == 0) group({0, 1}).barrier();
    if (rank == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      group({1, 2}).barrier();
    }
    if (rank == 2) std::this_thread::sleep_for(std::chrono::milliseconds(600));
  });
  EXPECT_HAS(heard[0], "rank 1 did not arrive");
  EXPECT_HAS(heard[0], "Rank 1 waits in another group, [1, 2], in its call 1. It waits there for rank 2.");
  EXPECT_HAS(heard[0], "nanosleep");  // where rank 2 is
}

// 0 waits for 1, which waits for 2, and so on: whoever gives up first names the last.
TEST(Failure, AChainOfWaitsIsFollowedToItsEnd) {
  Environment limit("HOLON_COMM_TIMEOUT_S", "0.4");
  auto heard = messages(4, [](int rank) {
    if (rank == 3) std::this_thread::sleep_for(std::chrono::milliseconds(900));
    std::this_thread::sleep_for(std::chrono::milliseconds(40 * rank));
    if (rank < 3) group({rank, rank + 1}).barrier();
  });
  EXPECT_HAS(heard[0],
             "Rank 1 waits in another group, [1, 2], in its call 1. It waits there for rank 2, which waits in "
             "[2, 3], call 1, for rank 3.");
  EXPECT_HAS(heard[0], " Rank 3 sleeps in ");
  EXPECT_HAS(heard[0], "nanosleep");
}

// Two ranks that wait for each other in different calls.
TEST(Failure, WhoWaitsForTheAskerIsTold) {
  Environment limit("HOLON_COMM_TIMEOUT_S", "0.3");
  auto heard = messages(2, [](int rank) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50 * rank));
    group(rank == 0 ? std::vector<int>{0, 1} : std::vector<int>{1, 0}).barrier();
  });
  EXPECT_HAS(heard[0], "Rank 1 waits in another group, [1, 0], in its call 1. It waits there for rank 0.");
}

TEST(Failure, AFailedGroupStaysFailed) {
  Environment limit("HOLON_COMM_TIMEOUT_S", "0.2");
  auto heard = messages(2, [](int rank) {
    if (rank == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
      return;
    }
    auto& g = group({0, 1});
    EXPECT_THROW(g.barrier(), Error);
    g.barrier();
  });
  EXPECT_HAS(heard[0], "can no longer communicate, since an earlier call failed: barrier: rank 1 did not arrive");
}

TEST(Failure, WhoFailsAndEndsBeforeItCanSayWhyHoldsNobodyUp) {
  auto heard = messages(2, [](int rank) {
    auto& g = group({0, 1});
    g.barrier();
    // As it leaves it that is killed there.
    if (rank == 0) world().block().group(world(), std::vector<int>{0, 1}).header->failed.state.store(1);
    for (int i = 0; i < 2; ++i) g.barrier();
  });
  for (auto& text : heard) EXPECT_NE(text.find("before it could say why"), std::string::npos) << text;
}

TEST(Failure, AbortReachesSleepers) {
  auto heard = messages(2, [](int rank) {
    auto& g = group({0, 1});
    g.barrier();
    if (rank == 0) {
      g.barrier();
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      EXPECT_TRUE(abort_world("out of paper"));
      EXPECT_FALSE(abort_world("and out of ink"));
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
    }
  });
  EXPECT_HAS(heard[0], "barrier: rank 1 has failed: out of paper");
}

}  // namespace
}  // namespace holon::comm
