#include "holon/checkpoint/formats/open.h"

#include <string>
#include <system_error>
#include <vector>

#include "holon/base/error.h"
#include "holon/checkpoint/core/world.h"
#include "holon/checkpoint/formats/file_source.h"
#include "holon/checkpoint/formats/folder.h"
#include "holon/checkpoint/formats/huggingface.h"

namespace holon::checkpoint {

namespace fs = std::filesystem;

namespace {

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
