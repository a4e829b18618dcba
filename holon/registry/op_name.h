// An op of the tree by its name, as holon/op_names.h has them, so that a name that none has does not compile.
#pragma once

#include <atomic>

#include "holon/registry/op_def.h"

namespace holon {

class OpName {
 public:
  explicit constexpr OpName(const char* name) : name_(name) {}
  // Looked up when it is first requested: all ops are declared then.
  const OpDef& def() const {
    const OpDef* known = def_.load(std::memory_order_acquire);
    if (!known) [[unlikely]]
      def_.store(known = &find_op(name_), std::memory_order_release);
    return *known;
  }
  operator const OpDef&() const { return def(); }
  const OpDef* operator->() const { return &def(); }
  bool operator==(const OpDef* op) const { return op == &def(); }

 private:
  const char* name_;
  mutable std::atomic<const OpDef*> def_{nullptr};
};

}  // namespace holon
