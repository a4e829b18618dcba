#include "holon/base/trace.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/fork.h"
#include "holon/base/index.h"
#include "holon/base/trace_parts.h"

namespace holon::tracing {

namespace detail {
constinit std::atomic<bool> on{false};

int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}
}  // namespace detail

namespace {

// A thread's events are written in bunches; what is older than this is written with the next one.
constexpr size_t kBunch = 1024;
constexpr int64_t kOldNs = 200'000'000;

struct Event {
  std::string name, args;
  const char* category;
  int64_t start, duration;
  int rank;
};

struct Buffer {
  std::mutex mutex;  // taken by its thread, and once by stop()
  std::vector<Event> events;
  int64_t written_ns = 0;
  int thread = 0;
};

struct File {
  ProcessMutex mutex;
  int fd = -1;
  pid_t pid = 0;
  std::string path, part;
  int64_t written = 0;  // events
  std::set<int> ranks;
  std::set<std::pair<int, int>> threads;  // that are named: rank, thread
  std::atomic<int64_t> offset{0};
  std::vector<std::shared_ptr<Buffer>> buffers;
};

File& file() {
  static auto* f = new File;  // threads may outlive main()
  return *f;
}

// The program goes on without its trace, and its user learns of it when it happens. Pre: f.mutex is held.
void give_up(File& f, const std::string& part, const std::string& why) {
  detail::on.store(false);
  if (f.fd >= 0) close(std::exchange(f.fd, -1));
  std::fprintf(stderr, "holon: cannot write the trace %s: %s. This process stops tracing.\n", part.c_str(),
               why.c_str());
}

// False: it could not be, and nothing more will be. Pre: f.mutex is held, and the part is open.
bool write_all(File& f, const std::string& text) {
  for (size_t at = 0; at < text.size();) {
    ssize_t n = ::write(f.fd, text.data() + at, text.size() - at);
    if (n < 0 && errno != EINTR) {
      give_up(f, f.part, fmt::format("{} after {} events", strerror(errno), f.written));
      return false;
    }
    if (n > 0) at += to_size(n);
  }
  return true;
}

// Makes this process's part with the first events: a process that has none, as one that only starts others, leaves
// none. Pre: f.mutex is held. False: the trace has ended, this is a fork of the rank, or another process has the rank's
// number.
bool is_open(File& f) {
  if (f.pid == getpid()) return f.fd >= 0;
  if (f.pid != 0 || f.path.empty()) return false;
  const char* rank = std::getenv("RANK");
  f.part = fmt::format("{}.rank{}", f.path, rank && *rank ? std::atoi(rank) : 0);
  f.pid = getpid();
  f.written = 0;
  // Not told: programs that a rank starts have its number and its HOLON_TRACE.
  if (written_by_another(f.part)) {
    detail::on.store(false);
    return false;
  }
  f.fd = open(f.part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644);
  if (f.fd < 0) {
    give_up(f, f.part, strerror(errno));
    return false;
  }
  return write_all(f, part_head() + "\n");
}

// Pre: the buffer's mutex is held.
void write_out(Buffer& buffer) {
  File& f = file();
  std::lock_guard lock(f.mutex);
  buffer.written_ns = detail::now_ns();
  if (!is_open(f)) {
    buffer.events.clear();
    return;
  }
  const int64_t offset = f.offset.load();
  std::string text;
  for (Event& e : buffer.events) {
    if (f.ranks.insert(e.rank).second)
      text += fmt::format(R"({{"name":"process_name","ph":"M","pid":{},"args":{{"name":"rank {}"}}}})"
                          "\n"
                          R"({{"name":"process_sort_index","ph":"M","pid":{},"args":{{"sort_index":{}}}}})"
                          "\n",
                          e.rank, e.rank, e.rank, e.rank);
    if (f.threads.insert({e.rank, buffer.thread}).second)
      text += fmt::format(R"({{"name":"thread_name","ph":"M","pid":{},"tid":{},"args":{{"name":"thread {}"}}}})"
                          "\n",
                          e.rank, buffer.thread, buffer.thread);
    const int64_t start = e.start + offset;
    text +=
        fmt::format(R"({{"name":{},"cat":"{}","ph":"X","ts":{}.{:03},"dur":{}.{:03},"pid":{},"tid":{},"args":{{{}}}}})"
                    "\n",
                    json_text(e.name), e.category, start / 1000, start % 1000, e.duration / 1000, e.duration % 1000,
                    e.rank, buffer.thread, e.args);
  }
  const auto count = static_cast<int64_t>(buffer.events.size());
  buffer.events.clear();
  if (write_all(f, text)) f.written += count;
}

Buffer& my_buffer() {
  struct Owner {
    std::shared_ptr<Buffer> buffer = std::make_shared<Buffer>();
    Owner() {
      buffer->thread = static_cast<int>(syscall(SYS_gettid));
      buffer->written_ns = detail::now_ns();
      std::lock_guard lock(file().mutex);
      file().buffers.push_back(buffer);
    }
    ~Owner() {
      {
        std::lock_guard lock(buffer->mutex);
        write_out(*buffer);
      }
      std::lock_guard lock(file().mutex);
      std::erase(file().buffers, buffer);
    }
  };
  thread_local Owner owner;
  return *owner.buffer;
}

// A forked process traces as one of its own where its parent has written nothing yet; else not at all. What the parent
// has not written yet is the parent's, and a thread that is not here may have been at its buffer.
int forking_thread = 0;
[[maybe_unused]] const bool forks = at_fork({
    .before = [] { forking_thread = static_cast<int>(syscall(SYS_gettid)); },
    .in_child =
        [] {
          File& f = file();
          if (f.pid != 0) detail::on.store(false);
          static auto* left = new std::vector<std::shared_ptr<Buffer>>;
          std::erase_if(f.buffers, [](auto& b) {
            if (!b->mutex.try_lock()) {
              left->push_back(b);
              return true;
            }
            b->events.clear();
            if (b->thread == forking_thread) b->thread = static_cast<int>(syscall(SYS_gettid));
            b->mutex.unlock();
            return false;
          });
        },
});

void add_key(std::string& args, std::string_view key) {
  if (!args.empty()) args += ',';
  args += json_text(key) + ":";
}

// Where the program is told by its environment to trace.
[[maybe_unused]] const bool from_environment = [] {
  const char* path = std::getenv("HOLON_TRACE");
  if (path && *path) {
    try {
      start(path);
    } catch (const std::exception& e) {
      std::fprintf(stderr, "holon: HOLON_TRACE: %s\n", e.what());
    }
  }
  return true;
}();

}  // namespace

