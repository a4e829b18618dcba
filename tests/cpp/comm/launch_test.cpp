#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "holon/comm/bootstrap/store.h"
#include "tests/cpp/comm/processes.h"

namespace holon::comm::test {
namespace {

#define EXPECT_HAS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

// The ranks of this test's launcher are found by a variable of their environment.
std::string mark() {
  static int n = 0;
  return "test-" + std::to_string(getpid()) + "-" + std::to_string(n++);
}

std::vector<std::string> launch(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), HOLON_LAUNCH);
  return arguments;
}

// Orphans that are about to be reaped may still be listed for a moment.
int left_behind(const std::string& value) {
  int count = 0;
  for (int i = 0; i < 100 && (count = processes_with("HOLON_TEST_MARK=" + value)) > 0; ++i) usleep(10'000);
  return count;
}

TEST(Launch, Collectives) {
  for (const char* n : {"1", "2", "5"}) {
    Process p(launch({"-n", n, RANK_PROGRAM, "collectives"}), {});
    EXPECT_EQ(p.wait(), 0) << p.output();
    EXPECT_HAS(p.output(), "rank 0 ok");
  }
}

TEST(Launch, EnvironmentOfRanks) {
  Process p(launch({"--nproc_per_node=2", "--nnodes=1", "--simulate", "cuda", "sh", "-c",
                    "echo \"$RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $NODE_RANK $MASTER_ADDR $HOLON_SIMULATE "
                    "$OMP_NUM_THREADS $1 $2\"",
                    "sh", "--nproc_per_node", "9"}),
            {{"OMP_NUM_THREADS", "3"}});
  EXPECT_EQ(p.wait(), 0);
  EXPECT_HAS(p.output(), "0 0 2 2 0 127.0.0.1 cuda 3 --nproc_per_node 9\n");
  EXPECT_HAS(p.output(), "1 1 2 2 0 127.0.0.1 cuda 3 --nproc_per_node 9\n");
}

TEST(Launch, RanksHaveQueuesForTheirStreamsUnlessTheUserSaysOtherwise) {
  const char* print = "echo \"$CUDA_DEVICE_MAX_CONNECTIONS $CUDA_MODULE_LOADING $NCCL_LAUNCH_ORDER_IMPLICIT\"";
  Process alone(launch({"-n", "1", "sh", "-c", print}), {});
  EXPECT_EQ(alone.wait(), 0);
  EXPECT_HAS(alone.output(), "32 EAGER 1\n");
  Process told(launch({"-n", "1", "sh", "-c", print}), {{"CUDA_DEVICE_MAX_CONNECTIONS", "1"}});
  EXPECT_EQ(told.wait(), 0);
  EXPECT_HAS(told.output(), "1 EAGER 1\n");
}

TEST(Launch, TwoNodesOnOneMachine) {
  int port = free_port();
  auto node = [&](const char* rank) {
    return launch({"--nnodes", "2", "--node_rank", rank, "--master_port", std::to_string(port), "-n", "2", RANK_PROGRAM,
                   "collectives"});
  };
  Process b(node("1"), {}), a(node("0"), {});
  EXPECT_EQ(a.wait(), 0) << a.output();
  EXPECT_EQ(b.wait(), 0) << b.output();
  EXPECT_HAS(b.output(), "rank 3 ok");
}

TEST(Launch, AFailingRankEndsTheOthersAndIsShownLast) {
  std::string m = mark();
  Process p(launch({"-n", "3", RANK_PROGRAM, "fail_late"}), {{"HOLON_TEST_MARK", m}});
  EXPECT_EQ(p.wait(), 1);
  EXPECT_LT(p.seconds(), 5);
  std::string text = p.output(), end = "holon-launch: rank 1 failed: exit status 1; the other ranks were stopped.\n";
  EXPECT_TRUE(text.ends_with("rank 1 error: no more rank 1\n" + end)) << text;
  EXPECT_EQ(left_behind(m), 0);
}

TEST(Launch, TheRankThatFailedFirstIsNamedNotItsVictims) {
  for (int i = 0; i < 10; ++i) {
    Process p(launch({"-n", "3", RANK_PROGRAM, "throw"}), {});
    EXPECT_EQ(p.wait(), 1);
    EXPECT_HAS(p.output(), "holon-launch: rank 1 failed: exit status 1");
    EXPECT_HAS(p.output(), "rank 1 error: the milk is sour");
  }
}

TEST(Launch, AKilledRank) {
  Process p(launch({"-n", "2", RANK_PROGRAM, "die"}), {});
  EXPECT_EQ(p.wait(), 128 + SIGKILL);
  EXPECT_HAS(p.output(), "rank 1 failed: killed by signal 9 (Killed)");
}

TEST(Launch, ARankThatEndsBeforeTheOthersHaveMetItIsNamedAtOnce) {
  Process p(launch({"-n", "3", RANK_PROGRAM, "alone"}), {{"HOLON_RENDEZVOUS_TIMEOUT_S", "60"}});
  EXPECT_EQ(p.wait(50), 1) << p.output();
  EXPECT_HAS(p.output(), "rank 1 has finished normally before it joined the others");
}

TEST(Launch, ARankOfAnotherNodeThatFailsBeforeItHasMetTheOthersIsNamedAtOnce) {
  int port = free_port();
  auto node = [&](const char* rank, std::vector<std::string> program) {
    auto a = launch({"--nnodes", "2", "--node_rank", rank, "--master_port", std::to_string(port), "-n", "1"});
    a.insert(a.end(), program.begin(), program.end());
    return a;
  };
  Process a(node("0", {RANK_PROGRAM, "barrier"}), {{"HOLON_RENDEZVOUS_TIMEOUT_S", "60"}});
  Process b(node("1", {"sh", "-c", "kill -9 $$"}), {});
  EXPECT_EQ(a.wait(50), 1) << a.output();
  EXPECT_HAS(a.output(), "rank 1 has failed (killed by signal 9 (Killed)) before it joined the others");
}

TEST(Launch, StubbornRanksAndTheirChildrenAreKilled) {
  std::string m = mark();
  Process p(launch({"-n", "2", RANK_PROGRAM, "stubborn"}), {{"HOLON_TEST_MARK", m}});
  EXPECT_EQ(p.wait(), 7);
  EXPECT_LT(p.seconds(), 5);
  EXPECT_EQ(left_behind(m), 0);
}

TEST(Launch, InterruptLeavesNothingBehind) {
  for (int s : {SIGINT, SIGTERM}) {
    std::string m = mark();
    Process p(launch({"-n", "2", RANK_PROGRAM, "interruptible"}), {{"HOLON_TEST_MARK", m}});
    ASSERT_TRUE(p.wait_for_output("rank 0 is ready") && p.wait_for_output("rank 1 is ready"));
    EXPECT_GE(processes_with("HOLON_TEST_MARK=" + m), 3);
    p.send_signal(s);
    EXPECT_EQ(p.wait(5), 128 + s);
    EXPECT_EQ(left_behind(m), 0);
  }
}

TEST(Launch, RanksGetTheirTimeToEnd) {
  const std::string program = "trap 'sleep 3; echo saved; exit 0' TERM; echo is ready; while :; do sleep 0.1; done";
  Process p(launch({"-n", "2", "sh", "-c", program}), {});
  ASSERT_TRUE(p.wait_for_output("is ready\nis ready\n", 60)) << p.output();
  p.send_signal(SIGTERM);
  EXPECT_EQ(p.wait(50), 128 + SIGTERM);
  EXPECT_HAS(p.output(), "saved\nsaved\n");
}

TEST(Launch, RanksThatTakeLongerThanTheirTimeAreKilled) {
  std::string m = mark();
  Process p(launch({"-n", "2", "--grace_period", "0.2", "sh", "-c", "trap '' TERM; echo is ready; sleep 300"}),
            {{"HOLON_TEST_MARK", m}});
  ASSERT_TRUE(p.wait_for_output("is ready\nis ready\n", 60)) << p.output();
  p.send_signal(SIGTERM);
  EXPECT_EQ(p.wait(50), 128 + SIGTERM);
  EXPECT_EQ(left_behind(m), 0);
}

TEST(Launch, UserSignalsGoToTheRanks) {
  const std::string program =
      "trap 'echo one' USR1; trap 'echo two; exit 0' USR2; echo is ready; while :; do sleep 0.1; done";
  Process p(launch({"-n", "2", "sh", "-c", program}), {});
  ASSERT_TRUE(p.wait_for_output("is ready\nis ready\n", 60)) << p.output();
  p.send_signal(SIGUSR1);
  EXPECT_TRUE(p.wait_for_output("one\none\n", 60)) << p.output();
  p.send_signal(SIGUSR2);
  EXPECT_EQ(p.wait(50), 0) << p.output();
  EXPECT_HAS(p.output(), "two\ntwo\n");
}

TEST(Launch, CtrlCShowsOneTraceback) {
  const std::string program = "trap 'printf \"Traceback (most recent call last):\\n  File x, line "
                              "1\\nKeyboardInterrupt\\nrank $RANK ends\\n\" >&2; "
                              "exit 1' INT; echo is ready; while :; do sleep 0.1; done";
  Process p(launch({"-n", "3", "sh", "-c", program}), {});
  ASSERT_TRUE(p.wait_for_output("is ready\nis ready\nis ready\n", 60)) << p.output();
  p.send_signal(SIGINT);
  EXPECT_EQ(p.wait(50), 128 + SIGINT);
  const std::string text = p.output();
  const size_t first = text.find("KeyboardInterrupt");
  EXPECT_NE(first, std::string::npos) << text;
  EXPECT_EQ(text.find("Traceback", first), std::string::npos) << text;
  EXPECT_EQ(text.find("File x", first), std::string::npos) << text;
  // What else they say is shown.
  for (const char* r : {"rank 0 ends", "rank 1 ends", "rank 2 ends"}) EXPECT_HAS(text, r);
}

TEST(Launch, LinesOfRanksAreNotMixed) {
  for (bool label : {false, true})
    for (const char* stream : {"", "exec >&2; "}) {
      // Two writes for a line.
      const std::string program = std::string(stream) +
          "test $RANK = 0 && c=x || c=y; i=0; while [ $i -lt 200 ]; do printf $c; echo $c; i=$((i+1)); done";
      std::vector<std::string> a = {"-n", "2"};
      if (label) a.push_back("--label");
      for (const std::string& s : {std::string("sh"), std::string("-c"), program}) a.push_back(s);
      Process p(launch(a), {});
      ASSERT_EQ(p.wait(), 0) << p.output();
      std::istringstream lines(p.output());
      int x = 0, y = 0;
      for (std::string line; std::getline(lines, line);) {
        if (label && (line.starts_with("[rank 0] x") || line.starts_with("[rank 1] y"))) line.erase(0, 9);
        const bool one = line.find_first_not_of('x') == std::string::npos;
        EXPECT_TRUE(one || line.find_first_not_of('y') == std::string::npos) << line;
        x += static_cast<int>(std::count(line.begin(), line.end(), 'x'));
        y += static_cast<int>(std::count(line.begin(), line.end(), 'y'));
      }
      EXPECT_EQ(x, 400);
      EXPECT_EQ(y, 400);
    }
}

TEST(Launch, WhatIsNoLineIsShownToo) {
  Process p(launch({"-n", "1", "sh", "-c", "printf 'your name? '; sleep 1; printf 'and that is all'"}), {});
  EXPECT_TRUE(p.wait_for_output("your name? ", 60)) << p.output();
  EXPECT_EQ(p.wait(), 0);
  EXPECT_EQ(p.output(), "your name? and that is all");
}

TEST(Launch, AReaderThatStandsStillHoldsUpNoEnd) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t pid = fork();
  if (pid == 0) {
    dup2(ends[1], 1);
    dup2(ends[1], 2);
    const char* program = "if [ $RANK = 0 ]; then yes >&2; else sleep 1; exit 3; fi";
    execl(HOLON_LAUNCH, HOLON_LAUNCH, "-n", "2", "sh", "-c", program, nullptr);
    _exit(126);
  }
  close(ends[1]);
  int status = 0;
  pid_t ended = 0;
  for (int i = 0; i < 600 && ended == 0; ++i) usleep(100'000), ended = waitpid(pid, &status, WNOHANG);
  if (ended == 0) kill(pid, SIGKILL), waitpid(pid, nullptr, 0);
  close(ends[0]);
  ASSERT_EQ(ended, pid) << "it waits for its reader";
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 3) << status;
}

