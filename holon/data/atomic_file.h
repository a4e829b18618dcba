// A file that is there as a whole or not at all: written under another name beside it, synced, renamed.
#pragma once

#include <cstddef>
#include <filesystem>

namespace holon::data {

class AtomicFile {
 public:
  // Errors (RuntimeError), here and below, with the system's reason: the folder is not there or not writable, the disk
  // is full; something stands there that is no regular file.
  explicit AtomicFile(const std::filesystem::path& path);
  // Removes what was written, unless commit() has been called.
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, size_t bytes);
  // From here on the file is there, also after a loss of power.
  void commit();

 private:
  void close();
  std::filesystem::path path_, temporary_;
  int fd_ = -1;
};

}  // namespace holon::data
