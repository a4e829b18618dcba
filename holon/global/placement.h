// Where a global tensor lives: a device type and ranks in a hierarchy (a grid with one or more axes). The order of the
// ranks is kept as given and is meant: part i is on the i-th rank. Interned: a handle is one pointer, and comparing
// two is comparing pointers. Thread-safe; placements live as long as the process.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "holon/array/device.h"
#include "holon/array/dims.h"
#include "holon/base/index.h"

namespace holon {

// While on, in a world of one rank, every placement is that rank, in a grid with as many axes: so that a program whose
// placements name more ranks can be run on one. For the whole process.
void set_placements_on_one_rank(bool on);

class Placement {
 public:
  Placement() = default;  // no placement: false in a condition; what is asked of it is an error (RuntimeError)
  // One axis. Errors: no rank, a repeated or negative one, one that the world (of the current context) does not have,
  // an unknown device type, cuda where there is neither a device nor its simulation.
  Placement(std::string_view type, std::vector<int64_t> ranks);
  // Ranks row by row in a grid of the given sizes. Errors: as above; their number is not that of the grid.
  Placement(std::string_view type, const Dims& hierarchy, std::vector<int64_t> ranks);
  // A grid of two axes, as in nested("cpu", {{0, 1}, {2, 3}}). Errors: rows of unlike lengths.
  static Placement nested(std::string_view type, std::initializer_list<std::initializer_list<int64_t>> rows);
  // All ranks of the world.
  static Placement all(std::string_view type);

  explicit operator bool() const { return data_ != nullptr; }
  bool operator==(const Placement& o) const { return data_ == o.data_; }
  // For hashing: equal for equal placements.
  const void* id() const { return data_; }

  // The devices' type, and whether they are simulated on the CPU.
  DeviceType device_type() const { return data().type; }
  bool simulated() const { return data().simulated; }
  // The device that this rank's parts are on.
  Device device() const;
  std::span<const int> ranks() const { return data().ranks; }
  const Dims& hierarchy() const { return data().hierarchy; }
  int size() const { return static_cast<int>(data().ranks.size()); }

  // The place of a rank among ranks(); -1 if it is not there.
  int index_of(int rank) const {
    const auto& index = data().index;
    return rank >= 0 && rank < static_cast<int>(index.size()) ? at_index(index, rank) : -1;
  }
  bool contains(int rank) const { return index_of(rank) >= 0; }
  // The coordinates of the index-th rank along the axes of the hierarchy.
  Dims coordinate(int index) const;
  // The ranks whose coordinates are those of `index` except along rank_dim, in the order of that axis.
  std::vector<int> group(int index, int rank_dim) const;

  std::string str() const;  // placement(type="cpu", ranks=[[0, 1], [2, 3]])

 private:
  struct Data {
    DeviceType type;
    bool simulated;
    Dims hierarchy;
    std::vector<int> ranks;
    std::vector<int> index;  // by rank
  };
  const Data& data() const {
    if (!data_) [[unlikely]]
      fail_undefined();
    return *data_;
  }
  [[noreturn]] static void fail_undefined();
  const Data* data_ = nullptr;
};

}  // namespace holon
