#include "holon/checkpoint/parts.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <sstream>

#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/hash.h"
#include "holon/base/index.h"
#include "holon/checkpoint/core/layout.h"
#include "holon/checkpoint/core/pieces.h"
#include "holon/checkpoint/core/world.h"
#include "holon/checkpoint/formats/folder.h"
#include "holon/checkpoint/formats/saving.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/cpu/stream.h"
#include "holon/kernels/on_device.h"
#include "holon/ops/to_global.h"

namespace holon::checkpoint {

namespace fs = std::filesystem;

namespace {

constexpr uint64_t kLeastShare = uint64_t{1} << 20;  // bytes

// Cuts a piece of a tensor into n parts along one axis: the first that is long enough, else the longest.
std::vector<Region> cut(const Region& piece, int64_t n) {
  int axis = 0;
  for (int a = 1; a < piece.shape.size() && piece.shape[axis] < n; ++a)
    if (piece.shape[a] > piece.shape[axis]) axis = a;
  if (piece.shape.size() == 0) return {piece};
  n = std::min(n, piece.shape[axis]);
  std::vector<Region> parts;
  for (int64_t i = 0; i < n; ++i) {
    const Interval at = balanced_split(piece.shape[axis], n, i);
    Region part = piece;
    part.offset[axis] += at.begin;
    part.shape[axis] = at.size;
    parts.push_back(std::move(part));
  }
  return parts;
}

NdSbp without_partial(NdSbp sbp) {
  for (int a = 0; a < sbp.size(); ++a)
    if (sbp[a].is_partial()) sbp = sbp.with(a, sbp::broadcast());
  return sbp;
}

}  // namespace

std::vector<std::vector<Share>> share_out(std::span<const SavedTensor> tensors, int world_size) {
  std::vector<uint64_t> bytes(to_size(world_size));  // by rank, so far
  std::vector<std::vector<Share>> all;
  for (auto& t : tensors) {
    auto& shares = all.emplace_back();
    if (t.shape.numel() == 0) continue;
    auto give = [&](int rank, const Region& region) {
      shares.push_back({rank, region});
      at_index(bytes, rank) += to_size(region.shape.numel()) * size_bytes(t.dtype);
    };
    if (!t.spec) {
      give(0, {Dims::filled(t.shape.size(), 0), t.shape});
      continue;
    }
    for (auto& [piece, ranks] : held_regions(t.shape, layout_of(*t.spec))) {
      const uint64_t size = to_size(piece.shape.numel()) * size_bytes(t.dtype);
      std::stable_sort(ranks.begin(), ranks.end(),
                       [&](int a, int b) { return at_index(bytes, a) < at_index(bytes, b); });
      const uint64_t n = std::clamp<uint64_t>(size / kLeastShare, 1, ranks.size());
      auto parts = cut(piece, static_cast<int64_t>(n));
      for (size_t i = 0; i < parts.size(); ++i) give(ranks[i], parts[i]);
    }
  }
  return all;
}

void sum_partials(std::vector<std::pair<std::string, Tensor>>& tensors) {
  for (auto& [name, t] : tensors)
    if (t.is_global() && t.nd_sbp().has_partial()) t = to_global(t, t.placement(), without_partial(t.nd_sbp()));
}

void order_for_file(std::vector<std::pair<std::string, Tensor>>& tensors) {
  std::stable_sort(tensors.begin(), tensors.end(),
                   [](auto& a, auto& b) { return size_bytes(a.second.dtype()) > size_bytes(b.second.dtype()); });
}

void check_alike(const std::vector<std::pair<std::string, Tensor>>& tensors, const std::string& how, const char* op) {
  std::string mine = how;
  for (auto& [name, t] : tensors)
    if (t.is_global()) mine += fmt::format("\n{}: {} {} {}", name, holon::name(t.dtype()), t.shape(), t.spec()->str());
  auto hashes = share(op, std::to_string(hash_text(mine)));
  if (std::all_of(hashes.begin(), hashes.end(), [&](auto& h) { return h == hashes[0]; })) return;
  auto all = share(op, mine);
  for (size_t r = 1; r < all.size(); ++r) {
    if (all[r] == all[0]) continue;
    auto line = [](const std::string& text, size_t from) {
      return from < text.size() ? text.substr(from, text.find('\n', from) - from) : "nothing more";
    };
    size_t at = 0;
    while (at < std::min(all[0].size(), all[r].size()) && line(all[0], at) == line(all[r], at))
      at += line(all[0], at).size() + 1;
    fail_value("{0}: the ranks {0} different global tensors. The first difference: rank 0 {1}; rank {2} {3}. Pass the "
               "same object on every rank.",
               op, line(all[0], at), r, line(all[r], at));
  }
}

FolderState folder_state(Flat flat) {
  const int rank = Context::current().rank();
  FolderState state{std::move(flat.tree), {}, {}, {}};
  std::vector<Array> arrays;
  sum_partials(flat.tensors);
  for (auto& [name, t] : flat.tensors) {
    state.tensors.push_back({name, t.dtype(), t.shape(), t.is_global() ? t.spec() : nullptr, {}});
    arrays.push_back(t.array());
  }
  state.shares = share_out(state.tensors, Context::current().world_size());
  for (size_t i = 0; i < state.tensors.size(); ++i)
    for (auto& share : state.shares[i]) {
      if (share.rank != rank) continue;
      SavedTensor& t = state.tensors[i];
      const Region held = t.spec
          ? region_of(t.shape, t.spec->placement, t.spec->nd_sbp, t.spec->placement.index_of(rank))
          : Region{Dims::filled(t.shape.size(), 0), t.shape};
      t.mine = region_in(arrays[i], held, share.region);
    }
  return state;
}

void copy_own_parts(FolderState& state) {
  size_t all = 0;
  for (auto& t : state.tensors) all += t.mine.defined() ? t.mine.nbytes() : 0;
  for (auto& t : state.tensors) {
    if (!t.mine.defined()) continue;
    run_io(0, [&] {  // here; the others hear that it goes on
      Array here = kernels::on_device(t.mine, {});
      if (here.storage.get() == t.mine.storage.get()) {
        here = Array::empty(t.mine.shape, t.dtype);
        // Nobody reads the copies soon: together they are beyond the caches, whatever the size of each.
        if (t.mine.is_contiguous())
          kernels::copy_bytes(here.bytes(), t.mine.bytes(), t.mine.nbytes(), all);
        else
          kernels::copy(t.mine, here);
      }
      t.mine = std::move(here);
    });
  }
}

// Rank 0 announces the save by an id. The ranks write their parts, and report that they have. Rank 0 replaces the
// index, which is the moment of the save, reports it, and sweeps up. A wait in between may fail on some ranks only, so
// that nobody knows what the others do next: then all that was written stays, for the next save to sweep up.
void write_folder(const FolderState& state, const fs::path& path) {
  const int rank = Context::current().rank(), n = Context::current().world_size();
  std::unique_ptr<SaveUnderWay> under_way;
  const std::string id = results_together("save", [&] {
    if (rank != 0) return std::string();
    under_way = std::make_unique<SaveUnderWay>(path);
    run_io(SIZE_MAX, [&] { sweep(path); });
    return under_way->id();
  })[0];
  auto file_of = [&](int r) { return part_file(id, r, n); };
  Index index{state.tree, {}, {}, state.own};
  std::vector<TensorInfo> infos;
  std::vector<const Array*> mine;
  for (size_t i = 0; i < state.tensors.size(); ++i) {
    const SavedTensor& t = state.tensors[i];
    IndexEntry entry{t.dtype, t.shape, {}, {}};
    if (t.spec) entry.layout = layout_of(*t.spec);
    for (auto& share : state.shares[i]) {
      entry.parts.push_back({file_of(share.rank), share.region.offset, share.region.shape});
      if (share.rank != rank) continue;
      infos.push_back({t.name, t.dtype, share.region.shape, 0, 0});
      mine.push_back(&t.mine);
    }
    index.tensors[t.name] = std::move(entry);
  }
  try {
    auto sums = results_together("save", [&]() -> std::string {
      make_folder(path);
      if (infos.empty()) return "";
      SafetensorsWriter writer(path / file_of(rank), std::move(infos), {}, true);
      for (auto* array : mine) writer.write(*array);
      FileSum sum = writer.commit();
      return fmt::format("{} {}", sum.bytes, sum.header);
    });
    for (int r = 0; r < n; ++r) {
      FileSum sum;
      if (std::istringstream(at_index(sums, r)) >> sum.bytes >> sum.header) index.files[file_of(r)] = sum;
    }
    together("save", [&] {
      if (rank == 0) write_index(index, path);
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

}  // namespace holon::checkpoint
