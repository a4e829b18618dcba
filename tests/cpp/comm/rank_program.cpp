// One rank as a process, for tests: does what its argument says. Exit status 0, or 1 with "error: ..." on stderr.
#include <dirent.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <numeric>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "holon/array/storage.h"
#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/parallel.h"
#include "holon/comm/bootstrap/rendezvous.h"
#include "holon/comm/core/background.h"
#include "holon/comm/core/communicator.h"
#include "holon/comm/core/context_handoff.h"
#include "holon/comm/core/world.h"
#include "holon/comm/local/fd_exchange.h"
#include "tests/cpp/comm/collective_cases.h"
#include "tests/cpp/comm/introduce.h"
#include "tests/cpp/comm/memory_reads.h"

namespace holon::comm {
namespace {

Communicator& everybody() {
  std::vector<int> ranks(static_cast<size_t>(Context::current().world_size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return communicator(ranks);
}

void pause_s(double s) { std::this_thread::sleep_for(std::chrono::duration<double>(s)); }

void reduce_some(int times) {
  std::vector<float> x(100'000, 1), y(100'000);
  for (int i = 0; i < times; ++i) everybody().all_reduce(x.data(), y.data(), 100'000, float32);
}

void say(const char* text) {
  std::printf("rank %d %s\n", Context::current().rank(), text);
  std::fflush(stdout);
}

// A sum of many MiB between the ranks, in memory that they share.
void reduce_large() {
  const int64_t count = 3 << 20;
  auto* x = static_cast<float*>(allocate_block(static_cast<size_t>(count) * 4));
  for (int64_t i = 0; i < count; ++i) x[i] = static_cast<float>(i % 7);
  everybody().all_reduce(x, x, count, float32);
  for (int64_t i = 0; i < count; ++i)
    if (x[i] != static_cast<float>(everybody().size()) * static_cast<float>(i % 7))
      fail_runtime("element {} is {}", i, x[i]);
}

// Messages of many sizes, some of which are there before they are asked for.
void gather_sizes(int rank) {
  const auto n = static_cast<size_t>(everybody().size());
  for (size_t bytes : {1u, 8'185u, 65'535u, 65'536u, 200'000u, 262'144u, 330'000u, 1u << 20, 9u << 20})
    for (int late = 0; late < 3; ++late) {
      if (late == rank) pause_s(0.01);
      std::vector<uint8_t> in(bytes), out(bytes * n);
      for (size_t i = 0; i < bytes; ++i) in[i] = static_cast<uint8_t>(i * 7 + i / 251 + static_cast<size_t>(rank));
      const std::vector<int64_t> counts(n, static_cast<int64_t>(bytes));
      everybody().all_gather(in.data(), out.data(), counts, DType::kUInt8);
      for (size_t i = 0; i < bytes * n; ++i)
        if (const size_t at = i % bytes; out[i] != static_cast<uint8_t>(at * 7 + at / 251 + i / bytes))
          fail_runtime("byte {} of rank {} of {} is wrong", at, i / bytes, bytes);
    }
}

// A view of /dev/shm of this process's own that holds next to nothing. False: the system does not let us.
bool shrink_dev_shm() {
  if (unshare(CLONE_NEWNS) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
  mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr);
  return mount("tmpfs", "/dev/shm", "tmpfs", 0, "size=64k") == 0;
}

int entries(const char* folder) {
  int count = 0;
  DIR* d = opendir(folder);
  while (d && readdir(d)) ++count;
  if (d) closedir(d);
  return count;
}

// Whether it raises that this process was forked.
bool refused(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return std::string_view(e.what()).find("was forked from rank") != std::string_view::npos;
  }
  return false;
}

int64_t sum_by_threads(int64_t n) {
  std::atomic<int64_t> sum = 0;
  parallel_for(n, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) sum += i;
  });
  return sum;
}

// A child, which finds `before` in x when its parent has written something else there. 0: all is as it should be.
int act_as_child(int* x, int count, int before, int go, Communicator& group, Work& work) {
  alarm(120);  // who hangs is killed
  char c;
  if (read(go, &c, 1) != 1) return 2;
  for (int i = 0; i < count; ++i) {
    if (x[i] != before) return 3;
    x[i] = -1;
  }
  float one = 1;
  if (!refused([&] { group.all_reduce(&one, &one, 1, float32); })) return 4;
  const int ranks[] = {1, 0};
  if (!refused([&] { communicator(ranks).barrier(); })) return 5;
  if (!refused([] { run_in_background([] {}).wait(); })) return 6;
  if (abort_world("a child has failed")) return 7;
  set_num_threads(3);
  if (sum_by_threads(1000) != 499500) return 8;
  const size_t bytes = size_t{3} << 20;
  auto* mine = static_cast<char*>(allocate_block(bytes));
  std::fill_n(mine, bytes, 'c');
  free_block(mine, bytes);
  free_block(x, static_cast<size_t>(count) * sizeof(int));
  if (!work.done()) return 9;
  return 0;
}

void fork_in_all_ways(int rank) {
  const int count = 1 << 20;
  auto* x = static_cast<int*>(allocate_block(count * sizeof(int)));
  Communicator& group = everybody();
  auto work = run_in_background([] { reduce_some(2); });
  work.wait();
  for (int way = 0; way < 5; ++way) {
    std::fill_n(x, count, way);
    set_num_threads(3);
    sum_by_threads(1000);
    int go[2];
    if (pipe(go) != 0) fail_runtime("no pipe");
    const pid_t child = fork();
    if (child == 0) {
      const int found = act_as_child(x, count, way, go[0], group, work);
      if (found != 0 || way == 0) _exit(found);
      if (way == 1) std::exit(0);
      if (way == 2) kill(getpid(), SIGKILL);
      if (way == 3) std::terminate();
      std::exit(3);
    }
    std::fill_n(x, count, 100 + way);
    if (write(go[1], "g", 1) != 1) fail_runtime("no child");
    if (way % 2 == rank) reduce_some(1);  // one rank with its child alive, the other one later
    int status = 0;
    waitpid(child, &status, 0);
    if (way % 2 != rank) reduce_some(1);
    close(go[0]), close(go[1]);
    const int expected[] = {0, 0, SIGKILL, SIGABRT, 3};
    const int found = WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
    if (found != expected[way]) fail_runtime("child {} ended by {}", way, found);
    if (std::count(x, x + count, 100 + way) != count) fail_runtime("child {} has changed its parent's memory", way);
    if (sum_by_threads(1000) != 499500) fail_runtime("the threads of the parent");
  }
  free_block(x, count * sizeof(int));
  test::check_collectives(everybody(), float32);
}

void stop_in_exchange() {
  FdListener listener;
  const Rendezvous found = rendezvous(Context::current(), listener.name());
  const Fd to_leader = test::introduce(found.ranks[0].socket, 1, 1 << 20);
  pause_s(60);
}

// A thread that has been handed the rank communicates next to the rank's own; one that has not may not.
void communicate_in_threads(int rank) {
  ContextHandoff handoff;
  auto sums = [&](float start) {
    for (int i = 0; i < 100; ++i) {
      float x = start + static_cast<float>(rank), sum = 0;
      everybody().all_reduce(&x, &sum, 1, float32);
      if (sum != 2 * start + 1) throw std::runtime_error("another thread's numbers");
    }
  };
  std::string error;
  {
    std::jthread handed([&] {
      auto scope = handoff.enter();
      sums(1000);
    });
    std::jthread stranger([&] {
      try {
        everybody().barrier();
      } catch (const std::exception& e) {
        error = e.what();
      }
    });
    sums(0);
  }
  say(error.c_str());
}

const std::map<std::string, std::function<void(int)>> kModes = {
    {"threads", communicate_in_threads},
    {"fork", fork_in_all_ways},
    {"collectives",
     [](int rank) {
       for (int d = 0; d < kComputedDTypeCount; ++d) test::check_collectives(everybody(), static_cast<DType>(d));
       test::check_subgroups(rank, Context::current().world_size());
       test::check_byte_counts(everybody());
     }},
    {"brief", [](int) { reduce_some(3); }},
    {"sizes", gather_sizes},
    {"count_reads",
     [](int rank) {
       const int64_t before = test::bytes_read_from_others();
       gather_sizes(rank);
       say(("reads " + std::to_string(test::bytes_read_from_others() - before) + " bytes").c_str());
     }},
    {"barrier", [](int) { everybody().barrier(); }},
    // Rank 1 shows its memory and takes nobody else's.
    {"stop_in_exchange",
     [](int rank) {
       if (rank == 1) return stop_in_exchange();
       everybody().barrier();
     }},
    // Rank 0 looks at rank 1 when that has failed and gone.
    {"fail_and_go",
     [](int rank) {
       everybody().barrier();
       if (rank == 1) throw std::runtime_error("the milk is sour");
       while (world().ended(1).empty()) pause_s(0.01);
       say(("finds that rank 1 " + world().ended(1)).c_str());
     }},
    {"mismatch",
     [](int rank) {
       float x[2] = {}, y[8];
       std::vector<int64_t> counts(static_cast<size_t>(everybody().size()), 2);
       if (rank == 1)
         everybody().all_gather(x, y, counts, float32);
       else
         everybody().all_reduce(x, y, 2, float32);
     }},
    {"throw",
     [](int rank) {
       everybody().barrier();
       if (rank == 1) throw std::runtime_error("the milk is sour");
       everybody().barrier();
     }},
    {"uncaught",
     [](int rank) {
       everybody().barrier();
       if (rank == 1) std::thread([] { throw std::runtime_error("the milk is sour"); }).join();
       everybody().barrier();
     }},
    {"exit_badly",
     [](int rank) {
       everybody().barrier();
       if (rank == 1) std::exit(5);
       everybody().barrier();
     }},
    {"leave",
     [](int rank) {
       everybody().barrier();
       if (rank == 1) std::exit(0);
       everybody().barrier();
     }},
    // Rank 0 has served the store; the others go on without it.
    {"rank0_leaves",
     [](int rank) {
       everybody().barrier();
       if (rank == 0) return;
       pause_s(0.3);
       int others[] = {1, 2};
       communicator(others).barrier();
       test::check_collectives(communicator(others), float32);
     }},
    {"die",
     [](int rank) {
       reduce_some(3);
       say("is ready");
       if (rank == 1) kill(getpid(), SIGKILL);
       reduce_some(100'000'000);
     }},
    {"work",
     [](int) {
       everybody().barrier();
       say("is ready");
       reduce_some(100'000'000);
     }},
    {"work_with_workers",
     [](int) {
       everybody().barrier();
       if (fork() == 0) {
         for (int fd : {0, 1, 2}) close(fd);  // else who reads the rank's output waits for it
         for (int i = 0; i < 60; ++i) pause_s(1);
         _exit(0);
       }
       say("is ready");
       reduce_some(100'000'000);
     }},
    {"sleep",
     [](int rank) {
       everybody().barrier();
       if (rank == 1) pause_s(20);
       reduce_some(1);
     }},
    // Rank 1 is busy and rank 0 waits for it: neither has to do with the others.
    {"wait_for_busy",
     [](int rank) {
       everybody().barrier();
       say("is ready");
       int some[] = {0, 1};
       if (rank == 0) communicator(some).barrier();
       pause_s(120);
     }},
    // The same with a child of every rank, as a DataLoader's worker, that lives on.
    {"wait_for_busy_with_workers",
     [](int rank) {
       everybody().barrier();
       if (const pid_t worker = fork(); worker == 0) {
         for (int i = 0; i < 60; ++i) pause_s(1);
         _exit(0);
       } else {
         say(("has the worker " + std::to_string(worker) + ".").c_str());
       }
       say("is ready");
       int some[] = {0, 1};
       if (rank == 0) communicator(some).barrier();
       pause_s(120);
     }},
    // Rank 1 ends in order before the others are connected to it.
    {"alone",
     [](int rank) {
       if (rank != 1) everybody().barrier();
     }},
    {"fail_late",
     [](int rank) {
       everybody().barrier();
       if (rank == 1) {
         for (int i = 0; i < 40; ++i) std::fprintf(stderr, "line %d of rank 1\n", i);
         throw std::runtime_error("no more rank 1");
       }
       say("waits");
       pause_s(20);
     }},
    // Ignores the polite signal, and leaves a child behind.
    {"stubborn",
     [](int rank) {
       everybody().barrier();
       signal(SIGTERM, SIG_IGN);
       signal(SIGINT, SIG_IGN);
       if (fork() == 0) {
         setsid();
         pause_s(60);
         _exit(0);
       }
       say("is ready");
       if (rank == 1) std::_Exit(7);
       pause_s(60);
     }},
    {"interruptible",
     [](int) {
       everybody().barrier();
       if (fork() == 0) {
         pause_s(60);
         _exit(0);
       }
       say("is ready");
       pause_s(60);
     }},
    {"small_shm",
     [](int) {
       say(shrink_dev_shm() ? "has 64 KiB in /dev/shm" : "may not mount");
       const int before = entries("/dev/shm");
       test::check_collectives(everybody(), float32);
       reduce_large();
       if (entries("/dev/shm") != before) fail_runtime("something was made in /dev/shm");
     }},
    {"hold",
     [](int) {
       reduce_large();
       say("is ready");
       reduce_some(100'000'000);
     }},
    {"background",
     [](int) {
       for (int i = 0; i < 5; ++i) {
         auto work = run_in_background([] {
           test::check_collectives(everybody(), float16);
           reduce_some(3);
         });
         test::check_collectives(everybody(), float32);
         reduce_some(2);
         work.wait();
       }
     }},
    // Rank 1 gives its job and ends before the others' can be done.
    {"background_left",
     [](int rank) {
       everybody().barrier();
       auto work = run_in_background([rank] {
         if (rank == 1) pause_s(0.2);
         reduce_some(100'000'000);
       });
       if (rank == 0) work.wait();
       pause_s(0.5);
     }},
    // All on the first two cores.
    {"crowd",
     [](int) {
       cpu_set_t two;
       CPU_ZERO(&two);
       CPU_SET(0, &two), CPU_SET(1, &two);
       sched_setaffinity(0, sizeof two, &two);
       for (int i = 0; i < 300; ++i) everybody().barrier();
       // It lets others run a few times, and then sleeps.
       if (world().yields() != 8) fail_runtime("{} yields with four ranks per core", world().yields());
       if (world().spin_ns() != 0) fail_runtime("{} ns of spinning on cores that others need", world().spin_ns());
       test::check_collectives(everybody(), float32);
     }},
};

}  // namespace
}  // namespace holon::comm

int main(int argc, char** argv) {
  using namespace holon;
  try {
    comm::kModes.at(argc > 1 ? argv[1] : "")(Context::current().rank());
  } catch (const std::exception& e) {
    std::fprintf(stderr, "rank %d error: %s\n", Context::current().rank(), e.what());
    comm::abort_world(e.what());
    return 1;
  }
  comm::say("ok");
  return 0;
}
