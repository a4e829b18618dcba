// Whether the files of a checkpoint are what was written.
#pragma once

#include <cstdint>

#include "holon/base/file_path.h"

namespace holon::checkpoint {

// What verify() has read.
struct Verified {
  int64_t files = 0, tensors = 0;
  uint64_t bytes = 0;            // of the tensors
  uint64_t unchecked_bytes = 0;  // of these, in files without checksums, such as those of other programs
};

// Reads all of what save() or a Checkpointer wrote to `path`, or any safetensors file, and compares its checksums and
// sizes. Folders of Hugging Face's and files of PyTorch's have no checksums and are read only. Takes little memory. Not
// collective: one rank may call it. Errors (RuntimeError), naming the file, and the tensor where one is affected:
// anything is missing, damaged or from another save.
Verified verify(const FilePath& path);

}  // namespace holon::checkpoint
