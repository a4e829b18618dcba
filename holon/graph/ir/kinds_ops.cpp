// Ops, alone and in element-wise chains.
#include "holon/graph/ir/kinds.h"

#include <algorithm>
#include <unordered_set>

#include "holon/base/fmt.h"
#include "holon/base/index.h"
#include "holon/dispatch/dispatch.h"
#include "holon/dispatch/signature.h"
#include "holon/graph/ir/signatures.h"

namespace holon::graph {

bool has_signature(const OpDef& op, const Attrs& attrs, std::span<const Meta> in, std::span<const Meta> out,
                   std::span<const GlobalSpec* const> in_specs, std::span<const GlobalSpec* const> out_specs) {
  if (op.schema.n_inputs == 0) {
    if (op.placement_attr < 0 || !attrs.has(op.placement_attr) || !attrs.has(op.sbp_attr)) return false;
    const GlobalSpec* made = intern_spec(attrs.as_placement(op.placement_attr), attrs.as_nd_sbp(op.sbp_attr));
    for (auto* s : out_specs)
      if (s != made) return false;
    return true;
  }
  const std::vector<Signature> all = signatures_of(op, attrs, in, out);
  const Placement placement = out_specs[0]->placement;
  const int axes = placement.hierarchy().size();
  struct Taken {
    int factor;
    int64_t ranks;
  };
  SmallVec<Taken, 3> taken;
  for (int a = 0; a < axes; ++a) {
    bool found = false;
    for (auto& s : all) {
      bool fits = true;
      for (size_t i = 0; i < in.size() && fits; ++i) fits = !in_specs[i] || in_specs[i]->nd_sbp[a] == s.in[i];
      for (size_t o = 0; o < out.size() && fits; ++o) fits = out_specs[o]->nd_sbp[a] == s.out[o];
      if (fits && s.even_units) {
        int64_t ranks = placement.hierarchy()[a];
        for (auto& t : taken)
          if (t.factor == s.factor) ranks *= t.ranks;
        fits = s.even_units % ranks == 0;
      }
      if (!fits) continue;
      taken.push_back({s.factor, placement.hierarchy()[a]});
      found = true;
      break;
    }
    if (!found) return false;
  }
  return true;
}

NodeCall::NodeCall(const Graph& g, const Node& n) {
  for (ValueId v : n.in) {
    in.push_back(v == kNoValue ? Meta{} : Meta{g.value(v).shape, g.value(v).dtype});
    in_specs.push_back(v == kNoValue ? nullptr : g.value(v).spec);
  }
  for (ValueId v : n.out) {
    out.push_back({g.value(v).shape, g.value(v).dtype});
    out_specs.push_back(g.value(v).spec);
  }
}

bool has_signature(const Graph& g, const Node& n) {
  if (!g.value(n.out[0]).spec) return true;
  const NodeCall call(g, n);
  return has_signature(*n.op, n.attrs, call.in, call.out, call.in_specs, call.out_specs);
}

namespace {

// Calls that were found right. Passes leave most nodes as they are, and models repeat their blocks, so that a look-up
// is all that most nodes take.
struct RightCalls {
  std::unordered_set<uint64_t> keys;
  static constexpr size_t kMost = 1 << 18;
};

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

void infer_again(const NodeCheck& check, const Node& n) {
  const Graph& g = check.g;
  const OpDef& op = *n.op;
  SmallVec<Meta, 4> in;
  SmallVec<const GlobalSpec*, 4> in_specs, out_specs;
  uint32_t present = 0;
  const bool global = g.value(n.out[0]).is_global();
  for (size_t i = 0; i < n.in.size(); ++i) {
    if (n.in[i] == kNoValue) {
      in.emplace_back();
      in_specs.push_back(nullptr);
      continue;
    }
    const Value& v = g.value(n.in[i]);
    in.push_back({v.shape, v.dtype});
    in_specs.push_back(v.spec);
    present |= 1u << std::min<size_t>(i, 31);
    if (v.is_global() != global)
      check.wrong(n, "%{} is {}, its output {}", n.in[i], v.is_global() ? "global" : "local",
                  global ? "global" : "local");
  }
  if (!op.schema.input_list && static_cast<int>(n.in.size()) != op.schema.n_inputs)
    check.wrong(n, "it has {} inputs, {} takes {}", n.in.size(), op.name(), op.schema.n_inputs);
  Infer infer(op, n.attrs, in, present);
  op.infer(infer);
  if (infer.out_.size() != n.out.size())
    check.wrong(n, "it has {} outputs, {} returns {}", n.out.size(), op.name(), infer.out_.size());
  for (size_t o = 0; o < n.out.size(); ++o) {
    const Value& v = g.value(n.out[o]);
    if (!(v.shape == infer.out_[o].shape) || v.dtype != infer.out_[o].dtype)
      check.wrong(n, "%{} is {} {}, where {} infers {} {}", n.out[o], holon::name(v.dtype), v.shape, op.name(),
                  holon::name(infer.out_[o].dtype), infer.out_[o].shape);
    if (v.is_global() != global) check.wrong(n, "some outputs are global, some local");
    out_specs.push_back(v.spec);
  }
  if (!global) return;
  for (auto* s : in_specs)
    if (s && !(s->placement == out_specs[0]->placement)) check.wrong(n, "an input is on {}", s->placement);
  for (auto* s : out_specs)
    if (!(s->placement == out_specs[0]->placement)) check.wrong(n, "an output is on {}", s->placement);
  if (!has_signature(op, n.attrs, in, infer.out_, in_specs, out_specs))
    check.wrong(n, "{} has no signature of these layouts", op.name());
}

}  // namespace

namespace kinds {

std::string op_text(const Graph&, const Node& n, std::string args) {
  auto more = [&](const std::string& text) { args += (args.empty() ? "" : ", ") + text; };
  if (!n.op) return "no op(" + args + ")";
  for (auto& a : n.op->schema.args)
    if (a.attr >= 0 && a.attr < static_cast<int>(n.attrs.size()) && a.attr != n.op->placement_attr &&
        a.attr != n.op->sbp_attr && !is_default(n.attrs, n.op->schema.defaults, a.attr))
      more(a.name + "=" + attr_text(n.attrs, a));
  if (n.draw >= 0) more(fmt::format("draw={}", n.draw));
  return fmt::format("{}({})", n.op->name(), args);
}

void verify_op(NodeCheck& check, const Node& n) {
  const Graph& g = check.g;
  RightCalls& right = Context::current().part<RightCalls>();
  if (right.keys.size() > RightCalls::kMost) right.keys.clear();
  if (!n.op) check.wrong(n, "it has no op");
  const OpDef& op = *n.op;
  if (!op.kernel && !op.view) check.wrong(n, "{} has neither a kernel nor a view", op.name());
  if (n.out.empty()) check.wrong(n, "it has no outputs");
  if (static_cast<int>(n.attrs.size()) != op.schema.n_attrs)
    check.wrong(n, "it has {} attributes, {} takes {}", n.attrs.size(), op.name(), op.schema.n_attrs);
  Hasher key;
  key.add(&op);
  for (uint16_t s : n.attrs.starts()) key.add(s);
  for (int64_t w : n.attrs.words()) key.add(w);
  auto add = [&](ValueId id) {
    if (id == kNoValue) return void(key.add(~0ull));
    const Value& v = g.value(id);
    key.add(v.spec);
    key.add(static_cast<uint64_t>(v.dtype) << 8 | static_cast<uint64_t>(v.shape.size()));
    for (int64_t x : v.shape) key.add(x);
  };
  for (ValueId v : n.in) add(v);
  key.add(n.in.size());
  for (ValueId v : n.out) add(v);
  if (right.keys.count(key.value())) return;
  infer_again(check, n);
  right.keys.insert(key.value());
}

void interpret_op(Interpreter& run, const Node& n) {
  TensorVec in;
  for (ValueId v : n.in) in.push_back(v == kNoValue ? Tensor() : run.at(v));
  TensorVec out = dispatch(*n.op, std::move(in), n.draw >= 0 ? run.drawn(n) : n.attrs);
  HOLON_CHECK(out.size() == n.out.size(), "eager gives {} outputs for: {}", out.size(), str(run.g, n));
  for (size_t o = 0; o < out.size(); ++o) run.make(n, o, out[o]);
}

std::string fused_text(const Graph& g, const Node& n, std::string args) {
  std::string ops;
  if (has_target(g, n))
    for (auto& p : at_index(g.bodies, n.target).parts)
      ops += (ops.empty() ? "" : " ") + std::string(p.op ? p.op->name() : "?");
  return fmt::format("fused[{}]({})", ops, args);
}

void hash_fused(const Graph& g, const Node& n, Hasher* h) {
  if (n.target < 0) return;
  auto& body = at_index(g.bodies, n.target);
  for (auto& p : body.parts) {
    h->add_text(p.op->schema.name);
    for (int16_t i : p.in) h->add(i);
  }
  for (int16_t r : body.results) h->add(r);
}

void verify_fused(NodeCheck& check, const Node& n) {
  const Graph& g = check.g;
  if (!has_target(g, n)) check.wrong(n, "its body is {}, which does not exist", n.target);
  const FusedBody& body = at_index(g.bodies, n.target);
  if (body.results.size() != n.out.size() || n.out.empty())
    check.wrong(n, "it has {} outputs, its body {} results", n.out.size(), body.results.size());
  const GlobalSpec* spec = g.value(n.out[0]).spec;
  SmallVec<Meta, 16> metas;
  for (ValueId v : n.in) {
    metas.push_back(v == kNoValue ? Meta{} : Meta{g.value(v).shape, g.value(v).dtype});
    if (v != kNoValue && g.value(v).is_global() != (spec != nullptr))
      check.wrong(n, "some of its values are global, some local");
  }
  for (auto& part : body.parts) {
    if (!part.op || !part.op->kernel) check.wrong(n, "a part has no op with a kernel");
    SmallVec<Meta, 3> in;
    uint32_t present = 0;
    for (size_t i = 0; i < part.in.size(); ++i) {
      int16_t at = part.in[i];
      if (at >= static_cast<int>(metas.size()))
        check.wrong(n, "part {} reads operand {} before it is computed", part.op->name(), at);
      in.push_back(at < 0 ? Meta{} : at_index(metas, at));
      if (at >= 0) present |= 1u << i;
    }
    Infer infer(*part.op, part.attrs, in, present);
    part.op->infer(infer);
    if (infer.out_.size() != 1) check.wrong(n, "part {} has {} outputs", part.op->name(), infer.out_.size());
    metas.push_back(infer.out_[0]);
  }
  for (size_t o = 0; o < n.out.size(); ++o) {
    const Value& v = g.value(n.out[o]);
    auto at = n.in.size() + to_size(body.results[o]);
    if (body.results[o] < 0 || at >= metas.size())
      check.wrong(n, "result {} names part {}, which does not exist", o, body.results[o]);
    if (!(metas[at].shape == v.shape) || metas[at].dtype != v.dtype)
      check.wrong(n, "%{} is {} {}, where its parts infer {} {}", n.out[o], holon::name(v.dtype), v.shape,
                  holon::name(metas[at].dtype), metas[at].shape);
    if ((v.spec != nullptr) != (spec != nullptr) || (spec && !(v.spec->placement == spec->placement)))
      check.wrong(n, "its outputs are on different ranks");
  }
}

void interpret_fused(Interpreter& run, const Node& n) {
  const FusedBody& body = at_index(run.g.bodies, n.target);
  std::vector<Tensor> operands;
  for (ValueId v : n.in) operands.push_back(v == kNoValue ? Tensor() : run.at(v));
  for (auto& part : body.parts) {
    TensorVec in;
    for (int16_t i : part.in) in.push_back(i < 0 ? Tensor() : at_index(operands, i));
    operands.push_back(dispatch_one(*part.op, std::move(in), part.attrs));
  }
  for (size_t o = 0; o < n.out.size(); ++o) run.make(n, o, operands[n.in.size() + to_size(body.results[o])]);
}

}  // namespace kinds

}  // namespace holon::graph
