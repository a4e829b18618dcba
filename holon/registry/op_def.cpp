#include "holon/registry/op_def.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>

#include "holon/base/context.h"
#include "holon/base/fmt.h"
#include "holon/base/index.h"
#include "holon/registry/loading.h"

namespace holon {

namespace {

struct Registry {
  std::map<std::string, OpDef*, std::less<>> ops;
  std::map<std::string, OpDef*, std::less<>> aliases;
  std::map<std::string, std::vector<const OpDef*>, std::less<>> overloads;
  std::shared_mutex mutex;  // libraries may be loaded while ops are looked up
};
Registry& registry() {
  static auto* r = new Registry;
  return *r;
}

const OpDef* find(std::string_view name) {
  auto& r = registry();
  if (auto it = r.ops.find(name); it != r.ops.end()) return it->second;
  if (auto it = r.aliases.find(name); it != r.aliases.end()) return it->second;
  return nullptr;
}

OpDef* declare(std::string_view schema, int version, const char* file) {
  auto def = std::make_unique<OpDef>();
  def->schema = parse_schema(schema);
  def->family = std::filesystem::path(file).stem().string();
  if (version != kOpVersion)
    fail_runtime("op {} was compiled against version {} of the declarations; this Holon has version {}. Compile it "
                 "against this Holon's headers.",
                 def->schema.name, version, kOpVersion);
  auto place = [&](std::string_view name, ArgType type) {
    auto* a = def->schema.find(name);
    return a && a->type == type ? a->attr : -1;
  };
  def->placement_attr = place("placement", ArgType::kPlacement);
  def->sbp_attr = place("sbp", ArgType::kSbp);
  def->device_attr = place("device", ArgType::kDevice);
  def->pin_memory_attr = place("pin_memory", ArgType::kBool);
  def->requires_grad_attr = place("requires_grad", ArgType::kBool);
  def->seed_attr = place("seed", ArgType::kInt);
  def->counter_attr = place("counter", ArgType::kInt);
  for (auto& a : def->schema.args) {
    if (a.attr < 0) continue;
    const auto number = to_size(AttrName::of(a.name).number());
    if (def->attr_places.size() <= number) def->attr_places.resize(number + 1, -1);
    def->attr_places[number] = static_cast<int8_t>(a.attr);
  }
  for (auto& a : def->schema.args)
    if (a.attr >= 0 && !a.optional && !a.has_default && !a.variadic) def->required_attrs.push_back(a.attr);
  std::unique_lock lock(registry().mutex);
  if (find(def->schema.name)) fail_runtime("an op named {} exists already. Choose another name.", def->schema.name);
  std::string name = def->schema.name;
  return registry().ops.emplace(std::move(name), def.release()).first->second;
}

}  // namespace

void OpDef::fail_attr(AttrName name) const {
  HOLON_CHECK(false, "op {} has no attribute {}; its schema is {}", this->name(), name.text(), schema.text);
}

int Infer::axis(AttrName name, size_t input) const {
  return normalize_axis(i(name), in_[input].shape.size(), op_->public_name());
}

void Infer::refuse(ErrorKind kind, std::string_view what, std::string_view remedy) const {
  std::string found;
  size_t k = 0;
  for (auto& a : op_->schema.args) {
    if (a.input < 0) continue;
    do {
      if (!present(k)) continue;
      found += found.empty() ? "" : ", ";
      found +=
          fmt::format("{}{} is {}", a.name, a.type == ArgType::kTensorList ? fmt::format("[{}]", k) : "", in_[k].shape);
      if (kind == ErrorKind::kType) found += fmt::format(" {}", holon::name(in_[k].dtype));
    } while (++k < in_.size() && a.type == ArgType::kTensorList);
  }
  fail(kind, "{}: {}: {} ({}). {}", op_->public_name(), what, found, rank_text(), remedy);
}

const Tensor& Grad::x(size_t i) const {
  HOLON_CHECK(op_->saves_in >> std::min<size_t>(i, 31) & 1,
              "the gradient of {} reads input {}, which saves() does not name", op_->name(), i);
  return x_[i];
}

const Tensor& Grad::y(size_t i) const {
  HOLON_CHECK(op_->saves_out >> i & 1, "the gradient of {} reads output {}, which saves() does not name", op_->name(),
              i);
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

namespace {

// Errors (RuntimeError): the schema has no argument of that name and type.
const ArgDef& argument(const OpDef& op, std::string_view name, ArgType type) {
  auto* a = op.schema.find(name);
  if (!a || a->type != type)
    fail_runtime("the declaration of {} names {}, of which its schema has none of the wanted type: {}.", op.name(),
                 name, op.schema.text);
  return *a;
}

}  // namespace

OpBuilder& OpBuilder::promotes_with(std::initializer_list<std::string_view> numbers) {
  for (auto n : numbers) def_->promote_attrs.push_back(argument(*def_, n, ArgType::kScalar).attr);
  return *this;
}

OpBuilder& OpBuilder::mask(std::string_view input) {
  def_->mask_input = argument(*def_, input, ArgType::kTensor).input;
  return *this;
}

OpBuilder& OpBuilder::fuses_along(std::string_view axis) {
  def_->fuses_along_attr = argument(*def_, axis, ArgType::kInt).attr;
  return fuses(Fuses::kLastAxes);
}

OpBuilder& OpBuilder::saves(std::initializer_list<int> inputs, std::initializer_list<int> outputs) {
  for (int i : inputs) def_->saves_in |= 1u << i;
  for (int i : outputs) def_->saves_out |= 1u << i;
  return *this;
}

OpBuilder& OpBuilder::overload_of(std::string_view name) {
  HOLON_CHECK(def_->overload_of.empty(), "op {} is an overload of {} already", def_->name(), def_->overload_of);
  def_->overload_of = name;
  std::unique_lock lock(registry().mutex);
  registry().overloads[std::string(name)].push_back(def_);
  return *this;
}

OpBuilder define_op(std::string_view schema, int version, const char* file) {
  auto* loading = detail::Loading::current();
  if (!loading) return OpBuilder(declare(schema, version, file));
  try {
    OpDef* def = declare(schema, version, file);
    loading->ops.push_back(def->schema.name);
    return OpBuilder(def);
  } catch (const std::exception& e) {
    loading->keep_error(e.what());
    return OpBuilder(new OpDef);  // takes the rest of the declaration, which belongs to nothing
  }
}

bool define_alias(std::string_view alias, std::string_view op) {
  auto* loading = detail::Loading::current();
  try {
    auto* def = const_cast<OpDef*>(&find_op(op));
    std::unique_lock lock(registry().mutex);
    if (find(alias)) fail_runtime("alias {} is already the name of an op. Choose another one.", alias);
    registry().aliases.emplace(alias, def);
    if (loading) loading->aliases.emplace_back(alias);
    return true;
  } catch (const std::exception& e) {
    if (!loading) throw;
    loading->keep_error(e.what());
    return false;
  }
}

const OpDef* try_find_op(std::string_view name) {
  std::shared_lock lock(registry().mutex);
  return find(name);
}

const OpDef& find_op(std::string_view name) {
  if (auto* op = try_find_op(name)) return *op;
  fail(ErrorKind::kAttribute, "there is no op named \"{}\". holon.ops() lists all.", name);
}

std::vector<const OpDef*> all_ops() {
  std::shared_lock lock(registry().mutex);
  std::vector<const OpDef*> v;
  for (auto& [name, def] : registry().ops) v.push_back(def);
  return v;
}

std::vector<const OpDef*> overloads_of(std::string_view name) {
  auto& r = registry();
  std::shared_lock lock(r.mutex);
  auto it = r.overloads.find(name);
  if (it == r.overloads.end() || it->second.empty()) return {};
  std::vector<const OpDef*> all = it->second;
  if (auto head = r.ops.find(name); head != r.ops.end()) all.insert(all.begin(), head->second);
  return all;
}

std::vector<std::pair<std::string, const OpDef*>> all_aliases() {
  std::shared_lock lock(registry().mutex);
  std::vector<std::pair<std::string, const OpDef*>> v;
  for (auto& [name, def] : registry().aliases) v.push_back({name, def});
  return v;
}

namespace detail {

namespace {
thread_local Loading* loading_now = nullptr;
}

Loading* Loading::current() { return loading_now; }
Loading::Loading() : before_(loading_now) { loading_now = this; }
Loading::~Loading() { loading_now = before_; }

void Loading::undo() {
  for (auto& undo : undo_others) undo();
  std::unique_lock lock(registry().mutex);
  for (auto& a : aliases) registry().aliases.erase(a);
  for (auto& o : ops) registry().ops.erase(o);
  // Also of declarations that failed before they had a name.
  for (auto& [name, forms] : registry().overloads)
    std::erase_if(forms, [](const OpDef* op) {
      auto it = registry().ops.find(op->schema.name);
      return it == registry().ops.end() || it->second != op;
    });
}

std::vector<std::string> Loading::finish() {
  for (auto& name : ops) {
    const OpDef& op = find_op(name);
    const char* lacks = op.body && !op.body_if ? nullptr
        : !op.infer                            ? ".infer()"
        : !op.kernel && !op.view               ? ".kernel(), .view() or .body()"
        : !op.rule && op.schema.n_inputs > 0   ? ".rule() or .only_whole(reason)"
                                               : nullptr;
    if (!lacks) continue;
    undo();
    fail_runtime("load_library: the declaration of op {} lacks {}.", name, lacks);
  }
  for (auto& name : reads) {
    auto has = [&](const OpDef* op) {
      auto* a = op->schema.find(name);
      return a && a->attr >= 0;
    };
    const std::vector<const OpDef*> all = all_ops();
    if (std::any_of(all.begin(), all.end(), has)) continue;
    undo();
    fail_runtime("load_library: the library reads an attribute {}, which no op has. Name it as the schema does.", name);
  }
  return ops;
}

}  // namespace detail

}  // namespace holon