TEST(Launch, KilledLauncherTakesItsRanksAlong) {
  std::string m = mark();
  Process p(launch({"-n", "2", RANK_PROGRAM, "work"}), {{"HOLON_TEST_MARK", m}});
  ASSERT_TRUE(p.wait_for_output("rank 0 is ready") && p.wait_for_output("rank 1 is ready"));
  p.send_signal(SIGKILL);
  p.wait();
  EXPECT_EQ(left_behind(m), 0);
}

TEST(Launch, KilledLauncherTakesTheChildrenOfItsRanksAlong) {
  // The rank is a grandchild, and has a child of its own.
  std::string m = mark();
  Process p(launch({"-n", "2", "sh", "-c", std::string(RANK_PROGRAM) + " interruptible; true"}),
            {{"HOLON_TEST_MARK", m}});
  ASSERT_TRUE(p.wait_for_output("rank 0 is ready") && p.wait_for_output("rank 1 is ready"));
  EXPECT_GE(processes_with("HOLON_TEST_MARK=" + m), 7);
  p.send_signal(SIGKILL);
  p.wait();
  EXPECT_EQ(left_behind(m), 0);
}

TEST(Launch, PortInUse) {
  StoreServer other("127.0.0.1", 0, "");
  Process p(launch({"--master_port", std::to_string(other.port()), "true"}), {});
  EXPECT_EQ(p.wait(), 2);
  EXPECT_HAS(p.output(), "port " + std::to_string(other.port()) + " of 127.0.0.1 is in use");
}

