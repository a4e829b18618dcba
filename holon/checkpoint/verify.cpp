#include "holon/checkpoint/verify.h"

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "holon/base/error.h"
#include "holon/checkpoint/folder.h"
#include "holon/checkpoint/safetensors.h"
#include "holon/checkpoint/tree.h"

namespace holon::checkpoint {

namespace fs = std::filesystem;

namespace {

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

}  // namespace

Verified verify(const FilePath& given) {
  const fs::path path = given.string();
  std::error_code none;
  if (fs::is_directory(path, none) && fs::exists(path / kIndexFile, none)) return verify_folder(path);
  const bool folder = fs::is_directory(path, none);
  if (folder && !fs::exists(path / kWholeFile, none))
    fail_runtime("{} is a folder without {} or {}: nothing was saved there, or the save was not completed.",
                 path.string(), kIndexFile, kWholeFile);
  const SafetensorsFile file(folder ? path / kWholeFile : path);
  Verified out;
  out.tensors = static_cast<int64_t>(file.header().tensors.size());
  if (auto it = file.header().metadata.find(kTreeKey); it != file.header().metadata.end())
    verify_tree(it->second, file.name(), [&](const std::string& tensor) { return file.find(tensor) != nullptr; });
  verify_file(file, out);
  return out;
}

}  // namespace holon::checkpoint
