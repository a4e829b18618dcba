#include "holon/comm/core/report.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "holon/base/blocking.h"
#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"

namespace holon::comm {

namespace {

constinit thread_local RankReport* mine = nullptr;
std::atomic<RankReport*> of_process{nullptr};
int stack_file = -1;  // where the host language writes its stack; one of a process

int question() { return SIGRTMIN + 7; }

int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

// Appends without allocating; what does not fit is left out.
struct Writer {
  char* at;
  char* end;  // of what may be written, the 0 behind it not counted
  void text(const char* s) {
    while (*s && at < end) *at++ = *s++;
  }
};

// The handler: no allocation, no lock of ours.
void answer(int, siginfo_t*, void*) {
  const int error = errno;
  RankReport* r = mine;
  if (r && r->pid.load() == getpid() && r->state.load() == 1) {
    void* addresses[48];
    const int n = backtrace(addresses, 48);
    Writer w{r->c_stack, r->c_stack + sizeof r->c_stack - 1};
    for (int i = 2; i < n; ++i) {  // after this function and the return from the signal
      Dl_info info{};
      if (!dladdr(addresses[i], &info)) continue;
      const char* module = info.dli_fname ? std::strrchr(info.dli_fname, '/') : nullptr;
      w.text(info.dli_sname ? info.dli_sname : "?");
      w.text("\t");
      w.text(module ? module + 1 : info.dli_fname ? info.dli_fname : "?");
      w.text("\n");
    }
    *w.at = 0;
    r->host_stack[0] = 0;
    if (auto dump = blocking_hooks().dump_stack; dump && stack_file >= 0 && ftruncate(stack_file, 0) == 0) {
      lseek(stack_file, 0, SEEK_SET);
      dump(stack_file);
      ssize_t size = pread(stack_file, r->host_stack, sizeof r->host_stack - 1, 0);
      r->host_stack[std::max<ssize_t>(size, 0)] = 0;
    }
    r->state.store(2);
  }
  errno = error;
}

// Once per process. False: the program uses the signal itself.
bool install() {
  static const bool installed = [] {
    struct sigaction before {};
    if (sigaction(question(), nullptr, &before) != 0 || before.sa_handler != SIG_DFL) return false;
    void* warm[4];
    backtrace(warm, 4);  // loads what it needs
    stack_file = memfd_create("holon-stack", MFD_CLOEXEC);
    struct sigaction action {};
    action.sa_sigaction = answer;
    action.sa_flags = SA_SIGINFO | SA_RESTART;
    sigfillset(&action.sa_mask);
    return sigaction(question(), &action, nullptr) == 0;
  }();
  return installed;
}

// The letter of /proc: R running, S sleeping, D in the kernel, T stopped, t traced, Z dead; 0: there is no such thread.
char state_of(int pid, int thread) {
  std::ifstream file(fmt::format("/proc/{}/task/{}/stat", pid, thread));
  std::string text;
  std::getline(file, text);
  auto name_end = text.rfind(')');
  return name_end != std::string::npos && name_end + 2 < text.size() ? text[name_end + 2] : 0;
}

// "a\tb\n" -> {{"a", "b"}, ...}
std::vector<std::string> lines_of(const char* text) {
  std::vector<std::string> lines;
  for (const char* p = text; *p;) {
    const char* end = std::strchr(p, '\n');
    if (!end) break;  // cut off
    lines.emplace_back(p, end);
    p = end + 1;
  }
  return lines;
}

std::string demangled(const std::string& symbol) {
  int status = 0;
  char* text = abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, &status);
  std::string result = status == 0 && text ? text : symbol;
  std::free(text);
  if (size_t arguments = result.find('('); arguments != std::string::npos && arguments > 0) result.resize(arguments);
  if (result.size() > 80) result = result.substr(0, 77) + "...";
  return result;
}

// The host language's frames, `File "x.py", line 3 in f`, as "x.py:3 in f".
std::string host_frames(const char* text, size_t most) {
  std::string result;
  size_t shown = 0;
  for (const std::string& line : lines_of(text)) {
    size_t file = line.find("File \""), number = line.find("\", line ");
    if (file == std::string::npos || number == std::string::npos) continue;
    if (shown++ == most) break;
    std::string at = line.substr(number + 8);
    size_t in = at.find(" in ");
    result += fmt::format("{}{}:{}{}", result.empty() ? "" : " < ", line.substr(file + 6, number - file - 6),
                          at.substr(0, in), in == std::string::npos ? "" : at.substr(in));
  }
  return result;
}

// The innermost functions; those of an interpreter say nothing and are left out.
std::string c_frames(const char* text, size_t most) {
  std::string result;
  size_t shown = 0;
  for (const std::string& line : lines_of(text)) {
    size_t tab = line.find('\t');
    std::string symbol = line.substr(0, tab), module = line.substr(tab + 1);
    if (module.starts_with("python") || module.starts_with("libpython") || symbol.starts_with("Py") ||
        symbol.starts_with("_Py"))
      continue;
    if (symbol.starts_with("__libc_start") || (symbol == "?" && module.starts_with("libc."))) continue;
    if (shown++ == most) break;
    result += result.empty() ? "" : " < ";
    result += symbol == "?" ? module : demangled(symbol);
    if (symbol == "main") break;
  }
  return result;
}

std::string described(const RankReport& r, char state, bool answered) {
  const int pid = r.pid.load();
  if (state == 'T')
    return fmt::format("is stopped (process {}; SIGSTOP or Ctrl-Z): kill -CONT {} resumes it", pid, pid);
  if (state == 't') return fmt::format("is held by a debugger (process {})", pid);
  std::string doing = state == 'R' ? "runs" : state == 'D' ? "waits in the kernel (disk or network)" : "sleeps";
  if (!answered) return fmt::format("{} and does not answer (process {})", doing, pid);
  std::string host = host_frames(r.host_stack, 4), c = c_frames(r.c_stack, 4), text = doing;
  if (!host.empty()) text += " at " + host;
  if (!c.empty()) text += (host.empty() ? " in " : ", in ") + c;
  return text + fmt::format(" (process {})", pid);
}

}  // namespace

