#include "holon/checkpoint/formats/file_source.h"

#include <string>
#include <vector>

#include "holon/checkpoint/formats/folder.h"
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

}  // namespace

std::unique_ptr<Source> open_file(const fs::path& path) {
  if (auto torch = open_torch(path)) return torch;
  return std::make_unique<FileSource>(path);
}

}  // namespace holon::checkpoint
