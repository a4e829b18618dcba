#include "holon/ops/ring_attention.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <vector>

#include "holon/base/context.h"
#include "holon/base/hash.h"
#include "holon/base/index.h"
#include "holon/boxing/exchange.h"
#include "holon/cost/machine.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/elementwise.h"
#include "holon/ops/sequence_shares.h"

namespace holon::ops {

namespace {

constexpr int kSequence = 2;  // the axis of [batch, heads, length, width]

bool splits_both(const GlobalSpec* q, const GlobalSpec* k, int axis) {
  return q->nd_sbp[axis].is_split(kSequence) && k->nd_sbp[axis].is_split(kSequence);
}

// The ranks that share a sequence, and where their parts are.
struct Group {
  std::vector<int> ranks;
  std::vector<Interval> queries, keys;
  int me = 0;
};

Interval positions(const Dims& shape, const GlobalSpec* spec, int index) {
  const Region r = region_of(shape, spec->placement, spec->nd_sbp, index);
  return {r.offset[kSequence], r.shape[kSequence]};
}

Group group_of(const KernelCall& c, size_t q, size_t k) {
  const GlobalSpec *of_q = c.spec_in(q), *of_k = c.spec_in(k);
  const Placement& placement = of_q->placement;
  const int own = placement.index_of(Context::current().rank());
  const Dims here = placement.coordinate(own);
  Group g;
  for (int i = 0; i < placement.size(); ++i) {
    const Dims there = placement.coordinate(i);
    bool member = true;
    for (int a = 0; a < here.size(); ++a) member = member && (here[a] == there[a] || splits_both(of_q, of_k, a));
    if (!member) continue;
    if (i == own) g.me = static_cast<int>(g.ranks.size());
    g.ranks.push_back(placement.ranks()[to_size(i)]);
    g.queries.push_back(positions(c.logical_in(q), of_q, i));
    g.keys.push_back(positions(c.logical_in(k), of_k, i));
  }
  return g;
}

Array rows_of(const Array& x, int64_t begin, int64_t size) {
  Dims shape = x.shape;
  shape[kSequence] = size;
  return x.view(shape, x.strides, begin * x.strides[kSequence]);
}

DType compute_dtype(DType t) { return t == DType::kFloat64 ? t : DType::kFloat32; }

// A new row-major array with x's values.
Array converted(const Array& x, DType to) {
  if (x.dtype == to && x.is_contiguous()) return x;
  Array y = Array::empty(x.shape, to, x.device);
  kernels::copy(x, y);
  return y;
}

// Tensors [b, h, length, width] of one part in one array, and each of them as a view.
class Packed {
 public:
  // Of shapes like these, whose lengths do not matter.
  Packed(std::vector<Dims> shapes, DType dtype, Device device)
      : shapes_(std::move(shapes)), layout_(tensors(shapes_)), dtype_(dtype), device_(device) {}

  Array make(int64_t length) const { return Array::empty({layout_.elements(length)}, dtype_, device_); }
  Array view(const Array& all, size_t i, int64_t length) const {
    Dims shape = at_index(shapes_, i);
    shape[kSequence] = length;
    return all.view(shape, contiguous_strides(shape), layout_.begin(i, length));
  }
  const PackedSequence& layout() const { return layout_; }
  DType dtype() const { return dtype_; }

 private:
  static std::vector<PackedSequence::Tensor> tensors(const std::vector<Dims>& shapes) {
    std::vector<PackedSequence::Tensor> t;
    for (auto& s : shapes) t.push_back({s[0] * s[1], s.size() > 3 ? s[3] : 1});
    return t;
  }
  std::vector<Dims> shapes_;
  PackedSequence layout_;
  DType dtype_;
  Device device_;
};

// One call: the group, its shares, and what moves between them.
class Ring {
 public:
  // products: multiplications and additions of a query and a key, of all heads; query_bytes, key_bytes: what moves of
  // one position, where shares are not what is held. All of it is alike on the group's ranks, which decide by it.
  Ring(const KernelCall& c, size_t q, size_t k, const kernels::Attention& o, double products, double query_bytes,
       double key_bytes)
      : options_(o), group_(group_of(c, q, k)), device_(c.out().device) {
    // A mask with rows of its own is where the queries are.
    const bool may_move = !o.mask.defined() || o.mask.shape[kSequence] == 1;
    const double bytes = query_bytes * most(group_.queries) + key_bytes * most(group_.keys);
    shares_ = share_out(group_.queries, group_.keys, o.causal, o.window, may_move, products / kPairFlopsPerSecond,
                        bytes / machine_costs().copy.far);
    call_ = hash_combine(hash_combine(c.logical_in(q).numel(), c.logical_in(k).numel()), shares_.moved);
  }

