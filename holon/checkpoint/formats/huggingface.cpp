#include "holon/checkpoint/formats/huggingface.h"
#include "holon/checkpoint/formats/file_source.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <deque>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <unordered_map>
#include <unordered_set>

#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/index.h"
#include "holon/checkpoint/core/printable.h"
#include "holon/checkpoint/core/world.h"
#include "holon/data/crc32c.h"
#include "holon/data/input_file.h"

namespace holon::checkpoint {

using nlohmann::json;
namespace fs = std::filesystem;

namespace {

constexpr int kMostLevels = 16;
constexpr uint64_t kLargestIndex = 100'000'000;  // as a header of safetensors
constexpr size_t kMostOpen = 64;
constexpr const char* kMapKey = "weight_map";
constexpr const char* kTorchFile = "pytorch_model.bin";
constexpr const char* kTorchIndex = "pytorch_model.bin.index.json";

class WeightMapParser final : public nlohmann::json_sax<json> {
 public:
  WeightMapParser(std::string_view file, WeightMap& out) : file_(file), out_(out) {}

  void run(std::string_view text) {
    if (!json::sax_parse(text.begin(), text.end(), this)) refuse("not a JSON document: " + printable(why_));
    if (!found_) refuse(fmt::format("without '{}'", kMapKey));
    std::vector<const std::string*> names;
    for (auto& [name, file] : out_.tensors) names.push_back(&name);
    std::sort(names.begin(), names.end(), [](auto* a, auto* b) { return *a < *b; });
    auto twice = std::adjacent_find(names.begin(), names.end(), [](auto* a, auto* b) { return *a == *b; });
    if (twice != names.end())
      fail_runtime("{}: tensor '{}' appears twice. The file is damaged.", file_, printable(**twice));
  }

  bool key(std::string& text) override {
    if (level_ == 1) in_map_ = text == kMapKey;
    if (level_ == 1 && in_map_ && std::exchange(found_, true)) refuse(fmt::format("one with '{}' twice", kMapKey));
    if (level_ == 2 && in_map_) name_ = std::move(text);
    return true;
  }
  bool string(std::string& text) override {
    if (level_ != 2 || !in_map_) return value();
    // Of the folder itself: an index must not lead to other places.
    if (text.empty() || text.find('/') != text.npos || text.find('\0') != text.npos || text == "." || text == "..")
      fail_runtime("{}: tensor '{}' should be in '{}', which is not the name of a file in this folder.", file_,
                   printable(name_), printable(text));
    auto [it, fresh] = places_.try_emplace(text, out_.files.size());
    if (fresh) out_.files.push_back(std::move(text));
    out_.tensors.emplace_back(std::move(name_), it->second);
    return true;
  }
  bool start_object(size_t) override {
    if (level_ > 0 && !(level_ == 1 && in_map_)) value();
    return enter();
  }
  bool start_array(size_t) override {
    value();
    return enter();
  }
  bool end_object() override { return --level_, true; }
  bool end_array() override { return --level_, true; }
  bool null() override { return value(); }
  bool boolean(bool) override { return value(); }
  bool number_integer(int64_t) override { return value(); }
  bool number_unsigned(uint64_t) override { return value(); }
  bool number_float(double, const std::string&) override { return value(); }
  bool binary(json::binary_t&) override { return value(); }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& e) override {
    why_ = e.what();
    return false;
  }

 private:
  [[noreturn]] void refuse(std::string_view what) const {
    fail_runtime("{}: it is {}. The file is damaged, or is not an index of Hugging Face.", file_, what);
  }
  bool enter() {
    if (++level_ > kMostLevels) refuse(fmt::format("of more than {} levels", kMostLevels));
    return true;
  }
  // A value that is not the name of a file.
  bool value() const {
    if (level_ == 0) refuse("not a JSON object");
    if (level_ == 1 && in_map_) refuse(fmt::format("without a JSON object as '{}'", kMapKey));
    if (level_ == 2 && in_map_)
      fail_runtime("{}: the file of tensor '{}' is not text. The file is damaged.", file_, printable(name_));
    return true;
  }

