// Which queries and keys each rank of a group computes attention with, where both are split along the sequence, and in
// what order keys come to it.
//
// In step s the member m has the keys of the share (m + s) mod n, so that each step every share is with one member.
// Without a causal mask a share is the part that the member holds. With one, later queries see more keys; then the
// sequence is cut into 2n chunks, and share m is the chunks m and 2n - 1 - m ("zigzag"), of which any two members have
// the same work in each step. What is held stays one part: queries and results are brought to the shares and back
// inside the op.
#pragma once

#include <cstdint>
#include <vector>

#include "holon/base/index.h"
#include "holon/comm/core/pull.h"
#include "holon/global/slice.h"

namespace holon::ops {

// Of one core, in products of attention. Only its relation to the machine's rates of bytes is of account.
inline constexpr double kPairFlopsPerSecond = 60e9;

// Positions of the sequence that a member has, in an array with `length` of them.
struct SequencePart {
  struct Piece {
    Interval positions;
    int64_t at = 0;  // of the first in the array
  };
  std::vector<Piece> pieces;
  int64_t length = 0;

  void add(Interval positions) {
    pieces.push_back({positions, length});
    length += positions.size;
  }
};

// How many pairs of a query and a key there are with key <= query, if causal, and key > query - window, if there is a
// window.
int64_t seen_pairs(Interval queries, Interval keys, bool causal, int64_t window);

struct SequenceShares {
  std::vector<SequencePart> queries_held, keys_held;  // by member
  std::vector<SequencePart> queries, keys;            // the members' shares
  bool causal = false;
  int64_t window = 0;
  bool moved = false;  // shares are not what is held

  int size() const { return static_cast<int>(keys.size()); }
  int share_of(int member, int step) const { return (member + step) % size(); }
  bool sees(Interval q, Interval k) const { return q.size > 0 && k.size > 0 && seen_pairs(q, k, causal, window) > 0; }
  // The pieces of the keys' share in a step that a query of the member sees, at their places in the share.
  SequencePart needed(int member, int step) const;
  // Whether any member computes in this step.
  bool any(int step) const;
  // The pairs of the busiest member, summed over the steps.
  int64_t pairs() const;
};

// The shares of parts that are held, one interval each. seconds_per_pair and seconds_to_move (a share of queries and
// back): what decides between the two; may_move: whether chunks may leave their rank at all.
SequenceShares share_out(const std::vector<Interval>& queries, const std::vector<Interval>& keys, bool causal,
                         int64_t window, bool may_move, double seconds_per_pair, double seconds_to_move);

// Tensors [rows, length, width] of one member, one behind the other in one array: of each its rows and width.
class PackedSequence {
 public:
  struct Tensor {
    int64_t rows, width;
  };
  explicit PackedSequence(std::vector<Tensor> tensors) : tensors_(std::move(tensors)) {}
  // The elements of all for a part of this length, and where the i-th tensor begins.
  int64_t elements(int64_t length) const { return begin(tensors_.size(), length); }
  int64_t begin(size_t i, int64_t length) const;
  // What brings `to`, of the calling member, together from the members' `from`.
  std::vector<comm::Pull> pulls(const std::vector<SequencePart>& from, const SequencePart& to) const;

 private:
  std::vector<Tensor> tensors_;
};

}  // namespace holon::ops
