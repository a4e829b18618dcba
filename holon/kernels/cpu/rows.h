// Rows of an array: its elements along one axis (or its last axes), for every index of the others in row-major order.
// Rows that are not contiguous, or not of the type that is computed in, pass through a buffer.
#pragma once

#include <vector>

#include "holon/array/array.h"
#include "holon/base/index.h"
#include "holon/kernels/compute_type.h"

namespace holon::kernels {

// Room for a row of a thread: the elements in the compute type, and as they are stored.
class RowBuffer {
 public:
  explicit RowBuffer(int64_t n) : bytes_(to_size(n) * 16 + 64) {}
  std::byte* row() { return bytes_.data(); }
  std::byte* scratch() { return bytes_.data() + bytes_.size() / 2; }

 private:
  std::vector<std::byte> bytes_;
};

class Rows {
 public:
  // Rows along the given axis. An array without axes is one row of one element.
  Rows(const Array& a, int axis, DType compute);
  // Rows along the last `axes` axes together. Errors: axes that are not a single row of equal steps (HOLON_CHECK); see
  // with_rows().
  static Rows along_last(const Array& a, int axes, DType compute);

  int64_t count() const { return count_; }
  int64_t length() const { return length_; }
  bool direct() const { return direct_; }

  // Row i, read. Valid until the buffer is used again.
  const void* read(int64_t i, RowBuffer& buffer) const;
  // Where to write row i, and its end: write() brings a buffered row home.
  void* target(int64_t i, RowBuffer& buffer) const;
  void write(int64_t i, RowBuffer& buffer) const;

  std::byte* address(int64_t i) const;

 private:
  Rows() = default;
  std::byte* data_ = nullptr;
  DType dtype_ = DType::kFloat32, compute_ = DType::kFloat32;
  int64_t count_ = 1, length_ = 1, stride_ = 0;  // stride in bytes
  int outer_ = 0;
  int64_t shape_[kMaxAxes], strides_[kMaxAxes];  // of the other axes, in order; strides in bytes
  bool direct_ = false;
};

}  // namespace holon::kernels
