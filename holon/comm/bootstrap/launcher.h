// holon-launch: starts one process per rank on this machine, serves their store, and sees to it that all of
// them end together.
#pragma once

#include <string>
#include <vector>

namespace holon::comm {

struct LaunchOptions {
  int nproc_per_node = 1;
  int nnodes = 1;
  int node_rank = 0;
  std::string master_addr = "127.0.0.1";
  int master_port = 0;  // 0: the system chooses, for one node; 29500 for several
  std::string token_file;
  std::string logdir;     // "": no files
  bool redirect = false;  // output goes to the files of logdir only
  bool label = false;     // each line of a rank's output begins with its number
  double grace_period_s = 30;
  std::string simulate;
  std::string contract;
  std::string python;  // the interpreter; "" runs the program itself, and python3 if its name ends in .py
  bool module = false;
  bool no_python = false;
  std::vector<std::string> program;  // and its arguments
};

// Errors: an unknown option or a value out of range (ValueError). Prints the help and exits if it is requested.
LaunchOptions parse_launch_options(int argc, char** argv);

// Runs the program and returns the exit status: 0 if all ranks ended well, else the first failing rank's, or 128 + its
// signal. A rank that fails ends the others within a few seconds, and the end of its stderr is printed last. SIGINT,
// SIGTERM and SIGHUP are passed on to all ranks, which are killed where they have not ended after grace_period_s;
// SIGUSR1 and SIGUSR2 are passed on. If the launcher itself is killed the kernel kills the ranks. Errors: the program
// cannot be run, the port is in use.
int launch(const LaunchOptions& options);

}  // namespace holon::comm
