#include "holon/ops/sequence_shares.h"

#include <algorithm>

namespace holon::ops {

namespace {

// The sum of min(max(u, 0), most) over all u up to x.
int64_t ramp(int64_t x, int64_t most) {
  if (x <= 0) return 0;
  return x <= most ? x * (x + 1) / 2 : most * (most + 1) / 2 + (x - most) * most;
}

// Pairs with key <= query + shift.
int64_t pairs_before(Interval q, Interval k, int64_t shift) {
  return ramp(q.end() + shift - k.begin, k.size) - ramp(q.begin + shift - k.begin, k.size);
}

Interval range_of(const std::vector<Interval>& parts) {
  int64_t begin = parts[0].begin, end = parts[0].end();
  for (const Interval& p : parts) {
    if (p.size == 0) continue;
    begin = std::min(begin, p.begin), end = std::max(end, p.end());
  }
  return {begin, end - begin};
}

std::vector<SequencePart> as_parts(const std::vector<Interval>& intervals) {
  std::vector<SequencePart> parts(intervals.size());
  for (size_t i = 0; i < parts.size(); ++i) parts[i].add(intervals[i]);
  return parts;
}

}  // namespace

int64_t seen_pairs(Interval q, Interval k, bool causal, int64_t window) {
  if (q.size <= 0 || k.size <= 0) return 0;
  const int64_t before = causal ? pairs_before(q, k, 0) : q.size * k.size;
  return window ? before - pairs_before(q, k, -window) : before;
}

SequencePart SequenceShares::needed(int member, int step) const {
  const SequencePart& share = at_index(keys, share_of(member, step));
  SequencePart part;
  part.length = share.length;
  for (auto& k : share.pieces)
    if (std::any_of(at_index(queries, member).pieces.begin(), at_index(queries, member).pieces.end(),
                    [&](auto& q) { return sees(q.positions, k.positions); }))
      part.pieces.push_back(k);
  return part;
}

bool SequenceShares::any(int step) const {
  for (int m = 0; m < size(); ++m)
    if (!needed(m, step).pieces.empty()) return true;
  return false;
}

int64_t SequenceShares::pairs() const {
  int64_t total = 0;
  for (int step = 0; step < size(); ++step) {
    int64_t most = 0;
    for (int m = 0; m < size(); ++m) {
      int64_t n = 0;
      for (auto& q : at_index(queries, m).pieces)
        for (auto& k : at_index(keys, share_of(m, step)).pieces)
          n += seen_pairs(q.positions, k.positions, causal, window);
      most = std::max(most, n);
    }
    total += most;
  }
  return total;
}

SequenceShares share_out(const std::vector<Interval>& queries, const std::vector<Interval>& keys, bool causal,
                         int64_t window, bool may_move, double seconds_per_pair, double seconds_to_move) {
  SequenceShares held;
  held.queries_held = held.queries = as_parts(queries);
  held.keys_held = held.keys = as_parts(keys);
  held.causal = causal, held.window = window;
  const Interval range = range_of(queries);
  if (!causal || !may_move || !(range == range_of(keys)) || held.size() < 2) return held;
  SequenceShares zigzag = held;
  zigzag.moved = true;
  const int n = held.size();
  for (int m = 0; m < n; ++m) {
    SequencePart share;
    for (int chunk : {m, 2 * n - 1 - m}) {
      Interval part = balanced_split(range.size, 2 * n, chunk);
      part.begin += range.begin;
      share.add(part);
    }
    at_index(zigzag.queries, m) = at_index(zigzag.keys, m) = share;
  }
  const auto gained = static_cast<double>(held.pairs() - zigzag.pairs()) * seconds_per_pair;
  return gained > seconds_to_move ? zigzag : held;
}

int64_t PackedSequence::begin(size_t i, int64_t length) const {
  int64_t at = 0;
  for (size_t t = 0; t < i; ++t) at += tensors_[t].rows * length * tensors_[t].width;
  return at;
}

std::vector<comm::Pull> PackedSequence::pulls(const std::vector<SequencePart>& from, const SequencePart& to) const {
  std::vector<comm::Pull> all;
  for (auto& wanted : to.pieces)
    for (size_t owner = 0; owner < from.size(); ++owner)
      for (auto& there : from[owner].pieces) {
        const int64_t begin = std::max(wanted.positions.begin, there.positions.begin);
        const int64_t end = std::min(wanted.positions.end(), there.positions.end());
        if (begin >= end) continue;
        const int64_t src_at = there.at + begin - there.positions.begin;
        const int64_t dst_at = wanted.at + begin - wanted.positions.begin;
        for (size_t t = 0; t < tensors_.size(); ++t) {
          const auto [rows, width] = tensors_[t];
          if (rows == 0 || width == 0) continue;
          all.push_back({{static_cast<int>(owner)},
                         this->begin(t, from[owner].length) + src_at * width,
                         {from[owner].length * width, 1},
                         this->begin(t, to.length) + dst_at * width,
                         {to.length * width, 1},
                         {rows, (end - begin) * width}});
        }
      }
  return all;
}

}  // namespace holon::ops
