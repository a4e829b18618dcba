#include "holon/checkpoint/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "holon/base/error.h"
#include "holon/checkpoint/printable.h"
#include "holon/kernels/cpu/copy.h"
#include "holon/kernels/on_device.h"

namespace holon::checkpoint {

using nlohmann::json;

namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

constexpr uint64_t kLargestHeader = 100'000'000;  // as other readers have it
constexpr const char* kMetadata = "__metadata__";

constexpr std::pair<std::string_view, DType> kNames[] = {{"BOOL", boolean},  {"U8", uint8},    {"I8", int8},
                                                         {"I32", int32},     {"I64", int64},   {"F16", float16},
                                                         {"BF16", bfloat16}, {"F32", float32}, {"F64", float64}};

// Looks for a name that comes twice at the top of a JSON object, of which the parser would keep the last. (Its callback
// could tell, but takes time that grows with the square of the number of names.)
class TwiceNamed final : public nlohmann::json_sax<json> {
 public:
  std::string found;
  bool key(std::string& name) override {
    if (depth_ == 1 && !seen_.insert(name).second) found = name;
    return true;
  }
  bool start_object(size_t) override { return ++depth_; }
  bool start_array(size_t) override { return ++depth_; }
  bool end_object() override { return depth_--; }
  bool end_array() override { return depth_--; }
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(int64_t) override { return true; }
  bool number_unsigned(uint64_t) override { return true; }
  bool number_float(double, const std::string&) override { return true; }
  bool string(std::string&) override { return true; }
  bool binary(json::binary_t&) override { return true; }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }

 private:
  size_t depth_ = 0;
  std::unordered_set<std::string> seen_;
};

json parse_header(std::string_view text, std::string_view file) {
  json header;
  try {
    header = json::parse(text.begin(), text.end());
  } catch (const json::exception& e) {
    fail_runtime("{}: its header is no JSON: {}. The file is damaged, or is no safetensors file.", file,
                 printable(e.what()));
  }
  if (!header.is_object())
    fail_runtime("{}: its header is no JSON object. The file is damaged, or is no safetensors file.", file);
  TwiceNamed twice;
  json::sax_parse(text.begin(), text.end(), &twice);
  if (!twice.found.empty()) fail_runtime("{}: '{}' is there twice. The file is damaged.", file, twice.found);
  return header;
}

TensorInfo parse_tensor(const std::string& name, const json& entry, std::string_view file) {
  auto damaged = [&](std::string_view what) {
    fail_runtime("{}: tensor '{}': {}. The file is damaged.", file, name, what);
  };
  if (!entry.is_object() || !entry.contains("dtype") || !entry.contains("shape") || !entry.contains("data_offsets"))
    damaged("its entry has no dtype, shape and data_offsets");
  const json &dtype = entry["dtype"], &shape = entry["shape"], &place = entry["data_offsets"];
  if (!dtype.is_string()) damaged("its dtype is no text");
  auto known = dtype_of_format(dtype.get_ref<const std::string&>());
  if (!known)
    fail_runtime("{}: tensor '{}' is of dtype {}, which Holon has not. It has BOOL, U8, I8, I32, I64, F16, BF16, F32 "
                 "and F64: convert it first.",
                 file, name, dtype.get_ref<const std::string&>());
  auto is_count = [](const json& n) { return n.is_number_unsigned() && n.get<uint64_t>() <= INT64_MAX; };
  if (!shape.is_array() || !std::all_of(shape.begin(), shape.end(), is_count)) damaged("its shape is no list of sizes");
  if (shape.size() > kMaxAxes)
    fail_runtime("{}: tensor '{}' has {} axes; a tensor has at most {}.", file, name, shape.size(), kMaxAxes);
  if (!place.is_array() || place.size() != 2 || !std::all_of(place.begin(), place.end(), is_count))
    damaged("its data_offsets are no two numbers");
  TensorInfo info{name, *known, {}, place[0].get<uint64_t>(), place[1].get<uint64_t>()};
  for (auto& size : shape) info.shape.push_back(size.get<int64_t>());
  auto bytes = bytes_of(info.shape, info.dtype);
  if (!bytes || info.end < info.begin || info.end - info.begin != *bytes)
    damaged(fmt::format("{} {} does not take the bytes {} to {}", dtype.get_ref<const std::string&>(), info.shape,
                        info.begin, info.end));
  return info;
}

Dims byte_strides(const Dims& shape, int64_t item) {
  Dims strides = contiguous_strides(shape);
  for (auto& s : strides) s *= item;
  return strides;
}

int64_t offset_of(const Dims& at, const Dims& strides) {
  int64_t offset = 0;
  for (int a = 0; a < at.size(); ++a) offset += at[a] * strides[a];
  return offset;
}

}  // namespace

std::string_view format_name(DType dtype) {
  return std::find_if(std::begin(kNames), std::end(kNames), [&](auto& e) { return e.second == dtype; })->first;
}

std::optional<DType> dtype_of_format(std::string_view name) {
  for (auto& [known, dtype] : kNames)
    if (known == name) return dtype;
  return std::nullopt;
}

std::optional<uint64_t> bytes_of(const Dims& shape, DType dtype) {
  uint64_t n = size_bytes(dtype);
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  for (int64_t size : shape)
    if (__builtin_mul_overflow(n, static_cast<uint64_t>(size), &n) || n > INT64_MAX) return std::nullopt;
  return n;
}

