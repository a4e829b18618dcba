#include "holon/checkpoint/source.h"

#include <nlohmann/json.hpp>

#include "holon/checkpoint/torch_file.h"

namespace holon::checkpoint {

namespace {

class FileSource final : public Source {
 public:
  explicit FileSource(const std::filesystem::path& path) : file_(path) {}
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

}  // namespace

std::string Source::tree() const { return tree_of_names(tensors()); }

std::string tree_of_names(const std::vector<TensorInfo>& tensors) {
  nlohmann::json pairs = nlohmann::json::array();
  for (auto& t : tensors) pairs.push_back({t.name, {{"tensor", t.name}}});
  return nlohmann::json{{"dict", pairs}}.dump();
}

std::unique_ptr<Source> open_file(const std::filesystem::path& path) {
  if (auto torch = open_torch(path)) return torch;
  return std::make_unique<FileSource>(path);
}

}  // namespace holon::checkpoint
