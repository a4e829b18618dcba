// What a job that exports tells the one that receives: what there is, and which of its ranks hold it.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "holon/checkpoint/core/layout.h"
#include "holon/checkpoint/formats/safetensors.h"

namespace holon::checkpoint {

struct ManifestTensor {
  TensorInfo info;                    // without places
  std::optional<SavedLayout> layout;  // nothing: local, and rank 0's
};

struct Manifest {
  std::string tree;
  std::vector<std::string> addresses;  // where each rank serves its parts
  std::string session;                 // part of the token there
  std::vector<ManifestTensor> tensors;
};

std::string manifest_text(const Manifest& manifest);
// Errors (RuntimeError), naming the other job: no JSON of this form; two tensors of one name, or one that is larger
// than any memory; a layout that does not fit its tensor or the job's ranks. The regions that a layout describes cannot
// overlap or leave anything out.
Manifest parse_manifest(std::string_view text, std::string_view name);

// The regions of a tensor, and the ranks that hold each.
std::vector<HeldRegion> held_regions(const ManifestTensor& tensor);

}  // namespace holon::checkpoint
