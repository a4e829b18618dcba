// Files that torch.save() wrote, since PyTorch 1.6: a zip archive with a pickle, data.pkl, and a file for each storage.
#pragma once

#include <filesystem>
#include <memory>

#include "holon/checkpoint/formats/source.h"

namespace holon::checkpoint {

// nullptr: the file is not a zip archive, or cannot be opened. No code of it is run: see unpickle(). Errors
// (RuntimeError), naming the file: as ZipFile and unpickle(); an archive of TorchScript or of something else;
// big-endian; a storage that is missing or too short; views of storages that are much larger than the file.
std::unique_ptr<Source> open_torch(const std::filesystem::path& path);

}  // namespace holon::checkpoint
