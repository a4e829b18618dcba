#include "holon/graph/contract_entries.h"

#include <algorithm>
#include <string>

#include "holon/base/fmt.h"
#include "holon/base/index.h"
#include "holon/boxing/prepared.h"
#include "holon/dispatch/signature.h"
#include "holon/graph/passes/known_signatures.h"

namespace holon::graph {

namespace {

using contract::Entry;

class Entries {
 public:
  explicit Entries(const Graph& g) : g_(g) {}

  std::vector<std::pair<contract::Site, Entry>> all() {
    for (const Node& n : g_.nodes) {
      if (n.kind == NodeKind::kBoxing)
        n.in.size() > 1 ? add_batch(n) : add_boxing(n);
      else if (n.kind == NodeKind::kAgree)
        add_agree(n);
      else if (n.kind == NodeKind::kOp && n.op->communicates)
        add_inside(n);
    }
    return std::move(list_);
  }

 private:
  std::string what(const Node& n) const { return place_text(g_, n); }

  void add(const Node& n, Entry e) {
    int64_t times = 1;
    if (per_micro_batch(n.section)) {
      times = 0;
      for (int m = 0; m < g_.micro_batches; ++m) times += g_.variant(m) == n.variant;
    }
    e.least = e.most = times;
    if (times > 0) list_.emplace_back(*contract::site_at(at_index(g_.sites, n.site)), std::move(e));
  }

  void add_boxing(const Node& n) {
    const Value &from = g_.value(n.in[0]), &to = g_.value(n.out[0]);
    if (from.spec != to.spec)
      add(n, contract::entry_of(what(n), boxing::plan(from.spec, to.spec, from.shape, from.dtype)));
  }

  void add_batch(const Node& n) {
    const Value &from = g_.value(n.in[0]), &to = g_.value(n.out[0]);
    std::vector<Dims> shapes;
    int64_t elements = 0;
    for (ValueId v : n.in) {
      shapes.push_back(g_.value(v).shape);
      elements += shapes.back().numel();
    }
    Entry e;
    e.what = fmt::format("{}: {} tensors", name(n.section), shapes.size());
    e.from = from.spec;
    e.to = to.spec;
    e.shape = Dims{elements};
    e.dtype = from.dtype;
    e.path = {{to.spec, false}};
    e.kinds = {"batch"};
    for (int64_t bytes : boxing::PreparedBatch::prepare(from.spec, to.spec, shapes, from.dtype).all_read_bytes()) {
      e.most_bytes = std::max(e.most_bytes, bytes);
      e.all_bytes += bytes;
    }
    add(n, std::move(e));
  }

  void add_agree(const Node& n) {
    const Value& to = g_.value(n.out[0]);
    add(n, contract::entry_of_local(what(n), to.spec, to.shape, to.dtype));
  }

  // What the kernel reads of other ranks' parts: at most what would bring its inputs together.
  void add_inside(const Node& n) {
    SmallVec<const GlobalSpec*, 4> in;
    SmallVec<const GlobalSpec*, 3> out;
    for (ValueId v : n.in) in.push_back(v == kNoValue ? nullptr : g_.value(v).spec);
    for (ValueId v : n.out) out.push_back(g_.value(v).spec);
    if (out.empty() || !out[0]) return;
    const auto as = read_as(signatures_.of(g_, n).signatures, in, out);
    for (size_t i = 0; i < as.size(); ++i) {
      if (!in[i] || as[i] == in[i]) continue;
      const Value& v = g_.value(n.in[i]);
      add(n,
          contract::entry_of(fmt::format("{}: {} inside", what(n), n.op->name()),
                             boxing::plan(in[i], as[i], v.shape, v.dtype)));
    }
  }

  const Graph& g_;
  KnownSignatures signatures_;
  std::vector<std::pair<contract::Site, Entry>> list_;
};

}  // namespace

std::vector<std::pair<contract::Site, contract::Entry>> contract_entries(const Graph& g) { return Entries(g).all(); }

}  // namespace holon::graph