SafetensorsHeader parse_safetensors(std::span<const std::byte> file, std::string_view name) {
  uint64_t size = 0;
  if (file.size() < sizeof size)
    fail_runtime("{}: a safetensors file begins with 8 bytes of size; found {} bytes.", name, file.size());
  std::memcpy(&size, file.data(), sizeof size);
  if (size > kLargestHeader || size > file.size() - sizeof size)
    fail_runtime("{}: its header should have {} bytes; the file has {}. It is cut off, or is no safetensors file.",
                 name, size, file.size());
  SafetensorsHeader result;
  result.bytes = sizeof size + static_cast<size_t>(size);
  json header =
      parse_header({reinterpret_cast<const char*>(file.data()) + sizeof size, static_cast<size_t>(size)}, name);
  for (auto& [key, entry] : header.items()) {
    if (key != kMetadata) {
      result.tensors.push_back(parse_tensor(key, entry, name));
      continue;
    }
    if (!entry.is_object()) fail_runtime("{}: {} is no JSON object. The file is damaged.", name, kMetadata);
    for (auto& [word, text] : entry.items()) {
      if (!text.is_string()) fail_runtime("{}: '{}' in {} is no text. The file is damaged.", name, word, kMetadata);
      result.metadata[word] = text.get<std::string>();
    }
  }
  std::sort(result.tensors.begin(), result.tensors.end(),
            [](auto& a, auto& b) { return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name); });
  uint64_t at = 0;
  for (auto& t : result.tensors) {
    if (t.begin != at)
      fail_runtime("{}: the bytes of tensor '{}' begin at {}; those before it end at {}. The file is damaged.", name,
                   t.name, t.begin, at);
    at = t.end;
  }
  if (at != file.size() - result.bytes)
    fail_runtime("{}: its tensors have {} bytes; the file has {} behind its header. It is cut off or damaged.", name,
                 at, file.size() - result.bytes);
  return result;
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : name_(path.string()), file_(path), header_(parse_safetensors(file_.bytes(), name_)) {
  for (size_t i = 0; i < header_.tensors.size(); ++i) by_name_[header_.tensors[i].name] = i;
}

const TensorInfo* SafetensorsFile::find(const std::string& name) const {
  auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : &header_.tensors[it->second];
}

void SafetensorsFile::read(const TensorInfo& info, const Dims& from, const Dims& size, Array& out,
                           const Dims& to) const {
  if (size.numel() == 0) return;
  auto item = static_cast<int64_t>(size_bytes(info.dtype));
  const std::byte* bytes = file_.bytes().data() + header_.bytes + info.begin;
  if (info.dtype == boolean)
    for (uint64_t i = 0; i < info.end - info.begin; ++i)
      if (std::to_integer<int>(bytes[i]) > 1)
        fail_runtime("{}: tensor '{}': element {} is no bool. The file is damaged.", name_, info.name, i);
  Dims source = byte_strides(info.shape, item), target = byte_strides(out.shape, item);
  kernels::copy_bytes_strided(out.bytes() + offset_of(to, target), target, bytes + offset_of(from, source), source,
                              size, static_cast<size_t>(item));
}

Array SafetensorsFile::read(const TensorInfo& info) const {
  Array out = Array::empty(info.shape, info.dtype);
  Dims zero = Dims::filled(info.shape.size(), 0);
  read(info, zero, info.shape, out, zero);
  return out;
}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, std::vector<TensorInfo> tensors,
                                     const Metadata& metadata)
    : file_(path), tensors_(std::move(tensors)) {
  json header = json::object();
  if (!metadata.empty()) header[kMetadata] = metadata;
  uint64_t at = 0;
  for (auto& t : tensors_) {
    if (t.name == kMetadata || header.contains(t.name))
      fail_value("safetensors: the name '{}' is taken. Give the tensor another.", t.name);
    t.begin = at;
    t.end = at += *bytes_of(t.shape, t.dtype);
    header[t.name] = {{"dtype", format_name(t.dtype)},
                      {"shape", std::vector<int64_t>(t.shape.begin(), t.shape.end())},
                      {"data_offsets", {t.begin, t.end}}};
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');  // so that the tensors' bytes are aligned in a mapped file
  uint64_t size = text.size();
  if (size > kLargestHeader)
    fail_value("safetensors: the header of {} tensors has {} bytes; the format allows {}. Save fewer in one file.",
               tensors_.size(), size, kLargestHeader);
  file_.write(&size, sizeof size);
  file_.write(text.data(), text.size());
}

void SafetensorsWriter::write(const Array& array) {
  HOLON_CHECK(written_ < tensors_.size() && array.dtype == tensors_[written_].dtype &&
                  array.shape == tensors_[written_].shape,
              "tensor {} of {} is another than was announced", written_, tensors_.size());
  ++written_;
  if (array.numel() == 0) return;
  const Array dense = kernels::contiguous(kernels::on_device(array, {}));
  file_.write(dense.bytes(), dense.nbytes());
}

void SafetensorsWriter::commit() {
  HOLON_CHECK(written_ == tensors_.size(), "{} of {} tensors are written", written_, tensors_.size());
  file_.commit();
}

}  // namespace holon::checkpoint
