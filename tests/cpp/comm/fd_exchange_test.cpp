// How the processes of one host hand each other their memory, as ordinary users and where something goes wrong.
#include "holon/comm/local/fd_exchange.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tests/cpp/comm/introduce.h"

namespace holon::comm {
namespace {

int memory(off_t size) {
  const int fd = memfd_create("memory", MFD_CLOEXEC);
  return ftruncate(fd, size) == 0 ? fd : -1;
}

off_t size_of(const Fd& fd) {
  struct stat info {};
  return fstat(fd.get(), &info) == 0 ? info.st_size : -1;
}

// Runs f in a process of its own, that of an ordinary user; what it returns is the status, 99 an exception.
pid_t process(const std::function<int()>& f) {
  const pid_t pid = fork();
  if (pid != 0) return pid;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  int status = 99;
  try {
    status = f();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
  }
  _exit(status);
}

int status_of(pid_t pid) {
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// As rank 0 of so many, whose others are children; each has memory of a size that says its number.
int exchange(int count) {
  // The system's limit on descriptors that are on their way is this, unless one is root.
  const rlimit limit{200, 200};
  setrlimit(RLIMIT_NOFILE, &limit);
  if (geteuid() == 0 && setresuid(65534, 65534, 65534) != 0) std::printf("as root, whom nothing limits\n");
  FdListener listener;
  const pid_t leader = getpid();
  std::vector<pid_t> children;
  std::vector<Watched> ranks;
  ranks.push_back(Watched::open(leader, 0));
  int gate[2];
  if (pipe(gate) != 0) return 97;
  for (int place = 1; place < count; ++place) {
    children.push_back(process([&] {
      char go;
      close(gate[1]);
      if (read(gate[0], &go, 1) < 0) return 96;  // all have been started
      std::vector<Watched> known;
      for (int r = 0; r < count; ++r) known.push_back({r == 0 ? leader : getpid(), Fd(), r});
      Fd extra;
      auto fds = join_exchange(listener.name(), place, memory(place), known, &extra, 60);
      for (int r = 0; r < count; ++r)
        if (size_of(fds.at(static_cast<size_t>(r))) != r) return 95;
      return size_of(extra) == 1000 ? 0 : 94;
    }));
    ranks.push_back(Watched::open(children.back(), place));
  }
  close(gate[1]);
  auto fds = lead_exchange(listener, memory(0), memory(1000), ranks, 60);
  for (int r = 0; r < count; ++r)
    if (size_of(fds[static_cast<size_t>(r)]) != r) return 93;
  int worst = 0;
  for (pid_t child : children) worst = std::max(worst, status_of(child));
  return worst;
}

TEST(FdExchange, ManyRanksOfAnOrdinaryUser) {
  // Each of 40 would have 41 descriptors on their way at once, of the 200 that the system lets a user have.
  EXPECT_EQ(status_of(process([] { return exchange(40); })), 0);
}

TEST(FdExchange, ARankThatIsLateIsNamed) {
  FdListener listener;
  const pid_t late = process([] { return pause(); });
  std::vector<Watched> ranks;
  ranks.push_back(Watched::open(getpid(), 4));
  ranks.push_back(Watched::open(late, 5));
  try {
    lead_exchange(listener, memory(0), memory(1), ranks, 0.3);
    ADD_FAILURE() << "it has not come";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("rank 5 (process " + std::to_string(late) + ") has joined the others"),
              std::string::npos)
        << e.what();
  }
  kill(late, SIGKILL);
  try {
    lead_exchange(listener, memory(0), memory(1), ranks, 60);
    ADD_FAILURE() << "it has been killed";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("rank 5 (process " + std::to_string(late) + ") has ended"), std::string::npos)
        << e.what();
  }
  status_of(late);
}

// The sockets of a process that is killed close before others can see that it is gone: rank 0, which gives up then,
// says why to those who wait for it.
TEST(FdExchange, WhoWaitsForTheLeaderHearsWhyItGaveUp) {
  FdListener listener;
  const pid_t closes = process([] { return pause(); });
  auto watch = [&] {
    std::vector<Watched> ranks;  // of which the last does not come
    for (int r = 0; r < 4; ++r) ranks.push_back(Watched::open(r == 1 ? closes : getpid(), r));
    return ranks;
  };
  const std::vector<Watched> ranks = watch(), known = watch();
  std::string heard;
  std::thread waits([&] {
    Fd extra;
    try {
      join_exchange(listener.name(), 2, memory(2), known, &extra, 60);
    } catch (const Error& e) {
      heard = e.what();
    }
  });
  pollfd connected{listener.fd(), POLLIN, 0};
  EXPECT_EQ(poll(&connected, 1, 60'000), 1);
  test::introduce(listener.name(), 1, 1);
  const std::string cause = "rank 1 (process " + std::to_string(closes) + ") has ended while the world was forming";
  try {
    lead_exchange(listener, memory(0), memory(1000), ranks, 60);
    ADD_FAILURE() << "rank 1 has closed its socket";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find(cause), std::string::npos) << e.what();
  }
  waits.join();
  EXPECT_NE(heard.find("rank 0 has failed while the world was forming: " + cause), std::string::npos) << heard;
  kill(closes, SIGKILL);
  status_of(closes);
}

// Who comes when the leader, which is still there, has given up because of another one's end names that one.
TEST(FdExchange, WhoComesAfterTheLeaderHasGivenUpNamesTheRankThatHasEnded) {
  const pid_t ends = process([] { return 0; });
  std::vector<Watched> ranks;
  for (int r = 0; r < 3; ++r) ranks.push_back(Watched::open(r == 1 ? ends : getpid(), r));
  pollfd ended{ranks[1].pidfd.get(), POLLIN, 0};
  ASSERT_EQ(poll(&ended, 1, 60'000), 1);
  const std::string closed = FdListener().name();
  Fd extra;
  try {
    join_exchange(closed, 2, memory(2), ranks, &extra, 60);
    ADD_FAILURE() << "nobody listens";
  } catch (const Error& e) {
    const std::string cause = "rank 1 (process " + std::to_string(ends) + ") has ended while the world was forming";
    EXPECT_NE(std::string(e.what()).find(cause), std::string::npos) << e.what();
  }
  status_of(ends);
}

TEST(FdExchange, WhoHasConnectedHearsThatAnotherDoesNotCome) {
  FdListener listener;
  std::vector<Watched> ranks;
  for (int r = 0; r < 3; ++r) ranks.push_back(Watched::open(getpid(), r));
  Fd second = test::introduce(listener.name(), 2, 2), stranger = test::introduce(listener.name(), 7, 7);
  EXPECT_THROW(lead_exchange(listener, memory(0), memory(1000), ranks, 0.2), Error);
  Fd third = test::introduce(listener.name(), 1, 1);
  EXPECT_THROW(lead_exchange(listener, memory(0), memory(1000), ranks, 0), Error);
  for (Fd* s : {&second, &third}) {
    char text[600] = {};
    const ssize_t n = recv(s->get(), text, sizeof text - 1, 0);
    ASSERT_GT(n, 8);
    EXPECT_NE(std::string(text + 8).find("has joined the others but does not continue"), std::string::npos) << text + 8;
  }
}

TEST(FdExchange, WithoutDescriptorsTheLimitIsTold) {
  EXPECT_EQ(status_of(process([] {
              FdListener listener;
              std::vector<Watched> ranks;
              ranks.push_back(Watched::open(getpid(), 0));
              const rlimit none{3, 3};
              setrlimit(RLIMIT_NOFILE, &none);
              try {
                lead_exchange(listener, 0, 0, ranks, 5);
              } catch (const Error& e) {
                return std::string(e.what()).find("ulimit -n") != std::string::npos ? 0 : 92;
              }
              return 91;
            })),
            0);
}

}  // namespace
}  // namespace holon::comm
