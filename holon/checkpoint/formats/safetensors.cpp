#include "holon/checkpoint/formats/safetensors.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>
#include <nlohmann/json.hpp>

#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/index.h"
#include "holon/base/parallel.h"
#include "holon/checkpoint/core/pieces.h"
#include "holon/checkpoint/core/printable.h"
#include "holon/checkpoint/core/world.h"
#include "holon/data/crc32c.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/on_device.h"

namespace holon::checkpoint {

using nlohmann::json;

namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

// The key of the metadata under which checksums are: the size of a block, the header's checksum, the blocks'.
constexpr const char* kSumsKey = "holon.crc32c";
constexpr size_t kDigits = 8;
const std::string kSumsBegin = fmt::format("{} ", kBlockBytes);

// How much is written or read at once, between which other ranks hear of it.
constexpr size_t kPieceBytes = size_t{64} << 20;
constexpr uint64_t kReadBytes = uint64_t{256} << 20;
constexpr uint64_t kVerifyBytes = uint64_t{64} << 20;
// So many tensors are named where bytes of them are damaged.
constexpr int kMostNamed = 3;
// What one thread takes.
constexpr int64_t kBlocksPerThread = 16;
// Runs of at least so many bytes are read by themselves where there is no checksum to read all of a block for.
constexpr uint64_t kOwnRead = 4096;

uint64_t blocks_of(uint64_t bytes) { return (bytes + kBlockBytes - 1) / kBlockBytes; }

// Where in a header's text the value of kSumsKey has its first digit, if it is there as SafetensorsWriter puts it.
size_t sums_place(std::string_view header) {
  const std::string begin = fmt::format("\"{}\":\"{}", kSumsKey, kSumsBegin);
  const size_t at = header.find(begin);
  return at == header.npos ? 0 : at + begin.size();
}

// The checksum of a header's text that contains it: taken with zeros in its place.
uint32_t header_sum(std::string_view header, size_t at) {
  static constexpr std::string_view kZeros = "00000000";
  uint32_t sum = data::crc32c(std::as_bytes(std::span(header.substr(0, at))));
  sum = data::crc32c(std::as_bytes(std::span(kZeros)), sum);
  return data::crc32c(std::as_bytes(std::span(header.substr(at + kDigits))), sum);
}

std::optional<uint32_t> digits(std::string_view text) {
  uint32_t value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + kDigits, value, 16);
  if (error != std::errc() || end != text.data() + kDigits) return std::nullopt;
  return value;
}

void put_digits(std::string& text, size_t at, uint32_t value) {
  text.replace(at, kDigits, fmt::format("{:08x}", value));
}

int64_t offset_of(const Dims& at, const Dims& strides) {
  int64_t offset = 0;
  for (int a = 0; a < at.size(); ++a) offset += at[a] * strides[a];
  return offset;
}

}  // namespace

std::atomic<uint64_t>& bytes_read_by_rank() {
  struct BytesRead {
    std::atomic<uint64_t> n{0};
  };
  return Context::current().part<BytesRead>().n;
}

void SafetensorsFile::read_file(uint64_t offset, std::span<std::byte> out) const {
  file_.read(offset, out);
  *bytes_read_ += out.size();
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path, const std::optional<FileSum>& expected)
    : bytes_read_(&bytes_read_by_rank()), file_(path) {
  std::vector<std::byte> head(std::min<uint64_t>(file_.size(), 64));
  read_file(0, head);
  const size_t bytes = header_bytes(head, file_.size(), name());
  if (const size_t read = head.size(); bytes > read) {
    head.resize(bytes);
    read_file(read, std::span(head).subspan(read));
  }
  if (expected && expected->bytes != file_.size())
    fail_runtime("{}: it has {} bytes, and had {} when it was saved. It is damaged, or from another save.", name(),
                 file_.size(), expected->bytes);
  header_ = parse_safetensors(head, file_.size(), name());
  find_checksums(std::span<const std::byte>(head).subspan(sizeof(uint64_t), header_.bytes - sizeof(uint64_t)),
                 expected);
  for (size_t i = 0; i < header_.tensors.size(); ++i) by_name_[header_.tensors[i].name] = i;
}

