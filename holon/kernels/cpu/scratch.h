// Small things that the product, convolution and attention kernels share.
#pragma once

#include "holon/array/array.h"

namespace holon::kernels {

// A block of the caching allocator for the length of a call.
class Scratch {
 public:
  explicit Scratch(size_t bytes) : bytes_(bytes), data_(bytes ? allocate_block(bytes) : nullptr) {}
  ~Scratch() {
    if (data_) free_block(data_, bytes_);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  size_t bytes_;
  void* data_;
};

// Calls f(offset in a, offset in b) for every row, that is for every element but the last axis.
template <class F>
void for_each_row(const Dims& shape, const Dims& a, const Dims& b, F&& f) {
  const int n = shape.size() - 1;
  if (shape.numel() == 0) return;
  Dims index = Dims::filled(kMaxAxes, 0);
  int64_t at_a = 0, at_b = 0;
  for (;;) {
    f(at_a, at_b);
    int i = n - 1;
    for (; i >= 0; --i) {
      at_a += a[i], at_b += b[i];
      if (++index[i] < shape[i]) break;
      at_a -= index[i] * a[i], at_b -= index[i] * b[i];
      index[i] = 0;
    }
    if (i < 0) return;
  }
}

template <class F>
void for_each_row(const Dims& shape, const Dims& strides, F&& f) {
  for_each_row(shape, strides, strides, [&](int64_t at, int64_t) { f(at); });
}

}  // namespace holon::kernels
