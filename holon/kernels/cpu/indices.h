// What the kernels that look up and scatter share: indices in order and checked, and walks over elements.
#pragma once

#include <vector>

#include "holon/array/array.h"
#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/kernels/cpu/table.h"

namespace holon::kernels {

inline int64_t bytes_of(DType dtype) { return static_cast<int64_t>(size_bytes(dtype)); }

// Visits an array's elements in row-major order: f(number, byte offset in each of the arrays), all of the first's shape
// (the others at least as large along each axis).
template <size_t n, class F>
void walk(const Array* const (&arrays)[n], F&& f) {
  const Dims& shape = arrays[0]->shape;
  const int64_t total = shape.numel();
  int64_t at[n] = {}, index[kMaxAxes] = {};
  for (int64_t i = 0; i < total; ++i) {
    f(i, at);
    for (int a = shape.size() - 1; a >= 0; --a) {
      for (size_t k = 0; k < n; ++k) at[k] += arrays[k]->strides[a] * bytes_of(arrays[k]->dtype);
      if (++index[a] < shape[a]) break;
      for (size_t k = 0; k < n; ++k) at[k] -= arrays[k]->strides[a] * bytes_of(arrays[k]->dtype) * shape[a];
      index[a] = 0;
    }
  }
}

inline void check_index_dtype(const char* op, const Array& indices) {
  if (indices.dtype != DType::kInt32 && indices.dtype != DType::kInt64)
    fail_type("{}: indices are {}. They must be int32 or int64.", op, name(indices.dtype));
}

enum class Check { kAtOnce, kLater };

// The indices in row-major order, each of them in [0, limit): all are checked at once, or later by the reader, block by
// block, while they are in the nearest cache. int64 ones without gaps are read where they are.
class Indices {
 public:
  Indices(const char* op, const Array& indices, int64_t limit, Check when = Check::kAtOnce)
      : op_(op), shape_(indices.shape), limit_(limit), size_(to_size(indices.numel())) {
    check_index_dtype(op, indices);
    if (indices.dtype == DType::kInt64 && indices.is_contiguous()) {
      data_ = size_ ? indices.data<int64_t>() : nullptr;
    } else {
      copy_.resize(size_);
      walk({&indices}, [&](int64_t i, const int64_t* at) {
        const std::byte* p = indices.bytes() + at[0];
        at_index(copy_, i) = indices.dtype == DType::kInt64 ? *reinterpret_cast<const int64_t*>(p)
                                                            : *reinterpret_cast<const int32_t*>(p);
      });
      data_ = copy_.data();
    }
    if (when == Check::kAtOnce) check(0, static_cast<int64_t>(size_));
  }
  Indices(const Indices&) = delete;
  Indices& operator=(const Indices&) = delete;
  size_t size() const { return size_; }
  int64_t operator[](size_t i) const { return data_[i]; }
  const int64_t* data() const { return data_; }
  // Checks those of numbers [begin, end). The error is about the first bad one of all.
  void check(int64_t begin, int64_t end) const {
    if (!table().all_within(data_ + begin, end - begin, limit_)) fail_first();
  }

 private:
  [[noreturn]] void fail_first() const {
    size_t i = 0;
    while (data_[i] >= 0 && data_[i] < limit_) ++i;
    fail(ErrorKind::kIndex, "{}: index {} at position {} of indices {} is outside [0, {}).", op_, data_[i], i, shape_,
         limit_);
  }

  const char* op_;
  const Dims& shape_;
  int64_t limit_;
  size_t size_;
  const int64_t* data_ = nullptr;
  std::vector<int64_t> copy_;
};

template <class F>
void visit_size(DType dtype, F&& f) {
  switch (size_bytes(dtype)) {
    case 1: return f(TypeTag<uint8_t>{});
    case 2: return f(TypeTag<uint16_t>{});
    case 4: return f(TypeTag<uint32_t>{});
    default: return f(TypeTag<uint64_t>{});
  }
}

}  // namespace holon::kernels
