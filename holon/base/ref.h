// Intrusive reference counting: a handle is one pointer, and an object is one allocation.
#pragma once

#include <atomic>
#include <concepts>
#include <cstdint>
#include <utility>

namespace holon {

class RefCounted {
 public:
  RefCounted() = default;
  RefCounted(const RefCounted&) = delete;
  RefCounted& operator=(const RefCounted&) = delete;
  virtual ~RefCounted() = default;

  void retain() const { count_.fetch_add(1, std::memory_order_relaxed); }
  // Nobody can copy the last reference while it is given up: it needs no locked instruction.
  void release() const {
    if (count_.load(std::memory_order_acquire) == 1 || count_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }
  uint32_t use_count() const { return count_.load(std::memory_order_relaxed); }

 private:
  template <class>
  friend class Ref;
  // As retain(), for an object that no other thread has seen.
  void retain_alone() const { count_.store(count_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed); }

  mutable std::atomic<uint32_t> count_{0};
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
