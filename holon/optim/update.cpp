#include "holon/optim/update.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "holon/base/error.h"
#include "holon/kernels/cpu/copy.h"
#include "holon/optim/local.h"

namespace holon::optim {

Tensor grad_like(const Tensor& param, const Tensor& grad) {
  if (param.is_local() || grad.spec() == param.spec()) return grad;
  NoGradGuard guard;
  return grad.to_global(param.placement(), param.nd_sbp());
}

Array in_order_of(const Array& like, const Array& array) {
  if (array.strides == like.strides) return array;
  Array copy = Array::empty_strided(like.shape, like.strides, array.dtype, array.device);
  kernels::copy(array, copy);
  return copy;
}

namespace {

// Elements per task: enough work to pay for a hand-over, small enough to share one large tensor between the threads.
constexpr int64_t kChunk = 1 << 15;

DType state_dtype(DType param) { return size_bytes(param) == 2 ? float32 : param; }

void check_options(bool ok, const char* rule, const char* text) {
  if (!ok) fail_value("{}: {}", rule, text);
}

void check_list(size_t params, size_t found, const char* rule, const char* what) {
  if (params != found) fail_value("{}: {} parameters need as many {}; found {}.", rule, params, what, found);
}

void check_pair(const Tensor& p, const Tensor& g, const char* rule, size_t i) {
  if (!p.defined()) fail_value("{}: parameter {} is undefined.", rule, i);
  if (!is_floating(p.dtype()))
    fail_type("{}: parameter {} is of {}; only floating point parameters are updated. Leave it out.", rule, i, name(p.dtype()));
  if (!g.defined()) return;
  if (g.shape() != p.shape() || g.dtype() != p.dtype() || g.is_global() != p.is_global())
    fail_value("{}: parameter {} is {} {} {}, its gradient {} {} {}. They must be alike.", rule, i, p.is_global() ? "global" : "local",
               name(p.dtype()), p.shape(), g.is_global() ? "global" : "local", name(g.dtype()), g.shape());
}

void check_state(const Tensor& p, const Tensor& s, const char* rule, const char* what, size_t i) {
  if (!s.defined()) return;
  if (s.shape() != p.shape() || s.dtype() != state_dtype(p.dtype()) || s.spec() != p.spec())
    fail_value("{}: {} of parameter {} must be {} {} with the parameter's placement and sbp; found {} {}. Box or convert it first.",
               rule, what, i, name(state_dtype(p.dtype())), p.shape(), name(s.dtype()), s.shape());
}

Tensor zeros_state(const Tensor& p) {
  Array a;
  if (p.array().defined()) {
    const Array& v = p.array();
    a = v.is_dense() ? Array::empty_strided(v.shape, v.strides, state_dtype(v.dtype), v.device)
                     : Array::empty(v.shape, state_dtype(v.dtype), v.device);
    std::memset(a.bytes(), 0, a.nbytes());
  }
  if (p.is_local()) return Tensor::local(std::move(a));
  return Tensor::global(std::move(a), p.shape(), state_dtype(p.dtype()), p.spec());
}

// One parameter's local part with its gradient and states, all in one memory order.
struct Item {
  Array param, grad;
  Array states[3];
  Array write_back;  // defined where param is a copy of a parameter that is not dense
  bool first[3] = {};
};

// states[k] is a list of tensors, made where they are undefined.
std::vector<Item> collect(std::span<Tensor> params, std::span<const Tensor> grads,
                          std::initializer_list<std::span<Tensor>> states) {
  std::vector<Item> items;
  items.reserve(params.size());
  for (size_t i = 0; i < params.size(); ++i) {
    if (!grads[i].defined()) continue;
    Tensor& p = params[i];
    Tensor grad = grad_like(p, grads[i]);  // on every rank, since boxing is collective
    Item item;
    int k = 0;
    for (auto list : states) {
      if (!list.empty()) {
        if (!list[i].defined()) {
          list[i] = zeros_state(p);
          item.first[k] = true;
        }
        item.states[k] = list[i].array();
      }
      ++k;
    }
    if (!p.array().defined() || p.array().numel() == 0) continue;
    item.param = p.array();
    if (!item.param.is_dense()) {
      item.write_back = item.param;
      item.param = Array::empty(p.array().shape, p.dtype(), p.array().device);
      kernels::copy(item.write_back, item.param);
    }
    item.grad = in_order_of(item.param, grad.array());
    for (int s = 0; s < k; ++s) {
      if (!item.states[s].defined()) continue;
      // A state that came from elsewhere (a checkpoint) may lie in another order; it changes its order, not its value.
      Array ordered = in_order_of(item.param, item.states[s]);
      if (!(ordered.storage == item.states[s].storage)) std::data(states)[s][i].impl()->array = ordered;
      item.states[s] = ordered;
    }
    items.push_back(std::move(item));
  }
  return items;
}

// Runs body(item, begin, end) over all elements of all items, in parallel.
template <class F>
void for_chunks(std::vector<Item>& items, F&& body) {
  struct Chunk {
    Item* item;
    int64_t begin, end;
  };
  std::vector<Chunk> chunks;
  int64_t total = 0;
  for (auto& item : items)
    for (int64_t n = item.param.numel(), b = 0; b < n; b += kChunk) {
      chunks.push_back({&item, b, std::min(n, b + kChunk)});
      total += chunks.back().end - b;
    }
#pragma omp parallel for schedule(dynamic, 1) if (total > 2 * kChunk)
  for (size_t c = 0; c < chunks.size(); ++c) body(*chunks[c].item, chunks[c].begin, chunks[c].end);
  for (auto& item : items) {
    if (item.write_back.defined()) kernels::copy(item.param, item.write_back);
    ++(item.write_back.defined() ? item.write_back : item.param).storage->version;
    for (auto& s : item.states)
      if (s.defined()) ++s.storage->version;
  }
}

template <class T>
void sgd_loop(int64_t n, T* __restrict p, const T* __restrict g, typename DTypeOf<T>::Compute* __restrict m, bool first,
              const SgdOptions& o) {
  using C = typename DTypeOf<T>::Compute;
  const C sign = o.maximize ? C(-1) : C(1), decay = C(o.weight_decay), lr = C(o.lr);
  const C keep = first ? C(0) : C(o.momentum), add = first ? C(1) : C(1 - o.dampening), mu = C(o.momentum);
  if (!m) {
    for (int64_t i = 0; i < n; ++i) p[i] = T(C(p[i]) - lr * (sign * C(g[i]) + decay * C(p[i])));
    return;
  }
  const C own = o.nesterov ? C(1) : C(0), moved = o.nesterov ? mu : C(1);
  for (int64_t i = 0; i < n; ++i) {
    C x = C(p[i]), d = sign * C(g[i]) + decay * x;
    C b = keep * m[i] + add * d;
    m[i] = b;
    p[i] = T(x - lr * (own * d + moved * b));
  }
}

struct AdamFactors {
  double step_size, inverse_root, keep;  // lr / (1 - beta1^t), 1 / sqrt(1 - beta2^t), 1 - lr * decoupled decay
};

template <class T>
void adam_loop(int64_t n, T* __restrict p, const T* __restrict g, typename DTypeOf<T>::Compute* __restrict m,
               typename DTypeOf<T>::Compute* __restrict v, typename DTypeOf<T>::Compute* __restrict most, const AdamOptions& o,
               const AdamFactors& f) {
  using C = typename DTypeOf<T>::Compute;
  const C sign = o.maximize ? C(-1) : C(1), decay = o.decoupled ? C(0) : C(o.weight_decay), keep = C(f.keep);
  const C b1 = C(o.beta1), b2 = C(o.beta2), c1 = C(1 - o.beta1), c2 = C(1 - o.beta2), eps = C(o.eps);
  const C step_size = C(f.step_size), inverse_root = C(f.inverse_root);
  for (int64_t i = 0; i < n; ++i) {
    C x = C(p[i]), d = sign * C(g[i]) + decay * x;
    C a = b1 * m[i] + c1 * d, s = b2 * v[i] + c2 * d * d;
    m[i] = a;
    v[i] = s;
    if (most) most[i] = s = s > most[i] ? s : most[i];
    p[i] = T(keep * x - step_size * a / (std::sqrt(s) * inverse_root + eps));
  }
}

}  // namespace

void sgd_update(std::span<Tensor> params, std::span<const Tensor> grads, std::span<Tensor> momenta, const SgdOptions& options) {
  const char* rule = "sgd_update";
  check_options(options.momentum >= 0 && options.weight_decay >= 0, rule, "momentum and weight_decay must not be negative.");
  check_options(!options.nesterov || (options.momentum > 0 && options.dampening == 0), rule,
                "nesterov needs a momentum and no dampening.");
  bool momentum = options.momentum != 0;
  check_list(params.size(), grads.size(), rule, "gradients");
  if (momentum) check_list(params.size(), momenta.size(), rule, "momenta");
  for (size_t i = 0; i < params.size(); ++i) {
    check_pair(params[i], grads[i], rule, i);
    if (momentum) check_state(params[i], momenta[i], rule, "the momentum", i);
  }
  auto items = collect(params, grads, {momentum ? momenta : std::span<Tensor>()});
  for_chunks(items, [&](Item& item, int64_t begin, int64_t end) {
    visit_floating(item.param.dtype, [&]<class T>(TypeTag<T>) {
      using C = typename DTypeOf<T>::Compute;
      sgd_loop<T>(end - begin, item.param.data<T>() + begin, item.grad.data<T>() + begin,
                  momentum ? item.states[0].data<C>() + begin : nullptr, item.first[0], options);
    });
  });
}

void adam_update(std::span<Tensor> params, std::span<const Tensor> grads, std::span<Tensor> exp_avgs,
                 std::span<Tensor> exp_avg_sqs, std::span<Tensor> max_exp_avg_sqs, int64_t step, const AdamOptions& options) {
  const char* rule = "adam_update";
  check_options(options.beta1 >= 0 && options.beta1 < 1 && options.beta2 >= 0 && options.beta2 < 1, rule,
                "beta1 and beta2 must lie in [0, 1).");
  check_options(options.eps >= 0 && options.weight_decay >= 0, rule, "eps and weight_decay must not be negative.");
  check_options(step >= 1, rule, "the step counts from 1.");
  check_list(params.size(), grads.size(), rule, "gradients");
  check_list(params.size(), exp_avgs.size(), rule, "exp_avgs");
  check_list(params.size(), exp_avg_sqs.size(), rule, "exp_avg_sqs");
  if (options.amsgrad) check_list(params.size(), max_exp_avg_sqs.size(), rule, "max_exp_avg_sqs");
  for (size_t i = 0; i < params.size(); ++i) {
    check_pair(params[i], grads[i], rule, i);
    check_state(params[i], exp_avgs[i], rule, "exp_avg", i);
    check_state(params[i], exp_avg_sqs[i], rule, "exp_avg_sq", i);
    if (options.amsgrad) check_state(params[i], max_exp_avg_sqs[i], rule, "max_exp_avg_sq", i);
    if (grads[i].defined() && params[i].is_global() && params[i].nd_sbp().has_partial())
      fail_value("{}: parameter {} is {}: the rule is not linear, so that parts of a sum cannot be updated one by one. Make the "
                 "parameter broadcast or split first.",
                 rule, i, params[i].nd_sbp());
  }
  auto items = collect(params, grads, {exp_avgs, exp_avg_sqs, options.amsgrad ? max_exp_avg_sqs : std::span<Tensor>()});
  double t = static_cast<double>(step);
  AdamFactors factors{options.lr / (1 - std::pow(options.beta1, t)), 1 / std::sqrt(1 - std::pow(options.beta2, t)),
                      options.decoupled ? 1 - options.lr * options.weight_decay : 1};
  for_chunks(items, [&](Item& item, int64_t begin, int64_t end) {
    visit_floating(item.param.dtype, [&]<class T>(TypeTag<T>) {
      using C = typename DTypeOf<T>::Compute;
      adam_loop<T>(end - begin, item.param.data<T>() + begin, item.grad.data<T>() + begin, item.states[0].data<C>() + begin,
                   item.states[1].data<C>() + begin, options.amsgrad ? item.states[2].data<C>() + begin : nullptr, options,
                   factors);
    });
  });
}

}  // namespace holon::optim
