// Saving into a folder into which each rank writes its share of the parts (holon/checkpoint/formats/folder.h).
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "holon/array/array.h"
#include "holon/checkpoint/core/tree.h"
#include "holon/global/slice.h"
#include "holon/global/spec.h"

namespace holon::checkpoint {

// A region of a tensor, and the rank that writes it.
struct Share {
  int rank = 0;
  Region region;

  bool operator==(const Share&) const = default;
};

// A tensor of what is saved.
struct SavedTensor {
  std::string name;
  DType dtype = DType::kFloat32;
  Dims shape;
  const GlobalSpec* spec = nullptr;  // nullptr: local, and rank 0's
  Array mine;                        // what this rank writes of it, if anything
};

// Who writes what of each tensor: every element once. Ranks that hold the same share it out among them, so that all
// write about as much; pieces of less than 1 MiB are not cut. Alike on all ranks that pass the same. Pre: no partial
// sums.
std::vector<std::vector<Share>> share_out(std::span<const SavedTensor> tensors, int world_size);

// What a save writes: the same on all ranks, except for `mine` of the tensors.
struct FolderState {
  std::string tree;
  std::vector<std::string> own;  // texts, one for each rank: what is not the same on all of them
  std::vector<SavedTensor> tensors;
  std::vector<std::vector<Share>> shares;
};

// Errors (ValueError): the ranks' global tensors are not the same, or `how` is another text. Collective over the world.
void check_alike(const std::vector<std::pair<std::string, Tensor>>& tensors, const std::string& how,
                 const char* op = "save");
// Global tensors of partial sums become broadcast. Collective over the ranks of each.
void sum_partials(std::vector<std::pair<std::string, Tensor>>& tensors);
// Puts large elements first, so that all are aligned in a mapped file.
void order_for_file(std::vector<std::pair<std::string, Tensor>>& tensors);

// `mine` refers to the tensors' memory. Collective over the ranks of partial sums.
FolderState folder_state(Flat flat);
// From here on the state refers to memory of its own, in the host's memory.
void copy_own_parts(FolderState& state);

// Writes the state. Until its index has been replaced, the folder holds what it held before. Errors: a rank cannot
// write: an error of one rank is raised on all. Collective over the world.
void write_folder(const FolderState& state, const std::filesystem::path& path);

}  // namespace holon::checkpoint
