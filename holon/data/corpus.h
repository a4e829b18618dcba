// Text as bytes: many files read as one.
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "holon/base/file_path.h"
#include "holon/data/input_file.h"
#include "holon/tensor/tensor.h"

namespace holon::data {

class ByteCorpus {
 public:
  // The files in the given order; empty ones count nothing. Errors: as InputFile; no bytes at all.
  explicit ByteCorpus(const std::vector<FilePath>& files);
  template <class Paths>
  requires(!std::convertible_to<const Paths&, FilePath>) && requires(const Paths& files) { FilePath(*files.begin()); }
  explicit ByteCorpus(const Paths& files) : ByteCorpus(std::vector<FilePath>(files.begin(), files.end())) {}

  ByteCorpus(ByteCorpus&&) = default;
  ByteCorpus& operator=(ByteCorpus&&) = default;
  ByteCorpus(const ByteCorpus&) = delete;
  ByteCorpus& operator=(const ByteCorpus&) = delete;

  // The number of bytes.
  int64_t size() const { return size_; }
  // Copies the bytes from offset on. Errors: they reach beyond the end (IndexError); a file
  // is shorter than it was (RuntimeError).
  void read(int64_t offset, std::span<uint8_t> out) const;
  // One row of `length` bytes for each offset, as a local int64 tensor [offsets, length].
  Tensor rows(std::span<const int64_t> offsets, int64_t length) const;

 private:
  // A program may have few files open at a time, and a corpus has thousands: those behind the first are opened when
  // they are read.
  struct File {
    FilePath path;
    uint64_t size;
    std::optional<InputFile> open;
  };
  static constexpr size_t kMostOpen = 64;
  std::vector<File> files_;
  std::vector<int64_t> begins_;  // of each file in the whole
  int64_t size_ = 0;
};

// All regular files below a folder whose names end so (".py"), sorted by path: the same list on every rank.
// Errors: the folder cannot be read.
std::vector<std::string> files_below(const FilePath& folder, std::string_view ending);

}  // namespace holon::data