void SafetensorsFile::find_checksums(std::span<const std::byte> head, const std::optional<FileSum>& expected) {
  const std::string_view text(reinterpret_cast<const char*>(head.data()), head.size());
  fingerprint_ = data::crc32c(head);
  const uint64_t blocks = blocks_of(data_bytes());
  const size_t at = sums_place(text);
  // Another program may have kept the metadata with tensors that it changed: its header is another text.
  bool own = at > 0 && text.size() - at > (1 + blocks) * kDigits && text[at + (1 + blocks) * kDigits] == '"' &&
      digits(text.substr(at)) == header_sum(text, at);
  for (uint64_t b = 0; own && b < blocks; ++b) {
    auto sum = digits(text.substr(at + (1 + b) * kDigits));
    own = sum.has_value();
    blocks_.push_back(sum.value_or(0));
  }
  if (!own) blocks_.clear();
  if (expected && !(own && expected->header == header_sum(text, at)))
    fail_runtime("{}: the checksum of its header does not match the index. It is damaged, or from another save.",
                 name());
}

const TensorInfo* SafetensorsFile::find(const std::string& name) const {
  auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : &header_.tensors[it->second];
}

void SafetensorsFile::check_block(uint64_t block, std::span<const std::byte> bytes) const {
  if (blocks_.empty() || data::crc32c(bytes) == blocks_[block]) return;
  const uint64_t at = block * kBlockBytes, from = header_.bytes + at;
  std::string tensors;
  int n = 0;
  for (auto& t : header_.tensors)
    if (t.begin < at + bytes.size() && t.end > at && n++ < kMostNamed) tensors += (n == 1 ? "'" : ", '") + t.name + "'";
  if (n > kMostNamed) tensors += fmt::format(" and {} more", n - kMostNamed);
  fail_runtime(
      "{}: its bytes {} to {} are not those that were saved: their checksum differs. They belong to {} {}. The "
      "file is damaged; use another copy of it.",
      name(), from, from + bytes.size(), n == 1 ? "tensor" : "tensors", printable(tensors));
}

void SafetensorsFile::verify() const {
  file_.open();
  const uint64_t end = data_bytes();
  for (uint64_t at = 0; at < end; at += kVerifyBytes) {
    const uint64_t n = std::min(kVerifyBytes, end - at);
    run_io(to_size(n), [&] {
      parallel_for(static_cast<int64_t>(blocks_of(n)), kBlocksPerThread, [&](int64_t first, int64_t last) {
        std::vector<std::byte> bytes(kBlockBytes);
        for (uint64_t b = at / kBlockBytes + static_cast<uint64_t>(first),
                      to = at / kBlockBytes + static_cast<uint64_t>(last);
             b < to; ++b) {
          const std::span block(bytes.data(), to_size(std::min(kBlockBytes, end - b * kBlockBytes)));
          read_file(header_.bytes + b * kBlockBytes, block);
          check_block(b, block);
        }
      });
    });
  }
}

void SafetensorsFile::fill(Stage& stage, uint64_t block) const {
  if (stage.block == block) return;
  stage.block = UINT64_MAX;
  stage.bytes.resize(std::min(kBlockBytes, data_bytes() - block * kBlockBytes));
  read_file(header_.bytes + block * kBlockBytes, stage.bytes);
  check_block(block, stage.bytes);
  stage.block = block;
}

// Pre: begin is a block's, end is too or is that of all.
void SafetensorsFile::fetch_blocks(uint64_t begin, uint64_t end, std::byte* to) const {
  auto of = [&](int64_t block) { return std::min(begin + static_cast<uint64_t>(block) * kBlockBytes, end); };
  parallel_for(static_cast<int64_t>(blocks_of(end - begin)), kBlocksPerThread, [&](int64_t first, int64_t last) {
    // A few at a time, which are still in the cache when they are summed up.
    for (int64_t next; first < last; first = next) {
      next = std::min(first + 4, last);
      std::span bytes(to + (of(first) - begin), to_size(of(next) - of(first)));
      read_file(header_.bytes + of(first), bytes);
      for (int64_t b = first; b < next; ++b)
        check_block(of(b) / kBlockBytes, bytes.subspan(to_size(of(b) - of(first)), to_size(of(b + 1) - of(b))));
    }
  });
}

