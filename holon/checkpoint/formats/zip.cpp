// After PKWARE's APPNOTE.TXT 6.3.10: the directory is at the end, and before it the entries, each with a header.
#include "holon/checkpoint/formats/zip.h"

#include <algorithm>
#include <cstring>

#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/checkpoint/core/printable.h"
#include "holon/data/crc32c.h"

namespace holon::checkpoint {

namespace {

constexpr uint32_t kLocal = 0x04034b50, kCentral = 0x02014b50, kEnd = 0x06054b50;
constexpr uint32_t kEnd64 = 0x06064b50, kLocator64 = 0x07064b50;
constexpr uint64_t kLocalBytes = 30, kCentralBytes = 46, kEndBytes = 22, kEnd64Bytes = 56, kLocator64Bytes = 20;
constexpr uint64_t kLongestComment = 65535;
constexpr uint64_t kLargestDirectory = 100'000'000;  // as a header of safetensors
constexpr uint16_t kExtra64 = 1, kEncrypted = 1;
constexpr uint32_t kIn64 = UINT32_MAX;  // a size that is in the extra field

template <class T>
T number(std::span<const std::byte> bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

struct Directory {
  uint64_t at = 0, bytes = 0;
};

[[noreturn]] void damaged(std::string_view name, std::string_view what) {
  fail_runtime("{}: {}. The zip archive is truncated or damaged.", name, what);
}

Directory find_directory(const data::InputFile& file) {
  const uint64_t size = file.size();
  std::vector<std::byte> tail(to_size(std::min(size, kEndBytes + kLongestComment)));
  file.read(size - tail.size(), tail);
  for (size_t at = tail.size() < kEndBytes ? 0 : tail.size() - kEndBytes + 1; at-- > 0;) {
    if (number<uint32_t>(tail, at) != kEnd || at + kEndBytes + number<uint16_t>(tail, at + 20) != tail.size()) continue;
    Directory found{number<uint32_t>(tail, at + 16), number<uint32_t>(tail, at + 12)};
    uint64_t end = size - tail.size() + at;
    std::vector<std::byte> locator(kLocator64Bytes), record(kEnd64Bytes);
    if (end >= kLocator64Bytes) {
      file.read(end - kLocator64Bytes, locator);
      if (number<uint32_t>(locator, 0) == kLocator64) {
        const auto place = number<uint64_t>(locator, 8);
        if (place > size || size - place < kEnd64Bytes) damaged(file.name(), "its directory is beyond its end");
        file.read(place, record);
        if (number<uint32_t>(record, 0) != kEnd64) damaged(file.name(), "its directory cannot be found");
        found = {number<uint64_t>(record, 48), number<uint64_t>(record, 40)};
        end = place;
      }
    }
    if (found.at > end || found.bytes > end - found.at) damaged(file.name(), "its directory is beyond its end");
    if (found.bytes > kLargestDirectory) damaged(file.name(), "its directory is too long");
    return found;
  }
  damaged(file.name(), "its directory cannot be found");
}

// The sizes of 64 bits that the fields of 32 refer to: those that are needed, in this order.
void read_extra(std::span<const std::byte> extra, std::initializer_list<uint64_t*> wanted) {
  while (extra.size() >= 4) {
    const auto kind = number<uint16_t>(extra, 0);
    const size_t bytes = std::min<size_t>(number<uint16_t>(extra, 2), extra.size() - 4);
    if (kind == kExtra64) {
      size_t at = 4;
      for (uint64_t* field : wanted) {
        if (*field != kIn64 || at + sizeof(uint64_t) > 4 + bytes) continue;
        *field = number<uint64_t>(extra, at);
        at += sizeof(uint64_t);
      }
    }
    extra = extra.subspan(4 + bytes);
  }
}

}  // namespace

bool is_zip(std::span<const std::byte> first) { return first.size() >= 4 && number<uint32_t>(first, 0) == kLocal; }

ZipFile::ZipFile(const std::filesystem::path& path) : file_(path) {
  const Directory directory = find_directory(file_);
  std::vector<std::byte> bytes(to_size(directory.bytes));
  file_.read(directory.at, bytes);
  fingerprint_ = data::crc32c(bytes);
  for (std::span<const std::byte> rest(bytes); !rest.empty();) {
    if (rest.size() < kCentralBytes || number<uint32_t>(rest, 0) != kCentral)
      damaged(name(), "an entry of its directory is not one");
    const size_t name_bytes = number<uint16_t>(rest, 28), extra_bytes = number<uint16_t>(rest, 30);
    const size_t all = kCentralBytes + name_bytes + extra_bytes + number<uint16_t>(rest, 32);
    if (rest.size() < all) damaged(name(), "an entry of its directory is cut off");
    std::string entry_name(reinterpret_cast<const char*>(rest.data()) + kCentralBytes, name_bytes);
    uint64_t packed = number<uint32_t>(rest, 20), size = number<uint32_t>(rest, 24), at = number<uint32_t>(rest, 42);
    read_extra(rest.subspan(kCentralBytes + name_bytes, extra_bytes), {&size, &packed, &at});
    const bool stored = number<uint16_t>(rest, 10) == 0 && !(number<uint16_t>(rest, 8) & kEncrypted);
    if (stored && packed != size) damaged(name(), "'" + printable(entry_name) + "' has two sizes");
    if (at > directory.at || directory.at - at < kLocalBytes || packed > directory.at - at - kLocalBytes)
      damaged(name(), "'" + printable(entry_name) + "' is beyond its end");
    if (!entries_.emplace(entry_name, ZipEntry{at, packed, stored}).second)
      damaged(name(), "'" + printable(entry_name) + "' appears twice");
    rest = rest.subspan(all);
  }
}

const ZipEntry* ZipFile::find(const std::string& name) const {
  auto it = entries_.find(name);
  return it == entries_.end() ? nullptr : &it->second;
}

uint64_t ZipFile::content(const std::string& entry_name) const {
  const ZipEntry* entry = find(entry_name);
  if (!entry) damaged(name(), "'" + printable(entry_name) + "' is missing");
  if (!entry->stored)
    fail_runtime("{}: '{}' is compressed or encrypted, which torch.save() does not do. Unpack it, and store it without "
                 "compression.",
                 name(), printable(entry_name));
  std::byte header[kLocalBytes];
  file_.read(entry->header, header);
  const uint64_t at =
      entry->header + kLocalBytes + number<uint16_t>(header, 26) + uint64_t{number<uint16_t>(header, 28)};
  if (number<uint32_t>(header, 0) != kLocal || at > file_.size() || entry->bytes > file_.size() - at)
    damaged(name(), "'" + printable(entry_name) + "' is not where its directory says");
  return at;
}

std::string ZipFile::text(const std::string& entry, uint64_t most_bytes) const {
  const uint64_t at = content(entry), bytes = find(entry)->bytes;
  if (bytes > most_bytes)
    fail_runtime("{}: '{}' has {} bytes; an entry of its kind has at most {}.", name(), printable(entry), bytes,
                 most_bytes);
  std::string out(to_size(bytes), '\0');
  file_.read(at, std::as_writable_bytes(std::span(out)));
  return out;
}

}  // namespace holon::checkpoint
