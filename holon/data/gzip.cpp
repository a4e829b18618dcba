#include "holon/data/gzip.h"

#include <zlib.h>

#include <algorithm>

#include "holon/base/error.h"

namespace holon::data {

namespace {

constexpr int kGzipWindow = 15 + 16;        // the largest window, in a gzip frame
constexpr size_t kPiece = size_t{1} << 30;  // zlib counts bytes in 32 bits
constexpr uint64_t kLargestRatio = 1040;    // a deflate block cannot do better than 1032 : 1

}  // namespace

bool is_gzip(std::span<const std::byte> bytes) {
  return bytes.size() >= 2 && bytes[0] == std::byte{0x1f} && bytes[1] == std::byte{0x8b};
}

struct GzipReader::Stream : z_stream {};

GzipReader::GzipReader(std::span<const std::byte> packed, std::string_view name)
    : stream_(std::make_unique<Stream>()), packed_(packed), name_(name) {
  if (inflateInit2(stream_.get(), kGzipWindow) != Z_OK) fail_runtime("{}: zlib has no memory to decompress it.", name_);
}

GzipReader::~GzipReader() { inflateEnd(stream_.get()); }

uint64_t GzipReader::limit() const { return packed_.size() * kLargestRatio; }

bool GzipReader::next_member() {
  auto rest = packed_.subspan(taken_);
  if (is_gzip(rest)) return inflateReset(stream_.get()) == Z_OK;
  if (std::any_of(rest.begin(), rest.end(), [](std::byte b) { return b != std::byte{0}; }))
    fail_runtime("{}: its gzip data is damaged: {} bytes that are not gzip data follow it.", name_, rest.size());
  return false;
}

size_t GzipReader::read(std::span<std::byte> out) {
  size_t made = 0;
  while (!ended_ && made < out.size()) {
    size_t in = std::min(packed_.size() - taken_, kPiece), room = std::min(out.size() - made, kPiece);
    stream_->next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(packed_.data() + taken_));
    stream_->avail_in = static_cast<uInt>(in);
    stream_->next_out = reinterpret_cast<Bytef*>(out.data() + made);
    stream_->avail_out = static_cast<uInt>(room);
    int state = inflate(stream_.get(), Z_NO_FLUSH);
    size_t used = in - stream_->avail_in, got = room - stream_->avail_out;
    taken_ += used;
    made += got;
    if (state == Z_STREAM_END) {
      ended_ = !next_member();
    } else if (state != Z_OK && state != Z_BUF_ERROR) {
      fail_runtime("{}: its gzip data is damaged at byte {}: {}.", name_, taken_,
                   stream_->msg ? stream_->msg : zError(state));
    } else if (used == 0 && got == 0) {
      fail_runtime("{}: its gzip data is damaged: it is truncated after {} bytes.", name_, packed_.size());
    }
  }
  return made;
}

std::vector<std::byte> gzip(std::span<const std::byte> content, int level) {
  z_stream stream{};
  if (deflateInit2(&stream, level, Z_DEFLATED, kGzipWindow, 8, Z_DEFAULT_STRATEGY) != Z_OK)
    fail_runtime("gzip: zlib does not accept level {}. Give a level from 1 to 9.", level);
  std::vector<std::byte> out(deflateBound(&stream, content.size()));
  size_t taken = 0, made = 0;
  for (int state = Z_OK; state == Z_OK;) {
    size_t in = std::min(content.size() - taken, kPiece), room = std::min(out.size() - made, kPiece);
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(content.data() + taken));
    stream.avail_in = static_cast<uInt>(in);
    stream.next_out = reinterpret_cast<Bytef*>(out.data() + made);
    stream.avail_out = static_cast<uInt>(room);
    state = deflate(&stream, taken + in == content.size() ? Z_FINISH : Z_NO_FLUSH);
    taken += in - stream.avail_in;
    made += room - stream.avail_out;
  }
  deflateEnd(&stream);
  HOLON_CHECK(taken == content.size(), "deflate took {} of {} bytes", taken, content.size());
  out.resize(made);
  return out;
}

}  // namespace holon::data
