#include "holon/data/idx.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>

#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/data/gzip.h"
#include "holon/data/input_file.h"

namespace holon::data {

namespace {

template <class U>
U big_endian(const std::byte* p) {
  U v = 0;
  for (size_t i = 0; i < sizeof(U); ++i) v = static_cast<U>(v << 8 | std::to_integer<U>(p[i]));
  return v;
}

struct ElementType {
  size_t file_bytes;
  int code;
  DType dtype;
};
constexpr ElementType kTypes[] = {{1, 0x08, uint8}, {1, 0x09, int8},    {2, 0x0B, int32},
                                  {4, 0x0C, int32}, {4, 0x0D, float32}, {8, 0x0E, float64}};

// The bytes of a file in a row, as they are or unpacked on the way.
class Source {
 public:
  Source(std::span<const std::byte> bytes, std::string_view name) : rest_(bytes) {
    if (is_gzip(bytes)) packed_.emplace(bytes, name);
  }
  bool packed() const { return packed_.has_value(); }
  // How many bytes are left; for packed ones, more than that there cannot be.
  uint64_t left() const { return packed_ ? packed_->limit() : rest_.size(); }
  // Fills out, or returns how many bytes there were.
  size_t read(std::span<std::byte> out) {
    if (packed_) return packed_->read(out);
    size_t n = std::min(out.size(), rest_.size());
    if (n > 0) std::memcpy(out.data(), rest_.data(), n);
    rest_ = rest_.subspan(n);
    return n;
  }

 private:
  std::span<const std::byte> rest_;
  std::optional<GzipReader> packed_;
};

template <class U, class T>
void convert(std::span<const std::byte> from, T* to) {
  for (size_t i = 0; i < from.size() / sizeof(U); ++i) {
    U u = big_endian<U>(from.data() + i * sizeof(U));
    if constexpr (sizeof(U) == sizeof(T))
      to[i] = std::bit_cast<T>(u);
    else
      to[i] = static_cast<T>(static_cast<std::make_signed_t<U>>(u));
  }
}

// Returns how many bytes there were.
uint64_t read_elements(Source& source, const ElementType& type, Array& out, uint64_t count) {
  if (count == 0) return 0;
  if (type.file_bytes == 1) return source.read({out.bytes(), to_size(count)});
  std::vector<std::byte> piece(std::min<uint64_t>(count, 1 << 16) * type.file_bytes);
  uint64_t taken = 0, whole = count * type.file_bytes;
  while (taken < whole) {
    std::span part(piece.data(), to_size(std::min<uint64_t>(piece.size(), whole - taken)));
    size_t n = source.read(part);
    auto at = static_cast<int64_t>(taken / type.file_bytes);
    switch (type.code) {
      case 0x0B: convert<uint16_t>(part.first(n), out.data<int32_t>() + at); break;
      case 0x0C: convert<uint32_t>(part.first(n), out.data<int32_t>() + at); break;
      case 0x0D: convert<uint32_t>(part.first(n), out.data<float>() + at); break;
      default: convert<uint64_t>(part.first(n), out.data<double>() + at); break;
    }
    taken += n;
    if (n < part.size()) break;
  }
  return taken;
}

}  // namespace

Tensor parse_idx(std::span<const std::byte> bytes, std::string_view name) {
  Source source(bytes, name);
  std::byte head[4 + 4 * 256];
  size_t n = source.read(std::span(head).first(4));
  auto at = [&](size_t i) { return std::to_integer<int>(head[i]); };
  if (n < 4) fail_runtime("{}: an IDX file begins with 4 bytes of type and axes; found {} bytes.", name, n);
  if (at(0) != 0 || at(1) != 0)
    fail_runtime("{} is not an IDX file: it must begin with two zero bytes, found {:#04x} {:#04x}.", name, at(0),
                 at(1));
  const ElementType* type = nullptr;
  for (auto& t : kTypes)
    if (t.code == at(2)) type = &t;
  if (!type)
    fail_runtime("{}: byte 2 names the element type {:#04x}; IDX knows 0x08, 0x09, 0x0b, 0x0c, 0x0d and 0x0e.", name,
                 at(2));
  int axes = at(3);
  if (axes > kMaxAxes) fail_runtime("{}: byte 3 specifies {} axes; a tensor has at most {}.", name, axes, kMaxAxes);
  std::span sizes(head + 4, 4 * to_size(axes));
  n += source.read(sizes);
  if (n < 4 + sizes.size())
    fail_runtime("{}: {} axes need {} bytes of header; the file ends after {}.", name, axes, 4 + sizes.size(), n);
  Dims shape;
  uint64_t body = source.left();
  // A product that outgrows the file is refused before it can overflow; a size of 0 makes it 0 whatever the others are.
  uint64_t count = 1;
  bool empty = false, too_large = false;
  for (int a = 0; a < axes; ++a) {
    uint32_t size = big_endian<uint32_t>(sizes.data() + 4 * to_size(a));
    shape.push_back(size);
    empty |= size == 0;
    if (!too_large) count *= size;
    too_large |= count > body;
  }
  if (empty) count = 0;
  too_large = !empty && (too_large || count * type->file_bytes > body);
  auto fail_size = [&](uint64_t found, const char* more) {
    fail_runtime(
        "{}: sizes {} with {} bytes each do not fit the {}{} bytes after the header. The file is truncated or damaged.",
        name, shape, type->file_bytes, found, more);
  };
  if (too_large || (!source.packed() && count * type->file_bytes != body))
    fail_size(body, source.packed() ? " (at most)" : "");
  Array out = Array::empty(shape, type->dtype);
  uint64_t found = read_elements(source, *type, out, count);
  std::byte more[1];
  found += source.read(more);  // and the checksum of packed data
  if (found != count * type->file_bytes) fail_size(found, found > count * type->file_bytes ? " or more" : "");
  return Tensor::local(std::move(out));
}

Tensor read_idx(const FilePath& path) { return parse_idx(read_whole(path), path.string()); }

std::vector<std::byte> idx_bytes(const Tensor& values) {
  if (!values.is_local() || values.dtype() != uint8 || !values.array().is_contiguous())
    fail_value("idx_bytes: takes a contiguous local tensor of uint8; got {}.",
               values.is_local() ? name(values.dtype()) : "a global tensor");
  for (int64_t size : values.shape())
    if (size > UINT32_MAX)
      fail_value("idx_bytes: an axis of an IDX file has at most {} elements; got {}.", UINT32_MAX, size);
  std::vector<std::byte> out{std::byte{0}, std::byte{0}, std::byte{0x08}, static_cast<std::byte>(values.ndim())};
  for (int64_t size : values.shape())
    for (int shift = 24; shift >= 0; shift -= 8) out.push_back(static_cast<std::byte>(size >> shift & 0xff));
  out.insert(out.end(), values.array().bytes(), values.array().bytes() + values.array().nbytes());
  return out;
}

}  // namespace holon::data
