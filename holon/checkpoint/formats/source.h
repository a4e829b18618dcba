// What load() reads from: a saved value whose tensors are read one by one, and of each only a region.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "holon/array/array.h"
#include "holon/checkpoint/core/layout.h"
#include "holon/checkpoint/core/read_layout.h"
#include "holon/checkpoint/formats/safetensors.h"
#include "holon/global/slice.h"

namespace holon::checkpoint {

class Source {
 public:
  virtual ~Source() = default;
  virtual std::string name() const = 0;
  // The structure of the value, for restore(). Unless a format has its own: a dict of the tensors by their names.
  virtual std::string tree() const;
  virtual std::vector<TensorInfo> tensors() const = 0;
  virtual uint32_t fingerprint() const { return 0; }  // the same on all ranks that read the same
  virtual const SavedLayout* layout(const std::string&) const { return nullptr; }  // of a tensor
  virtual std::vector<std::string> own() const { return {}; }                      // Index::own
  // Unless it is said otherwise: in one file, row-major, with checksums of blocks.
  virtual StoredParts stored(const TensorInfo& info) const;
  virtual int64_t files() const { return 1; }
  // The region of a tensor that begins at offset. Pre: it is inside. Errors (RuntimeError), naming the file.
  virtual Array read(const std::string& tensor, const Dims& offset, const Dims& shape) = 0;
  // Gives descriptors back until the next read().
  virtual void rest() {}
};

// The tree of a dict by name.
std::string tree_of_names(const std::vector<TensorInfo>& tensors);

}  // namespace holon::checkpoint
