#include "holon/dispatch/planned_call.h"

#include <algorithm>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "holon/base/context.h"
#include "holon/base/hash.h"
#include "holon/boxing/events.h"
#include "holon/contract/moves.h"
#include "holon/dispatch/record.h"
#include "holon/tensor/node.h"

namespace holon {
namespace {

using Key = std::vector<int64_t>;

struct CachedCall {
  Key key;
  InputRoles roles;
  std::unique_ptr<CachedCall> next;  // the same call of inputs with other roles, where inputs must move
  PlannedCall planned;
};

// Metas of a call -> what it needs. One per rank.
struct CallCache {
  std::unordered_multimap<uint64_t, std::unique_ptr<CachedCall>> entries;
  std::unordered_multimap<uint64_t, std::pair<Key, bool>> without_moving;  // see takes_without_moving()
  static constexpr size_t kMost = 1 << 16;
  void clear() {
    entries.clear();
    without_moving.clear();
  }
};

struct CallKey {
  SmallVec<int64_t, 48> words;
  uint64_t hash = 0;
  void add(int64_t w) {
    words.push_back(w);
    hash = hash_combine(hash, static_cast<uint64_t>(w));
  }
  Key copy() const { return {words.begin(), words.end()}; }
  bool is(const Key& k) const { return k.size() == words.size() && std::equal(words.begin(), words.end(), k.begin()); }
};

InputRoles roles_of(std::span<const Tensor> inputs, bool grad) {
  InputRoles r;
  grad = grad && grad_enabled();
  for (size_t i = 0; i < inputs.size(); ++i) {
    auto& t = inputs[i];
    if (!t.defined()) continue;
    const uint32_t bit = 1u << std::min<size_t>(i, 31);
    if (t.spec()->nd_sbp.has_split() && is_parameter(t)) r.parameters |= bit;
    if (!grad || !t.requires_grad()) continue;
    r.grads |= bit;
    if (t.is_leaf()) r.leaves |= bit;
  }
  if (r.parameters && boxing::parameter_policy() == boxing::ParameterPolicy::kGather) [[unlikely]]
    r.parameters = 0;
  return r;
}

CallKey key_of(const OpDef& op, const Attrs& attrs, std::span<const Tensor> inputs) {
  CallKey k;
  k.add(reinterpret_cast<int64_t>(&op));
  k.add(Context::current().layout_free());
  for (size_t i = 0; i < attrs.size(); ++i) {
    // Two draws differ in their counters only; their plans are the same.
    bool draw = static_cast<int>(i) == op.seed_attr || static_cast<int>(i) == op.counter_attr;
    k.add(draw ? 0 : attrs.starts()[i]);
  }
  if (!op.random)
    for (int64_t w : attrs.words()) k.add(w);
  else
    for (size_t i = 0; i < attrs.size(); ++i)
      if (attrs.has(static_cast<int>(i)) && static_cast<int>(i) != op.seed_attr &&
          static_cast<int>(i) != op.counter_attr) {
        size_t begin = attrs.starts()[i], end = attrs.words().size();
        for (uint16_t s : attrs.starts())
          if (s != 0xffff && s > begin && s < end) end = s;
        for (size_t w = begin; w < end; ++w) k.add(attrs.words()[w]);
      }
  for (auto& t : inputs) {
    if (!t.defined()) {
      k.add(-1);
      continue;
    }
    k.add(reinterpret_cast<int64_t>(t.spec()));
    k.add(static_cast<int64_t>(t.dtype()) << 8 | t.ndim());
    for (int64_t x : t.shape()) k.add(x);
  }
  return k;
}

struct Metas {
  SmallVec<Meta, 4> in;
  SmallVec<const GlobalSpec*, 4> specs;
  SmallVec<Meta, 3> out;
};

Metas metas_of(const OpDef& op, const Attrs& attrs, std::span<const Tensor> inputs, uint32_t present) {
  Metas of;
  for (auto& t : inputs) {
    of.in.push_back(t.defined() ? Meta{t.shape(), t.dtype()} : Meta{});
    of.specs.push_back(t.defined() ? t.spec() : nullptr);
  }
  Infer infer(op, attrs, of.in, present);
  infer.run();
  of.out = infer.out_;
  return of;
}

PlannedCall plan(const OpDef& op, const Attrs& attrs, std::span<const Tensor> inputs, uint32_t present,
                 const InputRoles& roles) {
  PlannedCall c;
  const Metas of = metas_of(op, attrs, inputs, present);
  c.out = of.out;
  if (op.schema.n_inputs == 0) {
    const Placement placement = attrs.as_placement(op.placement_attr);
    const NdSbp sbp = attrs.as_nd_sbp(op.sbp_attr);
    for (auto& m : c.out) {
      check_nd_sbp(m.shape, placement, sbp, op.name());
      c.signature.out.push_back(intern_spec(placement, sbp));
    }
  } else {
    c.signature = choose_signature(op, attrs, of.in, c.out, of.specs, roles);
    for (size_t i = 0; i < of.specs.size(); ++i)
      if (of.specs[i] && of.specs[i] != c.signature.in[i]) {
        const uint32_t bit = 1u << std::min<size_t>(i, 31);
        c.redistributed |= bit;
        if (!of.specs[i]->nd_sbp.has_partial() &&
            contract::plan_of(of.specs[i], c.signature.in[i], of.in[i].shape, of.in[i].dtype).max_read_bytes() == 0)
          c.cut |= bit;
      }
  }
  c.local = local_call(of.in, c.signature.in, c.out, c.signature.out, Context::current().rank());
  return c;
}

// The layouts that calls take are those of a contract while one is in force.
static const bool kForgets = (contract::on_change([] { Context::current().part<CallCache>().clear(); }), true);

CachedCall* find(const CallCache& cache, const CallKey& key) {
  auto [begin, end] = cache.entries.equal_range(key.hash);
  for (auto it = begin; it != end; ++it)
    if (key.is(it->second->key)) return it->second.get();
  return nullptr;
}

}  // namespace

const PlannedCall& planned_call(const OpDef& op, const Attrs& attrs, std::span<const Tensor> inputs, uint32_t present,
                                bool grad) {
  auto& cache = Context::current().part<CallCache>();
  const CallKey key = key_of(op, attrs, inputs);
  CachedCall* known = find(cache, key);
  if (known && !known->planned.redistributed) return known->planned;
  // Where inputs do not fit as they are, it matters what they are. Only such calls pay for it.
  const InputRoles roles = roles_of(inputs, grad);
  for (CachedCall* c = known; c; c = c->next.get())
    if (c->roles == roles) return c->planned;
  auto made = std::make_unique<CachedCall>();
  made->planned = plan(op, attrs, inputs, present, roles);
  made->roles = roles;
  if (known) {
    made->next = std::move(known->next);
    known->next = std::move(made);
    return known->next->planned;
  }
  made->key = key.copy();
  if (cache.entries.size() >= CallCache::kMost) cache.clear();
  return cache.entries.emplace(key.hash, std::move(made))->second->planned;
}

bool takes_without_moving(const OpDef& op, const Attrs& attrs, std::span<const Tensor> inputs, uint32_t present) {
  auto& cache = Context::current().part<CallCache>();
  const CallKey key = key_of(op, attrs, inputs);
  if (const CachedCall* known = find(cache, key); known && !known->planned.redistributed) return true;
  auto [begin, end] = cache.without_moving.equal_range(key.hash);
  for (auto it = begin; it != end; ++it)
    if (key.is(it->second.first)) return it->second.second;
  const Metas of = metas_of(op, attrs, inputs, present);
  const bool takes = takes_without_moving(op, attrs, of.in, of.out, of.specs);
  if (cache.without_moving.size() >= CallCache::kMost) cache.clear();
  cache.without_moving.emplace(key.hash, std::pair{key.copy(), takes});
  return takes;
}

}  // namespace holon
