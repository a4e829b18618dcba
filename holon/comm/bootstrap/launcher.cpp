#include "holon/comm/bootstrap/launcher.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>

#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/index.h"
#include "holon/base/settings.h"
#include "holon/base/trace.h"
#include "holon/comm/bootstrap/address.h"
#include "holon/comm/bootstrap/handshake.h"
#include "holon/comm/bootstrap/herald.h"
#include "holon/comm/bootstrap/output.h"
#include "holon/comm/bootstrap/store.h"
#include "holon/comm/bootstrap/token.h"
#include "holon/comm/core/cores.h"

extern char** environ;

namespace holon::comm {

namespace {

using Clock = std::chrono::steady_clock;
namespace fs = std::filesystem;

constexpr auto kTermToKill = std::chrono::milliseconds(2000);
// Where another rank has said that it failed first, it gets this long to print why, before it is stopped too; so do
// those that miss a rank which was killed, and could say nothing itself.
constexpr auto kLastWords = std::chrono::milliseconds(400);
constexpr auto kTellOfFailure = std::chrono::milliseconds(5000), kTellOfEnd = std::chrono::milliseconds(500);
constexpr auto kReaderTick = std::chrono::milliseconds(50), kReaderTimeout = std::chrono::milliseconds(5000);
constexpr size_t kTailBytes = 16384;
constexpr int kTailLines = 30;

std::string find_in_path(const std::string& name) {
  if (name.find('/') != std::string::npos)
    return access(name.c_str(), X_OK) == 0 && !fs::is_directory(name) ? name : "";
  const char* path = std::getenv("PATH");
  std::string list = path ? path : "/usr/local/bin:/usr/bin:/bin";
  for (size_t at = 0; at <= list.size();) {
    size_t end = std::min(list.find(':', at), list.size());
    std::string file = (end == at ? "." : list.substr(at, end - at)) + "/" + name;
    if (access(file.c_str(), X_OK) == 0 && !fs::is_directory(file)) return file;
    at = end + 1;
  }
  return "";
}

// The command of every rank, its first word a file that can be run.
std::vector<std::string> command_of(const LaunchOptions& o) {
  std::vector<std::string> command = o.program;
  std::string python = o.no_python ? "" : o.python;
  if (python.empty() && !o.no_python && (o.module || command[0].ends_with(".py"))) python = "python3";
  if (!python.empty()) {
    if (!o.module && access(command[0].c_str(), R_OK) != 0)
      fail_value("the script {} cannot be read: {}. Name a script from {}.", command[0], strerror(errno),
                 fs::current_path().string());
    if (o.module) command.insert(command.begin(), "-m");
    command.insert(command.begin(), python);
  }
  std::string file = find_in_path(command[0]);
  if (file.empty())
    fail_value("there is no program {}. Give a path, e.g. ./{}, or a name that is in PATH.", command[0],
               fs::path(command[0]).filename().string());
  command[0] = file;
  return command;
}

class Rank {
 public:
  int number = 0;
  pid_t pid = -1;
  bool running = false, own_group = false, stopped_by_us = false;
  int status = 0;
  Fd out, err;  // this side of the pipes
  Fd out_file, err_file;
  std::optional<Lines> out_lines, err_lines;
  std::string tail;