  int me() const { return group_.me; }
  int size() const { return shares_.size(); }
  const SequenceShares& shares() const { return shares_; }
  const SequencePart& queries() const { return at_index(shares_.queries, me()); }
  const SequencePart& held_queries() const { return at_index(shares_.queries_held, me()); }
  const SequencePart& held_keys() const { return at_index(shares_.keys_held, me()); }
  const SequencePart& keys(int step) const { return at_index(shares_.keys, shares_.share_of(me(), step)); }

  // The own part of `to` from the members' `from`, of which `mine` is this rank's.
  Array bring(const Packed& what, const std::vector<SequencePart>& from, const std::vector<SequencePart>& to,
              const Array& mine, const Array& into = {}) const {
    Array out = into.defined() ? into : what.make(at_index(to, me()).length);
    const comm::PullsByMember pulls(me(), [&](int m) { return what.layout().pulls(from, at_index(to, m)); });
    const comm::CallInfo info{.op = "attention over a split sequence",
                              .dtype = what.dtype(),
                              .shape = {what.layout().elements(1), range(from), range(to)},
                              .fingerprint = static_cast<uint64_t>(call_)};
    boxing::exchange_inside(group_.ranks, info, pulls, device_.is_host() ? std::nullopt : std::optional(device_), mine,
                            out);
    return out;
  }

  std::vector<SequencePart> needed(int step) const {
    std::vector<SequencePart> parts;
    for (int m = 0; m < size(); ++m) parts.push_back(shares_.needed(m, step));
    return parts;
  }

  // f(queries' piece, keys' piece, options) for the pairs that are seen in a step.
  template <class F>
  void each_pair(int step, F&& f) const {
    for (auto& q : queries().pieces)
      for (auto& k : keys(step).pieces) {
        if (!shares_.sees(q.positions, k.positions)) continue;
        kernels::Attention o = options_;
        o.first_query = q.positions.begin, o.first_key = k.positions.begin;
        if (o.mask.defined()) {
          Dims shape = o.mask.shape;
          int64_t at = 0;
          if (shape[2] != 1) {
            at += (q.positions.begin - at_index(group_.queries, me()).begin) * o.mask.strides[2];
            shape[2] = q.positions.size;
          }
          if (shape[3] != 1) {
            at += k.positions.begin * o.mask.strides[3];
            shape[3] = k.positions.size;
          }
          o.mask = o.mask.view(shape, o.mask.strides, at);
        }
        f(q, k, o);
      }
  }

 private:
  static double most(const std::vector<Interval>& parts) {
    int64_t n = 0;
    for (const Interval& p : parts) n = std::max(n, p.size);
    return static_cast<double>(n);
  }
  static int64_t range(const std::vector<SequencePart>& parts) {
    int64_t n = 0;
    for (auto& p : parts)
      for (auto& piece : p.pieces) n += piece.positions.size;
    return n;
  }

  const kernels::Attention options_;
  const Group group_;
  const Device device_;
  SequenceShares shares_;
  size_t call_ = 0;
};

// The keys and values of a step: the rank's own in step 0, where shares are what is held.
class Keys {
 public:
  Keys(const Ring& ring, const Array& k, const Array& v)
      : ring_(ring), packed_({k.shape, v.shape}, k.dtype, k.device), own_(packed_.make(k.shape[kSequence])) {
    Array to_k = packed_.view(own_, 0, k.shape[kSequence]), to_v = packed_.view(own_, 1, k.shape[kSequence]);
    kernels::copy(k, to_k), kernels::copy(v, to_v);
  }
  void bring(int step) {
    length_ = ring_.keys(step).length;
    Array all = own_;
    if (step > 0 || ring_.shares().moved) {
      block_ = {};
      all = block_ = ring_.bring(packed_, ring_.shares().keys_held, ring_.needed(step), own_);
    }
    k = converted(packed_.view(all, 0, length_), compute_dtype(packed_.dtype()));
    v = converted(packed_.view(all, 1, length_), compute_dtype(packed_.dtype()));
  }
  Array k, v;

