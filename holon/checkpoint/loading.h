// Loading on all ranks together.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "holon/checkpoint/checkpoint.h"
#include "holon/checkpoint/formats/source.h"

namespace holon::checkpoint {

struct Loaded {
  Value value;
  std::vector<std::string> own;  // Index::own
};

// Reads from the source that `open` returns, which is the same on all ranks, as load() does: with any options except
// global_src_rank. op: for messages. Errors: the same on all ranks; Superseded, where the sources' fingerprints differ.
// Collective over the world.
Loaded load_together(const char* op, const std::function<std::unique_ptr<Source>()>& open, const LoadOptions& options);

// The source as the options have it: dequantized, and under other names.
std::unique_ptr<Source> as_requested(std::unique_ptr<Source> source, const LoadOptions& options);

// Errors (ValueError): options that do not fit each other.
void check_options(const char* op, const LoadOptions& options);

// As load() of a path that is a folder of parts, on every rank and with any options except global_src_rank. Errors: the
// same on all ranks. Collective over the world.
Loaded load_folder(const std::filesystem::path& path, const LoadOptions& options);

}  // namespace holon::checkpoint
