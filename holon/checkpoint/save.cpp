#include <algorithm>
#include <filesystem>
#include <memory>

#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/checkpoint/checkpoint.h"
#include "holon/checkpoint/core/pieces.h"
#include "holon/checkpoint/core/tree.h"
#include "holon/checkpoint/core/world.h"
#include "holon/checkpoint/formats/folder.h"
#include "holon/checkpoint/formats/huggingface.h"
#include "holon/checkpoint/formats/saving.h"
#include "holon/checkpoint/parts.h"
#include "holon/ops/to_global.h"

namespace holon {

namespace fs = std::filesystem;
using namespace checkpoint;

namespace {

constexpr uint64_t kTakesLong = uint64_t{64} << 20;  // bytes of a file

TensorInfo announced(const std::string& name, const Tensor& t, const Dims& shape) {
  return {name, t.dtype(), shape, 0, 0};
}

fs::path whole_file(const fs::path& path) {
  std::error_code none;
  return fs::is_directory(path, none) ? path / kWholeFile : path;
}

// What is old once the whole file has been written: what its folder holds of the other form, and what killed writers
// have left.
void sweep_around(const fs::path& path, const fs::path& file) {
  if (file == path) return data::remove_dead_temporaries(file.parent_path());
  std::error_code none;
  fs::remove(path / kIndexFile, none);
  sweep(path);
}

std::unique_ptr<SafetensorsWriter> open_whole(const fs::path& path, const Flat& flat) {
  std::vector<TensorInfo> infos;
  for (auto& [name, t] : flat.tensors) infos.push_back(announced(name, t, t.shape()));
  return std::make_unique<SafetensorsWriter>(whole_file(path), std::move(infos), Metadata{{kTreeKey, flat.tree}}, true);
}

void save_alone(const Flat& flat, const fs::path& path) {
  fs::path file = whole_file(path);
  auto writer = open_whole(path, flat);
  for (auto& [name, t] : flat.tensors) writer->write(t.array());
  writer->commit();
  sweep_around(path, file);
}

void save_at(int dst, const Flat& flat, const fs::path& path) {
  const bool here = Context::current().rank() == dst;
  fs::path file = whole_file(path);
  std::unique_ptr<SafetensorsWriter> writer;
  together("save", [&] {
    if (here) writer = open_whole(path, flat);
  });
  // A disk that fills up must not leave the others waiting: they go on, and hear of it at the end.
  std::exception_ptr failed;
  for (auto& [name, t] : flat.tensors) {
    Tensor whole =
        t.is_global() ? to_global(t, Placement(holon::name(t.placement().device_type()), {dst}), sbp::broadcast()) : t;
    auto write = [&] {
      if (!here || failed) return;
      try {
        writer->write(whole.array());
      } catch (const Error&) {
        failed = std::current_exception();
      }
    };
    // What takes long is waited for here, as the next tensor's collectives have a time-out.
    t.is_global() && static_cast<uint64_t>(t.numel()) * size_bytes(t.dtype()) >= kTakesLong ? together("save", write)
                                                                                            : write();
  }
  together("save", [&] {
    if (failed) std::rethrow_exception(failed);
    if (here) {
      writer->commit();
      sweep_around(path, file);
    }
  });
}

// The folder that Hugging Face's libraries read. Shards are laid out from what all ranks know: that has to be alike.
void save_for_others(const Value& value, const fs::path& path, const SaveOptions& options) {
  if (options.global_dst_rank)
    fail_value("save: in the format hf all ranks write their parts. Leave global_dst_rank out.");
  if (path.extension() == ".safetensors")
    fail_value("save: the format hf is a folder of files, and {} is the name of a file. Name a folder.", path.string());
  if (options.shard_bytes == 0) fail_value("save: the size of a shard is 0 bytes. Give at least 1.");
  check_only_tensors(value);
  Flat flat = flatten(value);
  bool global = false;
  std::string how = "in the format hf to " + path.string();
  for (auto& [name, t] : flat.tensors) {
    global |= t.is_global();
    if (t.is_local()) how += fmt::format("\n{}: local {} {}", name, holon::name(t.dtype()), t.shape());
  }
  if (global) check_alike(flat.tensors, fmt::format("{}\nshards of {} bytes", how, options.shard_bytes));
  sum_partials(flat.tensors);
  std::vector<Weight> weights;
  for (auto& [name, t] : flat.tensors) {
    const GlobalSpec* spec = t.is_global() ? t.spec() : nullptr;
    const int index = spec ? spec->placement.index_of(Context::current().rank()) : -1;
    const Region held = index < 0 ? whole(t.shape()) : region_of(t.shape(), spec->placement, spec->nd_sbp, index);
    const Array array = t.array();
    weights.push_back({name, t.dtype(), t.shape(), spec,
                       [array, held](const Region& region) { return region_in(array, held, region); }});
  }
  save_huggingface(weights, path, options.shard_bytes, global);
}

}  // namespace

void save(const Value& value, const FilePath& given, const SaveOptions& options) {
  const fs::path path = given.string();
  const int n = Context::current().world_size();
  if (path.empty()) fail_value("save: the path is empty.");
  if (auto dst = options.global_dst_rank; dst && (*dst < 0 || *dst >= n))
    fail_value("save: global_dst_rank is {}; the ranks of this world are 0 to {}.", *dst, n - 1);
  NoGradGuard guard;
  if (options.key_map) {
    check_only_tensors(value);
    SaveOptions rest = options;
    rest.key_map.reset();
    return save(options.key_map->inverse().apply(value.state_dict()), given, rest);
  }
  if (options.format == Format::kHuggingFace) return save_for_others(value, path, options);
  Flat flat = flatten(value);
  order_for_file(flat.tensors);
  const bool global =
      std::any_of(flat.tensors.begin(), flat.tensors.end(), [](auto& e) { return e.second.is_global(); });
  if (!global && (n == 1 || !options.global_dst_rank)) return save_alone(flat, path);
  if (options.global_dst_rank) {
    check_alike(flat.tensors, fmt::format("to rank {}", *options.global_dst_rank));
    return save_at(*options.global_dst_rank, flat, path);
  }
  check_alike(flat.tensors, "to the folder " + path.string());
  write_folder(folder_state(std::move(flat)), path);
}

}  // namespace holon