  std::string_view file_;
  WeightMap& out_;
  int level_ = 0;
  bool in_map_ = false, found_ = false;
  std::string name_, why_;
  std::unordered_map<std::string, size_t> places_;
};

std::string read_text(const fs::path& path) {
  auto bytes = data::read_whole(path, kLargestIndex);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// A file that is known again as long as this lives. Its text alone would not do: that of another state may be the same.
class HeldFile {
 public:
  explicit HeldFile(const fs::path& path) : path_(path.string()) {
    { data::InputFile readable(path); }  // or its errors
    fd_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd_ < 0 || ::fstat(fd_, &info_) != 0) throw Superseded(ErrorKind::kRuntime, path_ + " was replaced.");
  }
  ~HeldFile() {
    if (fd_ >= 0) ::close(fd_);
  }
  HeldFile(const HeldFile&) = delete;
  HeldFile& operator=(const HeldFile&) = delete;

  std::string text() const { return read_text(fmt::format("/proc/self/fd/{}", fd_)); }
  // Whether its name still leads to it: while it is open, no other file gets its number.
  bool is_there() const {
    struct stat now {};
    return ::stat(path_.c_str(), &now) == 0 && now.st_dev == info_.st_dev && now.st_ino == info_.st_ino;
  }

 private:
  std::string path_;
  int fd_ = -1;
  struct stat info_ {};
};

class ShardsSource final : public Source {
 public:
  explicit ShardsSource(const fs::path& index) : index_(index), held_(index), text_(held_.text()) {
    const WeightMap map = parse_weight_map(text_, index_.string());
    on_error([&] { open(map); });
    // A save that replaced the index before all shards were open may have replaced some of these, too.
    if (!held_.is_there()) throw Superseded(ErrorKind::kRuntime, index_.string() + " was replaced.");
  }
  std::string name() const override { return index_.string(); }
  std::vector<TensorInfo> tensors() const override { return tensors_; }
  uint32_t fingerprint() const override { return fingerprint_; }
  int64_t files() const override { return std::ssize(shards_); }
  Array read(const std::string& tensor, const Dims& offset, const Dims& shape) override {
    return on_error([&] { return awake(shard_of_.at(tensor)).read(tensor, offset, shape); });
  }

 private:
  void open(const WeightMap& map) {
    std::vector<std::vector<const std::string*>> names(map.files.size());
    for (auto& [name, file] : map.tensors) names[file].push_back(&name);
    std::unordered_map<std::string, TensorInfo> infos;
    fingerprint_ = data::crc32c(std::as_bytes(std::span(text_)));
    for (size_t i = 0; i < map.files.size(); ++i) {
      const fs::path path = index_.parent_path() / map.files[i];
      try {
        shards_.push_back(open_file(path));
      } catch (const Error& e) {
        fail_runtime("{}: tensor '{}' should be in {}: {}", name(), printable(*names[i][0]), map.files[i], e.what());
      }
      std::unordered_map<std::string, TensorInfo> there;
      for (auto& info : awake(i).tensors()) there.emplace(info.name, info);
      for (auto* name : names[i]) {
        auto it = there.find(*name);
        if (it == there.end())
          fail_runtime("{}: tensor '{}' should be in {}, which does not contain it. The two are from different saves.",
                       this->name(), printable(*name), path.string());
        infos.emplace(*name, it->second);
        shard_of_.emplace(*name, i);
      }
      const uint32_t found = shards_[i]->fingerprint();
      fingerprint_ = data::crc32c(std::as_bytes(std::span(&found, 1)), fingerprint_);
    }
    for (auto& [name, file] : map.tensors) tensors_.push_back(infos.at(name));
  }

  Source& awake(size_t i) {
    if (std::find(awake_.begin(), awake_.end(), i) == awake_.end()) awake_.push_back(i);
    if (awake_.size() > kMostOpen) {
      shards_[awake_.front()]->rest();
      awake_.pop_front();
    }
    return *shards_[i];
  }

