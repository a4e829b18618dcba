// Folders as Hugging Face's libraries have them: model.safetensors, or shards, each a safetensors file, with
// model.safetensors.index.json, which says by name in which shard a tensor is.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "holon/checkpoint/core/pieces.h"
#include "holon/checkpoint/core/value.h"
#include "holon/checkpoint/formats/source.h"

namespace holon::checkpoint {

inline constexpr const char* kHuggingFaceFile = "model.safetensors";
inline constexpr const char* kHuggingFaceIndex = "model.safetensors.index.json";

// Which tensor is in which of the files.
struct WeightMap {
  std::vector<std::string> files;
  std::vector<std::pair<std::string, size_t>> tensors;  // name and place in files, in the order of the text
};

// Errors (RuntimeError), naming the index and the tensor: no JSON of this form; more than 16 levels; a tensor that is
// named twice; a file that is not a plain name. No more memory is taken than the text is long, a few times over.
WeightMap parse_weight_map(std::string_view text, std::string_view name);

// The tensors of such a folder, or of an index file that path names; also of PyTorch's files (pytorch_model.bin).
// nullptr: path is something else. The headers of all shards are read, and of their tensors only what is requested.
// Errors: as parse_weight_map() and open_file(); a shard that is missing, or lacks a tensor that the index says it has;
// Superseded where the index is replaced meanwhile.
std::unique_ptr<Source> open_huggingface(const std::filesystem::path& path);

// Writes weights as such a folder, shards of at most shard_bytes each, of which a larger tensor has one for itself.
// collective: the ranks of the world write their parts of global tensors straight into the shards; else the caller
// writes all. What the folder held before is whole until rank 0 replaces the index, or the single file.
// Pre: the ranks have the same names, dtypes, shapes and specs, none of a partial sum; collective if one is global.
// Errors: as save(); RuntimeError: a rank does not see the folder.
void save_huggingface(const std::vector<Weight>& weights, const std::filesystem::path& path, uint64_t shard_bytes,
                      bool collective);

// Errors, naming the key path (TypeError): something other than a tensor, or a dict of tensors with text as keys;
// two tensors of one name (ValueError).
void check_only_tensors(const Value& value);

// "5GB", "500 MB", "2GiB", "1000": a number of bytes. Errors (ValueError): something else, or less than 1.
uint64_t parse_bytes(std::string_view text);

}  // namespace holon::checkpoint
