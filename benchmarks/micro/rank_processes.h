// Benchmarks whose ranks are processes: each runs the same program once more.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

namespace holon::bench {

// Starts this program as n ranks, with RANK and what else they need in the environment, and waits. 0: all ended well.
inline int run_rank_processes(int n, char** argv) {
  setenv("WORLD_SIZE", std::to_string(n).c_str(), 1);
  setenv("MASTER_PORT", std::to_string(20000 + (getpid() + n) % 20000).c_str(), 1);
  setenv("OMP_NUM_THREADS", "1", 1);
  std::vector<pid_t> ranks;
  for (int r = 0; r < n; ++r) {
    ranks.push_back(fork());
    if (ranks.back() != 0) continue;
    setenv("RANK", std::to_string(r).c_str(), 1);
    setenv("LOCAL_RANK", std::to_string(r).c_str(), 1);
    execv("/proc/self/exe", argv);
    _exit(127);
  }
  int worst = 0;
  for (pid_t r : ranks) {
    int status = 0;
    waitpid(r, &status, 0);
    worst |= status;
  }
  unsetenv("WORLD_SIZE");
  return worst;
}

}  // namespace holon::bench