  void signal(int s) {
    if (!running) return;
    stopped_by_us = true;
    if (own_group && kill(-pid, s) == 0) return;
    kill(pid, s);
  }
  // To the rank alone, whose programs may not know the signal.
  void pass_signal(int s) const {
    if (running) kill(pid, s);
  }
  bool failed() const { return !running && status != 0 && !stopped_by_us; }
  int exit_status() const { return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status); }
  std::string how() const {
    if (!WIFSIGNALED(status)) return fmt::format("exit status {}", WEXITSTATUS(status));
    const char* text = sigdescr_np(WTERMSIG(status));
    return fmt::format("killed by signal {} ({})", WTERMSIG(status), text ? text : "unknown");
  }
};

void write_fully(int fd, const char* data, size_t size) {
  while (size) {
    ssize_t n = write(fd, data, size);
    if (n < 0 && errno == EAGAIN) {
      pollfd p{fd, POLLOUT, 0};
      poll(&p, 1, 1000);
      continue;
    }
    if (n < 0 && errno != EINTR) return;
    if (n > 0) data += n, size -= to_size(n);
  }
}

// A process that outlives the launcher if that is killed, and then ends what the ranks' groups still hold: the kernel
// kills the ranks themselves, but not the programs that they have started.
class Keeper {
 public:
  void start() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) fail_runtime("cannot create a pipe: {}.", strerror(errno));
    Fd theirs(ends[0]);
    pipe_ = Fd(ends[1]);
    const pid_t pid = fork();
    if (pid < 0) fail_runtime("cannot watch the launcher: {}.", strerror(errno));
    if (pid > 0) {
      pid_ = pid;
      return;
    }
    // What stops the launcher's own group must not stop this one.
    setsid();
    prctl(PR_SET_NAME, "holon-keeper");
    // Nobody's files stay open because of this one.
    dup2(theirs.get(), 0);
    syscall(SYS_close_range, 1u, ~0u, 0u);
    pid_t groups[kMost], next;
    size_t n = 0;
    // A group begins, or, negative, has ended. 0 says that all is done; the pipe's end, that the launcher is gone.
    for (ssize_t got; (got = read(0, &next, sizeof next)) != 0;) {
      if (got < 0 && errno == EINTR) continue;
      if (got != sizeof next || next == 0) _exit(0);
      if (next < 0)
        n = to_size(std::remove(groups, groups + n, -next) - groups);
      else if (n < kMost)
        groups[n++] = next;
    }
    for (size_t i = 0; i < n; ++i) kill(-groups[i], SIGKILL);
    _exit(0);
  }
  void add(pid_t group) { tell(group); }
  void remove(pid_t group) { tell(-group); }
  void dismiss() {
    tell(0);
    waitpid(pid_, nullptr, 0);
  }

 private:
  static constexpr size_t kMost = 4096;
  void tell(pid_t what) {
    if (pipe_) [[maybe_unused]]
      ssize_t n = write(pipe_.get(), &what, sizeof what);
  }
  Fd pipe_;
  pid_t pid_ = -1;
};

class Launcher {
 public:
  explicit Launcher(const LaunchOptions& o) : o_(o), command_(command_of(o)) {}

