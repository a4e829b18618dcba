#include "holon/comm/bootstrap/token.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cctype>
#include <chrono>
#include <cstdio>
#include <thread>

#include "holon/base/blocking.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/index.h"
#include "holon/base/settings.h"
#include "holon/comm/bootstrap/handshake.h"
#include "holon/comm/bootstrap/socket.h"

namespace holon::comm {

namespace {

constexpr size_t kMost = 4096;

// Appears whole or not at all: others wait for it.
void make_file(const std::string& path) {
  const std::string part = fmt::format("{}.{}.{}", path, getpid(), random_token()), text = random_token() + "\n";
  Fd fd(open(part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  const bool written = fd && write(fd.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
  // A link does not replace what another has put there; not every file system has them.
  const bool there =
      written && (link(part.c_str(), path.c_str()) == 0 || errno == EEXIST || rename(part.c_str(), path.c_str()) == 0);
  const int error = errno;
  if (fd) unlink(part.c_str());
  if (!there)
    fail_runtime("cannot create the token file {}: {}. Let HOLON_STORE_TOKEN_FILE name a file in a folder that all "
                 "hosts see, or set HOLON_STORE_TOKEN.",
                 path, strerror(error));
}

// False: there is none.
bool read_file(const std::string& path, std::string* token) {
  Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd && errno == ENOENT) return false;
  struct stat info {};
  char text[kMost + 1];
  ssize_t n = -1;
  if (fd && fstat(fd.get(), &info) == 0) {
    if (!S_ISREG(info.st_mode)) fail_value("the token file {} is not a regular file.", path);
    n = read(fd.get(), text, sizeof text);
  }
  if (n < 0) fail_runtime("cannot read the token file {}: {}.", path, strerror(errno));
  token->assign(text, to_size(n));
  while (!token->empty() && std::isspace(static_cast<unsigned char>(token->back()))) token->pop_back();
  if (token->empty() || token->size() > kMost)
    fail_value("the token file {} holds {}; put a secret of up to {} characters into it, or remove it.", path,
               token->empty() ? "nothing" : "too much", kMost);
  return true;
}

}  // namespace

std::string store_token(bool first, double limit_s) {
  if (std::string token = settings::text("HOLON_STORE_TOKEN"); !token.empty()) return token;
  const std::string path = settings::text("HOLON_STORE_TOKEN_FILE");
  if (path.empty()) return "";
  std::string token;
  const auto start = std::chrono::steady_clock::now();
  while (!read_file(path, &token)) {
    if (first) {
      make_file(path);
      continue;
    }
    if (std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() >= limit_s)
      fail_runtime("the token file {} (HOLON_STORE_TOKEN_FILE) did not appear within {:.3g} s. The launcher of machine "
                   "0, or rank 0, creates it: start that, and check that it is the same file on all hosts.",
                   path, limit_s);
    if (auto poll = blocking_hooks().poll) poll();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return token;
}

}  // namespace holon::comm
