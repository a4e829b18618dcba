// What the parts that ranks hold are of the value that one rank has.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "holon/verify/recording.h"

namespace holon::verify {

// How a value is to one that is expected.
struct Match {
  // The same, to rounding; the same times a factor; something else.
  enum class Level : uint8_t { kSame, kScaled, kDiffers };
  Level level = Level::kDiffers;
  double factor = 1;
  int64_t element = -1;  // the one that differs most, and its values
  double found = 0, expected = 0;
};

// found and expected have the same shape; a difference up to tolerance is rounding. numbers: factors that it may have;
// of several elements, which show by themselves that they are multiples, any other too, unless only_numbers.
Match match(std::span<const double> found, std::span<const double> expected, double tolerance,
            std::span<const double> numbers, bool only_numbers = false);

// The logical value of a global tensor. parts: by rank of the world, nullptr where there is none.
struct Assembled {
  std::vector<double> value;
  bool whole = false;            // all parts are there
  int drifted_rank = -1;         // one whose copy of a broadcast part has other bits than the first one's
  int64_t drifted_element = -1;  // in the part
  double first = 0, other = 0;
};
Assembled assemble(std::span<const Value* const> parts);

// How local tensors of all ranks, one each, make up a value: by an nd_sbp over the ranks in a row or a grid, or as
// every n-th row.
struct Relation {
  Match match;
  std::vector<Sbp> nd_sbp{};
  Dims hierarchy;
  bool mean = false;        // of partial sums: the value is their mean
  int interleaved = -1;     // the axis of which rank r has the elements r, r + n, ...
  bool is_whole() const;    // the same on all ranks
  bool is_partial() const;  // each rank has an addend
  std::string str() const;  // "S(0)", "P", "the mean"
};
// The best there is; nullopt where the parts cannot make up the shape at all.
std::optional<Relation> relation_of(std::span<const Value* const> parts, const Dims& shape,
                                    std::span<const double> expected, double tolerance);

// The factors that a fault of summing over these ranks leads to.
std::vector<double> factors_of(int ranks, std::span<const int64_t> hierarchy);

// Where the part is in a whole along one axis, all of the others: the first place after `from`; -1 if it is nowhere.
int64_t place_of(std::span<const double> part, const Dims& part_shape, std::span<const double> whole, const Dims& shape,
                 int axis, double tolerance, int64_t from = 0);

}  // namespace holon::verify
