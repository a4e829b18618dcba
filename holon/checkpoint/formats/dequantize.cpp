#include "holon/checkpoint/formats/dequantize.h"

#include <algorithm>
#include <array>
#include <unordered_map>
#include <unordered_set>

#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/base/parallel.h"
#include "holon/kernels/copy.h"

namespace holon::checkpoint {

namespace {

constexpr int64_t kBlock = 128;      // rows and columns
constexpr int64_t kGroup = 32;       // numbers of MXFP4 with one scale
constexpr int64_t kPacked = 16;      // their bytes
constexpr int64_t kGrain = 1 << 16;  // elements that a thread takes at least
constexpr float kFloat4[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};  // E2M1

// The number of each byte of a float8 dtype.
std::array<float, 256> numbers_of(DType dtype) {
  Array bytes = Array::empty({256}, dtype), numbers = Array::empty({256}, float32);
  for (int b = 0; b < 256; ++b) bytes.data<uint8_t>()[b] = static_cast<uint8_t>(b);
  kernels::copy(bytes, numbers);
  std::array<float, 256> out;
  std::copy_n(numbers.data<float>(), out.size(), out.begin());
  return out;
}

int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0); }

struct Quantized {
  enum class Kind { kFloat8, kBlocks, kMxfp4 } kind;
  TensorInfo values, scales;  // as stored; scales: except of kFloat8
};

// The last n axes left out.
Dims leading(const Dims& d, int n) {
  Dims out = d;
  out.resize(d.size() - n);
  return out;
}

class DequantizedSource final : public Source {
 public:
  DequantizedSource(std::unique_ptr<Source> source, DType to) : source_(std::move(source)), dtype_(to) {
    const auto stored = source_->tensors();
    std::unordered_map<std::string, const TensorInfo*> by_name;
    for (auto& info : stored) by_name.emplace(info.name, &info);
    std::unordered_set<std::string> used;
    auto find = [&](const std::string& name) -> const TensorInfo* {
      auto it = by_name.find(name);
      return it == by_name.end() ? nullptr : it->second;
    };
    for (auto& info : stored) add_pair(info, find, used);
    joined_ = !used.empty();
    for (auto& info : stored) {
      if (auto it = packed_.find(info.name); it != packed_.end()) {
        Dims shape = quantized_[it->second].scales.shape;
        shape.back() *= kGroup;
        tensors_.push_back(result(it->second, shape));
      }
      if (used.contains(info.name)) continue;
      TensorInfo out = info;
      if (auto it = quantized_.find(info.name); it != quantized_.end()) {
        out = result(info.name, info.shape);
      } else if (is_float8(info.dtype)) {
        quantized_[info.name] = {Quantized::Kind::kFloat8, info, {}};
        out = result(info.name, info.shape);
      }
      tensors_.push_back(std::move(out));
    }
  }

  std::string name() const override { return source_->name(); }
  std::string tree() const override { return joined_ ? tree_of_names(tensors_) : source_->tree(); }
  std::vector<TensorInfo> tensors() const override { return tensors_; }
  uint32_t fingerprint() const override { return source_->fingerprint(); }
  const SavedLayout* layout(const std::string& tensor) const override {
    return quantized_.contains(tensor) ? nullptr : source_->layout(tensor);
  }
  std::vector<std::string> own() const override { return source_->own(); }
  StoredParts stored(const TensorInfo& info) const override {
    if (!quantized_.contains(info.name)) return source_->stored(info);
    StoredParts out = Source::stored(info);
    out.block_bytes = source_->stored(quantized_.at(info.name).values).block_bytes;
    return out;
  }
  void rest() override { source_->rest(); }

  Array read(const std::string& tensor, const Dims& offset, const Dims& shape) override {
    auto it = quantized_.find(tensor);
    if (it == quantized_.end()) return source_->read(tensor, offset, shape);
    Array out = Array::empty(shape, dtype_);
    if (shape.numel() == 0) return out;
    visit_floating(dtype_, [&](auto tag) {
      using T = typename decltype(tag)::type;
      switch (it->second.kind) {
        case Quantized::Kind::kFloat8: return kernels::copy(source_->read(it->second.values.name, offset, shape), out);
        case Quantized::Kind::kBlocks: return read_blocks(it->second, offset, out.data<T>(), shape);
        case Quantized::Kind::kMxfp4: return read_mxfp4(it->second, offset, out.data<T>(), shape);
      }
    });
    return out;
  }

 private:
  TensorInfo result(const std::string& name, const Dims& shape) const { return {name, dtype_, shape, 0, 0}; }

  [[noreturn]] void misfit(const TensorInfo& values, const TensorInfo& scales, std::string_view expected) const {
    fail_runtime("{}: '{}' {} cannot be the scales of '{}' {}: {}. Load without dequantize, and convert it yourself.",
                 name(), scales.name, scales.shape, values.name, values.shape, expected);
  }

