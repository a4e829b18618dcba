#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/checkpoint/checkpoint.h"
#include "holon/checkpoint/core/read_layout.h"
#include "holon/checkpoint/core/tree.h"
#include "holon/checkpoint/core/world.h"
#include "holon/checkpoint/formats/dequantize.h"
#include "holon/checkpoint/formats/folder.h"
#include "holon/checkpoint/formats/mapped_source.h"
#include "holon/checkpoint/formats/open.h"
#include "holon/checkpoint/formats/source.h"
#include "holon/checkpoint/loading.h"
#include "holon/global/slice.h"
#include "holon/kernels/on_device.h"
#include "holon/ops/to_global.h"

namespace holon {

namespace fs = std::filesystem;
using namespace checkpoint;

namespace {

constexpr int kMostTries = 20;

std::unique_ptr<Source> open(const fs::path& path, const LoadOptions& options) {
  return as_requested(open_source(path), options);
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

const GlobalSpec* wanted_spec(const char* op, const LoadOptions& options, const std::string& name, const Dims& shape) {
  const NdSbp given = options.sbp_of ? options.sbp_of(name.substr(options.prefix.size())) : options.sbp;
  NdSbp nd_sbp = given.size() == 1 ? NdSbp::filled(options.placement.hierarchy().size(), given[0]) : given;
  if (nd_sbp.size() != options.placement.hierarchy().size() || nd_sbp.has_partial())
    fail_value("{}: sbp {} does not fit {}. Give one split or broadcast for each axis of its hierarchy.", op, given,
               options.placement);
  if (!fits(shape, nd_sbp)) nd_sbp = NdSbp::filled(nd_sbp.size(), sbp::broadcast());
  return intern_spec(options.placement, nd_sbp);
}

bool is_part(const LoadOptions& options) {
  return options.key_map || !options.prefix.empty() || options.select || options.rename || !options.like.empty();
}

using Selection = std::vector<std::pair<std::string, TensorInfo>>;  // by the name that a tensor gets

using ByName = std::unordered_map<std::string_view, const Tensor*>;

ByName by_name(const nn::StateDict& state) {
  ByName out;
  for (auto& [name, t] : state) out.emplace(name, &t);
  return out;
}

// Errors: the selected tensors are not those of options.like. Takes away what that has not.
void check_like(const char* op, const Source& source, const LoadOptions& options, Selection& selection) {
  const ByName like = by_name(options.like);
  std::unordered_set<std::string_view> there;
  std::vector<std::string> errors;
  for (auto& [name, info] : selection) {
    there.insert(name);
    auto it = like.find(name);
    if (it == like.end()) {
      if (options.strict) errors.push_back(fmt::format("'{}' is not expected", name));
    } else if (it->second->shape() != info.shape) {
      errors.push_back(fmt::format("'{}' is {}, and {} is expected", name, info.shape, it->second->shape()));
    }
  }
  for (auto& [name, t] : options.like)
    if (options.strict && !there.contains(name)) errors.push_back(fmt::format("'{}' is missing", name));
  if (!errors.empty()) {
    constexpr size_t kMost = 8;
    const size_t n = errors.size();
    errors.resize(std::min(n, kMost));
    fail_value("{}: the tensors of {} are not those of the state dict: {}{}. Check the prefix and the names; "
               "strict=false allows names to differ.",
               op, source.name(), fmt::format("{}", fmt::join(errors, "; ")),
               n > kMost ? fmt::format("; and {} more", n - kMost) : "");
  }
  std::erase_if(selection, [&](auto& e) { return !like.contains(e.first); });
}

Selection selected(const char* op, const Source& source, const LoadOptions& options) {
  Selection out;
  std::set<std::string> names;
  for (auto& info : source.tensors()) {
    if (!info.name.starts_with(options.prefix)) continue;
    std::string name = info.name.substr(options.prefix.size());
    if (options.select && !options.select(name)) continue;
    if (options.rename) name = options.rename(name);
    if (!names.insert(name).second)
      fail_value("{}: rename gives '{}' and another tensor the same name '{}'.", op, info.name, name);
    out.emplace_back(std::move(name), info);
  }
  if (out.empty() && options.strict)
    fail_value("{}: no tensor of {} is selected{}. Check the names, or pass strict=false.", op, source.name(),
               options.prefix.empty() ? "" : fmt::format(" by the prefix '{}'", options.prefix));
  if (!options.like.empty()) check_like(op, source, options, out);
  return out;
}

// Reads the tensor that gets this name in the result.
using Read = std::function<Tensor(const TensorInfo& info, const std::string& name)>;

// A dict of the tensors that the options select.
Value restore_part(const char* op, Source& source, const LoadOptions& options, const Read& read) {
  Value::Dict dict;
  for (auto& [name, info] : selected(op, source, options)) dict.push_back({name, read(info, name)});
  return dict;
}

Value restore_all(const char* op, Source& source, const LoadOptions& options, const Read& read) {
  if (is_part(options)) return restore_part(op, source, options, read);
  std::map<std::string, TensorInfo> infos;
  for (auto& info : source.tensors()) infos.emplace(info.name, info);
  return restore(source.tree(), source.name(), [&](const std::string& name) {
    auto it = infos.find(name);
    if (it == infos.end())
      fail_runtime("{}: tensor '{}' is referred to and does not exist. The file is damaged.", source.name(), name);
    return read(it->second, name);
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
    value = restore_all("load", *source, options,
                        [&](const TensorInfo& info, const std::string&) { return read_global(*source, info, spec); });
  });
  return value;
}

// Where a tensor goes: the layout that it gets, or, without one, the device that it is local on.
struct Target {
  const GlobalSpec* spec = nullptr;
  Device device = {};
};

Target target_of(const char* op, const Source& source, const TensorInfo& info, const std::string& name,
                 const LoadOptions& options, const ByName& like) {
  if (!like.empty()) {
    const Tensor& t = *like.at(name);
    return t.is_global() ? Target{t.spec(), {}} : Target{nullptr, t.array().device};
  }
  if (options.placement) return {wanted_spec(op, options, info.name, info.shape), {}};
  const SavedLayout* saved = options.device ? nullptr : source.layout(info.name);
  return {saved ? restored_spec(*saved, info.shape, source.name()) : nullptr, options.device.value_or(Device())};
}

Value load_alone(const fs::path& path, const LoadOptions& options) {
  auto source = open(path, options);
  return restore_all("load", *source, options, [&](const TensorInfo& info, const std::string&) {
    return read_local(*source, info, options.device.value_or(Device()));
  });
}

}  // namespace

uint64_t checkpoint::bytes_read() { return bytes_read_by_rank(); }

std::unique_ptr<Source> checkpoint::as_requested(std::unique_ptr<Source> source, const LoadOptions& options) {
  source = dequantized(std::move(source), options.dequantize);
  return options.key_map ? mapped(std::move(source), *options.key_map, options.prefix) : std::move(source);
}

// What every rank reads by itself, all of them the same; then they send each other what they have read for all.
Loaded checkpoint::load_together(const char* op, const std::function<std::unique_ptr<Source>()>& open,
                                 const LoadOptions& options) {
  struct ReadTensor {
    Tensor tensor;
    const GlobalSpec* target;
  };
  std::unique_ptr<Source> source;
  std::vector<ReadTensor> all;
  const ByName like = by_name(options.like);
  auto found = results_together(op, [&] {
    source = open();
    restore_all(op, *source, options, [&](const TensorInfo& info, const std::string& name) -> Tensor {
      const Target target = target_of(op, *source, info, name, options, like);
      auto* first = target.spec ? layout_to_read(target.spec, info.shape, info.dtype, source->stored(info)) : nullptr;
      all.push_back(
          {first ? read_global(*source, info, first) : read_local(*source, info, target.device), target.spec});
      return {};
    });
    return std::to_string(source->fingerprint());
  });
  if (std::adjacent_find(found.begin(), found.end(), std::not_equal_to<>()) != found.end())
    throw Superseded(ErrorKind::kRuntime,
                     "some ranks read the old, some the new. (Or does each host have its own file?)");
  size_t at = 0;
  Value value = restore_all(op, *source, options, [&](const TensorInfo&, const std::string&) {
    auto [tensor, target] = std::exchange(all[at++], {});
    if (!target || tensor.spec() == target) return tensor;
    return to_global(tensor, target->placement, target->nd_sbp);
  });
  return {std::move(value), source->own()};
}

namespace {

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
  check_options("load", options);
  return until_whole(path, [&] {
    return load_together(
        "load", [&] { return open(path, options); }, options);
  });
}

void checkpoint::check_options(const char* op, const LoadOptions& options) {
  if (options.device && (options.placement || options.global_src_rank))
    fail_value("{}: device applies to local tensors, placement and global_src_rank to global ones. Give one or the "
               "other.",
               op);
  if (options.like.empty()) return;
  if (options.device || options.placement || options.global_src_rank || options.sbp_of)
    fail_value("{}: the state dict says where each tensor goes. Leave placement, sbp, device and global_src_rank out.",
               op);
  for (auto& [name, t] : options.like)
    if (!t.defined() || (t.is_global() && t.nd_sbp().has_partial()))
      fail_value("{}: '{}' of the state dict {}. Pass tensors that are split or broadcast, or local.", op, name,
                 t.defined() ? "is a partial sum" : "is undefined");
}

Value load(const FilePath& given, const LoadOptions& options) {
  const fs::path path = given.string();
  const int n = Context::current().world_size();
  NoGradGuard guard;
  check_options("load", options);
  if (auto src = options.global_src_rank) {
    if (*src < 0 || *src >= n)
      fail_value("load: global_src_rank is {}; the ranks of this world are 0 to {}.", *src, n - 1);
    if (options.sbp_of) fail_value("load: sbp_of is for ranks that each read their part. Leave global_src_rank out.");
    Value value = until_whole(path, [&] { return try_load_from(*src, path, options); });
    if (!options.placement) return value;
    return mapped(value, [&](const Tensor& t) {
      auto* spec = wanted_spec("load", options, "", t.shape());
      return to_global(t, spec->placement, spec->nd_sbp);
    });
  }
  // A file's own tensors are local: nobody else need be there.
  std::error_code none;
  bool of_parts = fs::is_directory(path, none) && fs::exists(path / kIndexFile, none);
  const bool alone = !options.placement && options.like.empty() && (options.device || !of_parts);
  return until_whole(path, [&] {
    return alone ? load_alone(path, options)
                 : load_together(
                       "load", [&] { return open(path, options); }, options)
                       .value;
  });
}

}  // namespace holon
