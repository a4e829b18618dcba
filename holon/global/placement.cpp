#include "holon/global/placement.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <numeric>
#include <unordered_map>

#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/fork.h"
#include "holon/base/index.h"

namespace holon {

namespace {
std::atomic<bool> on_one_rank{false};
}

void set_placements_on_one_rank(bool on) { on_one_rank = on; }

Placement::Placement(std::string_view type, std::vector<int64_t> ranks)
    : Placement(type, Dims{static_cast<int64_t>(ranks.size())}, ranks) {}

Placement::Placement(std::string_view type, const Dims& asked, std::vector<int64_t> ranks) {
  Dims hierarchy = asked;
  DeviceType device_type = parse_device_type(type);
  bool simulated = check_device_type(device_type);
  if (ranks.empty()) fail_value("placement: the list of ranks is empty; a placement has at least one rank.");
  bool grid = !hierarchy.empty();
  for (int64_t n : hierarchy) grid &= n > 0;
  if (!grid || hierarchy.numel() != static_cast<int64_t>(ranks.size()))
    fail_value("placement: {} ranks do not fill a grid of {}.", ranks.size(), hierarchy);

  int world = Context::current().world_size();
  if (on_one_rank && world == 1) {
    ranks = {0};
    for (int64_t& n : hierarchy) n = 1;
  }
  std::vector<int> index(to_size(*std::max_element(ranks.begin(), ranks.end()) < world ? world : 0), -1);
  for (size_t i = 0; i < ranks.size(); ++i) {
    int64_t r = ranks[i];
    if (r < 0) fail_value("placement: rank {} is negative; ranks are counted from 0.", r);
    if (r >= world)
      fail_value("placement: rank {} is not in the world of {} ranks: start more ranks (--nproc_per_node) or use ranks "
                 "below {}.",
                 r, world, world);
  }
  for (size_t i = 0; i < ranks.size(); ++i) {
    auto& slot = at_index(index, ranks[i]);
    if (slot >= 0) fail_value("placement: rank {} is given twice; each rank holds one part.", ranks[i]);
    slot = static_cast<int>(i);
  }
  while (index.back() < 0) index.pop_back();

  std::string key = fmt::format("{}{}{}:", static_cast<int>(device_type), simulated, hierarchy);
  for (int64_t r : ranks) key += std::to_string(r) + ",";
  // Both are never destroyed: handles may outlive main().
  static auto* mutex = new ProcessMutex;
  static auto* table = new std::unordered_map<std::string, std::unique_ptr<Data>>;
  std::lock_guard lock(*mutex);
  auto& slot = (*table)[key];
  if (!slot)
    slot = std::make_unique<Data>(
        Data{device_type, simulated, hierarchy, std::vector<int>(ranks.begin(), ranks.end()), std::move(index)});
  data_ = slot.get();
}

Placement Placement::nested(std::string_view type, std::initializer_list<std::initializer_list<int64_t>> rows) {
  std::vector<int64_t> ranks;
  size_t width = rows.size() ? rows.begin()->size() : 0;
  for (auto& row : rows) {
    if (row.size() != width)
      fail_value("placement: rows have {} and {} ranks; all rows of a grid must have the same number.", width,
                 row.size());
    ranks.insert(ranks.end(), row.begin(), row.end());
  }
  return {type, Dims{static_cast<int64_t>(rows.size()), static_cast<int64_t>(width)}, std::move(ranks)};
}

Placement Placement::all(std::string_view type) {
  std::vector<int64_t> ranks(to_size(Context::current().world_size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return {type, std::move(ranks)};
}

void Placement::fail_undefined() {
  fail_runtime(
      "an undefined placement was read. Make one, e.g. Placement(\"cpu\", {{0, 1}}) or Placement::all(\"cpu\").");
}

Device Placement::device() const { return device_of_rank(data().type, data().simulated); }

Dims Placement::coordinate(int index) const {
  Dims at = Dims::filled(hierarchy().size(), 0);
  for (int i = at.size() - 1; i >= 0; --i) {
    at[i] = index % hierarchy()[i];
    index /= static_cast<int>(hierarchy()[i]);
  }
  return at;
}

std::vector<int> Placement::group(int index, int rank_dim) const {
  int64_t step = contiguous_strides(hierarchy())[rank_dim];
  int64_t first = index - coordinate(index)[rank_dim] * step;
  std::vector<int> group;
  for (int64_t i = 0; i < hierarchy()[rank_dim]; ++i) group.push_back(at_index(ranks(), first + i * step));
  return group;
}

std::string Placement::str() const {
  if (!data_) return "placement()";
  std::string text;
  size_t next = 0;
  auto write = [&](auto& self, int axis) -> void {
    text += "[";
    for (int64_t i = 0; i < hierarchy()[axis]; ++i) {
      if (i) text += ", ";
      if (axis + 1 < hierarchy().size())
        self(self, axis + 1);
      else
        text += std::to_string(ranks()[next++]);
    }
    text += "]";
  };
  write(write, 0);
  return fmt::format("placement(type=\"{}\", ranks={})", name(data_->type), text);
}

}  // namespace holon
