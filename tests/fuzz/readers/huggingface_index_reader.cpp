// model.safetensors.index.json.
#include "holon/base/error.h"
#include "holon/checkpoint/formats/huggingface.h"
#include "reader.h"

using namespace holon;

std::vector<std::string> seeds() {
  return {R"({"metadata": {"total_size": 188}, "weight_map": {"a": "model-00001-of-00002.safetensors", "b": "x"}})",
          R"({"weight_map": {"model.layers.0.w": "model.safetensors"}, "more": [1, {"x": null}, true, 2.5]})"};
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    auto map = checkpoint::parse_weight_map({reinterpret_cast<const char*>(data), size}, "index");
    for (auto& file : map.files)
      HOLON_CHECK(!file.empty() && file.find('/') == file.npos && file != "..", "a file of another folder: {}", file);
    for (auto& [name, file] : map.tensors) HOLON_CHECK(file < map.files.size(), "{} is in no file", name);
  } catch (const Error& e) {
    if (e.kind() == ErrorKind::kInternal) throw;
  }
  return 0;
}
