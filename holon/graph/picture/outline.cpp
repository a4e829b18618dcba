#include "holon/graph/picture/outline.h"

#include <algorithm>

#include "holon/base/fmt.h"
#include "holon/base/index.h"

namespace holon::graph {

namespace {

std::vector<std::string> components(const std::string& path) {
  std::vector<std::string> parts;
  for (size_t from = 0; from < path.size();) {
    const size_t dot = std::min(path.find('.', from), path.size());
    parts.push_back(path.substr(from, dot - from));
    from = dot + 1;
  }
  return parts;
}

Outline& add_group(Outline& o, size_t at, const std::string& name) {
  Outline::Row row;
  row.group = std::make_unique<Outline>();
  row.group->name = name;
  return *o.rows.insert(o.rows.begin() + static_cast<std::ptrdiff_t>(at), std::move(row))->group;
}

void put_forward(Outline& o, const std::vector<std::string>& path, size_t depth, NodeId n) {
  Outline::Row* last = o.rows.empty() ? nullptr : &o.rows.back();
  if (depth == path.size()) {
    if (!last || last->group) last = &o.rows.emplace_back();
    last->forward.push_back(n);
    return;
  }
  const bool goes_on = last && last->group && last->group->name == path[depth];
  put_forward(goes_on ? *last->group : add_group(o, o.rows.size(), path[depth]), path, depth + 1, n);
}

// Backward nodes come from the last to the first, so that they follow the rows of forward downwards.
class Backward {
 public:
  explicit Backward(Outline& o) : o_(o) {}

  void put(const std::vector<std::string>& path, size_t depth, NodeId n) {
    if (depth == path.size()) {
      if (at_ < 0 || at_index(o_.rows, at_).group) {
        ++at_;
        if (to_size(at_) == o_.rows.size() || at_index(o_.rows, at_).group) {
          o_.rows.insert(o_.rows.begin() + at_, Outline::Row{});
          inner_.insert(inner_.begin() + std::min<std::ptrdiff_t>(at_, static_cast<std::ptrdiff_t>(inner_.size())),
                        nullptr);
        }
      }
      at_index(o_.rows, at_).backward.push_back(n);
      return;
    }
    at_ = find(path[depth]);
    inner_.resize(o_.rows.size());
    auto& inner = at_index(inner_, at_);
    if (!inner) inner = std::make_unique<Backward>(*at_index(o_.rows, at_).group);
    inner->put(path, depth + 1, n);
  }

 private:
  bool is(int i, const std::string& name) const {
    auto& group = at_index(o_.rows, i).group;
    return group && group->name == name;
  }
  int find(const std::string& name) {
    const int n = static_cast<int>(o_.rows.size());
    for (int i = std::max(at_, 0); i < n; ++i)
      if (is(i, name)) return i;
    for (int i = std::min(at_, n - 1); i >= 0; --i)
      if (is(i, name)) return i;
    inner_.resize(o_.rows.size());
    const int at = at_ + 1;
    add_group(o_, to_size(at), name);
    inner_.insert(inner_.begin() + at, nullptr);
    return at;
  }

  Outline& o_;
  int at_ = -1;
  std::vector<std::unique_ptr<Backward>> inner_;  // of each row
};

std::string signature(const Graph& g, NodeId n) {
  const Node& node = at_index(g.nodes, n);
  std::string s = fmt::format("{}{}{}", static_cast<int>(node.kind), static_cast<int>(node.section),
                              node.op ? node.op->name() : "");
  if (node.kind == NodeKind::kFused)
    for (auto& p : at_index(g.bodies, node.target).parts) s += fmt::format(" {}", p.op->name());
  for (auto* list : {&node.in})
    for (ValueId v : *list)
      s += v == kNoValue ? " -"
                         : fmt::format(" {}{}", static_cast<int>(g.value(v).kind),
                                       g.value(v).spec ? g.value(v).spec->nd_sbp.str() : "");
  for (ValueId v : node.out)
    s += fmt::format(">{}{}{}", static_cast<int>(g.value(v).dtype), g.value(v).shape,
                     g.value(v).spec ? g.value(v).spec->str() : "");
  return s;
}

std::string fold(const Graph& g, Outline& o) {
  std::string whole;
  std::vector<Outline::Row> kept;
  std::string before;
  for (auto& row : o.rows) {
    std::string own;
    for (NodeId n : row.forward) own += signature(g, n) + ";";
    own += "|";
    for (NodeId n : row.backward) own += signature(g, n) + ";";
    if (row.group) own += "{" + fold(g, *row.group) + "}";
    whole += own + "\n";
    if (row.group && !kept.empty() && kept.back().group && own == before) {
      Outline& first = *kept.back().group;
      ++first.repeats;
      first.last_name = row.group->name;
      first.others.push_back(row.group->nodes());
      continue;
    }
    before = own;
    kept.push_back(std::move(row));
  }
  o.rows = std::move(kept);
  return whole;
}

}  // namespace

std::vector<NodeId> Outline::nodes() const {
  std::vector<NodeId> all;
  for (auto& row : rows) {
    all.insert(all.end(), row.forward.begin(), row.forward.end());
    all.insert(all.end(), row.backward.begin(), row.backward.end());
    if (!row.group) continue;
    auto inner = row.group->nodes();
    all.insert(all.end(), inner.begin(), inner.end());
    for (auto& other : row.group->others) all.insert(all.end(), other.begin(), other.end());
  }
  return all;
}

int Outline::depth() const {
  int most = 0;
  for (auto& row : rows)
    if (row.group) most = std::max(most, 1 + row.group->depth());
  return most;
}

int Outline::items(int depth) const {
  int n = 0;
  for (auto& row : rows)
    n += row.group ? (depth <= 1 ? 1 : row.group->items(depth - 1))
                   : static_cast<int>(std::max(row.forward.size(), row.backward.size()));
  return n;
}

Outline outline(const Graph& g, int stage, bool folded) {
  Outline root;
  std::vector<NodeId> backward;
  for (size_t i = 0; i < g.nodes.size(); ++i) {
    const Node& n = g.nodes[i];
    if (std::clamp<int>(n.stage, 0, std::max(0, g.stages - 1)) != stage) continue;
    if (n.section == Section::kForward)
      put_forward(root, components(at_index(g.scopes, n.scope)), 0, static_cast<NodeId>(i));
    if (n.section == Section::kBackward || n.section == Section::kWeight) backward.push_back(static_cast<NodeId>(i));
  }
  Backward placing(root);
  for (size_t i = backward.size(); i-- > 0;) {
    const Node& n = at_index(g.nodes, backward[i]);
    placing.put(components(at_index(g.scopes, n.scope)), 0, backward[i]);
  }
  if (folded) fold(g, root);
  return root;
}

}  // namespace holon::graph
