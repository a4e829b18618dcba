#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>
#include <utility>

#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/checkpoint/checkpoint.h"
#include "holon/checkpoint/dequantize.h"
#include "holon/checkpoint/folder.h"
#include "holon/checkpoint/loading.h"
#include "holon/checkpoint/mapped_source.h"
#include "holon/checkpoint/read_layout.h"
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

std::unique_ptr<Source> open(const fs::path& path, const LoadOptions& options) {
  auto source = dequantized(open_source(path), options.dequantize);
  return options.key_map ? mapped(std::move(source), *options.key_map, options.prefix) : std::move(source);
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

const GlobalSpec* wanted_spec(const LoadOptions& options, const std::string& name, const Dims& shape) {
  const NdSbp given = options.sbp_of ? options.sbp_of(name.substr(options.prefix.size())) : options.sbp;
  NdSbp nd_sbp = given.size() == 1 ? NdSbp::filled(options.placement.hierarchy().size(), given[0]) : given;
  if (nd_sbp.size() != options.placement.hierarchy().size() || nd_sbp.has_partial())
    fail_value("load: sbp {} does not fit {}. Give one split or broadcast for each axis of its hierarchy.", given,
               options.placement);
  if (!fits(shape, nd_sbp)) nd_sbp = NdSbp::filled(nd_sbp.size(), sbp::broadcast());
  return intern_spec(options.placement, nd_sbp);
}

bool is_part(const LoadOptions& options) {
  return options.key_map || !options.prefix.empty() || options.select || options.rename;
}

// A dict of the tensors that the options select.
Value restore_part(Source& source, const LoadOptions& options, const std::function<Tensor(const TensorInfo&)>& read) {
  Value::Dict dict;
  std::set<std::string> names;
  for (auto& info : source.tensors()) {
    if (!info.name.starts_with(options.prefix)) continue;
    std::string name = info.name.substr(options.prefix.size());
    if (options.select && !options.select(name)) continue;
    if (options.rename) name = options.rename(name);
    if (!names.insert(name).second)
      fail_value("load: rename gives '{}' and another tensor the same name '{}'.", info.name, name);
    dict.push_back({name, read(info)});
  }
  if (dict.empty() && options.strict)
    fail_value("load: no tensor of {} is selected{}. Check the names, or pass strict=false.", source.name(),
               options.prefix.empty() ? "" : fmt::format(" by the prefix '{}'", options.prefix));
  return dict;
}

Value restore_all(Source& source, const LoadOptions& options, const std::function<Tensor(const TensorInfo&)>& read) {
  if (is_part(options)) return restore_part(source, options, read);
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
    value = restore_all(*source, options, [&](const TensorInfo& info) { return read_global(*source, info, spec); });
  });
  return value;
}

// The layout that a tensor gets; nullptr: it is local.
const GlobalSpec* spec_of(const Source& source, const TensorInfo& info, const LoadOptions& options) {
  if (options.placement) return wanted_spec(options, info.name, info.shape);
  const SavedLayout* saved = options.device ? nullptr : source.layout(info.name);
  return saved ? restored_spec(*saved, info.shape, source.name()) : nullptr;
}

Value load_alone(const fs::path& path, const LoadOptions& options) {
  auto source = open(path, options);
  return restore_all(*source, options, [&](const TensorInfo& info) {
    return read_local(*source, info, options.device.value_or(Device()));
  });
}

// What every rank reads by itself, all of them the same; then they send each other what they have read for all.
Loaded load_together(const fs::path& path, const LoadOptions& options) {
  struct Read {
    Tensor tensor;
    const GlobalSpec* target;
  };
  std::unique_ptr<Source> source;
  std::vector<Read> all;
  auto found = results_together("load", [&] {
    source = open(path, options);
    restore_all(*source, options, [&](const TensorInfo& info) -> Tensor {
      auto* spec = spec_of(*source, info, options);
      auto* first =
          spec ? layout_to_read(spec, info.shape, info.dtype, source->parts(info), source->axis_order(info)) : nullptr;
      all.push_back(
          {spec ? read_global(*source, info, first) : read_local(*source, info, options.device.value_or(Device())),
           spec});
      return {};
    });
    return std::to_string(source->fingerprint());
  });
  if (std::adjacent_find(found.begin(), found.end(), std::not_equal_to<>()) != found.end())
    throw Superseded(ErrorKind::kRuntime,
                     "some ranks read the old, some the new. (Or does each host have its own file?)");
  size_t at = 0;
  Value value = restore_all(*source, options, [&](const TensorInfo&) {
    auto [tensor, target] = std::exchange(all[at++], {});
    if (!target || tensor.spec() == target) return tensor;
    return to_global(tensor, target->placement, target->nd_sbp);
  });
  return {std::move(value), source->own()};
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

Loaded checkpoint::load_folder(const fs::path& path, const LoadOptions& options) {
  NoGradGuard guard;
  return until_whole(path, [&] { return load_together(path, options); });
}

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
    if (options.sbp_of) fail_value("load: sbp_of is for ranks that each read their part. Leave global_src_rank out.");
    Value value = until_whole(path, [&] { return try_load_from(*src, path, options); });
    if (!options.placement) return value;
    return mapped(value, [&](const Tensor& t) {
      auto* spec = wanted_spec(options, "", t.shape());
      return to_global(t, spec->placement, spec->nd_sbp);
    });
  }
  // A file's own tensors are local: nobody else need be there.
  std::error_code none;
  bool of_parts = fs::is_directory(path, none) && fs::exists(path / kIndexFile, none);
  const bool alone = !options.placement && (options.device || !of_parts);
  return until_whole(path, [&] { return alone ? load_alone(path, options) : load_together(path, options).value; });
}

}  // namespace holon
