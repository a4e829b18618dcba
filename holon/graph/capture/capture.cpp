#include "holon/graph/capture/capture.h"

#include <algorithm>
#include <atomic>

#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/contract/contract.h"
#include "holon/contract/site.h"
#include "holon/ops/arithmetic.h"
#include "holon/optim/device_clip.h"

namespace holon::graph {

namespace {

// Marks the counter attribute of a draw inside a capture; the rest of the number is the draw's place.
constexpr int64_t kDrawMark = int64_t{1} << 62;

uint32_t next_id() {
  static std::atomic<uint32_t> next{1};
  return next++;
}

}  // namespace

Capture* Capture::current() { return dynamic_cast<Capture*>(Context::current().tracer()); }

Capture::Capture() : id_(next_id()), before_(Context::current().tracer()) {
  if (current())
    fail_runtime("a graph is being captured already on {}: a graph cannot be called inside another one's build(). Call "
                 "the module itself there.",
                 rank_text());
  Context::current().set_tracer(this);
}

Capture::~Capture() { end(); }

void Capture::set_micro_batches(const MicroBatches& all, int variant) {
  graph_.micro_batches = all.count;
  rows_ = &at_index(all.rows, variant);
  graph_.only().row_parts = at_index(all.parts, variant);
  if (all.variants() > 1) share_ = at_index(all.shares, variant);
}

void Capture::end() {
  if (!open_) return;
  open_ = false;
  Context::current().set_tracer(before_);
}

void Capture::make_symbol(const Tensor& t, ValueId v) const {
  t.impl()->capture = id_;
  t.impl()->symbol = v;
}

Tensor Capture::symbol(const Dims& shape, DType dtype, const GlobalSpec* spec, Device device, ValueId* v) {
  Tensor t = Tensor::without_data(shape, dtype, spec, device);
  *v = graph_.add_value({shape, dtype, spec, t.impl()->device});
  make_symbol(t, *v);
  return t;
}

Tensor Capture::input(const Dims& shape, DType dtype, const GlobalSpec* spec, Device device) {
  ValueId v;
  Tensor t = symbol(shape, dtype, spec, device, &v);
  graph_.value(v).kind = ValueKind::kInput;
  graph_.value(v).index = static_cast<int32_t>(graph_.n_inputs());
  graph_.only().inputs.push_back(v);
  return t;
}

Tensor Capture::input_like(const Tensor& example) {
  Dims shape = example.shape();
  const size_t number = graph_.n_inputs();
  if (shape.size() > 0) shape[0] = rows_ ? (*rows_)[number] : equal_rows(example, number, graph_.micro_batches);
  return input(shape, example.dtype(), example.spec(), example.impl()->device);
}

int32_t Capture::external_of(const Tensor& t) {
  auto [it, fresh] = externals_.try_emplace(t.impl(), static_cast<int32_t>(graph_.externals.size()));
  if (!fresh) return it->second;
  Value value{t.shape(), t.dtype(), t.spec(), t.impl()->device, ValueKind::kExternal, it->second};
  External e;
  e.tensor = t;
  e.value = graph_.add_value(value);
  current_.push_back(e.value);
  graph_.externals.push_back(std::move(e));
  return it->second;
}

ValueId Capture::value_of(const Tensor& t) {
  if (!t.defined()) return kNoValue;
  if (!t.is_symbolic()) return at_index(current_, external_of(t));
  if (t.impl()->capture != id_)
    fail_runtime("a tensor {} {} was created inside another graph's build() and has no value here. Return it from that "
                 "build(), and pass on what the graph returns.",
                 holon::name(t.dtype()), t.shape());
  return t.impl()->symbol;
}

void Capture::name_external(const Tensor& t, const std::string& path, bool parameter) {
  auto& e = at_index(graph_.externals, external_of(t));
  if (e.name.empty()) e.name = path;
  e.parameter |= parameter;
}

void Capture::push_scope(const std::string& path, int stage) {
  Place p = scopes_.back();
  auto [it, fresh] = scope_ids_.try_emplace(path, static_cast<int32_t>(graph_.scopes.size()));
  if (fresh) graph_.scopes.push_back(path);
  p.scope = it->second;
  if (stage >= 0) p.stage = static_cast<int16_t>(stage);
  scopes_.push_back(p);
  places_.push_back(p);
  place_ = static_cast<int32_t>(places_.size()) - 1;
}

void Capture::pop_scope() {
  HOLON_CHECK(scopes_.size() > 1, "a module's scope is left that was not entered");
  scopes_.pop_back();
  places_.push_back(scopes_.back());
  place_ = static_cast<int32_t>(places_.size()) - 1;
}

void Capture::refresh_site() {
  if (backward_ || !site_hook_) return;
  Place p = at_index(places_, place_);
  auto [it, fresh] = site_ids_.try_emplace(site_hook_(), static_cast<int32_t>(graph_.sites.size()));
  if (fresh) {
    graph_.sites.push_back(it->first);
    if (contract::is_watching()) contract::site_at(it->first);  // while its function is known
  }
  p.site = it->second;
  if (p == at_index(places_, place_)) return;
  places_.push_back(p);
  place_ = static_cast<int32_t>(places_.size()) - 1;
}

Node& Capture::append(NodeKind kind, SmallVec<ValueId, 4> in) {
  refresh_site();
  const Place& p = at_index(places_, place_);
  Node n;
  n.kind = kind;
  // What build() computes from gradients comes after them.
  bool late = backward_, once = false;
  for (ValueId v : in) {
    late |= is_late(v);
    once |= is_once(v);
  }
  n.section = once ? Section::kOnceAfter : late ? Section::kBackward : Section::kForward;
  for (ValueId v : in)
    if (once && graph_.micro_batches > 1 && v != kNoValue && !is_once(v) &&
        graph_.value(v).kind != ValueKind::kExternal)
      fail_runtime("build() combines the norm of the gradients, which exists once per step, with a tensor {} {} of "
                   "each of the {} micro-batches. Return both, and combine them outside.",
                   holon::name(graph_.value(v).dtype), graph_.value(v).shape, graph_.micro_batches);
  n.in = std::move(in);
  n.stage = p.stage;
  n.scope = p.scope;
  n.site = p.site;
  graph_.nodes.push_back(std::move(n));
  return graph_.nodes.back();
}

void Capture::add_output(Node& n, ValueId v) {
  n.out.push_back(v);
  if (n.section == Section::kOnceAfter) {
    once_.resize(to_size(v) + 1);
    once_.back() = true;
  }
  if (n.section != Section::kBackward) return;
  late_.resize(to_size(v) + 1);
  late_.back() = true;
}

void Capture::op(const OpDef& op, const Attrs& attrs, std::span<const Tensor> inputs, std::span<Tensor> outputs) {
  SmallVec<ValueId, 4> in;
  for (auto& t : inputs) in.push_back(value_of(t));
  Node& n = append(NodeKind::kOp, std::move(in));
  n.op = &op;
  n.attrs = attrs;
  if (op.counter_attr >= 0 && attrs.has(op.counter_attr) && attrs.as_int(op.counter_attr) >= kDrawMark)
    n.draw = static_cast<int32_t>(attrs.as_int(op.counter_attr) - kDrawMark);
  for (auto& t : outputs) {
    ValueId v = graph_.add_value({t.shape(), t.dtype(), t.spec(), t.impl()->device});
    add_output(n, v);
    make_symbol(t, v);
  }
}

Tensor Capture::redistribute(const Tensor& t, const GlobalSpec* to, bool asked) {
  ValueId from = value_of(t), v;
  Tensor out = symbol(t.shape(), t.dtype(), to, {}, &v);
  Node& n = append(NodeKind::kBoxing, {from});
  n.pinned = asked && !backward_;  // in backward autograd asks, not the user
  add_output(n, v);
  return out;
}

Tensor Capture::relabel(const Tensor& t, const Dims& shape, const GlobalSpec* spec) {
  ValueId from = value_of(t), v;
  Tensor out = symbol(shape, t.dtype(), spec, t.impl()->device, &v);
  Node& n = append(NodeKind::kRelabel, {from});
  add_output(n, v);
  return out;
}

Tensor Capture::agree(const Tensor& t, const Dims& shape, const GlobalSpec* spec) {
  ValueId from = value_of(t), v;
  Tensor out = symbol(shape, t.dtype(), spec, {}, &v);
  Node& n = append(NodeKind::kAgree, {from});
  add_output(n, v);
  return out;
}

bool Capture::varies(const TensorImpl& t) const {
  auto it = externals_.find(&t);
  if (it == externals_.end()) return false;
  auto& e = at_index(graph_.externals, it->second);
  return e.assigned || e.parameter || !e.name.empty();
}

void Capture::write(const char* op, const Tensor& self, const Tensor& value) {
  ValueId v = value_of(value);
  if (self.is_symbolic()) {
    ValueId own = value_of(self);
    for (size_t i = graph_.nodes.size(); i-- > 0;)
      for (ValueId out : graph_.nodes[i].out)
        if (out == own) {
          if (graph_.nodes[i].op && graph_.nodes[i].op->view)
            fail_runtime("{}_: a view (made by {}) cannot be changed in place in a captured graph: the tensor that it "
                         "is a view of would not change. Use {}() and the tensor that it returns.",
                         op, graph_.nodes[i].op->name(), op);
          i = 0;
          break;
        }
    make_symbol(self, v);
    return;
  }
  auto at = to_size(external_of(self));
  graph_.externals[at].assigned = true;
  current_[at] = v;
}

void Capture::check_unclipped(const TensorImpl& leaf, const char* what) const {
  if (clipped_.contains(&leaf))
    fail_runtime("the gradient of a parameter {} is {} after it was clipped in build(). Gradients are clipped once per "
                 "step, when all of them exist: clip after the last backward(), and read gradients before clipping.",
                 leaf.shape, what);
}

void Capture::gradient(TensorImpl& leaf, const Tensor& g) {
  check_unclipped(leaf, "added to");
  auto [it, fresh] = gradient_of_.try_emplace(&leaf, gradients_.size());
  if (fresh) {
    gradients_.emplace_back(Ref<TensorImpl>(&leaf), g);
  } else {
    NoGradGuard no_grad;
    Tensor sum = add(gradients_[it->second].second, g);
    gradients_[it->second].second = sum;
  }
}

Tensor Capture::gradient_of(const TensorImpl& leaf) const {
  check_unclipped(leaf, "read");
  auto it = gradient_of_.find(&leaf);
  return it == gradient_of_.end() ? Tensor() : gradients_[it->second].second;
}

int64_t Capture::draw(bool global) { return kDrawMark + (global ? graph_.global_draws++ : graph_.local_draws++); }

Tensor Capture::seed(Tensor ones) {
  seeded_ = true;
  if (loss_scale_) ones = mul(ones, loss_scale_(ones));
  if (share_ > 0) return mul(ones, share_);
  return graph_.micro_batches == 1 ? ones : div(ones, static_cast<double>(graph_.micro_batches));
}

void Capture::detached(const Tensor& t, const Tensor& copy) {
  if (t.is_symbolic()) return;
  auto it = externals_.find(t.impl());
  int32_t at = it != externals_.end() ? it->second : external_of(t);
  externals_.emplace(copy.impl(), at);
  kept_.push_back(copy.ref());
}

void Capture::add_update(const optim::Rule& rule, std::span<const Tensor> params, double clip_grad_max_norm,
                         double clip_grad_norm_type, int optimizer) {
  for (auto& u : updates_)
    for (auto& p : u.params)
      for (auto& q : params)
        if (p.is_same(q))
          fail_value("add_optimizer: the parameter {} is in two optimizers or groups of this graph. Give each "
                     "parameter to one.",
                     p.shape());
  updates_.push_back({rule, {params.begin(), params.end()}, clip_grad_max_norm, clip_grad_norm_type, optimizer});
}

Tensor Capture::clip_gradients(const optim::Clip& clip, std::span<const Tensor> params) {
  std::vector<Tensor> found;
  for (auto& p : params)
    if (p.defined() && gradient_of_.contains(p.impl())) found.push_back(p);
  if (found.empty())
    fail_runtime("gradients are clipped in build(), and none of the {} parameters has one yet. Call backward() of the "
                 "loss first.",
                 params.size());
  return add_clip(clip, found);
}

Tensor Capture::add_clip(const optim::Clip& how, std::span<const Tensor> params) {
  const bool by_norm = how.by == optim::Clip::By::kNorm;
  Tensor norm;
  ValueId v = kNoValue;
  if (by_norm) {
    std::vector<const GlobalSpec*> specs;
    std::vector<Device> devices;
    for (auto& p : params) {
      const TensorImpl& g = *gradients_[gradient_of_.at(p.impl())].second.impl();
      specs.push_back(g.spec);
      devices.push_back(g.device);
    }
    norm = symbol({}, float32, nullptr, optim::clip_device(specs, devices), &v);
  }
  Node& n = append(NodeKind::kClip, {});
  n.section = Section::kOnceAfter;
  n.stage = -1;
  n.target = static_cast<int32_t>(clips_.size());
  if (by_norm) add_output(n, v);
  clips_.push_back({how, {params.begin(), params.end()}});
  for (auto& p : params) clipped_.insert(p.impl());
  return norm;
}

// Groups of an optimizer with one limit are clipped as one, as by Optimizer::clip_grad().
void Capture::clip_groups() {
  struct Together {
    int optimizer;
    PendingClip clip;
  };
  std::vector<Together> all;
  for (auto& u : updates_) {
    if (u.clip_grad_max_norm < 0) continue;
    const optim::Clip how{optim::Clip::By::kNorm, u.clip_grad_max_norm, u.clip_grad_norm_type};
    optim::check(how);
    auto it = std::find_if(all.begin(), all.end(),
                           [&](const Together& t) { return t.optimizer == u.optimizer && t.clip.how == how; });
    if (it == all.end()) it = all.insert(it, {u.optimizer, {how, {}}});
    for (auto& p : u.params)
      if (gradient_of_.contains(p.impl())) it->clip.params.push_back(p);
  }
  for (auto& t : all) {
    // Optimizer::clip_grad() in build() has done it.
    const bool done = std::any_of(clips_.begin(), clips_.end(), [&](const PendingClip& c) {
      return c.how.by == t.clip.how.by && c.how.limit == t.clip.how.limit && c.how.norm_type == t.clip.how.norm_type &&
          std::ranges::equal(c.params, t.clip.params, &Tensor::is_same);
    });
    if (!done && !t.clip.params.empty()) add_clip(t.clip.how, t.clip.params);
  }
}

void Capture::add_updates() {
  for (auto& u : updates_) {
    Update update{u.rule, {}, {}, u.optimizer};
    SmallVec<ValueId, 4> in;
    for (auto& p : u.params) {
      auto it = gradient_of_.find(p.impl());
      if (it == gradient_of_.end()) continue;
      in.push_back(value_of(gradients_[it->second].second));
      int32_t at = external_of(p);
      at_index(graph_.externals, at).parameter = true;
      update.externals.push_back(at);
      update.shards.push_back(nullptr);
    }
    if (in.empty())
      fail_runtime("add_optimizer: the graph computes no gradient for any of the {} parameters of this optimizer's "
                   "group. Call loss.backward() in build(), and give the "
                   "optimizer the parameters of the module that build() uses.",
                   u.params.size());
    Node& n = append(NodeKind::kUpdate, std::move(in));
    n.section = Section::kOnceAfter;
    n.target = static_cast<int32_t>(graph_.updates.size());
    graph_.updates.push_back(std::move(update));
  }
}

// Where the updates take the gradients that are clipped. Those that no update takes count in norms all the same.
void Capture::find_clipped() {
  std::unordered_map<const TensorImpl*, GradClip::Of> places;
  for (size_t u = 0; u < graph_.updates.size(); ++u)
    for (size_t i = 0; i < graph_.updates[u].externals.size(); ++i)
      places.emplace(at_index(graph_.externals, graph_.updates[u].externals[i]).tensor.impl(),
                     GradClip::Of{static_cast<int32_t>(u), static_cast<int32_t>(i)});
  Update idle;
  idle.optimizer = -1;
  idle.idle = true;
  SmallVec<ValueId, 4> in;
  const auto number = static_cast<int32_t>(graph_.updates.size());
  for (auto& c : clips_) {
    GradClip clip{c.how, {}};
    for (auto& p : c.params) {
      const auto next = static_cast<int32_t>(in.size());
      auto [it, fresh] = places.try_emplace(p.impl(), GradClip::Of{number, next});
      clip.of.push_back(it->second);
      if (!fresh) continue;
      in.push_back(value_of(gradients_[gradient_of_.at(p.impl())].second));
      idle.externals.push_back(external_of(p));
      idle.shards.push_back(nullptr);
    }
    graph_.clips.push_back(std::move(clip));
  }
  if (in.empty()) return;
  Node& n = append(NodeKind::kUpdate, std::move(in));
  n.section = Section::kOnceAfter;
  n.target = number;
  graph_.updates.push_back(std::move(idle));
}

Graph Capture::finish(std::span<const Tensor> outputs) {
  if (unscaled_)
    fail_runtime("set_grad_scaler: build() passes a gradient to backward(), which is not scaled. Call backward() "
                 "without one, on a loss of one element.");
  for (auto& t : outputs) graph_.only().outputs.push_back(value_of(t));
  place_ = 0;
  backward_ = true;
  site_hook_ = nullptr;
  clip_groups();
  add_updates();
  find_clipped();
  // Writes come last: what reads the old value has run by then.
  for (size_t e = 0; e < current_.size(); ++e) {
    if (!graph_.externals[e].assigned) continue;
    Node& n = append(NodeKind::kAssign, {current_[e]});
    n.section = graph_.micro_batches == 1 || is_once(current_[e]) ? Section::kOnceAfter
        : is_late(current_[e])                                    ? Section::kBackward
                                                                  : Section::kForward;
    n.target = static_cast<int32_t>(e);
  }
  end();
  return std::move(graph_);
}

}  // namespace holon::graph