void detail::record(std::string_view name, const char* category, int64_t start_ns, std::string&& args) {
  const int64_t end = now_ns();
  Buffer& b = my_buffer();
  std::lock_guard lock(b.mutex);
  b.events.push_back(
      {std::string(name), std::move(args), category, start_ns, end - start_ns, Context::current().rank()});
  if (b.events.size() >= kBunch || end - b.written_ns > kOldNs) write_out(b);
}

void Span::arg(std::string_view key, std::string_view value) { add_key(args_, key), args_ += json_text(value); }
void Span::arg(std::string_view key, int64_t value) { add_key(args_, key), args_ += std::to_string(value); }
void Span::arg(std::string_view key, double value) {
  add_key(args_, key), args_ += std::isfinite(value) ? fmt::format("{:.6g}", value) : "null";
}

void set_clock_offset_ns(int64_t offset) { file().offset.store(offset); }

void start(const std::string& path) {
  const std::filesystem::path whole = std::filesystem::absolute(path);
  if (access(whole.parent_path().c_str(), W_OK) != 0)
    fail_runtime("cannot write the trace {}: {}. Name a file in a folder that exists.", path, strerror(errno));
  std::error_code none;
  if (const auto type = std::filesystem::status(whole, none).type();
      type != std::filesystem::file_type::not_found && type != std::filesystem::file_type::regular)
    fail_runtime("cannot write the trace {}: it exists and is not a regular file. Choose another name.", path);
  File& f = file();
  {
    std::lock_guard lock(f.mutex);
    if (detail::on.load()) return;
    f.path = whole.string();
    f.pid = 0;
    f.ranks.clear(), f.threads.clear();
  }
  static const bool at_exit = std::atexit(stop) == 0;
  (void)at_exit;
  detail::on.store(true);
}

void stop() {
  if (!detail::on.exchange(false)) return;
  File& f = file();
  std::vector<std::shared_ptr<Buffer>> buffers;
  {
    std::lock_guard lock(f.mutex);
    buffers = f.buffers;
  }
  for (auto& b : buffers) {
    std::lock_guard lock(b->mutex);
    write_out(*b);
  }
  {
    std::lock_guard lock(f.mutex);
    if (f.pid == 0 || !is_open(f)) return;
    if (!write_all(f, std::string(kPartEnd) + "\n")) return;
    close(std::exchange(f.fd, -1));
  }
  join_parts(f.path, false);
}

}  // namespace holon::tracing
