// The classes and functions by which pickles of tensors refer to what they need. There are no others.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "holon/array/dtype.h"

namespace holon::checkpoint {

enum class PickleUse : uint8_t {
  kOrderedDict,  // or another dict: (), (pairs) or (dict)
  kSize,         // torch.Size: a tuple
  kDevice,       // torch.device: text
  kDType,
  kStorage,           // of one dtype
  kBytes,             // of any: an UntypedStorage
  kRebuildTensor,     // (storage, offset, shape, strides, ...)
  kRebuildTensor3,    // the same, with the dtype as the 7th
  kRebuildParameter,  // (tensor, ...)
  kRebuildFromType,   // (function, class, arguments, state)
  kTensorClass
};

struct PickleName {
  std::string_view module, name;
  PickleUse use;
  std::string_view dtype_name = {};  // of a dtype or a storage, and what it is; no DType: Holon lacks it
  std::optional<DType> dtype = {};
  uint64_t item_bytes = 0;
};

// nullptr: it is refused.
const PickleName* find_pickle_name(std::string_view module, std::string_view name);

}  // namespace holon::checkpoint
