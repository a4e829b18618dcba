// Expert parallelism: which rows go to which experts on which ranks, and the exchange of these rows. A row is computed
// by the experts that its router has chosen, wherever they are; only these ranks get it, and each gets it once, however
// many of the row's experts it has. Counts depend on the values, so the choices of all ranks are exchanged first; from
// them every rank knows what everyone sends to everyone. Whatever the values, the ranks make the same collectives: one
// for the choices, and one for each dispatch() and combine(). (Dispatch and combine: GShard, Lepikhin et al. 2020;
// without a capacity: MegaBlocks, Gale et al. 2022.)
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "holon/array/array.h"
#include "holon/comm/core/pull.h"
#include "holon/registry/op_def.h"

namespace holon::ops {

// Whether some axis of several ranks splits both x and the experts (gate [experts, ...]).
bool rows_are_exchanged(const KernelCall& call, size_t x, size_t gate);

// Of a call's inputs: x [..., width], experts [..., k] (int64; -1: none), weights [..., k], and a weight of the experts
// [experts, ...]. Along axes of ranks that split both x and the experts rows are exchanged; elsewhere each rank
// computes what its experts give for the rows that it has.
class ExpertExchange {
 public:
  struct Inputs {
    size_t x, experts, weights, gate;
  };
  // Collective among the ranks that exchange. Errors (ValueError), on all of them: an expert that there is not.
  ExpertExchange(const KernelCall& call, const Inputs& inputs);

  // The rows that this rank's experts compute, by the rank that they are from and in its order.
  int64_t rows() const { return rows_; }
  // Each pair of such a row and an expert of this rank is a term. Terms are sorted by expert, then by row.
  int64_t terms() const { return static_cast<int64_t>(row_.size()); }
  struct Span {
    int64_t expert, begin, end;  // of this rank's experts, the number; its terms
  };
  const std::vector<Span>& spans() const { return spans_; }
  const Array& row_of_term() const { return term_rows_; }        // int64 [terms]
  const Array& weight_of_term() const { return term_weights_; }  // [terms], of the weights' dtype
  // The terms of row i, in the order of its choices, are terms_of_rows[first_terms[i]], ...
  const Array& first_terms() const { return first_terms_; }      // int64 [rows + 1]
  const Array& terms_of_rows() const { return terms_of_rows_; }  // int64 [terms]

  // x [rows of this rank, width] -> [rows(), width]. Collective.
  Array dispatch(const Array& x) const;
  // out [rows of this rank, width]: for each row, the sum of what its ranks have in y [rows(), width]. Collective.
  void combine(const Array& y, Array& out) const;
  // The same of what each term gives, in the place of its choice: out [rows of this rank, k].
  void combine_terms(const Array& of_terms, Array& out) const;
  // What combine() takes, uninitialised. Without an exchange it is `out` itself.
  Array before_combine(const Array& out) const;

 private:
  int size() const { return static_cast<int>(ranks_.size()); }
  int64_t& count(int from, int to) { return at_index(counts_, from * size() + to); }
  int64_t count(int from, int to) const { return at_index(counts_, from * size() + to); }
  void find_group(const KernelCall& call, const Inputs& inputs);
  // The choices of all members, and their weights, each member's behind another's.
  void gather_choices(const Array& experts, const Array& weights);
  void check_choices() const;
  void sort_terms();
  // Of ranks that share memory: rows are read from where their owners have them.
  void read_rows(const Array& x, Array& out) const;
  void sum_from_members(const Array& y, Array& out) const;
  // Of others: in one piece from each.
  std::vector<comm::Pull> dispatch_pulls(int member, int64_t width) const;
  std::vector<comm::Pull> combine_pulls(int member, int64_t width) const;
  void exchange(const char* name, const Array& in, const Array& out,
                std::vector<comm::Pull> (ExpertExchange::*pulls)(int, int64_t) const) const;

  const char* op_;
  Device device_;
  std::vector<int> ranks_;             // that exchange, this one among them
  int me_ = 0;                         // its place there
  bool packs_ = false;                 // they do not share memory
  std::vector<int64_t> members_rows_;  // of x on each
  std::vector<int> owner_;             // of each expert; -1: none of these ranks
  int64_t first_expert_ = 0, experts_here_ = 0, choices_ = 0;
  std::vector<int32_t> chosen_;  // [rows of all, choices]
  std::vector<std::byte> weights_;
  DType weight_dtype_;
  std::vector<int64_t> counts_;  // rows that go from each member to each

  int64_t rows_ = 0;
  std::vector<int64_t> row_, place_;  // of each term: its row; row * choices + choice
  std::vector<Span> spans_;
  Array term_rows_, term_weights_, first_terms_, terms_of_rows_;
  std::vector<int64_t> sent_;      // this rank's rows, by the member that they go to
  std::vector<int64_t> received_;  // the rows of each member that this rank gets, likewise
  // What comes back of row i is parts_[first_parts_[i]], ...: places in sent_.
  std::vector<int64_t> first_parts_, parts_;
};

}  // namespace holon::ops
