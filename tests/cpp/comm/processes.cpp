#include "tests/cpp/comm/processes.h"

#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "holon/comm/bootstrap/socket.h"

namespace holon::comm::test {

namespace {
double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }
void pause_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

bool is_free(int port) {
  const Fd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in a{};
  a.sin_family = AF_INET;
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  a.sin_port = htons(static_cast<uint16_t>(port));
  return bind(fd.get(), reinterpret_cast<sockaddr*>(&a), sizeof a) == 0;
}
}  // namespace

Process::Process(std::vector<std::string> command, const std::map<std::string, std::string>& variables)
    : start_(now()) {
  file_ = memfd_create("output", MFD_CLOEXEC);
  fcntl(file_, F_SETFL, O_APPEND);  // several writers
  std::vector<char*> argv;
  for (auto& s : command) argv.push_back(s.data());
  argv.push_back(nullptr);
  pid_ = fork();
  if (pid_ != 0) return;
  for (auto& [name, value] : variables) value.empty() ? unsetenv(name.c_str()) : setenv(name.c_str(), value.c_str(), 1);
  dup2(file_, 1);
  dup2(file_, 2);
  execvp(argv[0], argv.data());
  _exit(126);
}

Process::~Process() {
  if (status_ == -2) wait(0);
  close(file_);
}

int Process::wait(double limit_s) {
  if (status_ != -2) return status_;
  const double until = now() + limit_s;
  int status;
  while (waitpid(pid_, &status, WNOHANG) == 0) {
    if (now() > until) {
      kill(pid_, SIGKILL);
      waitpid(pid_, &status, 0);
      return status_ = -1;
    }
    pause_ms(2);
  }
  seconds_ = now() - start_;
  return status_ = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

bool Process::wait_for_output(const std::string& text, double limit_s) {
  for (const double until = now() + limit_s; now() < until; pause_ms(5))
    if (output().find(text) != std::string::npos) return true;
  return false;
}

std::string Process::output() const {
  std::string text;
  char buffer[4096];
  for (off_t at = 0;;) {
    ssize_t n = pread(file_, buffer, sizeof buffer, at);
    if (n <= 0) return text;
    text.append(buffer, static_cast<size_t>(n));
    at += n;
  }
}

void Process::send_signal(int s) const { kill(pid_, s); }

int free_port() {
  // As in tests/harness/ports.py, which has the reasons.
  constexpr int kFirst = 20'000, kEnd = 29'000;
  const std::string path = "/tmp/holon-test-port-" + std::to_string(getuid());
  const Fd file(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!file || flock(file.get(), LOCK_EX) != 0) throw std::runtime_error("cannot lock " + path);
  char text[8] = "";
  if (pread(file.get(), text, 5, 0) < 0) throw std::runtime_error("cannot read " + path);
  for (int tries = 0, port = std::atoi(text); tries < kEnd - kFirst; ++tries) {
    port = kFirst <= port && port < kEnd - 1 ? port + 1 : kFirst;
    if (!is_free(port)) continue;
    if (pwrite(file.get(), std::to_string(port).data(), 5, 0) != 5) throw std::runtime_error("cannot write " + path);
    return port;
  }
  throw std::runtime_error("no port is free");
}

std::map<std::string, std::string> rank_environment(int rank, int world_size, int port) {
  return {
      {"MASTER_ADDR", "127.0.0.1"},   {"MASTER_PORT", std::to_string(port)}, {"WORLD_SIZE", std::to_string(world_size)},
      {"RANK", std::to_string(rank)}, {"LOCAL_RANK", std::to_string(rank)},  {"HOLON_STORE_HOSTED", ""},
      {"HOLON_STORE_TOKEN", ""}};
}

int processes_with(const std::string& text) {
  int count = 0;
  DIR* proc = opendir("/proc");
  while (dirent* entry = readdir(proc)) {
    if (!std::isdigit(entry->d_name[0])) continue;
    std::ifstream file(std::string("/proc/") + entry->d_name + "/environ");
    std::stringstream all;
    all << file.rdbuf();
    count += all.str().find(text) != std::string::npos;
  }
  closedir(proc);
  return count;
}

}  // namespace holon::comm::test
