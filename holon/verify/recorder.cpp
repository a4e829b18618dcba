#include "holon/verify/recorder.h"

#include <algorithm>
#include <cmath>

#include "holon/base/blocking.h"
#include "holon/base/context.h"
#include "holon/base/fmt.h"
#include "holon/base/index.h"
#include "holon/conformance/values.h"
#include "holon/tensor/node.h"
#include "holon/verify/perturb.h"

namespace holon::verify {

namespace {

std::string user_site() {
  char text[1024] = {};
  if (auto where = blocking_hooks().where) where(text, sizeof text);
  return text;
}

// How many numbers an element of the result may be a sum of, by the sizes alone: of a product of matrices it is k.
double terms_of(bool product, std::span<const Tensor> inputs, std::span<const Tensor> outputs) {
  double in = 1, largest = 0;
  for (auto& t : inputs)
    if (t.defined()) {
      const auto n = static_cast<double>(std::max<int64_t>(t.numel(), 1));
      in *= n;
      largest = std::max(largest, n);
    }
  if (outputs.empty() || !outputs[0].defined()) return 1;
  const auto out = static_cast<double>(std::max<int64_t>(outputs[0].numel(), 1));
  return std::max(product && inputs.size() >= 2 ? std::sqrt(in / out) : 1.0, largest / out);
}

}  // namespace

Value value_of(const Tensor& t) {
  Value v;
  v.dtype = t.dtype();
  v.shape = t.shape();
  v.requires_grad = t.requires_grad();
  if (t.is_global()) {
    v.global = true;
    v.hierarchy = t.placement().hierarchy();
    v.ranks.assign(t.placement().ranks().begin(), t.placement().ranks().end());
    v.nd_sbp.assign(t.nd_sbp().begin(), t.nd_sbp().end());
  }
  const Array& a = t.array();
  v.here = a.defined();
  if (!v.here) return v;
  v.part_shape = a.shape;
  v.part = conformance::values_of(a);
  return v;
}

Recorder::Recorder(const std::string& path, RecorderOptions options)
    : writer_(path, Context::current().rank(), Context::current().world_size()),
      options_(std::move(options)),
      before_(exchange_observer(this)) {}

Recorder::~Recorder() { exchange_observer(before_); }

int Recorder::add(Record record) {
  writer_.add(record);
  return n_++;
}

void Recorder::end(const std::string& error) {
  if (std::exchange(ended_, true)) return;
  writer_.end(error);
}

void Recorder::made_by(const Tensor& t, int record) {
  maker_[t.impl()] = record;
  if (const Array& a = t.array(); a.defined()) owner_.try_emplace(a.storage.get(), record);
  kept_.push_back(t);
}

void Recorder::written_by(const Tensor& t, int record) {
  if (const Array& a = t.array(); a.defined()) {
    last_write_[a.storage.get()] = record;
    owner_.try_emplace(a.storage.get(), record);
  } else {
    maker_[t.impl()] = record;
  }
  kept_.push_back(t);
}

int Recorder::maker(const Tensor& t) {
  int found = -1;
  if (auto it = maker_.find(t.impl()); it != maker_.end()) found = it->second;
  if (const Array& a = t.array(); a.defined()) {
    if (auto it = owner_.find(a.storage.get()); found < 0 && it != owner_.end()) found = it->second;
    if (auto it = last_write_.find(a.storage.get()); it != last_write_.end()) found = std::max(found, it->second);
  }
  if (found >= 0) return found;
  const bool parameter = t.is_leaf() && t.requires_grad();
  found =
      add({.kind = Kind::kInput, .op = parameter ? "parameter" : "data", .site = user_site(), .values = {value_of(t)}});
  made_by(t, found);
  return found;
}

std::vector<int> Recorder::makers(std::span<const Tensor> list) {
  std::vector<int> found;
  for (auto& t : list)
    if (t.defined()) found.push_back(maker(t));
  return found;
}

void Recorder::op(const char* name, const OpKind& kind, std::span<const Tensor> inputs,
                  std::span<const Tensor> outputs) {
  if (options_.perturbation != 0 && !kind.view && !kind.composed)
    for (auto& t : outputs)
      if (t.array().defined())
        perturb(t.impl()->array, conformance::mix(options_.perturbation, static_cast<uint64_t>(kept_.size())),
                terms_of(kind.product, inputs, outputs));
  Record r{.kind = Kind::kOp, .op = name, .site = user_site()};
  if (in_engine(r.site)) return;
  if (kind.composed &&
      std::all_of(outputs.begin(), outputs.end(), [&](auto& t) { return maker_.count(t.impl()) != 0; }))
    return;
  r.view = kind.view, r.random = kind.random, r.converts = kind.converts;
  r.inputs = makers(inputs);
  for (auto& t : outputs) r.values.push_back(value_of(t));
  const Forward forward{n_, r.op, r.site, r.inputs};
  const int record = add(std::move(r));
  for (auto& t : outputs) {
    made_by(t, record);
    if (const Node* node = t.impl()->grad_fn().get()) forward_.insert_or_assign(node, forward);
  }
}

void Recorder::wrote(const char* name, std::span<const Tensor> inputs, const Tensor& self) {
  Record r{.kind = Kind::kWrite, .op = std::string(name) + "_", .site = user_site()};
  if (in_engine(r.site)) return;
  if (r.op.ends_with("__")) r.op.pop_back();
  r.inputs = makers(inputs);
  r.inputs.push_back(maker(self));
  r.values = {value_of(self)};
  r.of_parameter = self.requires_grad() && self.is_leaf();
  const Forward forward{n_, r.op, r.site, r.inputs};
  const int record = add(std::move(r));
  written_by(self, record);
  if (const Node* node = self.impl()->grad_fn().get()) forward_.try_emplace(node, forward);
}

void Recorder::made(const char* call, const Tensor& t) {
  made_by(t, add({.kind = Kind::kMade, .op = call, .site = user_site(), .values = {value_of(t)}}));
}

void Recorder::read(const Tensor& t) {
  const int from = maker(t);
  add({.kind = Kind::kRead, .op = "value", .site = user_site(), .inputs = {from}});
}

void Recorder::state(const std::string& name, const Tensor& t) {
  const int from = maker(t);
  add({.kind = Kind::kState, .op = "state", .label = name, .inputs = {from}, .values = {value_of(t)}});
}

void Recorder::backward_begins(std::span<const Tensor> roots) {
  if (walking_++ > 0) return;
  walk_site_ = user_site();
  for (auto& t : roots) {
    const int from = maker(t);
    add({.kind = Kind::kRead, .op = "backward", .site = walk_site_, .inputs = {from}});
  }
}

void Recorder::backward(const Node& node, std::span<const Tensor> gradients, std::span<const Tensor> of_inputs) {
  const auto known = forward_.find(&node);
  const Forward f = known != forward_.end() ? known->second : Forward{-1, node.name(), walk_site_, {}};
  std::vector<int> read;
  for (size_t o = 0; o < gradients.size(); ++o) {
    if (!gradients[o].defined()) continue;
    Record r{.kind = Kind::kGradient, .op = f.op, .site = f.site, .forward = f.record, .place = static_cast<int>(o)};
    if (auto it = given_.find({&node, static_cast<uint32_t>(o)}); it != given_.end()) {
      r.inputs = it->second;
      given_.erase(it);
    }
    r.values = {value_of(gradients[o])};
    read.push_back(add(std::move(r)));
  }
  if (f.record >= 0) read.push_back(f.record);
  read.insert(read.end(), f.inputs.begin(), f.inputs.end());
  for (size_t i = 0; i < of_inputs.size() && i < node.edges.size(); ++i) {
    const Edge& edge = node.edges[i];
    if (!of_inputs[i].defined() || !edge.valid()) continue;
    Record r{.kind = Kind::kBackward, .op = f.op, .site = f.site, .forward = f.record, .place = static_cast<int>(i)};
    r.inputs = read;
    // What a user's own backward has made it of.
    if (auto it = maker_.find(of_inputs[i].impl()); it != maker_.end()) r.inputs.push_back(it->second);
    r.values = {value_of(of_inputs[i])};
    const int record = add(std::move(r));
    if (edge.leaf) {
      given_[{edge.leaf.get(), 0}].push_back(record);
      leaf_site_.try_emplace(edge.leaf.get(), f.site);
    } else {
      given_[{edge.node.get(), edge.index}].push_back(record);
    }
  }
}

void Recorder::leaf_gradient(TensorImpl& leaf, const Tensor& gradient) {
  for (auto& [known, sum] : leaves_)
    if (known.get() == &leaf) {
      sum = gradient;
      return;
    }
  leaves_.emplace_back(Ref<TensorImpl>(&leaf), gradient);
}

void Recorder::backward_ends() {
  if (--walking_ > 0) return;
  for (auto& [leaf, sum] : leaves_) {
    Record r{.kind = Kind::kLeafGradient, .op = "gradient", .site = leaf_site_[leaf.get()]};
    r.label = fmt::format("of a leaf {}", leaf->shape);
    r.inputs = given_[{leaf.get(), 0}];
    if (maker_.count(sum.impl())) r.inputs.push_back(maker(sum));
    r.values = {value_of(sum)};
    const int record = add(std::move(r));
    made_by(sum, record);
    written_by(sum, record);
  }
  leaves_.clear();
  leaf_site_.clear();
  given_.clear();
}

void Recorder::update(const char* rule, size_t index, const Tensor& parameter, const Tensor& gradient) {
  if (options_.steps > 0 && options_.on_end && ++steps_[parameter.impl()] > options_.steps) options_.on_end();
  Record r{.kind = Kind::kUse, .op = rule, .site = user_site()};
  r.label = fmt::format("gradient of parameter {} {}", index, parameter.shape());
  if (gradient.defined()) {
    r.inputs = {maker(gradient)};
    r.values = {value_of(gradient)};
  }
  used_[parameter.impl()] = add(std::move(r));
}

void Recorder::updated(const char* rule, size_t index, const Tensor& parameter,
                       std::span<const std::pair<const char*, Tensor>> state) {
  const int gradient = used_[parameter.impl()];
  auto tell = [&](const std::string& label, const Tensor& t, bool of_parameter) {
    Record r{.kind = Kind::kUpdate, .op = rule, .site = user_site(), .label = label, .of_parameter = of_parameter};
    r.inputs = {gradient};
    if (maker_.count(t.impl()) || (t.array().defined() && owner_.count(t.array().storage.get())))
      r.inputs.push_back(maker(t));
    r.values = {value_of(t)};
    written_by(t, add(std::move(r)));
  };
  for (auto& [name, t] : state)
    if (t.defined()) tell(fmt::format("{} of parameter {} {}", name, index, parameter.shape()), t, false);
  tell(fmt::format("parameter {} {}", index, parameter.shape()), parameter, true);
}

void Recorder::norm(const char* call, std::span<const Tensor> gradients, const Tensor& norm) {
  add({.kind = Kind::kNorm, .op = call, .site = user_site(), .inputs = makers(gradients), .values = {value_of(norm)}});
}

}  // namespace holon::verify
