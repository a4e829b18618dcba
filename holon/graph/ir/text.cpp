#include <algorithm>
#include <cctype>
#include <set>
#include <string>

#include "holon/base/fmt.h"
#include "holon/base/index.h"
#include "holon/graph/ir/kinds.h"

namespace holon::graph {

std::string reference(const Graph& g, ValueId id) {
  if (id == kNoValue) return "None";
  const Value& v = g.value(id);
  if (v.kind == ValueKind::kInput) return fmt::format("input{}", v.index);
  if (v.kind == ValueKind::kExternal) {
    const std::string& name = at_index(g.externals, v.index).name;
    return name.empty() ? fmt::format("constant{}", v.index) : name;
  }
  return fmt::format("%{}", id);
}

namespace {

// "model.blocks.*.fc": the blocks of a model are alike.
std::string without_numbers(const std::string& path) {
  std::string text;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('.', begin), path.size());
    const std::string part = path.substr(begin, end - begin);
    const bool number =
        !part.empty() && std::all_of(part.begin(), part.end(), [](unsigned char c) { return std::isdigit(c); });
    text += (begin ? "." : "") + (number ? "*" : part);
    begin = end + 1;
  }
  return text;
}

std::string ranks_text(const Placement& p) {
  std::string all = p.str();  // placement(type="cpu", ranks=[[0, 1], [2, 3]])
  auto at = all.find("ranks=");
  return std::string(name(p.device_type())) + ":" +
      (at == std::string::npos ? all : all.substr(at + 6, all.size() - at - 7));
}

std::string value_text(const Graph& g, ValueId id) {
  const Value& v = g.value(id);
  std::string s = fmt::format("{} {}", holon::name(v.dtype), v.shape);
  if (v.is_global()) s += fmt::format(" {} @{}", v.spec->nd_sbp, ranks_text(v.spec->placement));
  return s;
}

std::string list(const Graph& g, std::span<const ValueId> values) {
  std::string s;
  for (ValueId v : values) s += (s.empty() ? "" : ", ") + reference(g, v);
  return s;
}

std::string call_text(const Graph& g, const Node& n) {
  const KindDef& kind = def(n.kind);
  std::string inputs = list(g, n.in);
  return kind.text ? kind.text(g, n, std::move(inputs)) : fmt::format("{}({})", kind.name, inputs);
}

}  // namespace

std::string str(const Graph& g, const Node& n) {
  auto there = [&](ValueId v) { return v >= 0 && v < static_cast<ValueId>(g.values.size()); };
  for (ValueId v : n.in)
    if (v != kNoValue && !there(v)) return fmt::format("a node {} of a value %{} that does not exist", name(n.kind), v);
  std::string s, types;
  for (ValueId v : n.out) {
    s += fmt::format("{}%{}", s.empty() ? "" : ", ", v);
    if (there(v)) types += fmt::format("{}{}", types.empty() ? "  " : ", ", value_text(g, v));
  }
  if (!s.empty()) s += " = ";
  s += call_text(g, n) + types;
  if (n.kind == NodeKind::kBoxing && !n.in.empty() && g.value(n.in[0]).spec) {
    const GlobalSpec* from = g.value(n.in[0]).spec;
    s += fmt::format("  from {}", from->nd_sbp);
    if (there(n.out[0]) && g.value(n.out[0]).spec && !(g.value(n.out[0]).spec->placement == from->placement))
      s += " @" + ranks_text(from->placement);
  }
  s += n.stage >= 0 ? fmt::format("  stage {} {}", n.stage, name(n.section)) : fmt::format("  {}", name(n.section));
  if (g.variants() > 1 && n.section != Section::kOnceBefore && n.section != Section::kOnceAfter)
    s += fmt::format(" variant {}", n.variant);
  if (n.pinned) s += " pinned";
  if (n.scope > 0 && n.scope < static_cast<int32_t>(g.scopes.size())) s += "  " + at_index(g.scopes, n.scope);
  return s;
}

std::string str(const Graph& g) {
  std::string s;
  auto of_variant = [&](int f) { return g.variants() > 1 ? fmt::format("  variant {}", f) : std::string(); };
  for (int f = 0; f < g.variants(); ++f)
    for (ValueId v : g.inputs_of(f)) s += fmt::format("{}: {}{}\n", reference(g, v), value_text(g, v), of_variant(f));
  for (auto& e : g.externals)
    s += fmt::format("{}: {}  {}{}\n", reference(g, e.value), value_text(g, e.value),
                     e.parameter          ? "parameter"
                         : e.name.empty() ? "constant"
                                          : "buffer",
                     e.assigned ? ", assigned" : "");
  for (auto& n : g.nodes) s += str(g, n) + "\n";
  for (int f = 0; f < g.variants(); ++f) s += fmt::format("outputs: {}{}\n", list(g, g.outputs_of(f)), of_variant(f));
  return s;
}

std::string place_text(const Graph& g, const Node& n) {
  const std::string& scope = at_index(g.scopes, n.scope);
  return scope.empty() ? std::string(name(n.section))
                       : fmt::format("{} of {}", name(n.section), without_numbers(scope));
}

}  // namespace holon::graph