 private:
  const Ring& ring_;
  const Packed packed_;
  const Array own_;
  Array block_;
  int64_t length_ = 0;
};

void add_to(Array sum, const Array& more) { kernels::binary(kernels::BinaryOp::Add, sum, more, sum); }

// Of one position.
double bytes_of(const Array& x) {
  return static_cast<double>(x.shape[0] * x.shape[1] * x.shape[3]) * static_cast<double>(size_bytes(x.dtype));
}

double scores_work(const Array& q, const Array& k, const Array& v, int with_key, int with_value) {
  return 2.0 * static_cast<double>(q.shape[0] * q.shape[1]) *
      static_cast<double>(with_key * k.shape[3] + with_value * v.shape[3]);
}

}  // namespace

bool sequence_is_split(const KernelCall& c, size_t q, size_t k) {
  const GlobalSpec *of_q = c.spec_in(q), *of_k = c.spec_in(k);
  if (!of_q || !of_k) return false;
  for (int a = 0; a < of_q->nd_sbp.size(); ++a)
    if (splits_both(of_q, of_k, a)) return true;
  return false;
}

void ring_attention(KernelCall& c, const kernels::Attention& o) {
  const Array &given_q = c.in(0), &given_k = c.in(1), &given_v = c.in(2);
  Array &out = c.out(0), &lse = c.out(1);
  const DType compute = compute_dtype(given_q.dtype);
  const Ring ring(c, 0, 1, o, scores_work(given_q, given_k, given_v, 1, 1), bytes_of(given_q) + bytes_of(out),
                  bytes_of(given_k) + bytes_of(given_v));
  const bool moved = ring.shares().moved;
  const int64_t queries = ring.queries().length;

  Array q = given_q;
  if (moved) {
    const Packed packed({q.shape}, q.dtype, q.device);
    q = packed.view(ring.bring(packed, ring.shares().queries_held, ring.shares().queries, kernels::contiguous(q)), 0,
                    queries);
  }
  q = converted(q, compute);

  // Results and sums side by side, as they go back together.
  const Packed results({out.shape, lse.shape}, compute, out.device);
  const Array all = results.make(queries);
  Array y = results.view(all, 0, queries), sums = results.view(all, 1, queries);
  kernels::fill(y, 0);
  kernels::fill(sums, Scalar(-std::numeric_limits<double>::infinity()));
  {
    Keys keys(ring, given_k, given_v);
    for (int step = 0; step < ring.size(); ++step) {
      if (!ring.shares().any(step)) continue;
      keys.bring(step);
      ring.each_pair(step, [&](const auto& qs, const auto& ks, const kernels::Attention& options) {
        Array to = rows_of(y, qs.at, qs.positions.size), to_sums = rows_of(sums, qs.at, qs.positions.size);
        Array more = Array::empty(to.shape, compute, y.device),
              more_sums = Array::empty(to_sums.shape, compute, y.device);
        kernels::attention(rows_of(q, qs.at, qs.positions.size), rows_of(keys.k, ks.at, ks.positions.size),
                           rows_of(keys.v, ks.at, ks.positions.size), options, more, &more_sums);
        kernels::join_attention(more, more_sums, to, to_sums);
      });
    }
  }
  Array back = all;
  if (moved) back = ring.bring(results, ring.shares().queries, ring.shares().queries_held, all);
  kernels::copy(results.view(back, 0, ring.held_queries().length), out);
  kernels::copy(results.view(back, 1, ring.held_queries().length), lse);
}

void ring_attention_backward(KernelCall& c, const kernels::Attention& o) {
  const Array &given_k = c.in(2), &given_v = c.in(3);
  Array &dq = c.out(0), &dk = c.out(1), &dv = c.out(2);
  const DType compute = compute_dtype(given_k.dtype);
  const Ring ring(c, 1, 2, o, scores_work(c.in(1), given_k, given_v, 3, 2), 2 * (bytes_of(c.in(0)) + bytes_of(c.in(1))),
                  2 * (bytes_of(given_k) + bytes_of(given_v)));
  const bool moved = ring.shares().moved;
  const int64_t queries = ring.queries().length, held_keys = ring.held_keys().length;

  // dout, query, out and lse: what belongs to the queries.
  Array of_queries[4];
  {
    const size_t inputs[] = {0, 1, 4, 5};
    for (size_t i = 0; i < 4; ++i) of_queries[i] = converted(c.in(inputs[i]), compute);
    if (moved) {
      std::vector<Dims> shapes;
      for (auto& a : of_queries) shapes.push_back(a.shape);
      const Packed packed(shapes, compute, dq.device);
      const Array mine = packed.make(ring.held_queries().length);
      for (size_t i = 0; i < 4; ++i) {
        Array to = packed.view(mine, i, ring.held_queries().length);
        kernels::copy(of_queries[i], to);
      }
      const Array there = ring.bring(packed, ring.shares().queries_held, ring.shares().queries, mine);
      for (size_t i = 0; i < 4; ++i) of_queries[i] = packed.view(there, i, queries);
    }
  }
  const Array &dout = of_queries[0], &q = of_queries[1], &out = of_queries[2], &lse = of_queries[3];

  const Packed gradients({given_k.shape, given_v.shape}, compute, dk.device), results({q.shape}, compute, dq.device);
  const Array sums = gradients.make(held_keys), all = results.make(queries);
  Array of_q = results.view(all, 0, queries);
  kernels::fill(of_q, 0);
  Array of_keys = sums;
  kernels::fill(of_keys, 0);
  {
    Keys keys(ring, given_k, given_v);
    for (int step = 0; step < ring.size(); ++step) {
      if (!ring.shares().any(step)) continue;
      keys.bring(step);
      const int64_t length = ring.keys(step).length;
      const bool own = step == 0 && !moved;
      const Array block = own ? sums : gradients.make(length);
      Array to_k = gradients.view(block, 0, length), to_v = gradients.view(block, 1, length);
      if (!own) {
        Array zero = block;
        kernels::fill(zero, 0);
      }
      ring.each_pair(step, [&](const auto& qs, const auto& ks, const kernels::Attention& options) {
        const int64_t i = qs.at, n = qs.positions.size, j = ks.at, s = ks.positions.size;
        const Array part_q = rows_of(of_q, i, n), part_k = rows_of(to_k, j, s), part_v = rows_of(to_v, j, s);
        Array more_q = Array::empty(part_q.shape, compute, dq.device),
              more_k = Array::empty(part_k.shape, compute, dq.device),
              more_v = Array::empty(part_v.shape, compute, dq.device);
        kernels::attention_backward(rows_of(dout, i, n), rows_of(q, i, n), rows_of(keys.k, j, s), rows_of(keys.v, j, s),
                                    rows_of(out, i, n), rows_of(lse, i, n), options, more_q, more_k, more_v);
        add_to(part_q, more_q), add_to(part_k, more_k), add_to(part_v, more_v);
      });
      if (own) continue;
      // Who holds keys of which a member has computed a gradient takes it, and nothing of the others.
      Array received = gradients.make(held_keys);
      kernels::fill(received, 0);
      ring.bring(gradients, ring.needed(step), ring.shares().keys_held, block, received);
      add_to(sums, received);
    }
  }
  kernels::copy(gradients.view(sums, 0, held_keys), dk);
  kernels::copy(gradients.view(sums, 1, held_keys), dv);
  Array back = all;
  if (moved) back = ring.bring(results, ring.shares().queries, ring.shares().queries_held, all);
  kernels::copy(results.view(back, 0, ring.held_queries().length), dq);
}

}  // namespace holon::ops
