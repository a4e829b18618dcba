// A model's parameters from and to the files of a checkpoint.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "holon/base/file_path.h"
#include "holon/checkpoint/core/key_map.h"
#include "holon/nn/module.h"

namespace holon::models {

// How a model's names are those of its checkpoints. Most are the same; the others are in rules.
struct CheckpointNames {
  // What differs: `to` names tensors of the model, without patterns; `from` those of the files.
  std::vector<checkpoint::KeyRule> rules{};
  // The part that names have before those of the model without its head ("transformer."), which files of that alone
  // leave out.
  std::string base{};
  // Ends of names of further tensors that files may have, such as masks and what is tied; with a * behind it, the
  // beginning of names.
  std::vector<std::string> ignored{};
  // Ends of names, and those that older files have in place of them.
  std::vector<std::pair<std::string, std::string>> older{};
};

// Replaces the module's parameters and buffers by those of a folder: each rank reads its own parts. They get the
// module's dtypes; quantised weights (float8 with scales of blocks, MXFP4) are read as numbers. Errors (ValueError),
// which list all: tensors that are missing, that the model does not have, or that have another shape. Collective over
// the world.
void load_weights(nn::Module& module, const FilePath& folder, const CheckpointNames& names);
// Writes them as load_weights() reads them, in the form of Hugging Face's libraries. Collective over the world.
void save_weights(const nn::StateDict& weights, const FilePath& folder, const CheckpointNames& names);
// What a tensor of the model is called in checkpoints; nothing: it is a part of one there, or several.
std::optional<std::string> name_in_checkpoint(const std::string& name, const CheckpointNames& names);

}  // namespace holon::models
