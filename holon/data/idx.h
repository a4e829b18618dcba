// IDX files, the format of MNIST: a magic number with type and number of axes, the sizes, and the elements, big-endian.
#pragma once

#include <filesystem>
#include <span>
#include <string_view>

#include "holon/tensor/tensor.h"

namespace holon::data {

// The values as a local tensor of the file's type: uint8, int8, int32, float32 or float64; int16 becomes int32.
// Errors (RuntimeError), naming the file and the byte: no IDX file (gzip among them), an unknown type, more axes than a tensor
// has, sizes that do not fit the length, in either direction. Nothing is read beyond the given bytes.
Tensor read_idx(const std::filesystem::path& path);
// The same for bytes at hand; name stands in messages.
Tensor parse_idx(std::span<const std::byte> bytes, std::string_view name);

}  // namespace holon::data
