#include <unistd.h>

#include <algorithm>
#include <random>
#include <unordered_map>

#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/checkpoint/checkpoint.h"
#include "holon/checkpoint/folder.h"
#include "holon/checkpoint/tree.h"
#include "holon/checkpoint/world.h"
#include "holon/ops.h"

namespace holon {

namespace fs = std::filesystem;
using namespace checkpoint;

namespace {

using Named = std::pair<std::string, Tensor>;

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
  auto hashes = share("save", std::to_string(std::hash<std::string>()(mine)));
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
    fail_value("save: the ranks save different global tensors. The first difference: rank 0 {}; rank {} {}. Give the "
               "same object on every rank.",
               line(all[0], at), r, line(all[r], at));
  }
}

fs::path whole_file(const fs::path& path) {
  std::error_code none;
  return fs::is_directory(path, none) ? path / kWholeFile : path;
}

// What a folder holds of the other form is old once `path` has been written.
void remove_index_of(const fs::path& path, const fs::path& file) {
  if (file == path) return;
  auto old = files_of_index(path);
  std::error_code none;
  fs::remove(path / kIndexFile, none);
  for (auto& name : old) fs::remove(path / name, none);
}

std::unique_ptr<SafetensorsWriter> open_whole(const fs::path& path, const Flat& flat) {
  std::vector<TensorInfo> infos;
  for (auto& [name, t] : flat.tensors) infos.push_back(announced(name, t, t.shape()));
  return std::make_unique<SafetensorsWriter>(whole_file(path), std::move(infos), Metadata{{kTreeKey, flat.tree}});
}

void save_alone(const Flat& flat, const fs::path& path) {
  fs::path file = whole_file(path);
  auto writer = open_whole(path, flat);
  for (auto& [name, t] : flat.tensors) writer->write(t.array());
  writer->commit();
  remove_index_of(path, file);
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
    if (!here || failed) continue;
    try {
      writer->write(whole.array());
    } catch (...) {
      failed = std::current_exception();
    }
  }
  together("save", [&] {
    if (failed) std::rethrow_exception(failed);
    if (here) {
      writer->commit();
      remove_index_of(path, file);
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

void save_parts(Flat flat, const fs::path& path) {
  const int rank = Context::current().rank(), n = Context::current().world_size();
  std::string id = share_from("save", 0, fmt::format("{:08x}", std::random_device{}()));
  auto file_of = [&](int r) { return fmt::format("part-{}-{}-of-{}.safetensors", id, r, n); };
  Index index{flat.tree, {}};
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
  std::vector<std::string> old;
  try {
    together("save", [&] {
      std::error_code failed;
      fs::create_directory(path, failed);
      if (failed)
        fail_runtime("cannot make the folder {}: {}. Each rank writes a file of its own into it.", path.string(),
                     failed.message());
      if (infos.empty()) return;
      SafetensorsWriter writer(path / file_of(rank), std::move(infos), {});
      for (auto& t : mine) writer.write(t.array());
      writer.commit();
    });
    together("save", [&] {
      if (rank != 0) return;
      old = files_of_index(path);
      std::string text = index_text(index);
      data::AtomicFile file(path / kIndexFile);
      file.write(text.data(), text.size());
      file.commit();
    });
  } catch (...) {
    std::error_code none;
    fs::remove(path / file_of(rank), none);
    throw;
  }
  if (rank != 0) return;
  std::error_code none;
  for (auto& name : old) fs::remove(path / name, none);
  fs::remove(path / kWholeFile, none);
}

}  // namespace

void save(const Value& value, const fs::path& path, const SaveOptions& options) {
  const int n = Context::current().world_size();
  if (path.empty()) fail_value("save: the path is empty.");
  if (auto dst = options.global_dst_rank; dst && (*dst < 0 || *dst >= n))
    fail_value("save: global_dst_rank is {}; the ranks of this world are 0 to {}.", *dst, n - 1);
  NoGradGuard guard;
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
