// A vector whose first N elements need no allocation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <new>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "holon/base/index.h"

namespace holon {

template <class T, size_t N>
class SmallVec {
 public:
  SmallVec() = default;
  explicit SmallVec(size_t n) { resize(n); }
  SmallVec(std::initializer_list<T> v) { append(v.begin(), v.size()); }
  explicit SmallVec(std::span<const T> v) { append(v.data(), v.size()); }
  SmallVec(const SmallVec& o) { append(o.data_, o.size_); }
  SmallVec(SmallVec&& o) noexcept { take(o); }
  SmallVec& operator=(const SmallVec& o) {
    if (this != &o) {
      clear();
      append(o.data_, o.size_);
    }
    return *this;
  }
  SmallVec& operator=(SmallVec&& o) noexcept {
    if (this != &o) {
      destroy();
      take(o);
    }
    return *this;
  }
  ~SmallVec() { destroy(); }

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T* data() { return data_; }
  const T* data() const { return data_; }
  T& operator[](size_t i) { return data_[checked(i)]; }
  const T& operator[](size_t i) const { return data_[checked(i)]; }
  T& back() { return data_[size_ - 1]; }
  T* begin() { return data_; }
  T* end() { return data_ + size_; }
  const T* begin() const { return data_; }
  const T* end() const { return data_ + size_; }
  operator std::span<const T>() const { return {data_, size_}; }
  operator std::span<T>() { return {data_, size_}; }
  operator std::vector<T>() const& { return {begin(), end()}; }
  operator std::vector<T>() && { return {std::make_move_iterator(begin()), std::make_move_iterator(end())}; }

  template <class... A>
  T& emplace_back(A&&... a) {
    if (size_ == capacity_) [[unlikely]]
      grow(size_t{capacity_} * 2);
    return *new (data_ + size_++) T(std::forward<A>(a)...);
  }
  void push_back(T x) { emplace_back(std::move(x)); }
  void resize(size_t n) {
    reserve(n);
    while (size_ < n) new (data_ + size_++) T();
    while (size_ > n) data_[--size_].~T();
  }
  void clear() { resize(0); }
  void reserve(size_t n) {
    if (n > capacity_) grow(n);
  }

 private:
  size_t checked(size_t i) const {
#ifdef HOLON_CHECK_INDICES
    detail::check_index(i, size_);
#endif
    return i;
  }
  T* inline_data() { return reinterpret_cast<T*>(inline_); }
  void append(const T* from, size_t n) {
    reserve(size_ + n);
    T* to = data_ + size_;
    if constexpr (std::is_nothrow_copy_constructible_v<T>) {
      for (const T* last = from + n; from != last; ++from) new (to++) T(*from);
      size_ += static_cast<uint32_t>(n);
    } else {
      for (; n > 0; --n, ++from, ++size_) new (to++) T(*from);
    }
  }
  [[gnu::noinline]] void grow(size_t n) {
    if (n > UINT32_MAX) detail::fail_size(static_cast<int64_t>(n));
    T* fresh = static_cast<T*>(::operator new(n * sizeof(T), std::align_val_t(alignof(T))));
    move_to(fresh);
    size_t count = size_;
    destroy();
    data_ = fresh;
    size_ = static_cast<uint32_t>(count);
    capacity_ = static_cast<uint32_t>(n);
  }
  void move_to(T* to) {
    for (T *from = data_, *last = data_ + size_; from != last; ++from) new (to++) T(std::move(*from));
  }
  void destroy() {
    if constexpr (!std::is_trivially_destructible_v<T>)
      for (T *p = data_, *last = data_ + size_; p != last; ++p) p->~T();
    if (data_ != inline_data()) ::operator delete(data_, std::align_val_t(alignof(T)));
    data_ = inline_data();
    size_ = 0;
    capacity_ = N;
  }
  void take(SmallVec& o) {
    if (o.data_ != o.inline_data()) {
      data_ = std::exchange(o.data_, o.inline_data());
      size_ = std::exchange(o.size_, 0);
      capacity_ = std::exchange(o.capacity_, N);
    } else {
      o.move_to(data_);
      size_ = o.size_;
      o.clear();
    }
  }

  alignas(T) std::byte inline_[N * sizeof(T)];
  T* data_ = inline_data();
  uint32_t size_ = 0, capacity_ = N;
};

}  // namespace holon
