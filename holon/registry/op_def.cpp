#include "holon/registry/op_def.h"

#include <map>

#include "holon/base/context.h"

namespace holon {

namespace {

struct Registry {
  std::map<std::string, OpDef*, std::less<>> ops;
  std::map<std::string, OpDef*, std::less<>> aliases;
};
Registry& registry() {
  static auto* r = new Registry;
  return *r;
}

}  // namespace

int AttrReader::at(std::string_view name) const { return op_->schema.attr(name); }

int Infer::axis(std::string_view name, size_t input) const {
  return normalize_axis(i(name), in_[input].shape.size(), op_->name());
}

void Infer::refuse(ErrorKind kind, std::string_view what, std::string_view remedy) const {
  std::string found;
  size_t k = 0;
  for (auto& a : op_->schema.args) {
    if (a.input < 0) continue;
    do {
      if (!present(k)) continue;
      found += found.empty() ? "" : ", ";
      found += fmt::format("{}{} is {}", a.name, a.type == ArgType::kTensorList ? fmt::format("[{}]", k) : "", in_[k].shape);
      if (kind == ErrorKind::kType) found += fmt::format(" {}", holon::name(in_[k].dtype));
    } while (++k < in_.size() && a.type == ArgType::kTensorList);
  }
  fail(kind, "{}: {}: {} ({}). {}", op_->name(), what, found, rank_text(), remedy);
}

const Tensor& Grad::x(size_t i) const {
  HOLON_CHECK(op_->saves_in >> std::min<size_t>(i, 31) & 1, "gradient of {} reads input {}, which saves() does not name", op_->name(), i);
  return x_[i];
}

const Tensor& Grad::y(size_t i) const {
  HOLON_CHECK(op_->saves_out >> i & 1, "gradient of {} reads output {}, which saves() does not name", op_->name(), i);
  return y_[i];
}

OpBuilder& OpBuilder::doc(std::string_view text, std::string_view example) {
  def_->doc = text;
  def_->example = example;
  return *this;
}

OpBuilder& OpBuilder::infer_like(size_t input) {
  return infer([input](Infer& c) { c.out(c.shape(input), c.dtype_of(input)); });
}

OpBuilder& OpBuilder::infer_broadcast() {
  return infer([](Infer& c) {
    Dims shape = c.shape(0);
    for (size_t i = 1; i < c.n_in(); ++i)
      if (shape != c.shape(i)) shape = broadcast_shapes(shape, c.shape(i), c.op().name());
    c.out(shape, c.dtype_of(0));
  });
}

OpBuilder& OpBuilder::rule(std::string_view text) {
  def_->rule_text = text;
  return rule([text = std::string(text)](RuleCall& r) { apply_rule_text(text, r.in, r.out, r.rule, r.op().name()); });
}

OpBuilder& OpBuilder::rule_elementwise() {
  def_->rule_text = "elementwise";
  return rule([](RuleCall& r) { elementwise_rule(r.in, r.out, r.rule); });
}

OpBuilder& OpBuilder::only_whole(std::string_view reason) {
  def_->no_rule_reason = reason;
  return rule([](RuleCall&) {});
}

OpBuilder& OpBuilder::linear_in(std::initializer_list<int> inputs) {
  for (int i : inputs) def_->each |= 1u << i;
  return *this;
}

OpBuilder& OpBuilder::saves(std::initializer_list<int> inputs, std::initializer_list<int> outputs) {
  for (int i : inputs) def_->saves_in |= 1u << i;
  for (int i : outputs) def_->saves_out |= 1u << i;
  return *this;
}

OpBuilder define_op(std::string_view schema) {
  auto* def = new OpDef;
  def->schema = parse_schema(schema);
  def->autocast = default_autocast(def->schema.name);
  auto place = [&](std::string_view name, ArgType type) {
    auto* a = def->schema.find(name);
    return a && a->type == type ? a->attr : -1;
  };
  def->placement_attr = place("placement", ArgType::kPlacement);
  def->sbp_attr = place("sbp", ArgType::kSbp);
  def->device_attr = place("device", ArgType::kDevice);
  def->requires_grad_attr = place("requires_grad", ArgType::kBool);
  def->seed_attr = place("seed", ArgType::kInt);
  def->counter_attr = place("counter", ArgType::kInt);
  def->value_attr = place("value", ArgType::kScalar);
  bool fresh = registry().ops.emplace(def->schema.name, def).second;
  HOLON_CHECK(fresh, "op {} is declared twice", def->schema.name);
  return OpBuilder(def);
}

bool define_alias(std::string_view alias, std::string_view op) {
  auto* def = const_cast<OpDef*>(&find_op(op));
  HOLON_CHECK(!try_find_op(alias), "alias {} is an op already", alias);
  return registry().aliases.emplace(alias, def).second;
}

const OpDef* try_find_op(std::string_view name) {
  auto& r = registry();
  if (auto it = r.ops.find(name); it != r.ops.end()) return it->second;
  if (auto it = r.aliases.find(name); it != r.aliases.end()) return it->second;
  return nullptr;
}

const OpDef& find_op(std::string_view name) {
  if (auto* op = try_find_op(name)) return *op;
  fail(ErrorKind::kAttribute, "there is no op named \"{}\". holon.ops() lists all.", name);
}

std::vector<const OpDef*> all_ops() {
  std::vector<const OpDef*> v;
  for (auto& [name, def] : registry().ops) v.push_back(def);
  return v;
}

std::vector<std::pair<std::string, const OpDef*>> all_aliases() {
  std::vector<std::pair<std::string, const OpDef*>> v;
  for (auto& [name, def] : registry().aliases) v.push_back({name, def});
  return v;
}

}  // namespace holon
