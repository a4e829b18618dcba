#include "holon/data/idx.h"

#include <bit>
#include <cstring>

#include "holon/base/error.h"
#include "holon/data/mapped_file.h"

namespace holon::data {

namespace {

template <class U>
U big_endian(const std::byte* p) {
  U v = 0;
  for (size_t i = 0; i < sizeof(U); ++i) v = static_cast<U>(v << 8 | std::to_integer<U>(p[i]));
  return v;
}

struct ElementType {
  int code;
  size_t file_bytes;
  DType dtype;
};
constexpr ElementType kTypes[] = {{0x08, 1, uint8}, {0x09, 1, int8},    {0x0B, 2, int32},
                                  {0x0C, 4, int32}, {0x0D, 4, float32}, {0x0E, 8, float64}};

template <class U, class T>
void read_elements(const std::byte* from, T* to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    U u = big_endian<U>(from + static_cast<size_t>(i) * sizeof(U));
    if constexpr (sizeof(U) == sizeof(T))
      to[i] = std::bit_cast<T>(u);
    else
      to[i] = static_cast<T>(static_cast<std::make_signed_t<U>>(u));
  }
}

}  // namespace

Tensor parse_idx(std::span<const std::byte> bytes, std::string_view name) {
  auto at = [&](size_t i) { return std::to_integer<int>(bytes[i]); };
  if (bytes.size() < 4) fail_runtime("{}: an IDX file begins with 4 bytes of type and axes; found {} bytes.", name, bytes.size());
  if (at(0) == 0x1f && at(1) == 0x8b) fail_runtime("{} is compressed by gzip. Unpack it first (gunzip -k).", name);
  if (at(0) != 0 || at(1) != 0)
    fail_runtime("{} is no IDX file: it must begin with two zero bytes, found {:#04x} {:#04x}.", name, at(0), at(1));
  const ElementType* type = nullptr;
  for (auto& t : kTypes)
    if (t.code == at(2)) type = &t;
  if (!type) fail_runtime("{}: byte 2 names the element type {:#04x}; IDX knows 0x08, 0x09, 0x0b, 0x0c, 0x0d and 0x0e.", name, at(2));
  int axes = at(3);
  if (axes > kMaxAxes) fail_runtime("{}: byte 3 says {} axes; a tensor has at most {}.", name, axes, kMaxAxes);
  size_t header = 4 + 4 * static_cast<size_t>(axes);
  if (bytes.size() < header)
    fail_runtime("{}: {} axes need {} bytes of header; the file ends after {}.", name, axes, header, bytes.size());
  Dims shape;
  size_t body = bytes.size() - header;
  // A product that outgrows the file is refused before it can overflow; a size of 0 makes it 0 whatever the others are.
  uint64_t count = 1;
  bool empty = false, too_large = false;
  for (int a = 0; a < axes; ++a) {
    uint32_t size = big_endian<uint32_t>(bytes.data() + 4 + 4 * static_cast<size_t>(a));
    shape.push_back(size);
    empty |= size == 0;
    if (!too_large) count *= size;
    too_large |= count > body;
  }
  if (empty) count = 0;
  if ((!empty && too_large) || count * type->file_bytes != body)
    fail_runtime("{}: sizes {} with {} bytes each do not fit the {} bytes after the header. The file is cut off or damaged.", name, shape,
                 type->file_bytes, body);
  Array out = Array::empty(shape, type->dtype);
  const std::byte* from = bytes.data() + header;
  auto n = static_cast<int64_t>(count);
  switch (type->code) {
    case 0x08:
    case 0x09:
      if (n > 0) std::memcpy(out.bytes(), from, count);
      break;
    case 0x0B: read_elements<uint16_t>(from, out.data<int32_t>(), n); break;
    case 0x0C: read_elements<uint32_t>(from, out.data<int32_t>(), n); break;
    case 0x0D: read_elements<uint32_t>(from, out.data<float>(), n); break;
    default: read_elements<uint64_t>(from, out.data<double>(), n); break;
  }
  return Tensor::local(std::move(out));
}

Tensor read_idx(const std::filesystem::path& path) {
  MappedFile file(path);
  return parse_idx(file.bytes(), path.string());
}

}  // namespace holon::data