// Copies the tensors' bytes from begin to end.
void SafetensorsFile::fetch(uint64_t begin, uint64_t end, std::byte* to, Stage& stage) const {
  while (begin < end) {
    const uint64_t block = begin / kBlockBytes, at = block * kBlockBytes;
    const uint64_t whole = end == data_bytes() ? end : end / kBlockBytes * kBlockBytes;
    if (begin == at && whole > begin) {
      fetch_blocks(begin, whole, to);
      to += whole - begin;
      begin = whole;
      continue;
    }
    const uint64_t n = std::min(end, at + kBlockBytes) - begin;
    if (blocks_.empty() && n >= kOwnRead) {
      read_file(header_.bytes + begin, {to, to_size(n)});
    } else {
      fill(stage, block);
      std::memcpy(to, stage.bytes.data() + (begin - at), to_size(n));
    }
    to += n;
    begin += n;
  }
}

void SafetensorsFile::read(const TensorInfo& info, const Dims& from, const Dims& size, Array& out,
                           const Dims& to) const {
  if (size.numel() == 0) return;
  file_.open();
  const int axes = size.size();
  // Behind the axis `cut` all is taken, on both sides: what belongs to one place along it is in a row.
  int cut = axes - 1;
  while (cut > 0 && size[cut] == info.shape[cut] && size[cut] == out.shape[cut]) --cut;
  const auto item = static_cast<int64_t>(size_bytes(info.dtype));
  const Dims source = contiguous_strides(info.shape), target = contiguous_strides(out.shape);
  int64_t outer = 1, run = item;
  for (int a = 0; a < axes; ++a) (a < cut ? outer : run) *= size[a];
  const auto first = info.begin + static_cast<uint64_t>(offset_of(from, source) * item);
  std::byte* const begin = out.bytes() + offset_of(to, target) * item;

  auto copy_run = [&](int64_t index, Stage& stage) {
    int64_t read_at = 0, write_at = 0;
    for (int a = cut - 1; a >= 0; --a) {
      read_at += index % size[a] * source[a];
      write_at += index % size[a] * target[a];
      index /= size[a];
    }
    const uint64_t at = first + static_cast<uint64_t>(read_at * item);
    std::byte* const place = begin + write_at * item;
    for (uint64_t done = 0, n; done < static_cast<uint64_t>(run); done += n) {
      n = std::min(static_cast<uint64_t>(run) - done, kReadBytes - (at + done) % kBlockBytes);
      auto piece = [&] { fetch(at + done, at + done + n, place + done, stage); };
      outer == 1 ? run_io(to_size(n), piece) : piece();
      if (info.dtype != boolean) continue;
      for (uint64_t i = done; i < done + n; ++i)
        if (std::to_integer<int>(place[i]) > 1)
          fail_runtime("{}: tensor '{}': element {} is not a bool. The file is damaged.", name(), info.name,
                       at + i - info.begin);
    }
  };
  if (outer == 1) return copy_run(0, stage_);
  const int64_t at_once = std::max<int64_t>(1, static_cast<int64_t>(kReadBytes) / run);
  const int64_t grain = std::max<int64_t>(1, kBlocksPerThread * static_cast<int64_t>(kBlockBytes) / run);
  for (int64_t next, i = 0; i < outer; i = next) {
    next = std::min(outer, i + at_once);
    run_io(to_size((next - i) * run), [&] {
      parallel_for(next - i, grain, [&](int64_t a, int64_t b) {
        Stage own;
        Stage& stage = a == 0 && b == next - i ? stage_ : own;
        for (int64_t k = a; k < b; ++k) copy_run(i + k, stage);
      });
    });
  }
}

Array SafetensorsFile::read(const TensorInfo& info) const {
  Array out = Array::empty(info.shape, info.dtype);
  Dims zero = Dims::filled(info.shape.size(), 0);
  read(info, zero, info.shape, out, zero);
  return out;
}

