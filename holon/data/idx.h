// IDX files, the format of MNIST: a magic number with type and number of axes, the sizes, and the elements, big-endian.
// A file may be compressed by gzip, whatever its name.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "holon/base/file_path.h"
#include "holon/tensor/tensor.h"

namespace holon::data {

// The values as a local tensor of the file's type: uint8, int8, int32, float32 or float64; int16 becomes int32.
// Errors (RuntimeError), naming the file and the byte: no IDX file, an unknown type, more axes than a tensor has, sizes
// that do not fit the length, in either direction, damaged gzip data. Nothing is read beyond the given bytes, and no
// more memory is taken than they can fill.
Tensor read_idx(const FilePath& path);
// The same for bytes at hand; name is in messages.
Tensor parse_idx(std::span<const std::byte> bytes, std::string_view name);
// A file of these values, a contiguous local tensor of uint8.
std::vector<std::byte> idx_bytes(const Tensor& values);

}  // namespace holon::data
