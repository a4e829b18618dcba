// Intrusive reference counting: a handle is one pointer, and an object is one allocation.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace holon {

class RefCounted {
 public:
  RefCounted() = default;
  RefCounted(const RefCounted&) = delete;
  RefCounted& operator=(const RefCounted&) = delete;
  virtual ~RefCounted() = default;

  void retain() const { __atomic_fetch_add(&count_, 1, __ATOMIC_RELAXED); }
  // Nobody can copy the last reference while it is given up: it needs no locked instruction.
  void release() const {
    if (__atomic_load_n(&count_, __ATOMIC_ACQUIRE) == 1 || __atomic_fetch_sub(&count_, 1, __ATOMIC_ACQ_REL) == 1)
      delete this;
  }
  uint32_t use_count() const { return __atomic_load_n(&count_, __ATOMIC_RELAXED); }

 private:
  template <class>
  friend class Ref;
  // As retain(), for an object that no other thread has seen.
  void retain_alone() const { __atomic_store_n(&count_, use_count() + 1, __ATOMIC_RELAXED); }

  // By the compiler's functions: <atomic> would be half of what tensor.h takes to compile.
  mutable uint32_t count_ = 0;
};

template <class T>
class Ref {
 public:
  Ref() = default;
  Ref(std::nullptr_t) {}
  Ref(T* p) : p_(p) {
    if (p_) p_->retain();
  }
  // Pre: no other thread has seen *p.
  static Ref of_new(T* p) {
    Ref r;
    r.p_ = p;
    p->retain_alone();
    return r;
  }
  Ref(const Ref& o) : Ref(o.p_) {}
  Ref(Ref&& o) noexcept : p_(std::exchange(o.p_, nullptr)) {}
  template <std::derived_from<T> U>
  Ref(Ref<U>&& o) noexcept : p_(std::exchange(o.p_, nullptr)) {}
  ~Ref() {
    if (p_) p_->release();
  }
  Ref& operator=(Ref o) noexcept {
    std::swap(p_, o.p_);
    return *this;
  }
  T* get() const { return p_; }
  T* operator->() const { return p_; }
  T& operator*() const { return *p_; }
  explicit operator bool() const { return p_ != nullptr; }
  bool operator==(const Ref& o) const { return p_ == o.p_; }

 private:
  template <class>
  friend class Ref;
  T* p_ = nullptr;
};

template <class T, class... Args>
Ref<T> make_ref(Args&&... args) {
  return Ref<T>::of_new(new T(std::forward<Args>(args)...));
}

}  // namespace holon
