#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/checkpoint/checkpoint.h"
#include "holon/checkpoint/dequantize.h"
#include "holon/checkpoint/folder.h"
#include "holon/checkpoint/huggingface.h"
#include "holon/checkpoint/source.h"
#include "holon/checkpoint/tree.h"
#include "holon/checkpoint/world.h"
#include "holon/global/slice.h"
#include "holon/kernels/on_device.h"
#include "holon/ops/to_global.h"

namespace holon {

namespace fs = std::filesystem;
using namespace checkpoint;

namespace {

constexpr int kMostTries = 20;

class FolderSource final : public Source {
 public:
  explicit FolderSource(const fs::path& folder) : reader_(folder) {}
  std::string name() const override { return reader_.name(); }
  std::string tree() const override { return reader_.index().tree; }
  uint32_t fingerprint() const override { return reader_.fingerprint(); }
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

std::unique_ptr<Source> open_as_saved(const fs::path& path) {
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

std::unique_ptr<Source> open(const fs::path& path, const LoadOptions& options) {
  return dequantized(open_as_saved(path), options.dequantize);
}

// Runs f again while another job replaces what it reads. Pre: on every rank that takes part, it ends alike.
template <class F>
auto until_whole(const fs::path& path, F&& f) {
  for (int i = 1;; ++i) try {
      return f();
    } catch (const Superseded& e) {
      if (i == kMostTries)
        fail_runtime("load: {} was replaced {} times while it was read, the last time: {} Load it when nothing saves "
                     "there, or load a copy.",
                     path.string(), i, e.what());
      std::this_thread::sleep_for(std::chrono::milliseconds(10 * i));
    }
}

bool fits(const Dims& shape, const NdSbp& nd_sbp) {
  return std::all_of(nd_sbp.begin(), nd_sbp.end(), [&](Sbp s) { return !s.is_split() || s.axis < shape.size(); });
}

// The layout as it was saved; where the world lacks a rank of it, all ranks in a row, split as along the first axis
// that was.
const GlobalSpec* restored_spec(const SavedLayout& saved, const Dims& shape, const std::string& file) {
  const int n = Context::current().world_size();
  NdSbp nd_sbp(saved.nd_sbp);
  if (!fits(shape, nd_sbp))
    fail_runtime("{}: the layout {} does not fit the shape {}. The file is damaged.", file, nd_sbp, shape);
  std::string type = saved.device_type;
  try {
    check_device_type(parse_device_type(type));
  } catch (const Error&) {
    type = "cpu";  // saved where there was another device
  }
  if (std::all_of(saved.ranks.begin(), saved.ranks.end(), [&](int64_t r) { return r < n; })) try {
      return intern_spec(Placement(type, Dims(saved.hierarchy), saved.ranks), nd_sbp);
    } catch (const Error& e) {
      fail_runtime("{}: a layout is invalid: {} The file is damaged.", file, e.what());
    }
  auto split = std::find_if(saved.nd_sbp.begin(), saved.nd_sbp.end(), [](Sbp s) { return s.is_split(); });
  return intern_spec(Placement::all(type), NdSbp(split == saved.nd_sbp.end() ? sbp::broadcast() : *split));
}

Tensor read_local(Source& source, const TensorInfo& info, Device device) {
  Array array = source.read(info.name, Dims::filled(info.shape.size(), 0), info.shape);
  return Tensor::local(kernels::on_device(array, device));
}

Tensor read_global(Source& source, const TensorInfo& info, const GlobalSpec* spec) {
  Array part;
  if (int index = spec->placement.index_of(Context::current().rank()); index >= 0) {
    Region slice = region_of(info.shape, spec->placement, spec->nd_sbp, index);
    part = source.read(info.name, slice.offset, slice.shape);
    part = kernels::on_device(part, spec->placement.device());
  }
  return Tensor::global(std::move(part), info.shape, info.dtype, spec);
}

const GlobalSpec* wanted_spec(const LoadOptions& options, const Dims& shape) {
  NdSbp nd_sbp =
      options.sbp.size() == 1 ? NdSbp::filled(options.placement.hierarchy().size(), options.sbp[0]) : options.sbp;
  if (nd_sbp.size() != options.placement.hierarchy().size() || nd_sbp.has_partial())
    fail_value("load: sbp {} does not fit {}. Give one split or broadcast for each axis of its hierarchy.", options.sbp,
               options.placement);
  if (!fits(shape, nd_sbp)) nd_sbp = NdSbp::filled(nd_sbp.size(), sbp::broadcast());
  return intern_spec(options.placement, nd_sbp);
}

Value restore_all(Source& source, const std::function<Tensor(const TensorInfo&)>& read) {
  std::map<std::string, TensorInfo> infos;
  for (auto& info : source.tensors()) infos.emplace(info.name, info);
  return restore(source.tree(), source.name(), [&](const std::string& name) {
    auto it = infos.find(name);
    if (it == infos.end())
      fail_runtime("{}: tensor '{}' is referred to and does not exist. The file is damaged.", source.name(), name);
    return read(it->second);
  });
}

// What the reading rank tells the others: the tree, and each tensor's dtype and shape.
std::string describe(const Source& source) {
  nlohmann::json tensors = nlohmann::json::array();
  for (auto& t : source.tensors())
    tensors.push_back({t.name, static_cast<int>(t.dtype), std::vector<int64_t>(t.shape.begin(), t.shape.end())});
  return nlohmann::json{{"name", source.name()}, {"tree", source.tree()}, {"tensors", tensors}}.dump();
}

// The same on ranks that read nothing.
class ToldSource final : public Source {
 public:
  explicit ToldSource(const std::string& text) : told_(nlohmann::json::parse(text)) {}
  std::string name() const override { return told_["name"]; }
  std::string tree() const override { return told_["tree"]; }
  std::vector<TensorInfo> tensors() const override {
    std::vector<TensorInfo> out;
    for (auto& t : told_["tensors"])
      out.push_back({t[0], static_cast<DType>(t[1].get<int>()), Dims(t[2].get<std::vector<int64_t>>()), 0, 0});
    return out;
  }
  Array read(const std::string&, const Dims&, const Dims&) override { return {}; }

 private:
  nlohmann::json told_;
};

Value try_load_from(int src, const fs::path& path, const LoadOptions& options) {
  const bool here = Context::current().rank() == src;
  std::unique_ptr<Source> source;
  std::string told;
  together("load", [&] {
    if (!here) return;
    source = open(path, options);
    told = describe(*source);
  });
  told = share_from("load", src, told);
  if (!here) source = std::make_unique<ToldSource>(told);
  auto* spec = intern_spec(Placement(options.placement ? name(options.placement.device_type()) : "cpu", {src}),
                           sbp::broadcast());
  // The reading rank may find damage in the middle: the others must not go on to what they would do together.
  Value value;
  together("load", [&] {
    value = restore_all(*source, [&](const TensorInfo& info) { return read_global(*source, info, spec); });
  });
  return value;
}

// What every rank reads by itself, all of them the same.
Value load_together(const fs::path& path, const LoadOptions& options, const std::function<Value(Source&)>& read) {
  Value value;
  auto found = results_together("load", [&] {
    auto source = open(path, options);
    value = read(*source);
    return std::to_string(source->fingerprint());
  });
  if (std::adjacent_find(found.begin(), found.end(), std::not_equal_to<>()) != found.end())
    throw Superseded(ErrorKind::kRuntime,
                     "some ranks read the old, some the new. (Or does each host have its own file?)");
  return value;
}

// The same value with every tensor replaced, in order.
Value mapped(const Value& value, const std::function<Tensor(const Tensor&)>& f) {
  if (auto* tensor = value.get_if<Tensor>()) return f(*tensor);
  Value::List items;
  if (value.get_if<Value::List>() || value.get_if<Value::Tuple>()) {
    for (auto& item : value.list()) items.push_back(mapped(item, f));
    return value.get_if<Value::List>() ? Value(std::move(items)) : Value(Value::Tuple{std::move(items)});
  }
  if (!value.get_if<Value::Dict>()) return value;
  Value::Dict dict;
  for (auto& entry : value.dict()) dict.push_back({entry.key, mapped(entry.value, f)});
  return dict;
}

}  // namespace

Value load(const FilePath& given, const LoadOptions& options) {
  const fs::path path = given.string();
  const int n = Context::current().world_size();
  NoGradGuard guard;
  if (options.device && (options.placement || options.global_src_rank))
    fail_value(
        "load: device applies to local tensors, placement and global_src_rank to global ones. Give one or the other.");
  if (auto src = options.global_src_rank) {
    if (*src < 0 || *src >= n)
      fail_value("load: global_src_rank is {}; the ranks of this world are 0 to {}.", *src, n - 1);
    Value value = until_whole(path, [&] { return try_load_from(*src, path, options); });
    if (!options.placement) return value;
    return mapped(value, [&](const Tensor& t) {
      auto* spec = wanted_spec(options, t.shape());
      return to_global(t, spec->placement, spec->nd_sbp);
    });
  }
  auto read = [&](Source& source) {
    return restore_all(source, [&](const TensorInfo& info) {
      if (options.placement) return read_global(source, info, wanted_spec(options, info.shape));
      const SavedLayout* saved = options.device ? nullptr : source.layout(info.name);
      return saved ? read_global(source, info, restored_spec(*saved, info.shape, source.name()))
                   : read_local(source, info, options.device.value_or(Device()));
    });
  };
  // A file's own tensors are local: nobody else need be there.
  std::error_code none;
  bool of_parts = fs::is_directory(path, none) && fs::exists(path / kIndexFile, none);
  const bool alone = !options.placement && (options.device || !of_parts);
  return until_whole(path, [&] { return alone ? read(*open(path, options)) : load_together(path, options, read); });
}

}  // namespace holon
