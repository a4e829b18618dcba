#include <unordered_map>

#include "holon/base/hash.h"
#include "holon/base/index.h"
#include "holon/graph/ir/node_kind.h"

namespace holon::graph {

namespace {

// Interned things are at other addresses on other ranks, so what they say is hashed, once for each.
class GraphHash {
 public:
  explicit GraphHash(const Graph& g) : g_(g) {}

  uint64_t run() {
    h_.add(g_.micro_batches);
    h_.add(g_.stages);
    h_.add(g_.local_draws);
    h_.add(g_.global_draws);
    h_.add(g_.scaled);
    for (int8_t f : g_.variant_of) h_.add(f);
    for (int f = 0; f < g_.variants(); ++f) {
      list(g_.inputs_of(f));
      list(g_.outputs_of(f));
    }
    for (auto& e : g_.externals) {
      value(e.value);
      h_.add_text(e.name);
      h_.add(static_cast<uint64_t>(e.parameter) << 1 | static_cast<uint64_t>(e.assigned));
    }
    for (auto& u : g_.updates) update(u);
    for (auto& c : g_.clips) clip(c);
    for (auto& n : g_.nodes) node(n);
    return h_.value();
  }

  std::vector<uint64_t> nodes() {
    std::vector<uint64_t> all;
    for (auto& n : g_.nodes) {
      h_ = Hasher();
      node(n);
      all.push_back(h_.value());
    }
    return all;
  }

 private:
  void list(std::span<const ValueId> values) {
    h_.add(values.size());
    for (ValueId v : values) value(v);
  }

  // A local tensor is this rank's own: its shape may be another elsewhere.
  void value(ValueId id) {
    h_.add(id);
    if (id == kNoValue) return;
    const Value& v = g_.value(id);
    h_.add(v.dtype);
    if (!v.spec) return;
    h_.add(spec(v.spec));
    for (int64_t x : v.shape) h_.add(x);
  }

  uint64_t placement(const Placement& p) {
    auto [it, fresh] = known_.try_emplace(p.id());
    if (fresh) {
      Hasher h;
      h.add(p.device_type());
      for (int64_t x : p.hierarchy()) h.add(x);
      for (int r : p.ranks()) h.add(r);
      it->second = h.value();
    }
    return it->second;
  }
  uint64_t nd_sbp(const NdSbp& sbp) {
    Hasher h;
    for (Sbp s : sbp) h.add(static_cast<uint64_t>(s.kind) << 8 | (s.is_split() ? static_cast<uint64_t>(s.axis) : 0));
    return h.value();
  }
  uint64_t spec(const GlobalSpec* s) {
    auto it = known_.find(s);
    if (it != known_.end()) return it->second;
    Hasher h;
    h.add(placement(s->placement));
    h.add(nd_sbp(s->nd_sbp));
    return known_[s] = h.value();
  }

  void attrs(const OpDef& op, const Attrs& a) {
    for (auto& arg : op.schema.args) {
      if (arg.attr < 0) continue;
      int i = arg.attr;
      h_.add(a.has(i));
      if (!a.has(i) || i == op.device_attr) continue;
      switch (arg.type) {
        case ArgType::kText: h_.add_text(a.as_text(i)); break;
        case ArgType::kPlacement: h_.add(placement(a.as_placement(i))); break;
        case ArgType::kSbp: h_.add(nd_sbp(a.as_nd_sbp(i))); break;
        case ArgType::kScalar:
          h_.add(a.as_scalar(i).kind());
          h_.add(std::bit_cast<uint64_t>(a.as_scalar(i).as_double()));
          break;
        case ArgType::kInts:
          h_.add(a.as_ints(i).size());
          for (int64_t x : a.as_ints(i)) h_.add(x);
          break;
        default: h_.add(a.as_int(i));
      }
    }
  }

  void update(const Update& u) {
    const optim::Rule& r = u.rule;
    h_.add(r.kind);
    h_.add(static_cast<uint64_t>(r.nesterov) | static_cast<uint64_t>(r.amsgrad) << 1 |
           static_cast<uint64_t>(r.centered) << 2 | static_cast<uint64_t>(r.master_weights) << 3 |
           static_cast<uint64_t>(u.idle) << 4 | static_cast<uint64_t>(r.eps_in_root) << 5 |
           static_cast<uint64_t>(r.ratio_before_decay) << 6 | static_cast<uint64_t>(r.lr_in_momentum) << 7);
    for (size_t i = 0; i < u.externals.size(); ++i) {
      h_.add(u.externals[i]);
      h_.add(u.shards[i] ? spec(u.shards[i]) : 0);
    }
  }

  void clip(const GradClip& c) {
    h_.add(static_cast<uint64_t>(c.how.by) | static_cast<uint64_t>(c.how.error_if_nonfinite) << 8);
    h_.add(std::bit_cast<uint64_t>(c.how.norm_type));
    h_.add(std::bit_cast<uint64_t>(c.how.limit));
    for (auto& at : c.of) h_.add(static_cast<uint64_t>(at.update) << 32 | static_cast<uint32_t>(at.slot));
  }

  void node(const Node& n) {
    h_.add(static_cast<uint64_t>(n.kind) | static_cast<uint64_t>(n.section) << 8 |
           static_cast<uint64_t>(static_cast<uint16_t>(n.stage)) << 16 |
           static_cast<uint64_t>(static_cast<uint32_t>(n.target)) << 32);
    h_.add(static_cast<uint64_t>(static_cast<uint32_t>(n.draw)) | static_cast<uint64_t>(n.variant) << 32);
    list(n.in);
    list(n.out);
    if (n.op) {
      auto [it, fresh] = known_.try_emplace(n.op);
      if (fresh) {
        Hasher h;
        h.add_text(n.op->schema.name);
        it->second = h.value();
      }
      h_.add(it->second);
      if (!n.out.empty() && g_.value(n.out[0]).is_global()) attrs(*n.op, n.attrs);
    }
    if (auto* more = def(n.kind).hash) more(g_, n, &h_);
  }

  const Graph& g_;
  Hasher h_;
  std::unordered_map<const void*, uint64_t> known_;
};

}  // namespace

uint64_t hash(const Graph& g) { return GraphHash(g).run(); }
std::vector<uint64_t> node_hashes(const Graph& g) { return GraphHash(g).nodes(); }

}  // namespace holon::graph
