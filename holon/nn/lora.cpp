#include "holon/nn/lora.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "holon/base/error.h"
#include "holon/nn/dropout.h"
#include "holon/nn/init.h"
#include "holon/nn/quantize.h"
#include "holon/nn/weights.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/cast.h"
#include "holon/ops/create.h"
#include "holon/ops/random.h"
#include "holon/ops/shape.h"
#include "holon/ops/values.h"

namespace holon::nn {

namespace {

constexpr const char *kA = "lora_A", *kB = "lora_B";

// What split of one axis of a weight is that of an axis of a factor; the other axes are whole.
NdSbp follows(const Tensor& weight, int of, int axis) {
  if (!weight.is_global()) return {};
  NdSbp sbp = weight.nd_sbp();
  for (int d = 0; d < sbp.size(); ++d)
    sbp = sbp.with(d, weight.nd_sbp()[d].is_split(of) ? sbp::split(axis) : sbp::broadcast());
  return sbp;
}

bool has_partial_sum(const Tensor& x) {
  if (!x.is_global()) return false;
  const NdSbp& sbp = x.nd_sbp();
  return std::any_of(sbp.begin(), sbp.end(), [](Sbp s) { return s.is_partial(); });
}

// x without partial sums.
Tensor summed(const Tensor& x) {
  NdSbp sbp = x.nd_sbp();
  for (int d = 0; d < sbp.size(); ++d)
    if (sbp[d].is_partial()) sbp = sbp.with(d, sbp::broadcast());
  return x.to_global(x.placement(), sbp);
}

DType dtype_of_adapter(DType weight) { return weight == float64 ? float64 : float32; }

struct Adapter {
  LoraFactor a, b;
  double scale, dropout;

  Tensor added(const Tensor& input, const Tensor& output) const {
    Tensor x = input.to(a.weight.dtype());
    if (dropout > 0) x = holon::dropout(x, dropout, a.is_training());
    Tensor h = a(x) * scale;
    // r numbers for each row are less to add up than the outputs, unless those are added up anyway.
    if (has_partial_sum(h) && !has_partial_sum(output)) h = summed(h);
    return output + b(h).to(output.dtype());
  }
};

}  // namespace

ProductSizes product_sizes(const Module& module, const ProductModule& p, int64_t group_size) {
  const Tensor weight = module.get_submodule(p.path).get_parameter("weight");
  if (!is_floating(weight.dtype())) return {weight.size(1) * group_size, weight.size(0)};
  return {weight.size(p.transposed ? 0 : 1), weight.size(p.transposed ? 1 : 0)};
}

LoraFactor::LoraFactor(const Dims& shape, const Placement& placement, const NdSbp& sbp, DType dtype) {
  weight = register_parameter("weight", blank(shape, placement, sbp, dtype));
}

struct Lora::State {
  struct Adapted {
    Module module;
    std::shared_ptr<Adapter> adapter;
    std::optional<HookHandle> hook{};  // none while the adapter is merged

