#include <algorithm>
#include <filesystem>
#include <memory>
#include <sstream>

#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/hash.h"
#include "holon/base/index.h"
#include "holon/checkpoint/checkpoint.h"
#include "holon/checkpoint/folder.h"
#include "holon/checkpoint/huggingface.h"
#include "holon/checkpoint/saving.h"
#include "holon/checkpoint/tree.h"
#include "holon/checkpoint/world.h"
#include "holon/ops/to_global.h"

namespace holon {

namespace fs = std::filesystem;
using namespace checkpoint;

namespace {

using Named = std::pair<std::string, Tensor>;

constexpr uint64_t kTakesLong = uint64_t{64} << 20;  // bytes of a file

// Large elements first, so that all are aligned in a mapped file.
void order_for_file(std::vector<Named>& tensors) {
  std::stable_sort(tensors.begin(), tensors.end(),
                   [](auto& a, auto& b) { return size_bytes(a.second.dtype()) > size_bytes(b.second.dtype()); });
}

TensorInfo announced(const std::string& name, const Tensor& t, const Dims& shape) {
  return {name, t.dtype(), shape, 0, 0};
}

// The ranks are about to communicate for one tensor after the other: they must have the same ones.
void check_alike(const std::vector<Named>& tensors, const std::string& how) {
  std::string mine = how;
  for (auto& [name, t] : tensors)
    if (t.is_global()) mine += fmt::format("\n{}: {} {} {}", name, holon::name(t.dtype()), t.shape(), t.spec()->str());
  auto hashes = share("save", std::to_string(hash_text(mine)));
  if (std::all_of(hashes.begin(), hashes.end(), [&](auto& h) { return h == hashes[0]; })) return;
  auto all = share("save", mine);
  for (size_t r = 1; r < all.size(); ++r) {
    if (all[r] == all[0]) continue;
    auto line = [](const std::string& text, size_t from) {
      return from < text.size() ? text.substr(from, text.find('\n', from) - from) : "nothing more";
    };
    size_t at = 0;
    while (at < std::min(all[0].size(), all[r].size()) && line(all[0], at) == line(all[r], at))
      at += line(all[0], at).size() + 1;
    fail_value("save: the ranks save different global tensors. The first difference: rank 0 {}; rank {} {}. Pass the "
               "same object on every rank.",
               line(all[0], at), r, line(all[r], at));
  }
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

SavedLayout layout_of(const GlobalSpec& spec) {
  const Placement& p = spec.placement;
  return {name(p.device_type()),
          {p.hierarchy().begin(), p.hierarchy().end()},
          {p.ranks().begin(), p.ranks().end()},
          {spec.nd_sbp.begin(), spec.nd_sbp.end()}};
}

NdSbp without_partial(NdSbp sbp) {
  for (int a = 0; a < sbp.size(); ++a)
    if (sbp[a].is_partial()) sbp = sbp.with(a, sbp::broadcast());
  return sbp;
}

// Rank 0 says by an id that the save is under way. The ranks write their parts, and say that they have. Rank 0 replaces
// the index, which is the moment of the save, says so, and sweeps up. A wait in between may fail on some ranks only, so
// that nobody knows what the others do next: then all that was written stays, for the next save to sweep up.
void save_parts(Flat flat, const fs::path& path) {
  const int rank = Context::current().rank(), n = Context::current().world_size();
  std::unique_ptr<SaveUnderWay> under_way;
  const std::string id = results_together("save", [&] {
    if (rank != 0) return std::string();
    under_way = std::make_unique<SaveUnderWay>(path);
    run_io(SIZE_MAX, [&] { sweep(path); });
    return under_way->id();
  })[0];
  auto file_of = [&](int r) { return part_file(id, r, n); };
  Index index{flat.tree, {}, {}};
  std::vector<TensorInfo> infos;
  std::vector<Tensor> mine;
  for (auto& [name, t] : flat.tensors) {
    IndexEntry entry{t.dtype(), t.shape(), {}, {}};
    if (t.is_global()) {
      if (t.nd_sbp().has_partial()) t = to_global(t, t.placement(), without_partial(t.nd_sbp()));
      entry.layout = layout_of(*t.spec());
      entry.parts = parts_of(t.shape(), *t.spec(), file_of);
    } else if (t.numel() > 0) {
      entry.parts = {{file_of(0), Dims::filled(t.ndim(), 0), t.shape()}};
    }
    for (auto& part : entry.parts)
      if (part.file == file_of(rank)) {
        infos.push_back(announced(name, t, part.shape));
        mine.push_back(t);
      }
    index.tensors[name] = std::move(entry);
  }
  try {
    auto sums = results_together("save", [&]() -> std::string {
      make_folder(path);
      if (infos.empty()) return "";
      SafetensorsWriter writer(path / file_of(rank), std::move(infos), {}, true);
      for (auto& t : mine) writer.write(t.array());
      FileSum sum = writer.commit();
      return fmt::format("{} {}", sum.bytes, sum.header);
    });
    for (int r = 0; r < n; ++r) {
      FileSum sum;
      if (std::istringstream(at_index(sums, r)) >> sum.bytes >> sum.header) index.files[file_of(r)] = sum;
    }
    together("save", [&] {
      if (rank != 0) return;
      std::string text = index_text(index);
      data::AtomicFile file(path / kIndexFile);
      run_io(SIZE_MAX, [&] {
        file.write(text.data(), text.size());
        file.commit();
      });
    });
  } catch (const StepFailed&) {
    std::error_code none;
    fs::remove(path / file_of(rank), none);
    throw;
  }
  if (rank != 0) return;
  std::error_code none;
  fs::remove(path / kWholeFile, none);
  sweep(path);
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
  for (auto& [name, t] : flat.tensors)
    if (t.is_global() && t.nd_sbp().has_partial()) t = to_global(t, t.placement(), without_partial(t.nd_sbp()));
  save_huggingface(flat.tensors, path, options.shard_bytes, global);
}

}  // namespace

void save(const Value& value, const FilePath& given, const SaveOptions& options) {
  const fs::path path = given.string();
  const int n = Context::current().world_size();
  if (path.empty()) fail_value("save: the path is empty.");
  if (auto dst = options.global_dst_rank; dst && (*dst < 0 || *dst >= n))
    fail_value("save: global_dst_rank is {}; the ranks of this world are 0 to {}.", *dst, n - 1);
  NoGradGuard guard;
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
  save_parts(std::move(flat), path);
}

}  // namespace holon
