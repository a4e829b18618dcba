// Sharding rules in factors, for one axis of ranks. An axis of an operand is labelled with a factor; splitting a factor
// splits every operand that carries it and leaves the others whole. Signatures are derived; an op adds by hand
// (Rule::add) only those that factors cannot express.
#pragma once

#include <array>
#include <string_view>
#include <vector>

#include "holon/array/dims.h"
#include "holon/array/dtype.h"
#include "holon/base/index.h"
#include "holon/base/small_vec.h"
#include "holon/global/sbp.h"

namespace holon {

struct Meta {  // of a logical tensor
  Dims shape;
  DType dtype = DType::kFloat32;
};

inline constexpr int kWhole = -1;  // an axis that is never split

struct Factor {
  // A factor that no output carries is contracted: its outputs are partial sums, if the contraction is a sum.
  bool contracts = false;
  // The factor's size in units that must divide evenly among the ranks (reshapes); 0: any division is right.
  int64_t even_units = 0;
};

struct Signature {  // for one axis of ranks
  SmallVec<Sbp, 4> in, out;
  int64_t even_units = 0;
  int factor = -1;
  // Bit mask of inputs of which the kernel itself reads the other ranks' parts, at the cost of bringing them together.
  uint32_t reads = 0;
};

class Rule {
 public:
  Rule(size_t n_in, size_t n_out) : in_(n_in), out_(n_out) {}
  int factor(bool contracts = false, int64_t even_units = 0) {
    factors_.push_back({contracts, even_units});
    return static_cast<int>(factors_.size()) - 1;
  }
  // Axes of an operand that are not set are whole.
  void in(size_t operand, int axis, int factor) { at_index(in_[operand], axis) = static_cast<int16_t>(factor); }
  void out(size_t operand, int axis, int factor) { at_index(out_[operand], axis) = static_cast<int16_t>(factor); }
  void add(Signature extra) { extra_.push_back(std::move(extra)); }
  size_t n_in() const { return in_.size(); }
  size_t n_out() const { return out_.size(); }

  // The signatures: all broadcast first, then one for each factor in order, then the extra ones, then the ones that let
  // a partial sum through: together for all operands of `joint`, and one by one for those of `each` (bit masks of
  // inputs).
  std::vector<Signature> signatures(uint32_t joint, uint32_t each) const;

 private:
  struct Axes : std::array<int16_t, kMaxAxes> {
    Axes() { fill(kWhole); }
  };
  SmallVec<Axes, 4> in_, out_;
  std::vector<Factor> factors_;
  std::vector<Signature> extra_;
};

// Applies an einsum-like text: "m k, k n -> m n"; a leading "..." represents axes aligned at the right by broadcasting;
// an upper-case name is whole. Factors that no output carries are contracted.
void apply_rule_text(std::string_view text, std::span<const Meta> in, std::span<const Meta> out, Rule& rule,
                     const char* op);

// The outputs' shapes by such a text: each axis has the size of its factor, the ellipsis that of the inputs broadcast.
// Errors (ValueError): a text that is not a rule for these inputs; a factor with two sizes; one that is in outputs
// only.
std::vector<Dims> shapes_by_rule(std::string_view text, std::span<const Dims> in, const char* op);

// Every axis of the output is a factor, shared with the inputs by broadcasting at the right.
void elementwise_rule(std::span<const Meta> in, std::span<const Meta> out, Rule& rule);

}  // namespace holon
