// The header of a safetensors file, read as it comes: no more is kept of it than what it says.
#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <tuple>

#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/index.h"
#include "holon/checkpoint/core/printable.h"
#include "holon/checkpoint/formats/other_formats.h"
#include "holon/checkpoint/formats/safetensors.h"

namespace holon::checkpoint {

using nlohmann::json;

namespace {

constexpr std::pair<std::string_view, DType> kNames[] = {{"BOOL", boolean},
                                                         {"U8", uint8},
                                                         {"I8", int8},
                                                         {"I32", int32},
                                                         {"I64", int64},
                                                         {"F16", float16},
                                                         {"BF16", bfloat16},
                                                         {"F32", float32},
                                                         {"F64", float64},
                                                         {"F8_E4M3", float8_e4m3fn},
                                                         {"F8_E5M2", float8_e5m2},
                                                         {"F8_E8M0", float8_e8m0fnu}};

// What a header needs is three; unknown members may have more.
constexpr int kMostLevels = 16;

class HeaderParser final : public nlohmann::json_sax<json> {
 public:
  HeaderParser(std::string_view file, SafetensorsHeader& out) : file_(file), out_(out) {}

  void run(std::string_view text) {
    if (!json::sax_parse(text.begin(), text.end(), this)) no_header("not a JSON document: " + printable(why_));
    std::vector<const std::string*> names;
    for (auto& t : out_.tensors) names.push_back(&t.name);
    std::sort(names.begin(), names.end(), [](auto* a, auto* b) { return *a < *b; });
    auto twice = std::adjacent_find(names.begin(), names.end(), [](auto* a, auto* b) { return *a == *b; });
    if (twice != names.end()) fail_runtime("{}: '{}' appears twice. The file is damaged.", file_, **twice);
  }

  bool key(std::string& text) override {
    if (level_ == 1) {
      name_ = text;
      metadata_ = text == kMetadata;
    } else if (level_ == 2 && metadata_) {
      word_ = text;
    } else if (level_ == 2) {
      field_ = text == "dtype"     ? Field::kDType
          : text == "shape"        ? Field::kShape
          : text == "data_offsets" ? Field::kPlace
                                   : Field::kOther;
    }
    return true;
  }

  bool start_object(size_t) override {
    if (level_ == 1) {
      has_dtype_ = has_shape_ = has_place_ = false;
    } else if (level_ > 1) {
      no_value();
    }
    enter();
    return true;
  }
  bool end_object() override {
    if (--level_ == 1 && !metadata_) add_tensor();
    return true;
  }
  bool start_array(size_t) override {
    if (level_ == 2 && !metadata_ && (field_ == Field::kShape || field_ == Field::kPlace)) {
      (field_ == Field::kShape ? axes_ : places_) = 0;
      shape_ = field_ == Field::kShape ? Dims() : shape_;
      (field_ == Field::kShape ? has_shape_ : has_place_) = true;
    } else {
      no_value();
    }
    enter();
    return true;
  }
  bool end_array() override {
    --level_;
    if (level_ != 2 || metadata_) return true;
    if (field_ == Field::kShape && axes_ > kMaxAxes)
      fail_runtime("{}: tensor '{}' has {} axes; a tensor has at most {}.", file_, name_, axes_, kMaxAxes);
    if (field_ == Field::kPlace && places_ != 2) damaged("its data_offsets are not two numbers");
    return true;
  }

  bool number_unsigned(uint64_t n) override {
    if (level_ != 3 || metadata_ || field_ == Field::kOther || n > INT64_MAX) return no_value();
    if (field_ == Field::kDType) return no_value();
    if (field_ == Field::kShape) {
      if (axes_ < kMaxAxes) shape_.push_back(static_cast<int64_t>(n));
      ++axes_;
    } else {
      if (places_ < 2) place_[places_] = n;
      ++places_;
    }
    return true;
  }
  bool string(std::string& text) override {
    if (level_ == 2 && metadata_) {
      out_.metadata[word_] = std::move(text);
      return true;
    }
    if (level_ != 2 || field_ != Field::kDType) return no_value();
    auto known = dtype_of_format(text);
    if (!known)
      fail_runtime("{}: tensor '{}' has dtype {}, which Holon does not support. It supports BOOL, U8, I8, I32, I64, "
                   "F16, BF16, F32, F64, F8_E4M3, F8_E5M2 and F8_E8M0: convert it first.",
                   file_, name_, printable(text));
    dtype_ = *known;
    has_dtype_ = true;
    return true;
  }
  bool null() override { return no_value(); }
  bool boolean(bool) override { return no_value(); }
  bool number_integer(int64_t) override { return no_value(); }
  bool number_float(double, const std::string&) override { return no_value(); }
  bool binary(json::binary_t&) override { return no_value(); }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& e) override {
    why_ = e.what();
    return false;
  }

