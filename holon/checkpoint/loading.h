// Loading a folder of parts on all ranks together.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "holon/checkpoint/checkpoint.h"

namespace holon::checkpoint {

struct Loaded {
  Value value;
  std::vector<std::string> own;  // Index::own
};

// As load() of a path that is a folder of parts, on every rank and with any options except global_src_rank. Errors: the
// same on all ranks. Collective over the world.
Loaded load_folder(const std::filesystem::path& path, const LoadOptions& options);

}  // namespace holon::checkpoint
