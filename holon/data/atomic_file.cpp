#include "holon/data/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/index.h"
#include "holon/data/file_lock.h"

namespace holon::data {

namespace fs = std::filesystem;

namespace {

constexpr const char* kTemporary = ".holon-tmp-";

[[noreturn]] void fail_write(const fs::path& path, int error) {
  fail_runtime("cannot write {}: {}. Check the folder, its permissions and the free space.", path.string(),
               std::strerror(error));
}

}  // namespace

AtomicFile::AtomicFile(const fs::path& path) : path_(path) {
  std::error_code none;
  // A link stays, and what it leads to is replaced.
  if (fs::is_symlink(path_, none))
    if (auto target = fs::canonical(path_, none); !none) path_ = target;
  if (fs::exists(path_, none) && !fs::is_regular_file(path_, none))
    fail_runtime("cannot write {}: it exists and is not a regular file. Choose another name.", path_.string());
  static std::atomic<int> counter{0};
  do {
    temporary_ = path_.parent_path() / fmt::format("{}{}-{}", kTemporary, ::getpid(), counter++);
    fd_ = create_locked(temporary_);
  } while (fd_ < 0 && errno == EEXIST);
  if (fd_ < 0) fail_write(path_, errno);
}

AtomicFile::~AtomicFile() {
  if (fd_ < 0) return;
  close();
  ::unlink(temporary_.c_str());
}

void AtomicFile::close() {
  ::close(fd_);
  fd_ = -1;
}

void AtomicFile::write(const void* data, size_t bytes) {
  auto* from = static_cast<const char*>(data);
  while (bytes > 0) {
    ssize_t n = ::write(fd_, from, std::min(bytes, size_t{1} << 30));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_write(path_, errno);
    from += n;
    bytes -= to_size(n);
  }
}

void AtomicFile::overwrite(uint64_t offset, const void* data, size_t bytes) {
  auto* from = static_cast<const char*>(data);
  while (bytes > 0) {
    ssize_t n = ::pwrite(fd_, from, std::min(bytes, size_t{1} << 30), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_write(path_, errno);
    from += n;
    offset += static_cast<uint64_t>(n);
    bytes -= to_size(n);
  }
}

void AtomicFile::commit() {
  if (::fsync(fd_) != 0) fail_write(path_, errno);
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail_write(path_, errno);
  close();
  sync_folder(path_.parent_path());  // the new name is an entry of it
}

void sync_folder(const fs::path& folder) {
  int fd = ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  ::fsync(fd);  // some file systems cannot: then there is nothing to be done about it
  ::close(fd);
}

void remove_dead_temporaries(const fs::path& folder) {
  std::error_code none;
  for (fs::directory_iterator it(folder.empty() ? "." : folder, none), end; !none && it != end; it.increment(none))
    if (it->path().filename().string().starts_with(kTemporary)) remove_if_unlocked(it->path());
}

}  // namespace holon::data
