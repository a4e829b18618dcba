#include "holon/checkpoint/formats/folder.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/checkpoint/core/json.h"
#include "holon/checkpoint/core/layout.h"
#include "holon/checkpoint/core/world.h"
#include "holon/data/crc32c.h"

namespace holon::checkpoint {

using nlohmann::json;
namespace fs = std::filesystem;

namespace {

constexpr const char* kFormat = "holon-folder";
constexpr int kVersion = 1;
constexpr int kMostLevels = 16;
constexpr size_t kMostOpen = 64;
// 10,000 tensors on 1,000 ranks.
constexpr uint64_t kLargestIndex = uint64_t{4} << 30;

// The index begins with its own checksum, which is taken with zeros in its place.
constexpr std::string_view kSumKey = "\"crc32c\": \"", kZeros = "00000000";
// Where its first digit is in the text; npos: nowhere, as an older version wrote it.
size_t sum_place(std::string_view text) {
  constexpr size_t kNear = 16;
  const size_t at = text.substr(0, kNear).find(kSumKey);
  return at == text.npos || text.size() < at + kSumKey.size() + kZeros.size() ? text.npos : at + kSumKey.size();
}
std::string sum_of(std::string_view text, size_t at) {
  auto bytes = [](std::string_view t) { return std::as_bytes(std::span(t)); };
  uint32_t sum = data::crc32c(bytes(text.substr(0, at)));
  sum = data::crc32c(bytes(kZeros), sum);
  return fmt::format("{:08x}", data::crc32c(bytes(text.substr(at + kZeros.size())), sum));
}

bool overlap(const Part& a, const Part& b) {
  for (int d = 0; d < a.shape.size(); ++d)
    if (a.offset[d] + a.shape[d] <= b.offset[d] || b.offset[d] + b.shape[d] <= a.offset[d]) return false;
  return true;
}

// Disjoint regions inside the shape, with as many elements as it, are the whole of it.
void check_parts(const IndexEntry& entry, const std::string& name, const JsonReader& reader) {
  uint64_t covered = 0;
  for (size_t i = 0; i < entry.parts.size(); ++i) {
    const Part& p = entry.parts[i];
    bool inside = p.offset.size() == entry.shape.size() && p.shape.size() == entry.shape.size();
    for (int d = 0; inside && d < entry.shape.size(); ++d)
      inside = p.shape[d] > 0 && p.shape[d] <= entry.shape[d] && p.offset[d] <= entry.shape[d] - p.shape[d];
    if (!inside) reader.damaged(fmt::format("a part of tensor '{}' is outside its shape {}", name, entry.shape));
    for (size_t k = 0; k < i; ++k)
      if (overlap(entry.parts[k], p)) reader.damaged(fmt::format("two parts of tensor '{}' overlap", name));
    covered += static_cast<uint64_t>(p.shape.numel());
  }
  if (covered != static_cast<uint64_t>(entry.shape.numel()))
    reader.damaged(fmt::format("tensor '{}' is incomplete: {} of {} elements", name, covered, entry.shape.numel()));
}

}  // namespace

std::string index_text(const Index& index) {
  json tensors = json::object();
  for (auto& [name, entry] : index.tensors) {
    json j = {{"dtype", format_name(entry.dtype)}, {"shape", json_list(entry.shape)}, {"parts", json::array()}};
    if (entry.layout) j["layout"] = layout_json(*entry.layout);
    for (auto& p : entry.parts)
      j["parts"].push_back({{"file", p.file}, {"offset", json_list(p.offset)}, {"shape", json_list(p.shape)}});
    tensors[name] = std::move(j);
  }
  json files = json::object();
  for (auto& [name, sum] : index.files)
    files[name] = {{"bytes", sum.bytes}, {"header_crc32c", fmt::format("{:08x}", sum.header)}};
  // Keys are sorted: the checksum comes first.
  json j{{"crc32c", kZeros},   {"format", kFormat},  {"version", kVersion},
         {"tree", index.tree}, {"tensors", tensors}, {"files", files}};
  if (!index.own.empty()) j["own"] = index.own;
  std::string text = j.dump(1) + "\n";
  const size_t at = sum_place(text);
  return text.replace(at, kZeros.size(), sum_of(text, at));
}

void write_index(const Index& index, const fs::path& folder) {
  const std::string text = index_text(index);
  data::AtomicFile file(folder / kIndexFile);
  run_io(SIZE_MAX, [&] {
    file.write(text.data(), text.size());
    file.commit();
  });
}

Index parse_index(std::string_view text, std::string_view name) {
  JsonReader reader(name);
  if (size_t at = sum_place(text); at != text.npos && text.substr(at, kZeros.size()) != sum_of(text, at))
    reader.damaged("its checksum does not match its text");
  json j = parse_json(text, kMostLevels, name, "it is not JSON");
  if (reader.text(j, "format") != kFormat) reader.damaged("it is not an index written by Holon");
  if (reader.member(j, "version") != kVersion)
    fail_runtime("{}: it has version {}; this Holon reads version {}. Use the Holon that wrote it.", name,
                 j["version"].dump(), kVersion);
  Index index;
  index.tree = reader.text(j, "tree");
  if (!reader.member(j, "tensors").is_object()) reader.damaged("'tensors' is not a JSON object");
  for (auto& [tensor, item] : j["tensors"].items()) {
    IndexEntry entry;
    auto dtype = dtype_of_format(reader.text(item, "dtype"));
    if (!dtype) reader.damaged(fmt::format("tensor '{}' has an unknown dtype", tensor));
    entry.dtype = *dtype;
    entry.shape = reader.dims(item, "shape");
    if (!bytes_of(entry.shape, entry.dtype))
      reader.damaged(fmt::format("tensor '{}' {} is larger than any memory", tensor, entry.shape));
    if (item.contains("layout")) entry.layout = reader.layout(item["layout"]);
    for (auto& p : reader.array(item, "parts")) {
      Part part{reader.text(p, "file"), reader.dims(p, "offset"), reader.dims(p, "shape")};
      if (part.file.empty() || fs::path(part.file).filename() != part.file || part.file == "..")
        reader.damaged(fmt::format("'{}' is not a file name", part.file));
      entry.parts.push_back(std::move(part));
    }
    check_parts(entry, tensor, reader);
    index.tensors.emplace(tensor, std::move(entry));
  }
  if (j.contains("own"))
    for (auto& item : reader.array(j, "own")) {
      if (!item.is_string()) reader.damaged("'own' is not a list of texts");
      index.own.push_back(item.get<std::string>());
    }
  if (!j.contains("files")) return index;
  if (sum_place(text) == text.npos) reader.damaged("its checksum is missing");
  if (!j["files"].is_object()) reader.damaged("'files' is not a JSON object");
  for (auto& [file, item] : j["files"].items()) {
    const json& bytes = reader.member(item, "bytes");
    const std::string sum = reader.text(item, "header_crc32c");
    FileSum found;
    auto [end, error] = std::from_chars(sum.data(), sum.data() + sum.size(), found.header, 16);
    if (!bytes.is_number_unsigned() || error != std::errc() || end != sum.data() + sum.size())
      reader.damaged(fmt::format("its entry for the file '{}' is not a size and a checksum", file));
    found.bytes = bytes.get<uint64_t>();
    index.files.emplace(file, found);
  }
  return index;
}

namespace {

std::string read_index(const fs::path& folder) {
  auto bytes = data::read_whole(folder / kIndexFile, kLargestIndex);
  bytes_read_by_rank() += bytes.size();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

uint32_t sum_of_text(std::string_view text) { return data::crc32c(std::as_bytes(std::span(text))); }

// Runs f, which reads what an index says. If it fails, and that index is not there any more: Superseded.
template <class F>
auto of_index(const fs::path& folder, const std::optional<uint32_t>& fingerprint, F&& f) {
  try {
    return f();
  } catch (const Error& e) {
    std::optional<uint32_t> now;
    try {
      now = sum_of_text(read_index(folder));
    } catch (const Error&) {
    }
    if (now == fingerprint) throw;
    throw Superseded(ErrorKind::kRuntime, e.what());
  }
}

}  // namespace

FolderReader::FolderReader(const fs::path& folder) : folder_(folder) {
  std::string text = read_index(folder);
  fingerprint_ = sum_of_text(text);
  index_ = parse_index(text, name());
}

const IndexEntry& FolderReader::entry(const std::string& tensor) const {
  auto it = index_.tensors.find(tensor);
  if (it == index_.tensors.end()) fail_runtime("{}: there is no tensor '{}'. The file is damaged.", name(), tensor);
  return it->second;
}

const SafetensorsFile& FolderReader::file(const std::string& file_name) {
  auto& file = files_[file_name];
  if (!file) {
    auto sum = index_.files.find(file_name);
    file = std::make_unique<SafetensorsFile>(folder_ / file_name,
                                             sum == index_.files.end() ? std::nullopt : std::optional(sum->second));
  }
  if (std::find(awake_.begin(), awake_.end(), file.get()) == awake_.end()) awake_.push_back(file.get());
  if (awake_.size() > kMostOpen) {
    awake_.front()->rest();
    awake_.pop_front();
  }
  return *file;
}

Array FolderReader::read(const std::string& tensor, const Dims& offset, const Dims& shape) {
  return of_index(folder_, fingerprint_, [&] { return read_parts(tensor, offset, shape); });
}

Array FolderReader::read_parts(const std::string& tensor, const Dims& offset, const Dims& shape) {
  const IndexEntry& entry = this->entry(tensor);
  struct Piece {
    const std::string* file;
    const TensorInfo* info;
    Dims from, size, to;
  };
  // All files are looked at before memory is taken: a size that nothing is behind is found here.
  std::vector<Piece> pieces;
  for (auto& part : entry.parts) {
    Piece piece{nullptr, nullptr, shape, shape, shape};
    bool overlaps = true;
    for (int d = 0; d < shape.size(); ++d) {
      int64_t begin = std::max(offset[d], part.offset[d]),
              end = std::min(offset[d] + shape[d], part.offset[d] + part.shape[d]);
      overlaps &= begin < end;
      piece.from[d] = begin - part.offset[d], piece.size[d] = end - begin, piece.to[d] = begin - offset[d];
    }
    if (!overlaps) continue;
    piece.file = &part.file;
    piece.info = file(part.file).find(tensor);
    if (!piece.info || piece.info->dtype != entry.dtype || piece.info->shape != part.shape)
      fail_runtime("{}: it should hold {} {} of tensor '{}', as {} says. The two are from different saves.",
                   file(part.file).name(), format_name(entry.dtype), part.shape, tensor, name());
    pieces.push_back(piece);
  }
  Array out = Array::empty(shape, entry.dtype);
  for (auto& piece : pieces) file(*piece.file).read(*piece.info, piece.from, piece.size, out, piece.to);
  return out;
}

Array FolderReader::read(const std::string& tensor) {
  const Dims& shape = entry(tensor).shape;
  return read(tensor, Dims::filled(shape.size(), 0), shape);
}

std::optional<std::vector<std::string>> files_of_index(const fs::path& folder) {
  std::vector<std::string> files;
  try {
    std::error_code error;
    if (fs::symlink_status(folder / kIndexFile, error).type() == fs::file_type::not_found) return files;
    for (auto& [name, entry] : parse_index(read_index(folder), kIndexFile).tensors)
      for (auto& part : entry.parts) files.push_back(part.file);
  } catch (const Error&) {
    return std::nullopt;
  }
  std::sort(files.begin(), files.end());
  files.erase(std::unique(files.begin(), files.end()), files.end());
  return files;
}

}  // namespace holon::checkpoint
