#include "holon/checkpoint/verify.h"
#include "holon/checkpoint/formats/open.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "holon/base/error.h"
#include "holon/checkpoint/core/pieces.h"
#include "holon/checkpoint/core/tree.h"
#include "holon/checkpoint/formats/folder.h"
#include "holon/checkpoint/formats/huggingface.h"
#include "holon/checkpoint/formats/safetensors.h"
#include "holon/checkpoint/formats/source.h"
#include "holon/checkpoint/formats/torch_file.h"

namespace holon::checkpoint {

namespace fs = std::filesystem;

namespace {

constexpr int64_t kPieceBytes = int64_t{64} << 20;

void verify_file(const SafetensorsFile& file, Verified& out) {
  file.verify();
  ++out.files;
  out.bytes += file.data_bytes();
  if (!file.has_checksums()) out.unchecked_bytes += file.data_bytes();
}

// The structure must be that of these tensors.
void verify_tree(const std::string& tree, const std::string& name, const std::function<bool(const std::string&)>& has) {
  restore(tree, name, [&](const std::string& tensor) -> Tensor {
    if (!has(tensor))
      fail_runtime("{}: tensor '{}' is referred to and does not exist. The file is damaged.", name, tensor);
    return {};
  });
}

Verified verify_folder(const fs::path& folder) {
  Verified out;
  FolderReader reader(folder);
  const Index& index = reader.index();
  verify_tree(index.tree, reader.name(), [&](const std::string& tensor) { return index.tensors.contains(tensor); });
  std::map<std::string, std::map<std::string, const Part*>> files;  // by file and tensor
  for (auto& [file, sum] : index.files) files[file];
  for (auto& [tensor, entry] : index.tensors)
    for (auto& part : entry.parts) files[part.file][tensor] = &part;
  out.tensors = static_cast<int64_t>(index.tensors.size());
  for (auto& [name, parts] : files) {
    auto sum = index.files.find(name);
    const SafetensorsFile file(folder / name, sum == index.files.end() ? std::nullopt : std::optional(sum->second));
    for (auto& [tensor, part] : parts) {
      const TensorInfo* info = file.find(tensor);
      const DType dtype = reader.entry(tensor).dtype;
      if (!info || info->dtype != dtype || info->shape != part->shape)
        fail_runtime("{}: it should hold {} {} of tensor '{}', as {} says. The two are from different saves.",
                     file.name(), format_name(dtype), part->shape, tensor, reader.name());
    }
    verify_file(file, out);
  }
  return out;
}

// Of a format without checksums: whether all can be read.
Verified verify_source(Source& source) {
  Verified out;
  const auto tensors = source.tensors();
  verify_tree(source.tree(), source.name(), [&](const std::string& name) {
    return std::any_of(tensors.begin(), tensors.end(), [&](auto& t) { return t.name == name; });
  });
  for (auto& t : tensors) {
    for_each_piece(whole(t.shape), size_bytes(t.dtype), kPieceBytes,
                   [&](const Region& piece) { out.bytes += source.read(t.name, piece.offset, piece.shape).nbytes(); });
    source.rest();
  }
  out.files = source.files();
  out.tensors = std::ssize(tensors);
  out.unchecked_bytes = out.bytes;
  return out;
}

}  // namespace

Verified verify(const FilePath& given) {
  const fs::path path = given.string();
  std::error_code none;
  if (fs::is_directory(path, none) && fs::exists(path / kIndexFile, none)) return verify_folder(path);
  const bool folder = fs::is_directory(path, none);
  if (!folder || !fs::exists(path / kWholeFile, none)) {
    if (auto source = open_huggingface(path)) return verify_source(*source);
    if (auto source = folder ? nullptr : open_torch(path)) return verify_source(*source);
    if (folder) open_source(path);  // raises: nothing is there
  }
  const SafetensorsFile file(folder ? path / kWholeFile : path);
  Verified out;
  out.tensors = static_cast<int64_t>(file.header().tensors.size());
  if (auto it = file.header().metadata.find(kTreeKey); it != file.header().metadata.end())
    verify_tree(it->second, file.name(), [&](const std::string& tensor) { return file.find(tensor) != nullptr; });
  verify_file(file, out);
  return out;
}

}  // namespace holon::checkpoint
