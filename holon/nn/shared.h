// Shared: a value that all handles of a module have in common.
#pragma once

#include <memory>
#include <utility>

#include "holon/base/error.h"

namespace holon::nn {

// A member of a module's class that changes after construction and is not a tensor: copies of the module see one value.
//   struct Counter : nn::Layer<Counter> {
//     nn::Shared<int64_t> calls{0};
//     Tensor forward(const Tensor& x) const { ++*calls; return x; }
//   };
// Errors: it was moved from.
template <class T>
class Shared {
 public:
  Shared() : value_(std::make_shared<T>()) {}
  explicit Shared(T value) : value_(std::make_shared<T>(std::move(value))) {}
  T& operator*() const { return here(); }
  T* operator->() const { return &here(); }

 private:
  T& here() const {
    if (!value_) [[unlikely]]
      fail_runtime("nn::Shared: the value was moved from, together with its module. Use the module it was moved to.");
    return *value_;
  }
  std::shared_ptr<T> value_;
};

}  // namespace holon::nn