  int run() {
    // Orphans of ranks become this process's children, so that they can be found and ended.
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    agree_on_token();
    find_place();
    catch_signals();
    take_descriptors();
    keeper_.start();
    host_store();
    if (!o_.logdir.empty()) {
      std::error_code error;
      fs::create_directories(o_.logdir, error);
      if (error) fail_value("cannot create --logdir {}: {}.", o_.logdir, error.message());
    }
    ranks_.resize(to_size(o_.nproc_per_node));
    try {
      for (int local = 0; local < o_.nproc_per_node; ++local) start(local);
    } catch (...) {
      for (Rank& r : ranks_) r.signal(SIGKILL);
      sweep();
      throw;
    }
    herald_.emplace(o_.master_addr, port_, token_);
    while (std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& r) { return r.running; })) wait_for_events();
    over_ = true;
    // Ranks of other nodes may be waiting for those of this one.
    if (o_.nnodes > 1) herald_->finish(first_failed_ >= 0 ? kTellOfFailure : kTellOfEnd);
    keeper_.dismiss();
    for (Rank& r : ranks_) drain(r);
    if (first_failed_ >= 0 || interrupted_by_) sweep();
    // Ranks that were stopped have left their parts of a trace. Another host's launcher may write to the same folder.
    if (const char* path = std::getenv("HOLON_TRACE"); path && *path)
      tracing::join_parts(path, true, o_.nnodes > 1 ? started_ : fs::file_time_type::max());
    write_out(out_);
    const int status = report();
    write_out(err_);
    return status;
  }

 private:
  void catch_signals() {
    sigset_t set;
    sigemptyset(&set);
    for (int s : {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2}) sigaddset(&set, s);
    sigprocmask(SIG_BLOCK, &set, &mask_before_);
    signals_ = Fd(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
    if (!signals_) fail_runtime("the launcher cannot watch its ranks: {}.", strerror(errno));
    ::signal(SIGPIPE, SIG_IGN);
  }

  // Each rank takes pipes and a connection to the store. The ranks themselves get what was set.
  void take_descriptors() {
    getrlimit(RLIMIT_NOFILE, &descriptors_before_);
    const rlimit all{descriptors_before_.rlim_max, descriptors_before_.rlim_max};
    setrlimit(RLIMIT_NOFILE, &all);
  }

  bool several_hosts() const { return o_.nnodes > 1 && !names_this_machine(o_.master_addr); }

  void agree_on_token() {
    if (!o_.token_file.empty()) setenv("HOLON_STORE_TOKEN_FILE", o_.token_file.c_str(), 1);
    token_ = store_token(o_.node_rank == 0, settings::number("HOLON_RENDEZVOUS_TIMEOUT_S"));
    // Launchers of one machine that use its loopback address could not tell each other.
    if (!token_.empty() || (o_.nnodes > 1 && !several_hosts())) return;
    if (o_.node_rank != 0)
      fail_value(
          "machine {} of {} does not have the token that the machines share. Set HOLON_STORE_TOKEN to the token that "
          "machine 0's launcher prints, or to the same secret on all of them, or name the same --token_file.",
          o_.node_rank, o_.nnodes);
    token_ = random_token();
    if (several_hosts())
      std::fprintf(stderr, "holon-launch: start the launchers of the other machines with HOLON_STORE_TOKEN=%s\n",
                   token_.c_str());
  }

  // May wait for a name to be known; signals still end the launcher then.
  void find_place() {
    port_ = o_.master_port == 0 && o_.nnodes > 1 ? 29500 : o_.master_port;
    if (o_.node_rank == 0)
      store_at_ =
          store_addresses(o_.master_addr, port_, several_hosts(), settings::number("HOLON_RENDEZVOUS_TIMEOUT_S"));
  }

  void host_store() {
    if (o_.node_rank != 0) return;
    store_ = std::make_unique<StoreServer>(store_at_, token_);
    port_ = store_->port();
  }

  std::vector<std::string> environment(int local) const {
    const int cores = CoreSet::of_this_process().count();
    std::map<std::string, std::string> ours = {
        {"MASTER_ADDR", o_.master_addr},
        {"MASTER_PORT", std::to_string(port_)},
        {"WORLD_SIZE", std::to_string(o_.nnodes * o_.nproc_per_node)},
        {"RANK", std::to_string(o_.node_rank * o_.nproc_per_node + local)},
        {"LOCAL_RANK", std::to_string(local)},
        {"LOCAL_WORLD_SIZE", std::to_string(o_.nproc_per_node)},
        {"NODE_RANK", std::to_string(o_.node_rank)},
        {"HOLON_STORE_HOSTED", "1"},
    };
    if (!token_.empty()) ours["HOLON_STORE_TOKEN"] = token_;
    if (!o_.simulate.empty()) ours["HOLON_SIMULATE"] = o_.simulate;
    if (!o_.contract.empty()) ours["HOLON_CONTRACT"] = o_.contract;
    // Threads that wait spin for about 0.2 ms and then sleep: ranks share the cores.
    if (!std::getenv("GOMP_SPINCOUNT")) ours["GOMP_SPINCOUNT"] = "20000";
    // A rank on a CUDA device has a stream for its work, one for each axis of ranks and one for each neighbour in a
    // pipeline: they must not share hardware queues (8 by default), in which one that waits for a peer holds up the
    // others, and no kernel may be loaded while another waits. NCCL starts the calls of all communicators in the same
    // order on each device.
    for (auto [name, value] : {std::pair{"CUDA_DEVICE_MAX_CONNECTIONS", "32"},
                               {"CUDA_MODULE_LOADING", "EAGER"},
                               {"NCCL_LAUNCH_ORDER_IMPLICIT", "1"}})
      if (!std::getenv(name)) ours[name] = value;
    if (!std::getenv("OMP_NUM_THREADS"))
      ours["OMP_NUM_THREADS"] = std::to_string(std::max(1, cores / o_.nproc_per_node));
    std::vector<std::string> result;
    for (char** e = environ; *e; ++e) {
      std::string entry = *e;
      if (!ours.contains(entry.substr(0, entry.find('=')))) result.push_back(entry);
    }
    for (auto& [name, value] : ours) result.push_back(name + "=" + value);
    return result;
  }

  Fd log_file(int number, const char* stream) const {
    std::string path = fmt::format("{}/rank_{}.{}", o_.logdir, number, stream);
    Fd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    if (!fd) fail_value("cannot write the file {} of --logdir: {}.", path, strerror(errno));
    return fd;
  }

  void start(int local) {
    Rank& r = at_index(ranks_, local);
    r.number = o_.node_rank * o_.nproc_per_node + local;
    Fd out_end, err_end;
    auto make_pipe = [&](Fd* mine, Fd* theirs) {
      int ends[2];
      if (pipe2(ends, O_CLOEXEC) != 0) fail_runtime("cannot create a pipe: {}.", strerror(errno));
      *mine = Fd(ends[0]), *theirs = Fd(ends[1]);
      fcntl(ends[0], F_SETFL, O_NONBLOCK);
    };
    make_pipe(&r.err, &err_end);
    // At a terminal a rank writes lines by itself, and its program may ask there.
    if (!o_.logdir.empty() || o_.label || !isatty(STDOUT_FILENO)) make_pipe(&r.out, &out_end);
    if (!o_.logdir.empty()) r.err_file = log_file(r.number, "stderr"), r.out_file = log_file(r.number, "stdout");
    const std::string label = o_.label ? fmt::format("[rank {}] ", r.number) : "";
    r.out_lines.emplace(out_, label), r.err_lines.emplace(err_, label);
    const bool terminal = isatty(STDIN_FILENO);
    // Rank 0 may ask at the terminal, so it stays in the foreground; a background process that reads is stopped by the
    // kernel.
    r.own_group = !(local == 0 && terminal);
    Fd null(local == 0 ? -1 : open("/dev/null", O_RDONLY | O_CLOEXEC));

    // All memory is prepared here: between fork and exec only system calls are safe.
    std::vector<std::string> environment_text = environment(local);
    std::vector<char*> argv, envp;
    for (std::string& s : command_) argv.push_back(s.data());
    for (std::string& s : environment_text) envp.push_back(s.data());
    argv.push_back(nullptr), envp.push_back(nullptr);
    const pid_t parent = getpid();
    const pid_t pid = fork();
    if (pid < 0) fail_runtime("cannot start rank {}: {}.", r.number, strerror(errno));
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(127);
      if (r.own_group) setpgid(0, 0);
      if (null) dup2(null.get(), STDIN_FILENO);
      if (out_end) dup2(out_end.get(), STDOUT_FILENO);
      dup2(err_end.get(), STDERR_FILENO);
      ::signal(SIGPIPE, SIG_DFL);
      sigprocmask(SIG_SETMASK, &mask_before_, nullptr);
      setrlimit(RLIMIT_NOFILE, &descriptors_before_);
      execve(argv[0], argv.data(), envp.data());
      const char text[] = "holon-launch: the program could not be executed\n";
      [[maybe_unused]] ssize_t n = write(STDERR_FILENO, text, sizeof text - 1);
      _exit(127);
    }
    if (r.own_group) {
      setpgid(pid, pid);  // here too: whoever of both comes first
      keeper_.add(pid);
    }
    r.pid = pid;
    r.running = true;
  }

  void wait_for_events() {
    std::vector<pollfd> polled = {{signals_.get(), POLLIN, 0}};
    std::vector<std::pair<Rank*, bool>> sources;
    int timeout = -1;
    auto look_again = [&](std::optional<Clock::time_point> at) {
      if (!at) return;
      auto ms = std::chrono::ceil<std::chrono::milliseconds>(*at - Clock::now()).count();
      int left = static_cast<int>(std::clamp<int64_t>(ms, 0, 3'600'000));
      timeout = timeout < 0 ? left : std::min(timeout, left);
    };
    for (Rank& r : ranks_)
      for (bool is_err : {false, true})
        if (Fd& fd = is_err ? r.err : r.out) {
          look_again((is_err ? r.err_lines : r.out_lines)->due());
          // Who writes more than is read waits, as if it had the reader itself.
          if (!o_.redirect && (is_err ? err_ : out_).full()) {
            look_again(Clock::now() + kReaderTick);
            continue;
          }
          polled.push_back({fd.get(), POLLIN, 0});
          sources.emplace_back(&r, is_err);
        }
    for (auto& at : {term_at_, kill_at_}) look_again(at);
    if (poll(polled.data(), polled.size(), timeout) < 0 && errno != EINTR) fail_runtime("poll: {}.", strerror(errno));
    for (size_t i = 0; i < sources.size(); ++i)
      if (polled[i + 1].revents) pass_on(*sources[i].first, sources[i].second);
    if (polled[0].revents) take_signals();
    const auto now = Clock::now();
    for (Rank& r : ranks_) r.out_lines->pass_on_what_is_due(now), r.err_lines->pass_on_what_is_due(now);
    if (term_at_ && now >= *term_at_) {
      term_at_.reset();
      for (Rank& r : ranks_) r.signal(SIGTERM);
      kill_at_ = now + kTermToKill;
    }
    if (kill_at_ && now >= *kill_at_) {
      kill_at_.reset();
      for (Rank& r : ranks_) r.signal(SIGKILL);
    }
  }

  // Copies what a rank has written; closes the pipe at its end.
  void pass_on(Rank& r, bool is_err) {
    Fd& fd = is_err ? r.err : r.out;
    char buffer[65536];
    ssize_t n = read(fd.get(), buffer, sizeof buffer);
    Lines& lines = is_err ? *r.err_lines : *r.out_lines;
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) fd = Fd(), lines.end();
    if (n <= 0) return;
    const auto size = to_size(n);
    // All ranks are interrupted alike by Ctrl-C: where one was is enough to know.
    if (is_err && interrupted_by_ == SIGINT && !lines.has_had_traceback())
      for (Rank& other : ranks_)
        if (&other != &r && other.err_lines->has_had_traceback()) lines.leave_out_tracebacks();
    if (!o_.redirect) lines.add({buffer, size});
    Fd& file = is_err ? r.err_file : r.out_file;
    if (file) write_fully(file.get(), buffer, size);
    if (!is_err) return;
    r.tail.append(buffer, size);
    if (r.tail.size() > 2 * kTailBytes) r.tail.erase(0, r.tail.size() - kTailBytes);
  }

  void drain(Rank& r) {
    for (bool is_err : {false, true})
      for (;;) {
        Fd& fd = is_err ? r.err : r.out;
        if (!fd) break;
        pollfd p{fd.get(), POLLIN, 0};
        if (poll(&p, 1, 0) <= 0 || !(p.revents & (POLLIN | POLLHUP))) break;
        pass_on(r, is_err);
      }
    if (over_) r.out_lines->end(), r.err_lines->end();
  }

  // What has failed, or is told to end, ends though nobody reads.
  void write_out(Output& output) {
    if (first_failed_ >= 0 || interrupted_by_) {
      output.drain(kReaderTimeout);
      return;
    }
    while (!output.drain(kReaderTick)) {
      signalfd_siginfo info;
      while (read(signals_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info))
        if (info.ssi_signo == SIGINT || info.ssi_signo == SIGTERM || info.ssi_signo == SIGHUP) return;
    }
  }

  void take_signals() {
    signalfd_siginfo info;
    while (read(signals_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
      const int s = static_cast<int>(info.ssi_signo);
      if (s == SIGCHLD) continue;
      if (s == SIGUSR1 || s == SIGUSR2) {
        for (Rank& r : ranks_) r.pass_signal(s);
        continue;
      }
      // The first one is passed on, so that programs can finish properly; the second means it.
      const bool again = interrupted_by_ != 0;
      if (!again) interrupted_by_ = s;
      for (Rank& r : ranks_) {
        // Ctrl-C at a terminal reaches all that is in the foreground, of which rank 0 may be.
        const bool has_it = s == SIGINT && info.ssi_code == SI_KERNEL && !r.own_group;
        if (has_it) r.stopped_by_us = true;
        if (again || !has_it) r.signal(again ? SIGKILL : s);
      }
      term_at_.reset();
      if (!again) kill_at_ = Clock::now() + std::chrono::milliseconds(static_cast<int64_t>(o_.grace_period_s * 1000));
    }
    int status;
    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
      auto r = std::find_if(ranks_.begin(), ranks_.end(), [&](const Rank& x) { return x.pid == pid; });
      if (r == ranks_.end()) continue;  // an orphan of a rank
      r->running = false;
      r->status = status;
      if (r->own_group && kill(-pid, 0) != 0) keeper_.remove(pid);
      drain(*r);
      if (herald_)
        herald_->ended(r->number, status == 0 ? "has finished normally" : fmt::format("has failed ({})", r->how()));
      if (status == 0 || interrupted_by_) continue;
      if (first_failed_ < 0) {
        first_failed_ = static_cast<int>(r - ranks_.begin());
        Rank* origin = reported_failure();
        term_at_ = Clock::now() +
            ((origin && origin->running) || WIFSIGNALED(status) ? kLastWords : std::chrono::milliseconds(0));
      } else if (term_at_ && &*r == reported_failure()) {
        term_at_ = Clock::now();
      }
    }
  }

  // The rank that told the others of its failure, if any has.
  Rank* reported_failure() {
    auto text = store_ ? store_->peek("failed") : std::nullopt;
    if (!text) return nullptr;
    for (Rank& r : ranks_)
      if (std::to_string(r.number) == *text) return &r;
    return nullptr;
  }

  // Ends what the ranks have left behind.
  void sweep() {
    for (Rank& r : ranks_)
      if (r.own_group && r.pid > 0) kill(-r.pid, SIGKILL);
    const auto until = Clock::now() + std::chrono::seconds(1);
    while (Clock::now() < until) {
      bool any = false;
      std::error_code error;
      for (auto& task : fs::directory_iterator("/proc/self/task", error)) {
        std::ifstream children(task.path() / "children");
        for (pid_t pid; children >> pid;) any = true, kill(pid, SIGKILL);
      }
      while (waitpid(-1, nullptr, WNOHANG) > 0) {
      }
      if (!any) return;
      timespec pause{0, 5'000'000};
      nanosleep(&pause, nullptr);
    }
  }

  int report() {
    if (interrupted_by_) {
      err_.write(this,
                 fmt::format("holon-launch: stopped by signal {} ({})\n", interrupted_by_,
                             sigdescr_np(interrupted_by_)));
      return 128 + interrupted_by_;
    }
    if (first_failed_ < 0) return 0;
    Rank* culprit = &at_index(ranks_, first_failed_);
    if (Rank* origin = reported_failure(); origin && origin->failed()) culprit = origin;
    // Other ranks may have written since: what matters is last.
    std::string tail = culprit->tail;
    size_t cut = tail.size();
    for (int lines = 0; cut > 0 && lines <= kTailLines; --cut)
      if (tail[cut - 1] == '\n' && cut != tail.size() && ++lines == kTailLines) break;
    tail.erase(0, cut);
    if (tail.size() > kTailBytes) tail.erase(0, tail.size() - kTailBytes);
    if (!tail.empty() && (o_.nproc_per_node > 1 || o_.redirect)) {
      if (tail.back() != '\n') tail += '\n';
      std::string head = fmt::format("holon-launch: the end of rank {}'s stderr:\n", culprit->number);
      err_.write(this, head + tail);
    }
    std::string line = fmt::format("holon-launch: rank {} failed: {}", culprit->number, culprit->how());
    if (o_.nproc_per_node > 1) line += "; the other ranks were stopped";
    if (!o_.logdir.empty()) line += fmt::format("; see {}/rank_{}.stderr", o_.logdir, culprit->number);
    line += ".\n";
    err_.write(this, line);
    return culprit->exit_status();
  }

  const LaunchOptions o_;
  const fs::file_time_type started_ = fs::file_time_type::clock::now();
  std::vector<std::string> command_;
  std::unique_ptr<StoreServer> store_;
  std::string token_;
  std::vector<Address> store_at_;
  int port_ = 0;
  sigset_t mask_before_{};
  rlimit descriptors_before_{};
  Fd signals_;
  Output out_{STDOUT_FILENO}, err_{STDERR_FILENO};
  std::vector<Rank> ranks_;
  bool over_ = false;  // all ranks have ended
  Keeper keeper_;
  std::optional<Herald> herald_;
  int first_failed_ = -1;  // place in ranks_
  int interrupted_by_ = 0;
  std::optional<Clock::time_point> term_at_, kill_at_;
};

}  // namespace

int launch(const LaunchOptions& options) { return Launcher(options).run(); }

}  // namespace holon::comm