// A note is copied word by word, as its reader may look while it is written and then sees it by the number.
void RankReport::add(CallNote note) {
  constexpr size_t kWords = sizeof(CallNote) / sizeof(uint64_t);
  static_assert(offsetof(CallNote, number) == 0);
  uint64_t words[kWords];
  std::memcpy(words, &note, sizeof note);
  const uint64_t number = calls.fetch_add(1, std::memory_order_relaxed);
  auto* to = reinterpret_cast<uint64_t*>(&recent[number % kCalls]);
  std::atomic_ref(to[0]).store(0, std::memory_order_relaxed);
  for (size_t i = 1; i < kWords; ++i) std::atomic_ref(to[i]).store(words[i], std::memory_order_release);
  std::atomic_ref(to[0]).store(number + 1, std::memory_order_release);
}

std::vector<CallNote> RankReport::last_calls(size_t most) const {
  constexpr size_t kWords = sizeof(CallNote) / sizeof(uint64_t);
  std::vector<CallNote> result;
  for (uint64_t n = calls.load(), end = n > kCalls ? n - kCalls : 0; n > end && result.size() < most; --n) {
    auto* from = reinterpret_cast<uint64_t*>(const_cast<CallNote*>(&recent[(n - 1) % kCalls]));
    uint64_t words[kWords];
    for (size_t i = 0; i < kWords; ++i) words[i] = std::atomic_ref(from[i]).load(std::memory_order_acquire);
    if (words[0] != n || std::atomic_ref(from[0]).load(std::memory_order_relaxed) != n) continue;
    CallNote note;
    std::memcpy(&note, words, sizeof note);
    result.push_back(note);
  }
  return result;
}

void answer_for(RankReport& report) {
  mine = &report;  // here too, so that the handler finds the variable made
  report.pid.store(getpid());
  if (!Context::current().ranks_are_threads()) of_process.store(&report);
  if (install()) report.thread.store(static_cast<int32_t>(syscall(SYS_gettid)));
}

void stop_answering(RankReport& report) {
  report.thread.store(0);
  if (mine == &report) mine = nullptr;
  RankReport* process = &report;
  of_process.compare_exchange_strong(process, nullptr);
}

void note_trouble(std::string_view text) {
  RankReport* r = of_process.load();
  uint32_t none = 0;
  if (!r || r->pid.load() != getpid() || !r->troubled.compare_exchange_strong(none, 1)) return;
  r->trouble[text.copy(r->trouble, sizeof r->trouble - 1)] = 0;
  r->troubled.store(2);
}

std::vector<std::string> ask_where(std::span<RankReport* const> reports, double limit_s) {
  const int64_t start = now_ns(), limit = static_cast<int64_t>(limit_s * 1e9);
  // Several ranks may want to know: the first one sends the signal. An answer of a while ago is requested again.
  auto asked = [&](RankReport& r, char found) {
    uint32_t state = r.state.load();
    const int64_t before = r.asked_ns.load();
    if (state != 0 && start - before < 2 * limit) return true;
    if (!r.state.compare_exchange_strong(state, 1)) return true;
    r.asked_ns.store(start);
    r.found.store(found);
    return syscall(SYS_tgkill, r.pid.load(), r.thread.load(), question()) == 0;
  };
  std::vector<char> states(reports.size());
  std::vector<bool> waiting(reports.size());
  for (size_t i = 0; i < reports.size(); ++i) {
    RankReport& r = *reports[i];
    states[i] = r.pid.load() ? state_of(r.pid.load(), r.thread.load() ? r.thread.load() : r.pid.load()) : '\0';
    waiting[i] = r.thread.load() && r.pid.load() && states[i] && !std::strchr("TtZX", states[i]) && asked(r, states[i]);
  }
  auto missing = [&](size_t i) { return waiting[i] && reports[i]->state.load() != 2; };
  for (bool any = true; any && now_ns() - start < limit;) {
    any = false;
    for (size_t i = 0; i < reports.size(); ++i) any |= missing(i);
    timespec pause{0, 1'000'000};
    if (any) nanosleep(&pause, nullptr);
  }
  std::vector<std::string> result;
  for (size_t i = 0; i < reports.size(); ++i)
    result.push_back(!states[i]                      ? "cannot be inspected"
                         : waiting[i] && !missing(i) ? described(*reports[i], reports[i]->found.load(), true)
                                                     : described(*reports[i], states[i], false));
  return result;
}

}  // namespace holon::comm
