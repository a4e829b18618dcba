// A file that is there as a whole or not at all: written under another name in the same folder, synced, renamed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>

namespace holon::data {

class AtomicFile {
 public:
  // Errors (RuntimeError), here and below, with the system's reason: the folder is not there or not writable, the disk
  // is full; something is there that is not a regular file.
  explicit AtomicFile(const std::filesystem::path& path);
  // Removes what was written, unless commit() has been called.
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, size_t bytes);
  // Replaces what was written at offset. Pre: so many bytes were.
  void overwrite(uint64_t offset, const void* data, size_t bytes);
  // From here on the file is there, also after a loss of power. If it throws, what was there before is unchanged.
  void commit();

 private:
  void close();
  std::filesystem::path path_, temporary_;
  int fd_ = -1;
};

// Makes what was made, renamed or removed in a folder last beyond a loss of power, where the file system can.
void sync_folder(const std::filesystem::path& folder);

// Removes from a folder what writers that were killed have left of their AtomicFiles.
void remove_dead_temporaries(const std::filesystem::path& folder);

}  // namespace holon::data