 private:
  enum class Field { kDType, kShape, kPlace, kOther };

  [[noreturn]] void no_header(std::string_view what) const {
    fail_runtime("{}: its header is {}. The file is damaged, or is not a safetensors file.", file_, what);
  }
  [[noreturn]] void damaged(std::string_view what) const {
    fail_runtime("{}: tensor '{}': {}. The file is damaged.", file_, name_, what);
  }

  void enter() {
    if (++level_ > kMostLevels) no_header(fmt::format("of more than {} levels", kMostLevels));
  }

  // A value of another kind than what is here.
  bool no_value() const {
    if (level_ == 0) no_header("not a JSON object");
    if (metadata_ && level_ == 1) fail_runtime("{}: {} is not a JSON object. The file is damaged.", file_, kMetadata);
    if (metadata_) fail_runtime("{}: '{}' in {} is not text. The file is damaged.", file_, word_, kMetadata);
    if (level_ == 1) damaged("its entry has no dtype, shape and data_offsets");
    if (field_ == Field::kDType) damaged("its dtype is not text");
    if (field_ == Field::kShape) damaged("its shape is not a list of sizes");
    if (field_ == Field::kPlace) damaged("its data_offsets are not two numbers");
    return true;
  }

  void add_tensor() {
    if (!has_dtype_ || !has_shape_ || !has_place_) damaged("its entry has no dtype, shape and data_offsets");
    auto bytes = bytes_of(shape_, dtype_);
    if (!bytes || place_[1] < place_[0] || place_[1] - place_[0] != *bytes)
      damaged(
          fmt::format("{} {} does not occupy the bytes {} to {}", format_name(dtype_), shape_, place_[0], place_[1]));
    out_.tensors.push_back({name_, dtype_, shape_, place_[0], place_[1]});
  }

  std::string_view file_;
  SafetensorsHeader& out_;
  int level_ = 0;  // objects and arrays that are open
  std::string name_, word_, why_;
  bool metadata_ = false;  // within kMetadata
  Field field_ = Field::kOther;
  bool has_dtype_ = false, has_shape_ = false, has_place_ = false;
  DType dtype_ = DType::kFloat32;
  Dims shape_;
  int64_t axes_ = 0, places_ = 0;
  uint64_t place_[2] = {};
};

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

size_t header_bytes(std::span<const std::byte> head, uint64_t file_bytes, std::string_view name) {
  uint64_t size = 0;
  const auto other = [&] { return other_format(head.first(std::min<size_t>(head.size(), 64)), name); };
  if (head.size() < sizeof size) {
    if (auto is = other(); !is.empty()) fail_runtime("{}: {}", name, is);
    fail_runtime("{}: a safetensors file begins with 8 bytes of size; found {} bytes.", name, file_bytes);
  }
  std::memcpy(&size, head.data(), sizeof size);
  const bool fits = size <= kLargestHeader && size <= file_bytes - sizeof size;
  if (fits && (size == 0 || head.size() == sizeof size || head[sizeof size] == std::byte{'{'}))
    return sizeof size + to_size(size);
  if (auto is = other(); !is.empty()) fail_runtime("{}: {}", name, is);
  if (!fits)
    fail_runtime("{}: its header should have {} bytes; the file has {}. It is truncated, or is not a safetensors file.",
                 name, size, file_bytes);
  return sizeof size + to_size(size);
}

SafetensorsHeader parse_safetensors(std::span<const std::byte> head, uint64_t file_bytes, std::string_view name) {
  SafetensorsHeader result;
  result.bytes = header_bytes(head, file_bytes, name);
  HOLON_CHECK(head.size() >= result.bytes, "{} bytes of a header of {}", head.size(), result.bytes);
  HeaderParser(name, result)
      .run({reinterpret_cast<const char*>(head.data()) + sizeof(uint64_t), result.bytes - sizeof(uint64_t)});
  std::sort(result.tensors.begin(), result.tensors.end(),
            [](auto& a, auto& b) { return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name); });
  uint64_t at = 0;
  for (auto& t : result.tensors) {
    if (t.begin != at)
      fail_runtime("{}: the bytes of tensor '{}' begin at {}; those before it end at {}. The file is damaged.", name,
                   t.name, t.begin, at);
    at = t.end;
  }
  if (at != file_bytes - result.bytes)
    fail_runtime("{}: its tensors have {} bytes; the file has {} after its header. It is truncated or damaged.", name,
                 at, file_bytes - result.bytes);
  return result;
}

SafetensorsHeader parse_safetensors(std::span<const std::byte> file, std::string_view name) {
  return parse_safetensors(file, file.size(), name);
}

}  // namespace holon::checkpoint