  template <class Find>
  void add_pair(const TensorInfo& info, const Find& find, std::unordered_set<std::string>& used) {
    if (info.dtype == float8_e4m3fn || info.dtype == float8_e5m2) {
      const TensorInfo* scales = find(info.name + "_scale_inv");
      if (!scales) return;
      const int n = info.shape.size();
      Dims expected = info.shape;
      for (int a = std::max(0, n - 2); a < n; ++a) expected[a] = ceil_div(info.shape[a], kBlock);
      if (n < 2 || scales->shape != expected) misfit(info, *scales, "one for each block of 128 x 128 is expected");
      if (!is_floating(scales->dtype)) misfit(info, *scales, "they are not floating point");
      used.insert(scales->name);
      quantized_[info.name] = {Quantized::Kind::kBlocks, info, *scales};
      return;
    }
    if (info.dtype != uint8) return;
    for (std::string_view ending : {"_blocks", ".blocks"}) {
      if (!info.name.ends_with(ending) || info.name.size() == ending.size()) continue;
      const std::string base = info.name.substr(0, info.name.size() - ending.size());
      const TensorInfo* scales = find(base + ending.front() + "scales");
      if (!scales || info.shape.size() < 2 || info.shape.back() != kPacked) continue;
      if ((scales->dtype != uint8 && scales->dtype != float8_e8m0fnu) || scales->shape != leading(info.shape, 1))
        misfit(info, *scales, "a byte for each 16 is expected");
      if (find(base))
        fail_runtime("{}: there are '{}' and '{}', which would have the same name. Load without dequantize.", name(),
                     base, info.name);
      used.insert(info.name);
      used.insert(scales->name);
      quantized_[base] = {Quantized::Kind::kMxfp4, info, *scales};
      packed_[info.name] = base;
    }
  }

  // Scales of a region, as float32.
  Array read_scales(const TensorInfo& info, const Dims& offset, const Dims& shape) {
    Array raw = source_->read(info.name, offset, shape);
    if (info.dtype == float32) return raw;
    Array out = Array::empty(shape, float32);
    kernels::copy(raw, out);
    return out;
  }

  template <class T>
  void read_blocks(const Quantized& q, const Dims& offset, T* out, const Dims& shape) {
    const Array raw = source_->read(q.values.name, offset, shape);
    Dims first = offset, blocks = shape;
    for (int a = shape.size() - 2; a < shape.size(); ++a) {
      first[a] = offset[a] / kBlock;
      blocks[a] = ceil_div(offset[a] + shape[a], kBlock) - first[a];
    }
    const Array scales = read_scales(q.scales, first, blocks);
    const auto values = numbers_of(q.values.dtype);
    const int row_axis = shape.size() - 2;
    const int64_t rows = shape[row_axis], columns = shape.back();
    const int64_t row0 = offset[row_axis] % kBlock, column0 = offset.back() % kBlock;
    const uint8_t* bytes = raw.data<uint8_t>();
    parallel_for(shape.numel() / columns, ceil_div(kGrain, columns), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const int64_t block_row = r / rows * blocks[row_axis] + (row0 + r % rows) / kBlock;
        const float* scale = scales.data<float>() + block_row * blocks.back();
        for (int64_t c = 0; c < columns; ++c)
          out[r * columns + c] =
              static_cast<T>(at_index(values, bytes[r * columns + c]) * scale[(column0 + c) / kBlock]);
      }
    });
  }

  template <class T>
  void read_mxfp4(const Quantized& q, const Dims& offset, T* out, const Dims& shape) {
    Dims first = offset, groups = shape;
    first.back() = offset.back() / kGroup;
    groups.back() = ceil_div(offset.back() + shape.back(), kGroup) - first.back();
    const Array scales = source_->read(q.scales.name, first, groups);
    Dims first_bytes = first, bytes = groups;
    first_bytes.push_back(0);
    bytes.push_back(kPacked);
    const Array raw = source_->read(q.values.name, first_bytes, bytes);
    const auto exponents = numbers_of(float8_e8m0fnu);
    const int64_t columns = shape.back(), column0 = offset.back() % kGroup;
    parallel_for(shape.numel() / columns, ceil_div(kGrain, columns), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r)
        for (int64_t c = 0; c < columns; ++c) {
          const int64_t group = r * groups.back() + (column0 + c) / kGroup, in_group = (column0 + c) % kGroup;
          const uint8_t two = raw.data<uint8_t>()[group * kPacked + in_group / 2];
          const float value = at_index(kFloat4, in_group % 2 ? two >> 4 : two & 15);
          out[r * columns + c] = static_cast<T>(value * at_index(exponents, scales.data<uint8_t>()[group]));
        }
    });
  }

  std::unique_ptr<Source> source_;
  DType dtype_;
  bool joined_ = false;                                   // scales are in other tensors
  std::unordered_map<std::string, Quantized> quantized_;  // by the name that is read
  std::unordered_map<std::string, std::string> packed_;   // names of bytes of MXFP4 -> what they are read as
  std::vector<TensorInfo> tensors_;
};

}  // namespace

std::unique_ptr<Source> dequantized(std::unique_ptr<Source> source, std::optional<DType> to) {
  if (!to) return source;
  if (!is_floating(*to) || is_float8(*to))
    fail_type("load: dequantize is {}; weights become bfloat16, float16, float32 or float64.", holon::name(*to));
  return std::make_unique<DequantizedSource>(std::move(source), *to);
}

}  // namespace holon::checkpoint