TEST(Launch, WrongArguments) {
  auto says = [](std::vector<std::string> arguments) {
    Process p(launch(std::move(arguments)), {});
    EXPECT_EQ(p.wait(), 2);
    return p.output();
  };
  EXPECT_HAS(says({}), "no program was named");
  EXPECT_HAS(says({"-n", "0", "true"}), "nproc_per_node");
  EXPECT_HAS(says({"--frobnicate", "true"}), "--frobnicate is not an option");
  EXPECT_HAS(says({"no-such-program"}), "there is no program no-such-program");
  EXPECT_HAS(says({"--python", "sh", "no-such-script.py"}), "the script no-such-script.py cannot be read");
  EXPECT_HAS(says({"--nnodes", "2", "--node_rank", "2", "true"}), "machines are counted from 0");
}

TEST(Launch, AMachineThatDoesNotKnowTheToken) {
  const auto node = [](const char* rank) {
    return launch({"--nnodes", "2", "--node_rank", rank, "--master_addr", "192.0.2.1", "--master_port",
                   std::to_string(free_port()), "true"});
  };
  const std::map<std::string, std::string> none = {{"HOLON_STORE_TOKEN", ""}, {"HOLON_STORE_TOKEN_FILE", ""}};
  Process p(node("1"), none);
  EXPECT_EQ(p.wait(), 2);
  EXPECT_HAS(p.output(), "machine 1 of 2 does not have the token that the machines share. Set HOLON_STORE_TOKEN");
  Process first(node("0"), none);
  EXPECT_EQ(first.wait(), 0) << first.output();
  EXPECT_HAS(first.output(), "start the launchers of the other machines with HOLON_STORE_TOKEN=");
  Process told(node("0"), {{"HOLON_STORE_TOKEN", "secret"}});
  EXPECT_EQ(told.wait(), 0);
  EXPECT_EQ(told.output().find("secret"), std::string::npos) << told.output();
}

