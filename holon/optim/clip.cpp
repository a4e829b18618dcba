#include "holon/optim/clip.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/dispatch/layout_free.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/exact_sum.h"
#include "holon/kernels/on_device.h"
#include "holon/kernels/optim.h"
#include "holon/optim/device_clip.h"
#include "holon/optim/over_ranks.h"
#include "holon/optim/update.h"
#include "holon/tensor/observer.h"
#include "holon/tensor/tracer.h"

namespace holon::optim {

namespace {

// The gradients of some parameters, in forms on whose parts one can work one by one.
struct Gradients {
  std::vector<Tensor> params, grads;
  std::vector<const GlobalSpec*> specs;

  // With whole: addends of a partial sum come together first, because what follows is not linear. Collective then.
  Gradients(std::span<const Tensor> of, bool whole) {
    if (capturing_tracer())
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

  // On a rank without values only layouts count: addends that were brought together are the gradients from now on.
  bool keep_without_values() {
    if (!tracer()) return false;
    for (size_t i = 0; i < grads.size(); ++i)
      if (!grads[i].is_same(params[i].grad())) params[i].set_grad(grads[i]);
    return true;
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

  // By a number in memory of the device that they are on, or of the host's.
  void scale_by(const Array& factor) const {
    std::vector<Array> there, elsewhere;
    for (auto& a : parts()) (a.device == factor.device ? there : elsewhere).push_back(a);
    if (!there.empty()) kernels::scale_by(there, factor);
    if (!elsewhere.empty()) kernels::scale_all(elsewhere, *kernels::on_device(factor, {}).data<double>());
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

kernels::NormKind norm_kind(double norm_type) {
  using kernels::NormKind;
  if (std::isinf(norm_type)) return norm_type > 0 ? NormKind::kLargest : NormKind::kSmallest;
  return norm_type == 2 ? NormKind::kSquares
      : norm_type == 1  ? NormKind::kSum
      : norm_type == 0  ? NormKind::kCount
                        : NormKind::kPowers;
}

void check_norm(const Clip& clip, double norm) {
  if (clip.error_if_nonfinite && !std::isfinite(norm))
    fail_runtime("clip_grad_norm: the norm of order {} of the gradients is {}. Find the parameter whose gradient is "
                 "not finite, or lower the learning rate.",
                 clip.norm_type, std::abs(norm));  // no "-nan"
}

namespace {

// Errors (ValueError): norms of the kind do not have the same bits in every layout.
void require_exact(kernels::NormKind kind, double norm_type, std::span<const Array> parts) {
  using kernels::NormKind;
  if (kind == NormKind::kSum || kind == NormKind::kPowers)
    fail_value(
        "deterministic(layout_free=True): clip_grad_norm of norm_type {} adds up in an order that depends on the "
        "layout. Use 2, 0, inf or -inf.",
        norm_type);
  for (auto& a : parts)
    if (kind == NormKind::kSquares && a.defined() && (a.dtype != float32 || !a.device.is_host()))
      fail_value(
          "deterministic(layout_free=True): clip_grad_norm of {} gradients on {} adds up in an order that depends "
          "on the layout. It does not for float32 on CPUs.",
          name(a.dtype), a.device);
}

// values[i] = the squares of gradient i, of all ranks.
void exact_over_ranks(std::span<const Array> parts, std::span<const GlobalSpec* const> specs,
                      std::span<double> values) {
  constexpr size_t kWidth = kernels::kExactNumbers;
  std::vector<double> sums(parts.size() * kWidth);
  for (size_t i = 0; i < parts.size(); ++i)
    if (parts[i].defined()) kernels::exact_squares(parts[i], std::span(sums).subspan(i * kWidth, kWidth));
  combine_over_ranks(specs, static_cast<int>(kWidth), Combine::kSum, true, sums);
  for (size_t i = 0; i < parts.size(); ++i)
    values[i] = kernels::exact_value(std::span<const double>(sums).subspan(i * kWidth, kWidth));
}

}  // namespace

Clipping clipping_of(const Clip& clip, std::span<const Array> parts, std::span<const GlobalSpec* const> specs,
                     bool wide) {
  using kernels::NormKind;
  const NormKind kind = norm_kind(clip.norm_type);
  if (layout_free()) require_exact(kind, clip.norm_type, parts);
  std::vector<Array> own;
  for (auto& a : parts)
    if (a.defined()) own.push_back(a);
  std::vector<double> of_own(own.size());
  kernels::norms_of(kind, clip.norm_type, own, of_own);
  const Array found = Array::empty({1, static_cast<int64_t>(parts.size())}, float64);
  Array result = Array::empty({2}, float64);
  const std::span<double> values(found.data<double>(), parts.size());
  for (size_t i = 0, k = 0; i < parts.size(); ++i) values[i] = parts[i].defined() ? of_own[k++] : 0;
  const Combine how = kind == NormKind::kLargest ? Combine::kLargest
      : kind == NormKind::kSmallest              ? Combine::kSmallest
                                                 : Combine::kSum;
  if (layout_free() && kind == NormKind::kSquares)
    exact_over_ranks(parts, specs, values);
  else
    combine_over_ranks(specs, 1, how, true, values);
  double norm = 0, factor = 1;
  if (!parts.empty()) {
    kernels::clip_factor(kind, clip.norm_type, clip.limit, wide, {&found, 1}, result);
    norm = result.data<double>()[0], factor = result.data<double>()[1];
  }
  check_norm(clip, norm);
  return {norm, factor};
}

namespace {

ClipRecorder* recorder() { return dynamic_cast<ClipRecorder*>(Context::current().tracer()); }

// Of a norm and a factor in a device's memory.
double norm_on_host(const Array& result) { return kernels::on_device(result, {}).data<double>()[0]; }

void tell_written(const char* call, std::span<const Tensor> params) {
  Observer* const watching = observer();
  if (!watching) [[likely]]
    return;
  for (auto& p : params)
    if (const Tensor g = p.grad(); g.defined()) watching->wrote(call, {&g, 1}, g);
}

// Where the norm and the factor are: float64 [2].
Array clip_untold(const Clip& clip, std::span<const Tensor> params) {
  Gradients all(params, true);
  std::vector<Array> parts;
  std::vector<Device> devices;
  bool wide = false;
  for (auto& g : all.grads) {
    parts.push_back(g.array().is_placeholder() ? Array() : g.array());
    devices.push_back(g.is_local() ? g.device() : Device());
    wide = wide || g.dtype() == float64;
  }
  const Device device = clip_device(all.specs, devices);
  if (tracer()) {
    if (device.is_host()) clipping_of(clip, parts, all.specs, wide);  // for what the norms move
    all.keep_without_values();
    return Array::empty({2}, float64);
  }
  const Array result = Array::empty({2}, float64, device);
  if (device.is_host()) {
    const auto [norm, factor] = clipping_of(clip, parts, all.specs, wide);
    result.data<double>()[0] = norm, result.data<double>()[1] = factor;
    if (factor == 1) return result;
  } else {
    DeviceClipping(clip, all.specs, wide, device).run(parts, result);
    if (clip.error_if_nonfinite) check_norm(clip, norm_on_host(result));
  }
  parts.clear();  // who else holds a gradient's memory is counted
  all.make_own();
  all.scale_by(result.view({}, {}, 1));
  all.count_versions();
  return result;
}

Array clip_now(const Clip& clip, std::span<const Tensor> params) {
  Observer* const watching = observer();
  if (!watching) [[likely]]
    return clip_untold(clip, params);
  std::vector<Tensor> before;
  for (auto& p : params)
    if (p.grad().defined()) before.push_back(p.grad());
  ObserverPause untold;
  const Array result = clip_untold(clip, params);
  const Array norm = Array::empty({}, float64, result.device);
  Array into = norm;
  kernels::copy(result.view({}, {}, 0), into);
  watching->norm("clip_grad_norm_", before, Tensor::local(norm));
  for (auto& g : before) watching->wrote("clip_grad_norm_", {&g, 1}, g);
  return result;
}

}  // namespace

double clip_grad_norm(TensorList params, double max_norm, double norm_type, bool error_if_nonfinite) {
  const Clip clip{Clip::By::kNorm, max_norm, norm_type, error_if_nonfinite};
  check(clip);
  if (recorder())
    fail_runtime("clip_grad_norm returns a number, which a graph that is being captured does not have yet. Call "
                 "clip_grad_norm_(), which returns a tensor.");
  require_real_rank("clip_grad_norm");
  return norm_on_host(clip_now(clip, params));
}

Tensor clip_grad_norm_(TensorList params, double max_norm, double norm_type, bool error_if_nonfinite) {
  const Clip clip{Clip::By::kNorm, max_norm, norm_type, error_if_nonfinite};
  check(clip);
  if (auto* r = recorder()) return r->clip_gradients(clip, params);
  const Array result = clip_now(clip, params);
  Array norm = Array::empty({}, float32, result.device);
  kernels::copy(result.view({}, {}, 0), norm);
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
  if (all.keep_without_values()) return;
  all.make_own();
  kernels::clamp_all(all.parts(), -clip_value, clip_value);
  all.count_versions();
  tell_written("clip_grad_value_", params);
}

bool scale_grads(TensorList params, double factor) {
  Gradients all(params, false);
  bool finite = true;
  if (!all.keep_without_values()) {
    all.make_own();
    kernels::scale_all(all.parts(), factor, &finite);
    all.count_versions();
  }
  tell_written("scale_grads", params);
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
