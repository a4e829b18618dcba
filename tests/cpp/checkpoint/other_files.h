// Files of other programs, made byte by byte: safetensors with any dtype, zip archives, pickles of tensors.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

namespace holon::checkpoint {

template <class T>
std::string bytes_of_number(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

template <class T>
std::string bytes_of_numbers(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

struct RawTensor {
  std::string name, dtype;
  std::vector<int64_t> shape;
  std::string bytes;
};

inline std::string safetensors_of(const std::vector<RawTensor>& tensors) {
  auto header = nlohmann::json::object();
  std::string data;
  for (auto& t : tensors) {
    header[t.name] = {
        {"dtype", t.dtype}, {"shape", t.shape}, {"data_offsets", {data.size(), data.size() + t.bytes.size()}}};
    data += t.bytes;
  }
  const std::string text = header.dump();
  return bytes_of_number<uint64_t>(text.size()) + text + data;
}

// A zip archive whose entries are stored.
inline std::string zip_of(const std::vector<std::pair<std::string, std::string>>& entries, uint16_t method = 0) {
  std::string out, directory;
  for (auto& [name, content] : entries) {
    const auto size = static_cast<uint32_t>(content.size());
    const auto name_size = static_cast<uint16_t>(name.size());
    const std::string middle = bytes_of_number<uint16_t>(20) + bytes_of_number<uint16_t>(0) + bytes_of_number(method) +
        std::string(8, '\0') + bytes_of_number(size) + bytes_of_number(size) + bytes_of_number(name_size) +
        bytes_of_number<uint16_t>(0);
    directory += "PK\1\2" + bytes_of_number<uint16_t>(20) + middle + std::string(10, '\0') +
        bytes_of_number(static_cast<uint32_t>(out.size())) + name;
    out += "PK\3\4" + middle + name + content;
  }
  const auto n = static_cast<uint16_t>(entries.size());
  return out + directory + "PK\5\6" + std::string(4, '\0') + bytes_of_number(n) + bytes_of_number(n) +
      bytes_of_number(static_cast<uint32_t>(directory.size())) + bytes_of_number(static_cast<uint32_t>(out.size())) +
      std::string(2, '\0');
}

// The program of a pickle, opcode by opcode.
class PickleText {
 public:
  PickleText() : text_("\x80\2") {}
  std::string str() const { return text_ + "."; }

  PickleText& raw(std::string_view opcodes) {
    text_ += opcodes;
    return *this;
  }
  PickleText& text(std::string_view s) {
    return raw("X" + bytes_of_number(static_cast<uint32_t>(s.size())) + std::string(s));
  }
  PickleText& integer(int32_t n) { return raw("J" + bytes_of_number(n)); }
  PickleText& name(const std::string& module, const std::string& name) {
    return raw("c" + module + "\n" + name + "\n");
  }
  PickleText& sizes(const std::vector<int32_t>& sizes) {
    raw("(");
    for (int32_t n : sizes) integer(n);
    return raw("t");
  }
  PickleText& storage(const std::string& type, const std::string& key, int32_t n) {
    return raw("(")
        .text("storage")
        .name(type == "UntypedStorage" ? "torch.storage" : "torch", type)
        .text(key)
        .text("cpu")
        .integer(n)
        .raw("tQ");
  }
  // A call of _rebuild_tensor_v2.
  PickleText& tensor(const std::string& type, const std::string& key, int32_t n, int32_t offset,
                     const std::vector<int32_t>& shape, const std::vector<int32_t>& strides) {
    name("torch._utils", "_rebuild_tensor_v2").raw("(").storage(type, key, n).integer(offset);
    return sizes(shape).sizes(strides).raw("\x89").name("collections", "OrderedDict").raw(")RtR");
  }

 private:
  std::string text_;
};

}  // namespace holon::checkpoint
