// A Value as JSON, in which tensors are named, and back.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "holon/checkpoint/core/value.h"

namespace holon::checkpoint {

struct Flat {
  std::string tree;  // JSON
  std::vector<std::pair<std::string, Tensor>>
      tensors;  // in the order of the Value; the path, joined by dots, is the name
};

// Errors, naming the key path ("['model'][3]"): an undefined tensor or one without a value (RuntimeError); text that is
// not UTF-8; a key that is a tensor, list, tuple or dict (TypeError); more than kMaxDepth levels.
Flat flatten(const Value& value, const char* op = "save");

// Errors (RuntimeError), beginning with `name`: no JSON of this form. find throws for a name that it does not know.
Value restore(std::string_view tree, std::string_view name, const std::function<Tensor(const std::string&)>& find);

inline constexpr int kMaxDepth = 100;

}  // namespace holon::checkpoint