TEST(Launch, ScriptsRunByTheInterpreter) {
  char name[] = "/tmp/holon-test-XXXXXX.py";
  int fd = mkstemps(name, 3);
  std::string script = "echo script $RANK $1 $2\n";
  ASSERT_EQ(write(fd, script.data(), script.size()), static_cast<ssize_t>(script.size()));
  close(fd);
  // Any interpreter will do.
  Process p(launch({"-n", "2", "--python", "sh", name, "-n", "7"}), {});
  EXPECT_EQ(p.wait(), 0) << p.output();
  EXPECT_HAS(p.output(), "script 1 -n 7");
  std::filesystem::remove(name);
}

TEST(Launch, LogFiles) {
  char name[] = "/tmp/holon-test-XXXXXX";
  ASSERT_NE(mkdtemp(name), nullptr);
  std::string folder = std::string(name) + "/log";
  for (bool redirect : {false, true}) {
    std::vector<std::string> a = {"-n", "2", "--logdir", folder};
    if (redirect) a.push_back("--redirect_stdout_and_stderr");
    for (const char* s : {"sh", "-c", "echo out $RANK; echo err $RANK >&2"}) a.push_back(s);
    Process p(launch(a), {});
    EXPECT_EQ(p.wait(), 0) << p.output();
    EXPECT_EQ(p.output().find("out 1") == std::string::npos, redirect) << p.output();
    auto content = [&](const char* file) {
      std::stringstream all;
      all << std::ifstream(folder + "/" + file).rdbuf();
      return all.str();
    };
    EXPECT_EQ(content("rank_1.stdout"), "out 1\n");
    EXPECT_EQ(content("rank_0.stderr"), "err 0\n");
  }
  std::filesystem::remove_all(name);
}

}  // namespace
}  // namespace holon::comm::test
