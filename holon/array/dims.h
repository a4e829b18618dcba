// A short list of integers without allocation: shapes, strides, axes.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "holon/base/index.h"
#include "holon/base/integer.h"
#include "holon/base/print.h"

namespace holon {

// The most axes that a tensor may have.
inline constexpr int kMaxAxes = 8;

class Dims {
 public:
  Dims() = default;
  Dims(std::initializer_list<int64_t> v) { assign(v.begin(), v.size()); }
  Dims(std::span<const int64_t> v) { assign(v.data(), v.size()); }
  Dims(const std::vector<int64_t>& v) { assign(v.data(), v.size()); }
  // n times the same value.
  static Dims filled(int n, int64_t value) {
    Dims d;
    d.resize(n, value);
    return d;
  }

  // Its elements. Pre: an index is in range, and back() has one.
  int size() const { return size_; }
  bool empty() const { return size_ == 0; }
  int64_t operator[](int i) const { return v_[checked(i)]; }
  int64_t& operator[](int i) { return v_[checked(i)]; }
  int64_t back() const { return v_[size_ - 1]; }
  int64_t& back() { return v_[size_ - 1]; }
  const int64_t* begin() const { return v_; }
  const int64_t* end() const { return v_ + size_; }
  int64_t* begin() { return v_; }
  int64_t* end() { return v_ + size_; }
  operator std::span<const int64_t>() const { return {v_, static_cast<size_t>(size_)}; }

  // Changes of the list. Errors: more than kMaxAxes elements.
  void push_back(int64_t x) {
    if (size_ == kMaxAxes) too_many(size_ + 1);
    v_[size_++] = x;
  }
  void resize(int n, int64_t value = 0) {
    if (n > kMaxAxes) too_many(n);
    for (int i = size_; i < n; ++i) v_[i] = value;
    size_ = n;
  }
  void insert(int at, int64_t x) {
    push_back(0);
    for (int i = size_ - 1; i > at; --i) v_[i] = v_[i - 1];
    v_[at] = x;
  }
  void erase(int at) {
    --size_;
    for (int i = at; i < size_; ++i) v_[i] = v_[i + 1];
  }
  // By a loop: for so few elements the call of memcmp that std::equal becomes costs more.
  bool operator==(const Dims& o) const {
    if (size_ != o.size_) return false;
    for (int i = 0; i < size_; ++i)
      if (v_[i] != o.v_[i]) return false;
    return true;
  }

  // Errors: more elements than 2^63 - 1 (ValueError).
  int64_t numel() const {
    int64_t n = 1;
    for (int64_t x : *this)
      if (__builtin_mul_overflow(n, x, &n)) [[unlikely]]
        return numel_beyond();
    return n;
  }
  std::string str() const;  // "[4, 5]"

 private:
  int checked(int i) const {
#ifdef HOLON_CHECK_INDICES
    detail::check_index(i, static_cast<size_t>(size_));
#endif
    return i;
  }
  int64_t numel_beyond() const;
  void assign(const int64_t* p, size_t n) {
    if (n > kMaxAxes) too_many(static_cast<int>(n));
    size_ = static_cast<int>(n);
    for (int i = 0; i < size_; ++i) v_[i] = p[i];
  }
  [[noreturn]] static void too_many(int n);

  int size_ = 0;
  int64_t v_[kMaxAxes];
};

// The argument of an op that may leave its axes out: sum(x), sum(x, 1), sum(x, {0, 1}).
struct OptionalDims : std::optional<Dims> {
  OptionalDims() = default;
  OptionalDims(std::nullopt_t) {}
  template <Integer T>
  OptionalDims(T n) : optional(Dims{static_cast<int64_t>(n)}) {}
  OptionalDims(std::initializer_list<int64_t> v) : optional(Dims(v)) {}
  OptionalDims(const std::vector<int64_t>& v) : optional(Dims(v)) {}
  OptionalDims(const Dims& dims) : optional(dims) {}
  OptionalDims(const std::optional<Dims>& dims) : optional(dims) {}
};

// N numbers, one for each axis of a window; one number alone is that of all of them: max_pool2d(x, 2).
template <int N>
struct ExpandingDims : Dims {
  template <Integer T>
  ExpandingDims(T n) : Dims(filled(N, static_cast<int64_t>(n))) {}
  ExpandingDims(std::initializer_list<int64_t> v) : ExpandingDims(Dims(v)) {}
  ExpandingDims(const std::vector<int64_t>& v) : ExpandingDims(Dims(v)) {}
  ExpandingDims(const Dims& dims) : Dims(dims.size() == 1 ? filled(N, dims[0]) : dims) {}
};

template <int N>
struct OptionalExpandingDims : OptionalDims {
  OptionalExpandingDims() = default;
  OptionalExpandingDims(std::nullopt_t) {}
  template <Integer T>
  OptionalExpandingDims(T n) : OptionalDims(ExpandingDims<N>(n)) {}
  OptionalExpandingDims(std::initializer_list<int64_t> v) : OptionalDims(ExpandingDims<N>(v)) {}
  OptionalExpandingDims(const std::vector<int64_t>& v) : OptionalDims(ExpandingDims<N>(v)) {}
  OptionalExpandingDims(const Dims& dims) : OptionalDims(ExpandingDims<N>(dims)) {}
  OptionalExpandingDims(const std::optional<Dims>& dims)
      : OptionalDims(dims ? OptionalDims(ExpandingDims<N>(*dims)) : OptionalDims()) {}
};

// Row-major strides, in elements; all 0 where no memory could hold the sizes but 0: then no place in it overflows.
Dims contiguous_strides(const Dims& shape);
// Strides for shape [n, c, ...] with the channels next to each other: the layout that convolutions are fastest in.
Dims channels_last_strides(const Dims& shape);

// The axis counted from 0 of one that may be counted from the end. Errors: out of range (IndexError), naming the op.
int normalize_axis(int64_t axis, int ndim, const char* op);

// The common shape of a and b by broadcasting. Errors: sizes that differ and are not 1 (ValueError), naming the op.
Dims broadcast_shapes(const Dims& a, const Dims& b, const char* op);

}  // namespace holon