    void add_hook() {
      // It is copied with each call: it holds a pointer.
      hook = module.register_forward_hook(
          [adapter = adapter](const Tensor& x, const Tensor& y) { return adapter->added(x, y); });
    }
    void remove_hook() {
      if (hook) hook->remove();
      hook.reset();
    }
  };
  Module root;
  LoraOptions options;
  std::vector<ProductModule> products{};
  std::vector<Adapted> adapted{};
  std::vector<Tensor> frozen{};  // what required grad before
  bool merged = false;
};

Lora::Lora(Module& module, const std::vector<ProductModule>& products, const LoraOptions& o, int64_t group_size)
    : state_(std::make_shared<State>(State{.root = module, .options = o, .products = products})) {
  if (o.r < 1) fail_value("LoRA: r is {}; a rank is 1 or more.", o.r);
  if (!std::isfinite(o.alpha)) fail_value("LoRA: alpha is {}; it must be a finite number.", o.alpha);
  checked_probability(o.dropout, "LoRA");
  if (products.empty()) fail_value("LoRA: there are no modules to adapt. Name some that multiply by a weight.");
  for (auto& p : products) {
    const Module of = module.get_submodule(p.path);
    const Tensor weight = of.get_parameter("weight");
    if (weight.ndim() != 2 && (is_floating(weight.dtype()) || group_size == 0))
      fail_value("LoRA: the weight of '{}' is {}; it must have two axes.", p.path, weight.shape());
    for (auto& [name, child] : of.named_children())
      if (name == kA || name == kB)
        fail_value("LoRA: '{}' has an adapter already. Remove that first, or train it on.", p.path);
  }
  for (Tensor p : module.parameters()) {
    if (!p.requires_grad()) continue;
    state_->frozen.push_back(p);
    p.set_requires_grad(false);
  }
  const double rank = static_cast<double>(o.r), scale = o.alpha / (o.rslora ? std::sqrt(rank) : rank);
  for (auto& p : products) {
    Module of = module.get_submodule(p.path);
    const Tensor weight = of.get_parameter("weight").detach();
    const bool turned = p.transposed && is_floating(weight.dtype());
    const auto [in, out] = product_sizes(module, p, group_size);
    const Placement placement = weight.is_global() ? weight.placement() : Placement();
    const DType dtype = dtype_of_adapter(weight.dtype());
    auto adapter = std::make_shared<Adapter>(
        Adapter{.a = LoraFactor({o.r, in}, placement, follows(weight, turned ? 0 : 1, 1), dtype),
                .b = LoraFactor({out, o.r}, placement, follows(weight, turned ? 1 : 0, 0), dtype),
                .scale = scale,
                .dropout = o.dropout});
    init::kaiming_uniform_(adapter->a.weight, std::sqrt(5.0));
    init::constant_(adapter->b.weight, 0);
    for (auto& [name, factor] : {std::pair(kA, &adapter->a), std::pair(kB, &adapter->b)}) {
      if (weight.is_local()) factor->to(weight.device());
      factor->train(of.is_training());
      of.register_module(name, std::as_const(*factor));
    }
    state_->adapted.push_back({of, std::move(adapter)});
    state_->adapted.back().add_hook();
  }
}

bool Lora::is_merged() const { return state_->merged; }
const LoraOptions& Lora::options() const { return state_->options; }
const std::vector<ProductModule>& Lora::products() const { return state_->products; }

void Lora::add_to_weights(double sign, const char* what) {
  State& s = *state_;
  for (size_t i = 0; i < s.adapted.size(); ++i)
    if (!is_floating(s.adapted[i].module.get_parameter("weight").dtype()))
      fail_runtime("LoRA: {}: the weight of '{}' is quantised, and cannot take an adapter in. Leave it unmerged, or "
                   "read the model without quantize.",
                   what, s.products[i].path);
  NoGradGuard guard;
  for (size_t i = 0; i < s.adapted.size(); ++i) {
    auto& of = s.adapted[i];
    Tensor weight = of.module.get_parameter("weight").detach();
    Tensor product = matmul(of.adapter->b.weight.detach(), of.adapter->a.weight.detach()) * (sign * of.adapter->scale);
    if (s.products[i].transposed) product = product.transpose(0, 1);
    if (weight.is_global()) product = product.to_global(weight.placement(), weight.nd_sbp());
    copy_(weight, (weight.to(product.dtype()) + product).to(weight.dtype()));
    sign > 0 ? of.remove_hook() : of.add_hook();
  }
  s.merged = sign > 0;
}

void Lora::merge() {
  if (is_merged()) fail_runtime("LoRA: merge: the adapters are merged already. Unmerge them first.");
  add_to_weights(1, "merge");
}

void Lora::unmerge() {
  if (!is_merged()) fail_runtime("LoRA: unmerge: the adapters are not merged.");
  add_to_weights(-1, "unmerge");
}

void Lora::remove() {
  State& s = *state_;
  for (auto& of : s.adapted) {
    of.remove_hook();
    of.module.remove_module(kA);
    of.module.remove_module(kB);
  }
  for (Tensor p : s.frozen) p.set_requires_grad();
  s.adapted.clear(), s.frozen.clear(), s.products.clear();
}

StateDict Lora::state_dict() const {
  StateDict out;
  const State& s = *state_;
  for (size_t i = 0; i < s.adapted.size(); ++i) {
    out.emplace_back(s.products[i].path + "." + kA + ".weight", s.adapted[i].adapter->a.weight);
    out.emplace_back(s.products[i].path + "." + kB + ".weight", s.adapted[i].adapter->b.weight);
  }
  return out;
}

}  // namespace holon::nn
