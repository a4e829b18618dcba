#include "holon/graph/passes/known_signatures.h"

#include "holon/base/hash.h"
#include "holon/dispatch/signature.h"

namespace holon::graph {

const KnownSignatures::Of& KnownSignatures::of(const Graph& g, const Node& n) {
  Hasher key;
  key.add(n.op);
  for (uint16_t s : n.attrs.starts()) key.add(s);
  for (int64_t w : n.attrs.words()) key.add(w);
  auto add = [&](ValueId v) {
    if (v == kNoValue) return void(key.add(~0ull));
    key.add(static_cast<uint64_t>(g.value(v).dtype) << 8 | static_cast<uint64_t>(g.value(v).shape.size()));
    for (int64_t x : g.value(v).shape) key.add(x);
  };
  for (ValueId v : n.in) add(v);
  for (ValueId v : n.out) add(v);
  auto [it, fresh] = known_.try_emplace(key.value());
  Of& k = it->second;
  if (!fresh) return k;
  for (ValueId v : n.in) k.in.push_back(v == kNoValue ? Meta{} : Meta{g.value(v).shape, g.value(v).dtype});
  for (ValueId v : n.out) k.out.push_back({g.value(v).shape, g.value(v).dtype});
  k.signatures = signatures_of(*n.op, n.attrs, k.in, k.out);
  return k;
}

}  // namespace holon::graph
