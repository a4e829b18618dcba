#include "holon/base/trace_parts.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

#include "holon/base/fmt.h"
#include "holon/base/hash.h"
#include "holon/base/index.h"
#include "holon/base/trace.h"

namespace holon::tracing {

namespace {

namespace fs = std::filesystem;

std::string this_host() {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  return name[0] ? name : "localhost";
}

// What the parts of one run have in common.
std::string run_name() {
  std::string text;
  for (const char* name : {"MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "HOLON_STORE_TOKEN"}) {
    const char* value = std::getenv(name);
    text += std::string(value ? value : "") + "/";
  }
  return fmt::format("{:016x}", hash_text(text));
}

struct Part {
  fs::path path;
  std::string run;
  pid_t pid = 0;
  int processes = 1;  // of the run
  std::string host;
  fs::file_time_type written;
  bool ended = false;
  // Its process may still write to it; what goes on on another host is not known.
  bool open() const { return !ended && (host != this_host() || kill(pid, 0) == 0 || errno == EPERM); }
};

bool read_part(const fs::path& path, Part* part) {
  std::ifstream file(path, std::ios::binary);
  std::string head, line;
  if (!std::getline(file, line)) return false;
  std::istringstream words(line);
  if (!(words >> head >> part->run >> part->pid >> part->processes >> part->host) || head != kPartHead) return false;
  // The last line.
  file.seekg(0, std::ios::end);
  auto size = static_cast<std::streamoff>(file.tellg());
  const auto end = static_cast<std::streamoff>(kPartEnd.size()) + 1;
  if (size > end) {
    file.seekg(size - end - 1);
    std::string last(to_size(end) + 1, 0);
    file.read(last.data(), static_cast<std::streamsize>(last.size()));
    part->ended = last == "\n" + std::string(kPartEnd) + "\n";
  }
  part->path = path;
  std::error_code error;
  part->written = fs::last_write_time(path, error);
  return true;
}

std::vector<Part> parts_of(const std::string& path) {
  std::vector<Part> parts;
  const fs::path whole(path);
  const std::string prefix = whole.filename().string() + ".rank";
  std::error_code error;
  for (auto& entry : fs::directory_iterator(whole.has_parent_path() ? whole.parent_path() : ".", error)) {
    Part part;
    std::string name = entry.path().filename().string();
    if (!name.starts_with(prefix) || name.size() == prefix.size() ||
        !std::all_of(name.begin() + static_cast<long>(prefix.size()), name.end(),
                     [](char c) { return c >= '0' && c <= '9'; }))
      continue;
    if (read_part(entry.path(), &part)) parts.push_back(std::move(part));
  }
  // Parts of an earlier run that came to no end are not of this one.
  auto newest =
      std::max_element(parts.begin(), parts.end(), [](const Part& a, const Part& b) { return a.written < b.written; });
  if (newest != parts.end()) {
    const std::string run = newest->run;
    std::erase_if(parts, [&](const Part& p) { return p.run != run; });
  }
  std::sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) { return a.path < b.path; });
  return parts;
}

// The file is removed when its last user is done. Who waited for it meanwhile holds a file that nobody finds any more,
// and must begin again, or two would be at work.
int locked_file(const std::string& path) {
  while (true) {
    const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (file < 0) return -1;
    while (flock(file, LOCK_EX) != 0 && errno == EINTR) {
    }
    struct stat mine, there;
    if (fstat(file, &mine) == 0 && stat(path.c_str(), &there) == 0 && mine.st_ino == there.st_ino) return file;
    close(file);
  }
}

void say_left(const std::string& path, const std::string& why) {
  std::fprintf(stderr, "holon: cannot write the trace %s: %s. The traces of the ranks are in %s.rank*.\n", path.c_str(),
               why.c_str(), path.c_str());
}

}  // namespace

std::string json_text(std::string_view text) {
  std::string result = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\')
      result += '\\', result += c;
    else if (static_cast<unsigned char>(c) < 0x20)
      result += fmt::format("\\u{:04x}", static_cast<int>(c));
    else
      result += c;
  }
  return result + "\"";
}

std::string part_head() {
  const char* processes = std::getenv("WORLD_SIZE");
  return fmt::format("{} {} {} {} {}", kPartHead, run_name(), getpid(), processes ? std::atoi(processes) : 1,
                     this_host());
}

bool written_by_another(const std::string& path) {
  Part part;
  return read_part(path, &part) && part.run == run_name() && part.pid != getpid() && part.open();
}

bool join_parts(const std::string& path, bool all_ended, std::filesystem::file_time_type add_to_since) {
  // One at a time: of two that end together the second finds both ended.
  const std::string lock_path = path + ".lock";
  const int lock = locked_file(lock_path);
  if (lock < 0) {
    if (const int error = errno; !parts_of(path).empty()) say_left(path, strerror(error));
    return false;
  }
  std::vector<Part> parts = parts_of(path);
  const bool any_open = std::any_of(parts.begin(), parts.end(), [](const Part& p) { return p.open(); });
  bool join = !parts.empty() && !any_open && (all_ended || static_cast<int>(parts.size()) >= parts[0].processes);
  if (join) {
    std::string why;
    const std::string draft = path + ".draft";
    std::error_code missing;
    const auto joined_at = fs::last_write_time(path, missing);
    {
      errno = 0;
      std::ofstream out(draft, std::ios::binary | std::ios::trunc);
      out << "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[";
      const char* separator = "\n";
      if (!missing && joined_at >= add_to_since) {
        std::ifstream in(path, std::ios::binary);
        std::string line;
        std::getline(in, line);
        while (std::getline(in, line) && line != "]}") {
          if (line.ends_with(',')) line.pop_back();
          out << separator << line, separator = ",\n";
        }
      }
      for (const Part& part : parts) {
        std::ifstream in(part.path, std::ios::binary);
        std::string line;
        std::getline(in, line);
        // A line that was not finished ends at no brace, or without a newline.
        while (std::getline(in, line))
          if (!in.eof() && line.starts_with('{') && line.ends_with('}')) out << separator << line, separator = ",\n";
      }
      out << "\n]}\n";
      out.close();
      if (!out) why = errno ? strerror(errno) : "the disk is full";
    }
    std::error_code error;
    if (why.empty()) fs::rename(draft, path, error);
    if (error) why = error.message();
    if (why.empty()) {
      for (const Part& part : parts) fs::remove(part.path, error);
    } else {
      fs::remove(draft, error);
      say_left(path, why);
      join = false;
    }
  }
  if (!any_open) unlink(lock_path.c_str());
  close(lock);
  return join;
}

}  // namespace holon::tracing
