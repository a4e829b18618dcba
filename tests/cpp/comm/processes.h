// Programs as child processes, for tests: their output, how they ended and how long they took.
#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

namespace holon::comm::test {

class Process {
 public:
  // Starts the command with the variables added to the environment ("" removes one); output goes to a temporary file.
  Process(std::vector<std::string> command, const std::map<std::string, std::string>& variables);
  ~Process();  // kills what still runs
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  // Waits; kills after limit_s and then returns -1. Otherwise the exit status, or 128 + the signal.
  int wait(double limit_s = 60);
  // Waits until the output contains the text. False: not within limit_s.
  bool wait_for_output(const std::string& text, double limit_s = 20);
  std::string output() const;
  double seconds() const { return seconds_; }  // from start to end
  void send_signal(int s) const;

 private:
  pid_t pid_ = -1;
  int file_ = -1;
  int status_ = -2;
  double start_, seconds_ = 0;
};

// A port that nobody uses, and that nobody else gets before the caller listens at it.
int free_port();
// The environment of a rank that is started by hand.
std::map<std::string, std::string> rank_environment(int rank, int world_size, int port);
// How many processes of this machine have the text in their environment.
int processes_with(const std::string& text);

}  // namespace holon::comm::test
