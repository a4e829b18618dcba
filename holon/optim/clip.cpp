#include "holon/optim/clip.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/optim.h"
#include "holon/optim/over_ranks.h"
#include "holon/optim/update.h"
#include "holon/tensor/tracer.h"

namespace holon::optim {

namespace {

// The gradients of some parameters, in forms on whose parts one can work one by one.
struct Gradients {
  std::vector<Tensor> params, grads;
  std::vector<const GlobalSpec*> specs;

  // With whole: addends of a partial sum come together first, because what follows is not linear. Collective then.
  Gradients(std::span<const Tensor> of, bool whole) {
    if (Context::current().tracer())
      fail_runtime("gradients are scaled inside a graph that is being captured. Leave that to the graph: "
                   "set_grad_scaler() divides by a loss scale, clip_grad_norm_() clips.");
    NoGradGuard guard;
    for (auto& p : of) {
      Tensor g = p.defined() ? p.grad() : Tensor();
      if (!g.defined()) continue;
      if (whole && g.is_global() && g.nd_sbp().has_partial()) {
        NdSbp sbp = g.nd_sbp();
        for (int d = 0; d < sbp.size(); ++d)
          if (sbp[d].is_partial()) sbp = sbp.with(d, sbp::broadcast());
        g = g.to_global(g.placement(), sbp);
      }
      params.push_back(p);
      specs.push_back(g.spec());
      grads.push_back(std::move(g));
    }
  }

  std::vector<Array> parts() const {
    std::vector<Array> arrays;
    for (auto& g : grads)
      if (g.array().defined()) arrays.push_back(g.array());
    return arrays;
  }

  // Makes each gradient's memory its own, so that it can be changed: two gradients may be one tensor, and a program may
  // hold one to look at it later.
  void make_own() {
    for (size_t i = 0; i < grads.size(); ++i) {
      Tensor& g = grads[i];
      const bool new_value = !g.is_same(params[i].grad());  // redistributed just now
      // Held here and in the parameter, and in no other place.
      const bool alone =
          (new_value || g.impl()->use_count() <= 2) && (!g.array().defined() || g.array().storage->use_count() <= 1);
      if (alone) {
        if (new_value) params[i].set_grad(g);
        continue;
      }
      Array a;
      if (g.array().defined()) {
        a = Array::empty(g.array().shape, g.array().dtype, g.array().device);
        kernels::copy(g.array(), a);
      }
      if (g.is_local())
        g = Tensor::local(std::move(a));
      else
        g = Tensor::global(std::move(a), g.shape(), g.dtype(), g.spec());
      params[i].set_grad(g);
    }
  }

