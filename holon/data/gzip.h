// Gzip (RFC 1952) by zlib, in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace holon::data {

bool is_gzip(std::span<const std::byte> bytes);

// Unpacks bytes piece by piece, so that nobody need believe a size before it is checked. Several members, one behind
// the other, count as one file; zeros behind the last are padding. name is in messages. Errors (RuntimeError):
// damaged data.
class GzipReader {
 public:
  GzipReader(std::span<const std::byte> packed, std::string_view name);
  ~GzipReader();
  GzipReader(const GzipReader&) = delete;
  GzipReader& operator=(const GzipReader&) = delete;

  // Fills out, and returns how many bytes there were: fewer than requested only at the end, whose checksum has been
  // compared.
  size_t read(std::span<std::byte> out);
  // No more than this can come out, whatever the data say.
  uint64_t limit() const;

 private:
  struct Stream;
  bool next_member();
  std::unique_ptr<Stream> stream_;
  std::span<const std::byte> packed_;
  size_t taken_ = 0;
  bool ended_ = false;
  std::string name_;
};

// The same bytes for the same content: no time and no name are kept. level: 1 (fast) to 9.
std::vector<std::byte> gzip(std::span<const std::byte> content, int level = 6);

}  // namespace holon::data
