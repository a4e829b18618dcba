#include <set>

#include "holon/base/index.h"
#include "holon/graph/ir/graph.h"

namespace holon::graph {

namespace {

std::string attr_text(const Attrs& attrs, const ArgDef& a) {
  if (!attrs.has(a.attr)) return "None";
  switch (a.type) {
    case ArgType::kInt: return fmt::format("{}", attrs.as_int(a.attr));
    case ArgType::kFloat: return fmt::format("{:g}", attrs.as_float(a.attr));
    case ArgType::kBool: return attrs.as_bool(a.attr) ? "True" : "False";
    case ArgType::kScalar: {
      Scalar s = attrs.as_scalar(a.attr);
      return s.is_float() ? fmt::format("{:g}", s.as_double()) : fmt::format("{}", s.as_int());
    }
    case ArgType::kText: return fmt::format("'{}'", attrs.as_text(a.attr));
    case ArgType::kDType: return holon::name(attrs.as_dtype(a.attr));
    case ArgType::kDevice: return attrs.as_device(a.attr).str();
    case ArgType::kPlacement: return attrs.as_placement(a.attr).str();
    case ArgType::kSbp: return attrs.as_nd_sbp(a.attr).str();
    case ArgType::kInts: {
      std::string s;
      for (int64_t x : attrs.as_ints(a.attr)) s += fmt::format("{}{}", s.empty() ? "" : ", ", x);
      return "[" + s + "]";
    }
    default: return "?";
  }
}

// Whether an attribute is what the schema gives it without being asked.
bool is_default(const Attrs& attrs, const Attrs& defaults, int i) {
  if (attrs.has(i) != defaults.has(i)) return false;
  Attrs a, b;
  a.push_from(attrs, i);
  b.push_from(defaults, i);
  return std::equal(a.words().begin(), a.words().end(), b.words().begin(), b.words().end());
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

std::string list(const Graph& g, std::span<const ValueId> values) {
  std::string s;
  for (ValueId v : values) s += (s.empty() ? "" : ", ") + reference(g, v);
  return s;
}

std::string call_text(const Graph& g, const Node& n) {
  std::string args = list(g, n.in);
  auto more = [&](const std::string& text) { args += (args.empty() ? "" : ", ") + text; };
  switch (n.kind) {
    case NodeKind::kOp: {
      if (!n.op) return "no op(" + args + ")";
      for (auto& a : n.op->schema.args)
        if (a.attr >= 0 && a.attr < static_cast<int>(n.attrs.size()) && a.attr != n.op->placement_attr &&
            a.attr != n.op->sbp_attr && !is_default(n.attrs, n.op->schema.defaults, a.attr))
          more(a.name + "=" + attr_text(n.attrs, a));
      if (n.draw >= 0) more(fmt::format("draw={}", n.draw));
      return fmt::format("{}({})", n.op->name(), args);
    }
    case NodeKind::kAssign: {
      bool known = n.target >= 0 && n.target < static_cast<int32_t>(g.externals.size());
      return fmt::format("{} = {}", known ? reference(g, at_index(g.externals, n.target).value) : "?", args);
    }
    case NodeKind::kUpdate: {
      std::string of;
      if (n.target >= 0 && n.target < static_cast<int32_t>(g.updates.size()))
        for (int32_t e : at_index(g.updates, n.target).externals)
          of += (of.empty() ? "" : ", ") +
              (e >= 0 && e < static_cast<int32_t>(g.externals.size()) ? at_index(g.externals, e).name : "?");
      const bool idle =
          n.target >= 0 && n.target < static_cast<int32_t>(g.updates.size()) && at_index(g.updates, n.target).idle;
      return fmt::format("{} {} [{}] by ({})", idle ? "no update" : "update", n.target, of, args);
    }
    case NodeKind::kClip: {
      if (n.target < 0 || n.target >= static_cast<int32_t>(g.clips.size())) return "clip ?";
      const GradClip& c = at_index(g.clips, n.target);
      return fmt::format("clip {} gradients to {} {:g}", c.of.size(),
                         c.how.by == optim::Clip::By::kNorm ? "the norm" : "values of", c.how.limit);
    }
    case NodeKind::kFused: {
      std::string ops;
      if (n.target >= 0 && n.target < static_cast<int32_t>(g.bodies.size()))
        for (auto& p : at_index(g.bodies, n.target).parts)
          ops += (ops.empty() ? "" : " ") + std::string(p.op ? p.op->name() : "?");
      return fmt::format("fused[{}]({})", ops, args);
    }
    default: return fmt::format("{}({})", name(n.kind), args);
  }
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

}  // namespace holon::graph