  // Runs f. If it fails, and the index is another meanwhile: Superseded.
  template <class F>
  std::invoke_result_t<F> on_error(F&& f) {
    try {
      return f();
    } catch (const Error& e) {
      if (held_.is_there()) throw;
      throw Superseded(ErrorKind::kRuntime, e.what());
    }
  }

  fs::path index_;
  HeldFile held_;
  std::string text_;
  uint32_t fingerprint_ = 0;
  std::vector<std::unique_ptr<Source>> shards_;
  std::deque<size_t> awake_;  // whose descriptors are open; the others rest
  std::unordered_map<std::string, size_t> shard_of_;
  std::vector<TensorInfo> tensors_;
};

void check_tensors(const Value& value, const std::string& path, const std::string& name,
                   std::unordered_set<std::string>& names) {
  if (value.get_if<Tensor>()) {
    if (path.empty()) fail_type("save: in the format hf, a dict of tensors is saved, and not a single one.");
    if (!names.insert(name).second)
      fail_value("save: in the format hf the keys of dicts are joined by dots, and two tensors are '{}' then. Give one "
                 "another name.",
                 name);
    if (name == kMetadata) fail_value("safetensors: the name '{}' is reserved. Give the tensor another.", name);
    return;
  }
  if (!value.get_if<Value::Dict>())
    fail_type("save: the format hf holds tensors, in dicts; the value at the top{} is a {}. Leave it out, or save in "
              "Holon's own format.",
              path, value.kind());
  for (auto& [key, item] : value.dict()) {
    auto* text = key.get_if<std::string>();
    if (!text || text->empty())
      fail_type("save: the format hf has names of tensors; a key of the dict at the top{} is {}. Use text.", path,
                text ? "empty" : key.kind());
    check_tensors(item, path + "['" + *text + "']", name + (name.empty() ? "" : ".") + *text, names);
  }
}

}  // namespace

WeightMap parse_weight_map(std::string_view text, std::string_view name) {
  WeightMap map;
  WeightMapParser(name, map).run(text);
  return map;
}

std::unique_ptr<Source> open_huggingface(const fs::path& path) {
  std::error_code none;
  if (!fs::is_directory(path, none)) {
    const std::string file = path.filename().string();
    if (file.ends_with(".index.json") && fs::is_regular_file(path, none)) return std::make_unique<ShardsSource>(path);
    return nullptr;
  }
  // In the order in which transformers' from_pretrained() looks. A save may put one in the place of the other while
  // they are looked for.
  for (int tries = 0; tries < 3; ++tries)
    for (auto name : {kHuggingFaceFile, kHuggingFaceIndex, kTorchFile, kTorchIndex}) {
      const fs::path file = path / name;
      if (!fs::exists(file, none)) continue;
      try {
        if (file.extension() == ".json") return std::make_unique<ShardsSource>(file);
        return open_file(file);
      } catch (const Error& e) {
        if (fs::exists(file, none)) throw;
        throw Superseded(ErrorKind::kRuntime, e.what());
      }
    }
  return nullptr;
}

void check_only_tensors(const Value& value) {
  std::unordered_set<std::string> names;
  check_tensors(value, "", "", names);
}

uint64_t parse_bytes(std::string_view text) {
  constexpr std::pair<std::string_view, double> kUnits[] = {{"", 1},         {"B", 1},        {"KB", 1e3},
                                                            {"MB", 1e6},     {"GB", 1e9},     {"TB", 1e12},
                                                            {"KIB", 0x1p10}, {"MIB", 0x1p20}, {"GIB", 0x1p30},
                                                            {"TIB", 0x1p40}};
  double number = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  std::string unit(end, text.data() + text.size());
  unit.erase(0, unit.find_first_not_of(' ') == unit.npos ? unit.size() : unit.find_first_not_of(' '));
  for (char& c : unit) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  for (auto& [name, factor] : kUnits)
    if (error == std::errc() && unit == name && number * factor >= 1 && number * factor < 0x1p62)
      return static_cast<uint64_t>(number * factor);
  fail_value("save: shard_size is '{}'. Give a number of bytes, or text such as \"5GB\" or \"500MB\".",
             printable(text));
}

}  // namespace holon::checkpoint