  void count_versions() const {
    for (auto& g : grads)
      if (g.array().defined()) ++g.array().storage->version;
  }
};

}  // namespace

void check(const Clip& clip) {
  const bool by_norm = clip.by == Clip::By::kNorm;
  if (!(clip.limit >= 0))
    fail_value("{} must not be negative, found {}.",
               by_norm ? "clip_grad_norm: max_norm" : "clip_grad_value: clip_value", clip.limit);
  if (std::isnan(clip.norm_type))
    fail_value("clip_grad_norm: norm_type is not a number. Give 2, another power, 0, inf or -inf.");
}

Clipping clipping_of(const Clip& clip, std::span<const Array> parts, std::span<const GlobalSpec* const> specs,
                     bool wide) {
  using kernels::NormKind;
  const double norm_type = clip.norm_type;
  const bool infinite = std::isinf(norm_type);
  const NormKind kind = infinite ? (norm_type > 0 ? NormKind::kLargest : NormKind::kSmallest)
      : norm_type == 2           ? NormKind::kSquares
      : norm_type == 1           ? NormKind::kSum
      : norm_type == 0           ? NormKind::kCount
                                 : NormKind::kPowers;
  const Combine how = !infinite ? Combine::kSum : norm_type > 0 ? Combine::kLargest : Combine::kSmallest;
  std::vector<Array> own;
  for (auto& a : parts)
    if (a.defined()) own.push_back(a);
  std::vector<double> of_own(own.size()), values(parts.size());
  kernels::norms_of(kind, norm_type, own, of_own);
  for (size_t i = 0, k = 0; i < parts.size(); ++i)
    if (parts[i].defined()) values[i] = of_own[k++];
  combine_over_ranks(specs, 1, how, true, values);
  double norm = 0;
  if (infinite && !values.empty()) {
    norm = values[0];
    for (double v : values) norm = std::isnan(v) || (norm_type > 0 ? v > norm : v < norm) ? v : norm;
  } else if (!infinite) {
    // Of the norms of the single gradients, as PyTorch has it: of order 0 that is how many of them are not 0.
    for (double v : values) norm += norm_type == 0 ? static_cast<double>(v != 0) : v;
    if (norm_type == 2)
      norm = std::sqrt(norm);
    else if (norm_type != 0 && norm_type != 1)
      norm = values.empty() ? 0 : std::pow(norm, 1 / norm_type);
  }
  if (clip.error_if_nonfinite && !std::isfinite(norm))
    fail_runtime("clip_grad_norm: the norm of order {} of the gradients is {}. Find the parameter whose gradient is "
                 "not finite, or lower the learning rate.",
                 norm_type, std::abs(norm));  // no "-nan"
  const double rounded = wide ? norm : static_cast<double>(static_cast<float>(norm));
  return {norm, clip.limit / (rounded + 1e-6)};
}

namespace {

ClipRecorder* recorder() { return dynamic_cast<ClipRecorder*>(Context::current().tracer()); }

double clip_now(const Clip& clip, std::span<const Tensor> params) {
  Gradients all(params, true);
  std::vector<Array> parts;
  bool wide = false;
  for (auto& g : all.grads) {
    parts.push_back(g.array());
    wide = wide || g.dtype() == float64;
  }
  const auto [norm, factor] = clipping_of(clip, parts, all.specs, wide);
  if (!(factor < 1)) return norm;
  parts.clear();  // who else holds a gradient's memory is counted
  all.make_own();
  kernels::scale_all(all.parts(), factor);
  all.count_versions();
  return norm;
}

}  // namespace

double clip_grad_norm(TensorList params, double max_norm, double norm_type, bool error_if_nonfinite) {
  const Clip clip{Clip::By::kNorm, max_norm, norm_type, error_if_nonfinite};
  check(clip);
  if (recorder())
    fail_runtime("clip_grad_norm returns a number, which a graph that is being captured does not have yet. Call "
                 "clip_grad_norm_(), which returns a tensor.");
  return clip_now(clip, params);
}

Tensor clip_grad_norm_(TensorList params, double max_norm, double norm_type, bool error_if_nonfinite) {
  const Clip clip{Clip::By::kNorm, max_norm, norm_type, error_if_nonfinite};
  check(clip);
  if (auto* r = recorder()) return r->clip_gradients(clip, params);
  Array norm = Array::empty({}, float32);
  kernels::fill(norm, Scalar(clip_now(clip, params)));
  return Tensor::local(std::move(norm));
}

void clip_grad_value(TensorList params, double clip_value) {
  const Clip clip{Clip::By::kValue, clip_value};
  check(clip);
  if (auto* r = recorder()) {
    r->clip_gradients(clip, params);
    return;
  }
  Gradients all(params, true);
  all.make_own();
  kernels::clamp_all(all.parts(), -clip_value, clip_value);
  all.count_versions();
}

bool scale_grads(TensorList params, double factor) {
  Gradients all(params, false);
  all.make_own();
  bool finite = true;
  kernels::scale_all(all.parts(), factor, &finite);
  all.count_versions();
  // Every rank's finding counts, whatever it holds: one number for each placement, as if that were split over its
  // ranks.
  std::vector<const GlobalSpec*> specs;
  std::vector<double> values;
  for (const GlobalSpec* s : all.specs) {
    if (!s) continue;
    const GlobalSpec* row = intern_spec(s->placement, NdSbp::filled(s->nd_sbp.size(), sbp::split(0)));
    if (std::find(specs.begin(), specs.end(), row) != specs.end()) continue;
    specs.push_back(row);
    values.push_back(finite ? 0 : 1);
  }
  combine_over_ranks(specs, 1, Combine::kLargest, true, values);
  return finite && std::all_of(values.begin(), values.end(), [](double v) { return v == 0; });
}

}  // namespace holon::optim
