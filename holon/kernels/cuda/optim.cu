// Optimizer steps over many tensors at once.
#include "holon/kernels/optim.h"

#include <vector>

#include "holon/array/device_runtime.h"
#include "holon/base/error.h"
#include "holon/base/hash.h"
#include "holon/kernels/cuda/tensor_lists.h"
#include "holon/kernels/update_rules.h"
#include "holon/kernels/variants.h"

namespace holon::kernels::cuda {
namespace {

using namespace lists;
namespace rules = HOLON_ISA::rules;

template <class Rule, class T>
__global__ void __launch_bounds__(kThreads)
    update_tensors(Table table, Rule given, const UpdateNumbers* there, const double* scale) {
  const T by = scale ? static_cast<T>(*scale) : T(1);
  constexpr bool only_reads = requires { Rule::kOnlyReads; };
  constexpr uint32_t states = Rule::kTouched << 2;
  over_chunks(table, kUpdateChunk, [&](const Item& item, int64_t begin, int64_t end, uint32_t) {
    Rule rule = there ? Rule(*there) : given;
    if (!there) {
      rule.lr = static_cast<T>(item.lr);
      if constexpr (requires { rule.scale; }) rule.scale = static_cast<T>(item.scale);
    }
    if (item.ratio) {
      if constexpr (requires { rule.scale; })
        rule.scale = static_cast<T>(*item.ratio);
      else
        rule.lr = static_cast<T>((there ? there->lr : item.lr) * *item.ratio);
    }
    walk<T, kArrays - 1>(item, (only_reads ? 1u : 3u) | states, 1u | (only_reads ? 0u : states), begin, end, [&](T* x) {
      if (scale) x[1] = as_stored(x[1] * by, gradient_kind(item));
      rule(x[0], x[1], x[2], x[3], x[4]);
    });
  });
}

template <class T>
struct SgdNorms {
  static constexpr int kFirst = 2, kWidth = 2;
  static constexpr uint32_t kWritten = 0;
  using Combine = Add;
  HOLON_FN static double nothing() { return 0; }
  __device__ __forceinline__ void operator()(T* x, T* sums) const {
    sums[0] += x[0] * x[0];
    sums[1] += x[1] * x[1];
  }
};
template <class T>
struct LambNorms {
  static constexpr int kFirst = 4, kWidth = 2;
  static constexpr uint32_t kWritten = 12;
  using Combine = Add;
  rules::LambAverages<T> rule;
  HOLON_FN explicit LambNorms(const UpdateNumbers& c) : rule(c) {}
  HOLON_FN static double nothing() { return 0; }
  __device__ __forceinline__ void operator()(T* x, T* sums) const {
    const T r = rule(x[0], x[1], x[2], x[3]);
    sums[0] += x[0] * x[0];
    sums[1] += r * r;
  }
};
struct Update : Together {
  Update(const UpdateTensor& t, uint32_t written, const char* op)
      : Together({&t.parameter, &t.gradient, &t.state[0], &t.state[1], &t.state[2], &t.rounded}, written, op),
        numbers(t.numbers),
        gradient_scale(t.gradient_scale.defined() ? t.gradient_scale.data<double>() : nullptr),
        ratio(t.ratio.defined() ? t.ratio.data<double>() : nullptr) {}
  Item item() const {
    Item i = Together::item();
    i.lr = numbers.lr;
    i.scale = numbers.scale;
    i.ratio = ratio;
    return i;
  }
  UpdateNumbers numbers;
  const double *gradient_scale, *ratio;  // of the device
};

// Whether one launch may update both.
bool alike(const Update& a, const Update& b) {
  const UpdateNumbers &x = a.numbers, &y = b.numbers;
  for (int k = 2; k < kArrays - 1; ++k)
    if (!a.item().a[k] != !b.item().a[k]) return false;
  return a.compute() == b.compute() && a.gradient_scale == b.gradient_scale && x.weight_decay == y.weight_decay &&
      x.shrink == y.shrink && x.late_decay == y.late_decay && x.beta1 == y.beta1 && x.beta2 == y.beta2 &&
      x.take == y.take && x.eps == y.eps && x.root_eps == y.root_eps && x.correction == y.correction &&
      x.root_correction == y.root_correction && x.maximize == y.maximize && x.nesterov == y.nesterov &&
      x.first == y.first;
}

// Takes down a launch; returns where it finds its numbers, nullptr where it is not to be.
const UpdateNumbers* note(RecordedUpdate& recorded, UpdateRule rule, std::span<const Update> some) {
  auto add = [&](uint64_t x) { recorded.shape = hash_combine(recorded.shape, x); };
  add(static_cast<uint64_t>(rule) * 2 + some[0].numbers.nesterov);
  add(some.size());
  add(reinterpret_cast<uintptr_t>(some[0].gradient_scale));
  for (const Update& u : some) {
    const Item item = u.item();
    for (int k = 0; k < kArrays; ++k)
      add(reinterpret_cast<uintptr_t>(item.a[k]) * 4 + static_cast<uint64_t>(item.kind[k]));
    add(static_cast<uint64_t>(item.n) * 4 + item.packed * 2 + (u.compute() == DType::kFloat64));
    recorded.fits = recorded.fits && !u.stands_in();
  }
  const size_t number = recorded.numbers.size();
  recorded.numbers.push_back(some[0].numbers);
  recorded.fits = recorded.fits && number < RecordedUpdate::kMost;
  return recorded.fits && !recorded.only_numbers ? recorded.there + number : nullptr;
}

template <class T, class F>
void visit_rule(UpdateRule rule, const Update& u, F&& f) {
  const UpdateNumbers& c = u.numbers;
  const Item item = u.item();
  const bool first = item.a[2], second = item.a[3], third = item.a[4];
  switch (rule) {
    case UpdateRule::kSgd:
      if (!first) return f(rules::Sgd<T, false, false>(c));
      return c.nesterov ? f(rules::Sgd<T, true, true>(c)) : f(rules::Sgd<T, true, false>(c));
    case UpdateRule::kAdam: return third ? f(rules::Adam<T, true>(c)) : f(rules::Adam<T, false>(c));
    case UpdateRule::kAdagrad: return f(rules::Adagrad<T>(c));
    case UpdateRule::kAdadelta: return f(rules::Adadelta<T>(c));
    case UpdateRule::kRmsprop:
      if (second) return third ? f(rules::Rmsprop<T, true, true>(c)) : f(rules::Rmsprop<T, true, false>(c));
      return third ? f(rules::Rmsprop<T, false, true>(c)) : f(rules::Rmsprop<T, false, false>(c));
    default: return f(rules::Lamb<T>(c));
  }
}

void update(UpdateRule rule, std::span<const UpdateTensor> tensors) {
  use_device_of(tensors[0].parameter);
  const uint32_t needed = rule == UpdateRule::kSgd                   ? 0
      : rule == UpdateRule::kAdagrad || rule == UpdateRule::kRmsprop ? 1
                                                                     : 2;
  const uint32_t written = 1u | 32u | (rule == UpdateRule::kLamb ? 0u : 28u);
  std::vector<Update> all;
  all.reserve(tensors.size());
  for (const UpdateTensor& t : tensors) {
    for (uint32_t k = 0; k < needed; ++k)
      HOLON_CHECK(t.state[k].defined(), "optimizer: a parameter without its state {}", k);
    all.emplace_back(t, written, "optimizer");
  }
  RecordedUpdate* recorded = recorded_update();
  auto same = [&](const Update& a, const Update& b) {
    return alike(a, b) && (!recorded || (a.numbers.lr == b.numbers.lr && a.numbers.scale == b.numbers.scale));
  };
  for (size_t begin = 0, end; begin < all.size(); begin = end) {
    for (end = begin + 1; end < all.size() && same(all[begin], all[end]);) ++end;
    const UpdateNumbers* there =
        recorded ? note(*recorded, rule, std::span<const Update>(all).subspan(begin, end - begin)) : nullptr;
    if (recorded && !there) continue;
    visit_compute(all[begin].compute(), [&](auto zero) {
      using T = decltype(zero);
      visit_rule<T>(rule, all[begin], [&](auto of) {
        over_tables(all, begin, end, kUpdateChunk, [&](const Table& table, size_t) {
          launch(update_tensors<decltype(of), T>, blocks_for(table.first[table.items], 1), kThreads, 0, table, of,
                 there, all[begin].gradient_scale);
        });
      });
    });
  }
  for (Update& u : all) u.finish();
}

void update_norms_into(UpdateRule rule, std::span<const UpdateTensor> tensors, Array& sums) {
  HOLON_CHECK(rule == UpdateRule::kSgd || rule == UpdateRule::kLamb, "optimizer: this rule takes no norms");
  HOLON_CHECK(sums.numel() == 2 * static_cast<int64_t>(tensors.size()), "{} sums of {} tensors", sums.numel(),
              tensors.size());
  use_device_of(tensors[0].parameter);
  const bool lamb = rule == UpdateRule::kLamb;
  std::vector<Update> all;
  all.reserve(tensors.size());
  for (const UpdateTensor& t : tensors) all.emplace_back(t, lamb ? 12u : 0u, "optimizer");
  RecordedUpdate* recorded = recorded_update();
  auto one_launch = [&](const Update& a, const Update& b) {
    return lamb ? alike(a, b) : a.gradient_scale == b.gradient_scale;
  };
  over_runs(all, one_launch, [&](auto zero, size_t begin, size_t end) {
    using T = decltype(zero);
    const UpdateNumbers* there =
        recorded ? note(*recorded, rule, std::span<const Update>(all).subspan(begin, end - begin)) : nullptr;
    if (recorded && !there) return;
    const double* scale = all[begin].gradient_scale;
    double* to = sums.data<double>();
    if (lamb)
      launch_sums<T>(all, begin, end, LambNorms<T>(all[begin].numbers), to, scale, there);
    else
      launch_sums<T>(all, begin, end, SgdNorms<T>{}, to, scale);
  });
  for (Update& u : all) u.finish();
}

void update_norms(UpdateRule rule, std::span<const UpdateTensor> tensors, std::span<double> sums) {
  Array found = Array::empty({static_cast<int64_t>(sums.size())}, float64, tensors[0].parameter.device);
  cuda::update_norms_into(rule, tensors, found);
  device_runtime()->copy_to_host(found.device.index, sums.data(), found.bytes(), sums.size_bytes());
}

__global__ void __launch_bounds__(kThreads)
    ratios_of(bool lamb, double coefficient, double decay, double eps, const double* sums, double* ratios, int64_t n) {
  for (int64_t i = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x; i < n; i += int64_t{kThreads} * gridDim.x)
    ratios[i] = rules::trust_ratio(lamb, coefficient, decay, eps, sums[2 * i], sums[2 * i + 1]);
}

void trust_ratios(UpdateRule rule, double coefficient, double decay, double eps, const Array& sums,
                  Array& ratios) {
  use_device_of(sums);
  const int64_t n = ratios.numel();
  launch(ratios_of, blocks_for(n, kThreads), kThreads, 0, rule == UpdateRule::kLamb, coefficient, decay, eps,
         static_cast<const double*>(sums.data<double>()), ratios.data<double>(), n);
}

HOLON_DEVICE_KERNEL(update, update);
HOLON_DEVICE_KERNEL(update_norms, update_norms);
HOLON_DEVICE_KERNEL(update_norms_into, update_norms_into);
HOLON_DEVICE_KERNEL(trust_ratios, trust_ratios);

}  // namespace
}  // namespace holon::kernels::cuda
