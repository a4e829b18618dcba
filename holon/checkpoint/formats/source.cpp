#include "holon/checkpoint/formats/source.h"

#include <nlohmann/json.hpp>
#include <numeric>

#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/checkpoint/core/pieces.h"
#include "holon/checkpoint/core/world.h"
#include "holon/checkpoint/formats/huggingface.h"
#include "holon/checkpoint/formats/torch_file.h"

namespace holon::checkpoint {

namespace fs = std::filesystem;

namespace {

class FileSource final : public Source {
 public:
  explicit FileSource(const fs::path& path) : file_(path) {}
  std::string name() const override { return file_.name(); }
  std::vector<TensorInfo> tensors() const override { return file_.header().tensors; }
  uint32_t fingerprint() const override { return file_.fingerprint(); }
  Array read(const std::string& tensor, const Dims& offset, const Dims& shape) override {
    const TensorInfo& info = *file_.find(tensor);
    Array out = Array::empty(shape, info.dtype);
    file_.read(info, offset, shape, out, Dims::filled(shape.size(), 0));
    return out;
  }
  std::string tree() const override {
    if (auto it = file_.header().metadata.find(kTreeKey); it != file_.header().metadata.end()) return it->second;
    return Source::tree();  // written by another program
  }
  void rest() override { file_.rest(); }

 private:
  SafetensorsFile file_;
};

class FolderSource final : public Source {
 public:
  explicit FolderSource(const fs::path& folder) : reader_(folder) {}
  std::string name() const override { return reader_.name(); }
  std::string tree() const override { return reader_.index().tree; }
  uint32_t fingerprint() const override { return reader_.fingerprint(); }
  std::vector<std::string> own() const override { return reader_.index().own; }
  StoredParts stored(const TensorInfo& info) const override {
    StoredParts out = Source::stored(info);
    out.regions.clear();
    for (auto& part : reader_.entry(info.name).parts) out.regions.push_back({part.offset, part.shape});
    return out;
  }
  std::vector<TensorInfo> tensors() const override {
    std::vector<TensorInfo> out;
    for (auto& [name, entry] : reader_.index().tensors) out.push_back({name, entry.dtype, entry.shape, 0, 0});
    return out;
  }
  const SavedLayout* layout(const std::string& tensor) const override {
    auto& layout = reader_.entry(tensor).layout;
    return layout ? &*layout : nullptr;
  }
  Array read(const std::string& tensor, const Dims& offset, const Dims& shape) override {
    return reader_.read(tensor, offset, shape);
  }

 private:
  FolderReader reader_;
};

}  // namespace

StoredParts Source::stored(const TensorInfo& info) const {
  StoredParts out{{whole(info.shape)}, std::vector<int>(to_size(info.shape.size())), kBlockBytes};
  std::iota(out.axis_order.begin(), out.axis_order.end(), 0);
  return out;
}

std::string Source::tree() const { return tree_of_names(tensors()); }

std::string tree_of_names(const std::vector<TensorInfo>& tensors) {
  nlohmann::json pairs = nlohmann::json::array();
  for (auto& t : tensors) pairs.push_back({t.name, {{"tensor", t.name}}});
  return nlohmann::json{{"dict", pairs}}.dump();
}

std::unique_ptr<Source> open_file(const fs::path& path) {
  if (auto torch = open_torch(path)) return torch;
  return std::make_unique<FileSource>(path);
}

std::unique_ptr<Source> open_source(const fs::path& path) {
  std::error_code none;
  const bool folder = fs::is_directory(path, none);
  const bool parts = folder && fs::exists(path / kIndexFile, none),
             whole = !parts && fs::exists(path / kWholeFile, none);
  if (!parts && !whole)
    if (auto source = open_huggingface(path)) return source;
  if (!folder) return open_file(path);
  if (!parts && !whole)
    fail_runtime("{} is a folder without {}, {}, {} or {}: nothing was saved there, or the save was not completed.",
                 path.string(), kIndexFile, kWholeFile, kHuggingFaceFile, kHuggingFaceIndex);
  try {
    if (parts) return std::make_unique<FolderSource>(path);
    return open_file(path / kWholeFile);
  } catch (const Error& e) {
    // The other form has taken its place.
    if (fs::exists(path / (parts ? kIndexFile : kWholeFile), none)) throw;
    throw Superseded(ErrorKind::kRuntime, e.what());
  }
}

}  // namespace holon::checkpoint