std::string header_text(std::vector<TensorInfo>& tensors, const Metadata& metadata) {
  json header = json::object();
  if (!metadata.empty()) header[kMetadata] = metadata;
  uint64_t at = 0;
  for (auto& t : tensors) {
    if (t.name == kMetadata || header.contains(t.name))
      fail_value("safetensors: the name '{}' is reserved. Give the tensor another.", t.name);
    t.begin = at;
    t.end = at += *bytes_of(t.shape, t.dtype);
    header[t.name] = {{"dtype", format_name(t.dtype)},
                      {"shape", std::vector<int64_t>(t.shape.begin(), t.shape.end())},
                      {"data_offsets", {t.begin, t.end}}};
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  if (text.size() > kLargestHeader)
    fail_value("safetensors: the header of {} tensors has {} bytes; the format allows {}. Save fewer in one file.",
               tensors.size(), text.size(), kLargestHeader);
  return text;
}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, std::vector<TensorInfo> tensors,
                                     const Metadata& metadata, bool checksums)
    : file_(path), tensors_(std::move(tensors)) {
  for (auto& t : tensors_) data_bytes_ += *bytes_of(t.shape, t.dtype);
  Metadata all = metadata;
  if (checksums) all[kSumsKey] = kSumsBegin + std::string((1 + blocks_of(data_bytes_)) * kDigits, '0');
  header_ = header_text(tensors_, all);
  if (checksums) sums_at_ = sums_place(header_);
  uint64_t size = header_.size();
  file_.write(&size, sizeof size);
  file_.write(header_.data(), header_.size());
}

void SafetensorsWriter::sum(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto n = to_size(std::min<uint64_t>(bytes.size(), kBlockBytes - summed_ % kBlockBytes));
    block_ = data::crc32c(bytes.first(n), block_);
    bytes = bytes.subspan(n);
    summed_ += n;
    if (summed_ % kBlockBytes != 0 && summed_ != data_bytes_) continue;
    put_digits(header_, sums_at_ + blocks_of(summed_) * kDigits, block_);
    block_ = 0;
  }
}

void SafetensorsWriter::write(const Array& array) {
  HOLON_CHECK(written_ < tensors_.size() && array.dtype == tensors_[written_].dtype &&
                  array.shape == tensors_[written_].shape,
              "tensor {} of {} differs from what was announced", written_, tensors_.size());
  ++written_;
  append(array);
}

void SafetensorsWriter::write(const std::function<Array(const Region&)>& read) {
  HOLON_CHECK(written_ < tensors_.size(), "tensor {} of {} was not announced", written_, tensors_.size());
  const TensorInfo& info = tensors_[written_++];
  for_each_piece(whole(info.shape), size_bytes(info.dtype), static_cast<int64_t>(kPieceBytes),
                 [&](const Region& piece) { append(read(piece)); });
}

void SafetensorsWriter::append(const Array& array) {
  if (array.numel() == 0) return;
  const Array dense = kernels::contiguous(kernels::on_device(array, {}));
  const std::span<const std::byte> all(dense.bytes(), dense.nbytes());
  for (size_t at = 0; at < all.size(); at += kPieceBytes) {
    auto piece = all.subspan(at, std::min(kPieceBytes, all.size() - at));
    run_io(piece.size(), [&] {
      if (sums_at_) sum(piece);
      file_.write(piece.data(), piece.size());
    });
  }
}

FileSum SafetensorsWriter::commit() {
  HOLON_CHECK(written_ == tensors_.size(), "{} of {} tensors are written", written_, tensors_.size());
  FileSum result{sizeof(uint64_t) + header_.size() + data_bytes_, 0};
  if (sums_at_) {
    result.header = header_sum(header_, sums_at_);
    put_digits(header_, sums_at_, result.header);
    file_.overwrite(sizeof(uint64_t), header_.data(), header_.size());
  }
  run_io(SIZE_MAX, [&] { file_.commit(); });
  return result;
}

}  // namespace holon::checkpoint
