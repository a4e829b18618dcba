// Pickles, Python's format of objects, read without running anything: tensors as torch.save() writes them, numbers,
// text, lists, tuples and dicts. A pickle is a program; whatever else it would call or create is refused by its name.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "holon/array/dims.h"
#include "holon/array/dtype.h"

namespace holon::checkpoint {

// A view of a storage. Strides are 0 or more, 0 where the size is 1; offset and strides are in elements. Unless it has
// none, all its elements are within the storage.
struct PickledTensor {
  std::string storage;  // its key
  uint64_t storage_bytes = 0;
  DType dtype = DType::kFloat32;
  int64_t offset = 0;
  Dims shape, strides;
};

struct Unpickled {
  std::string tree;                                            // for restore()
  std::vector<std::pair<std::string, PickledTensor>> tensors;  // by their names in the tree
};

inline constexpr uint64_t kLargestPickle = 100'000'000;

// Errors (RuntimeError), beginning with `name`: what it would call; an object that a Value cannot hold, or a tensor of
// a dtype that Holon has not, with its path of keys; a program that is damaged or of more than kLargestPickle bytes,
// 4 million objects or 100 levels. The stack does not grow with the text, and memory at most some hundred MiB beyond a
// few times of it.
Unpickled unpickle(std::string_view pickle, std::string_view name);

}  // namespace holon::checkpoint
