// One program under two layouts: its run on one rank, and its run on several. Each value of the one is compared with
// what the ranks of the other hold of it.
//
// What must agree are the outcomes: gradients that an update takes, updated parameters and what rules keep for them,
// gradient norms, values that the program reads, results that nothing uses, the state of modules, and the bits of
// broadcast copies. From the first outcome that does not agree, the values that it was made of lead back to the first
// op that reads what agrees and makes what does not. So a value may be a partial sum, a mean or a part on the way
// there.
//
// Values agree if they differ by no more than rounding: 16 times what the value moves by when each result on one rank
// is rounded otherwise (perturb.h), and 8 eps of its largest element.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "holon/verify/recording.h"
#include "holon/verify/relation.h"

namespace holon::verify {

// The same record of all runs.
struct Step {
  int reference = -1;          // its place in the run on one rank; -1: it is not there
  std::vector<int> at{};       // in each rank's run; -1 likewise
  std::vector<int> inputs{};   // steps
  std::vector<int> missing{};  // steps that give to it on one rank, and not here
  bool on_all() const;
  bool on_none() const;
};

enum class Agreement : uint8_t { kSame, kUnknown, kScaled, kDiffers };

// How a step's value agrees.
struct Finding {
  Agreement agreement = Agreement::kUnknown;
  Match match;
  std::optional<Relation> relation;  // of local parts
  Assembled assembled;               // of a global tensor
  bool partial = false;              // a local addend
  size_t value = 0;                  // which of the record's
};

class Comparison {
 public:
  // reference: on one rank; perturbed: the same, rounded otherwise; ranks: one recording for each.
  Comparison(const Recording& reference, std::vector<const Recording*> perturbed, std::vector<const Recording*> ranks);

  const std::vector<Step>& steps() const { return steps_; }
  const Finding& finding(int step) const { return findings_[static_cast<size_t>(step)]; }
  // Where a step first appears: of rank 0, or of another one, or on one rank.
  const Record& record(int step) const;
  const Record* reference(int step) const;
  const Record* on_rank(int step, int rank) const;
  int n_ranks() const { return static_cast<int>(ranks_.size()); }
  const std::vector<const Recording*>& ranks() const { return ranks_; }
  // What rounding may change a value of a step by; and the value on one rank.
  double tolerance(int step, size_t value) const;
  const Value* expected(int step, size_t value) const;
  // The parts that ranks hold.
  std::vector<const Value*> parts(int step, size_t value) const;
  // The first outcome that does not agree; -1: all do.
  int first_wrong_outcome() const;
  // The step at which the fault is made that shows there. Where an addend is used as if it were the sum: that which
  // makes the addend or, of a parameter's gradient, the outcome itself.
  int cause_of(int outcome) const;
  int compared() const { return compared_; }

 private:
  void align_all();
  void make_edges();
  void compare(int step);
  bool is_wrong_outcome(int step) const;
  bool forward_converts(int step) const;
  bool gives_to_leaf(int step) const;
  int step_of(size_t rank, int record) const;

  const Recording& reference_;
  std::vector<const Recording*> perturbed_, ranks_;
  std::vector<std::vector<int>> perturbed_at_;  // of each, by the reference's places
  std::vector<Step> steps_;
  std::vector<std::vector<int>> step_of_;  // by rank and record
  std::vector<int> step_of_reference_;
  std::vector<Finding> findings_;
  std::vector<int> source_;  // the step whose value on one rank is expected of this one; -1: there is none
  std::vector<bool> is_used_;
  int first_gradient_ = 0;  // the first step that is a leaf's gradient
  int compared_ = 0;
};

}  // namespace holon::verify
