#include "holon/models/attention.h"

#include <algorithm>
#include <limits>
#include <tuple>

#include "holon/base/error.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/attention.h"
#include "holon/ops/cast.h"
#include "holon/ops/compare.h"
#include "holon/ops/create.h"
#include "holon/ops/scan.h"
#include "holon/ops/shape.h"
#include "holon/ops/unary.h"

namespace holon::models {

namespace {

// 0, 1, ... in the order of the documents in each row: a position that does not follow the one before begins one.
Tensor documents_of(const Tensor& positions) {
  const int64_t length = positions.size(1);
  const Tensor begins = ne(slice(positions, 1, 1), slice(positions, 1, 0, length - 1) + 1).to(int64);
  return cumsum(cat({slice(positions, 1, 0, 1) * 0, begins}, 1), 1);
}

bool is_split(const Tensor& x, int axis) {
  if (!x.is_global()) return false;
  const NdSbp& sbp = x.nd_sbp();
  return std::any_of(sbp.begin(), sbp.end(), [&](Sbp s) { return s.is_split(axis); });
}

// Each head as often as it is shared.
Tensor repeated(const Tensor& x, int64_t times) {
  const int64_t b = x.size(0), h = x.size(1), t = x.size(2), d = x.size(3);
  return expand(unsqueeze(x, 2), {b, h, times, t, d}).reshape({b, h * times, t, d});
}

// [1, 1, queries, keys]: the keys up to a query's place, on the query's ranks.
Tensor keys_before(const Tensor& query) {
  NoGradGuard guard;
  const int64_t length = query.size(2);
  ArangeOptions whole;
  if (query.is_global())
    whole = {.placement = query.placement(), .sbp = NdSbp::filled(query.nd_sbp().size(), sbp::broadcast())};
  const Tensor places = arange(length, {}, int64_t{1}, whole);
  return le(places.reshape({1, 1, 1, length}), places.reshape({1, 1, length, 1}));
}

// Finite, so that a query that sees no key has numbers, too.
double lowest(DType t) {
  if (t == float16) return -65504;
  return t == bfloat16 ? -3.3e38 : std::numeric_limits<float>::lowest();
}

}  // namespace

Sequence sequence_of(const Dims& shape, const Inputs& in, const Layout& layout, const SequenceOptions& o) {
  NoGradGuard guard;
  const int64_t batch = shape[0], length = shape[1];
  const int64_t before = in.cache ? in.cache->length() : 0, keys = before + length;
  const bool splits = layout.parallel.cp > 1;
  if (splits && in.cache)
    fail_value("models: a cache of keys and values where cp is {}: positions of a cache are not split. Generate on a "
               "layout without cp, or with use_cache=False.",
               layout.parallel.cp);
  const ArangeOptions whole{.placement = layout.placement, .sbp = layout.whole};
  const ArangeOptions split{.placement = layout.placement, .sbp = layout.with_positions(layout.whole, sbp::split(0))};
  auto here = [&](const Tensor& t) { return by_rows(t, layout, batch); };
  // With all positions on each rank: a number for each token is little, and is needed for all keys.
  auto in_whole = [&](const Tensor& t) {
    const Tensor rows = here(t);
    return rows.to_global(layout.placement, layout.with_positions(rows.nd_sbp(), sbp::broadcast()));
  };
  auto count = [&](int64_t begin, int64_t end) { return arange(begin, end, int64_t{1}, whole); };
  Sequence s;
  s.positions = in.position_ids.defined() ? here(in.position_ids).to(int64)
                                          : arange(before, keys, int64_t{1}, split).reshape({1, length});
  Tensor mask;
  auto also = [&](const Tensor& m) { mask = mask.defined() ? logical_and(mask, m) : m; };
  if (in.attention_mask.defined()) {
    Tensor seen = in_whole(in.attention_mask);
    if (seen.dtype() != boolean) seen = ne(seen, 0);
    also(seen.reshape({seen.size(0), 1, 1, keys}));
  }
  Tensor documents;
  if (in.document_ids.defined())
    documents = in_whole(in.document_ids);
  else if (in.position_ids.defined() && !in.attention_mask.defined() && !in.cache && o.causal)
    documents = documents_of(in_whole(in.position_ids).to(int64));
  const bool windowed = o.window > 0 && o.window < keys;
  s.cache = in.cache;
  const bool on_host = layout.placement.device_type() == DeviceType::kCpu || layout.placement.simulated();
  if (!o.biased && before == 0 && (splits || on_host) && (o.causal || !windowed)) {
    s.mask = mask;
    s.causal = o.causal;
    s.window = windowed ? o.window : 0;
    s.documents = documents;
    return s;
  }
  if (documents.defined())
    also(
        eq(documents.reshape({documents.size(0), 1, length, 1}), documents.reshape({documents.size(0), 1, 1, length})));
  // A token alone sees all before it. Among several behind others a query's number is not its place.
  const bool last = before > 0 && length == 1;
  if (mask.defined() || windowed || (before > 0 && !last)) {
    const Tensor query = count(before, keys).reshape({1, 1, length, 1}), key = count(0, keys).reshape({1, 1, 1, keys});
    if (o.causal && !last) also(le(key, query));
    if (windowed) also(gt(key, query - o.window));
  }
  s.mask = mask;
  s.causal = o.causal && !last && !mask.defined();
  return s;
}

Tensor last_positions(const Tensor& x, int64_t n) { return n == 0 || n == x.size(1) ? x : slice(x, 1, x.size(1) - n); }

Tensor split_heads(const Tensor& x, int64_t heads) {
  return x.reshape({x.size(0), x.size(1), heads, -1}).transpose(1, 2);
}

Tensor merge_heads(const Tensor& x) { return x.transpose(1, 2).reshape({x.size(0), x.size(2), -1}); }

Tensor attend(const Tensor& query, const Tensor& key, const Tensor& value, const Sequence& s, const AttendOptions& o) {
  Tensor k = key, v = value;
  if (s.cache) std::tie(k, v) = s.cache->append(s.layer, key, value);
  const int64_t times = query.size(1) / k.size(1);
  // Heads that the ranks divide unevenly are whole on each rank, which takes those that its queries need.
  const bool shared = times > 1 && (is_split(k, 1) || !is_split(query, 1));
  if (times > 1 && !shared) k = repeated(k, times), v = repeated(v, times);
  Tensor mask = s.mask;
  if (o.bias.defined()) {
    const Tensor seen = s.causal ? keys_before(query) : s.mask;
    mask = seen.defined() ? masked_fill(o.bias, logical_not(seen), lowest(o.bias.dtype())) : o.bias;
  }
  return merge_heads(scaled_dot_product_attention(
      query, k, v, mask, o.dropout, s.causal && !o.bias.defined(),
      {.scale = o.scale, .enable_gqa = shared, .window = s.window, .document_ids = s.documents}));
}

}  // namespace holon::models
