#include "holon/kernels/optim.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <vector>

#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/base/parallel.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/cpu/loops.h"
#include "holon/kernels/cpu/rows.h"
#include "holon/kernels/device.h"

namespace holon::kernels {

namespace detail {
template <>
struct Staged<std::span<const UpdateTensor>> {
  explicit Staged(std::span<const UpdateTensor> given) : given(given), copies(given.begin(), given.end()) {
    for (size_t i = 0; i < copies.size(); ++i) each(i, [](Array& copy, const Array& of) { copy = host_copy(of); });
  }
  ~Staged() noexcept(false) {
    if (std::uncaught_exceptions()) return;
    for (size_t i = 0; i < copies.size(); ++i) each(i, [](Array& copy, const Array& of) { write_back(copy, of); });
  }
  std::span<const UpdateTensor> get() { return copies; }
  template <class F>
  void each(size_t i, F f) {
    f(copies[i].parameter, given[i].parameter);
    f(copies[i].gradient, given[i].gradient);
    for (int k = 0; k < kUpdateStates; ++k) f(copies[i].state[k], given[i].state[k]);
    f(copies[i].rounded, given[i].rounded);
    f(copies[i].gradient_scale, given[i].gradient_scale);
    f(copies[i].ratio, given[i].ratio);
  }
  std::span<const UpdateTensor> given;
  std::vector<UpdateTensor> copies;
};
}  // namespace detail

namespace {

constexpr int64_t kBlock = 512;      // elements that are converted at a time
constexpr int64_t kChunk = 1 << 15;  // elements that sums are taken over at a time
constexpr int kMost = 6;

// The arrays that are walked through together; null where there is none.
struct Arrays {
  const Array* a[kMost] = {};
  uint32_t written = 0;  // bit k: array k is stored again
  DType compute = DType::kFloat32;
  bool alike = true;   // one block of memory each, in the same order: walked through as it is
  bool direct = true;  // and all in the compute type
  int64_t n = 0;
};

Arrays together(std::initializer_list<const Array*> arrays, uint32_t written, const char* op) {
  Arrays t;
  t.written = written;
  const Array& first = **arrays.begin();
  t.compute = float_compute(first.dtype, op);
  t.n = first.numel();
  t.alike = first.is_dense();
  int k = 0;
  for (const Array* a : arrays) {
    t.a[k++] = a && a->defined() ? a : nullptr;
    if (!t.a[k - 1]) continue;
    HOLON_CHECK(a->shape == first.shape && is_floating(a->dtype), "{}: a parameter of shape {} with a {} of shape {}",
                op, first.shape, name(a->dtype), a->shape);
    t.alike &= a->strides == first.strides;
    t.direct &= a->dtype == t.compute;
  }
  t.direct &= t.alike;
  return t;
}

// Where m elements from logical index `at` on are in an array that is not a plain block: within one row of the last
// axis.
std::byte* place(const Array& a, int64_t at, int64_t* stride) {
  const int64_t size = static_cast<int64_t>(size_bytes(a.dtype));
  const int last = a.ndim() - 1;
  int64_t offset = 0;
  for (int i = last; i >= 0; --i) {
    offset += at % a.shape[i] * a.strides[i];
    at /= a.shape[i];
  }
  *stride = last >= 0 ? a.strides[last] * size : size;
  return a.bytes() + offset * size;
}

// Calls step(pointers in the compute type, elements) on [begin, end) of the arrays.
template <class F>
void walk(const Arrays& t, int64_t begin, int64_t end, F&& step) {
  const int64_t width = static_cast<int64_t>(size_bytes(t.compute));
  void* p[kMost];
  if (t.direct) {
    for (int k = 0; k < kMost; ++k) p[k] = t.a[k] ? t.a[k]->bytes() + begin * width : nullptr;
    step(p, end - begin);
    return;
  }
  alignas(64) std::byte blocks[kMost][kBlock * 8], scratch[kBlock * 8];
  const int64_t length = t.alike || t.a[0]->ndim() == 0 ? t.n : t.a[0]->shape.back();
  for (int64_t at = begin; at < end;) {
    const int64_t m = std::min({kBlock, end - at, length - at % length});
    std::byte* where[kMost] = {};
    int64_t strides[kMost] = {};
    for (int k = 0; k < kMost; ++k) {
      p[k] = nullptr;
      if (!t.a[k]) continue;
      const Array& a = *t.a[k];
      if (t.alike) {
        strides[k] = static_cast<int64_t>(size_bytes(a.dtype));
        where[k] = a.bytes() + at * strides[k];
        if (a.dtype == t.compute) {
          p[k] = where[k];
          continue;
        }
      } else {
        where[k] = place(a, at, &strides[k]);
      }
      load_elements(where[k], strides[k], a.dtype, t.compute, blocks[k], m, scratch);
      p[k] = blocks[k];
    }
    step(p, m);
    for (int k = 0; k < kMost; ++k)
      if (p[k] && p[k] != where[k] && t.written >> k & 1)
        store_elements(blocks[k], t.compute, t.a[k]->dtype, where[k], strides[k], m, scratch);
    at += m;
  }
}

// A piece of one tensor; `start` counts the elements of all before it.
struct Chunk {
  size_t tensor;
  int64_t begin, end, start;
};

// Calls f(chunk, number of the chunk) for all chunks of all tensors, in several threads. The chunks do not depend on
// these.
template <class F>
void for_chunks(const std::vector<Chunk>& chunks, F&& f) {
  if (chunks.empty()) return;
  const int64_t total = chunks.back().start + chunks.back().end - chunks.back().begin;
  parallel_for(total, kGrain, [&](int64_t begin, int64_t end) {
    auto it =
        std::lower_bound(chunks.begin(), chunks.end(), begin, [](const Chunk& c, int64_t at) { return c.start < at; });
    for (; it != chunks.end() && it->start < end; ++it) f(*it, to_size(it - chunks.begin()));
  });
}

std::vector<Chunk> chunks_of(const std::vector<Arrays>& tensors) {
  std::vector<Chunk> chunks;
  int64_t start = 0;
  for (size_t i = 0; i < tensors.size(); ++i)
    for (int64_t at = 0; at < tensors[i].n; at += kChunk) {
      const int64_t end = std::min(at + kChunk, tensors[i].n);
      chunks.push_back({i, at, end, start});
      start += end - at;
    }
  return chunks;
}

constexpr uint32_t bits(std::initializer_list<int> which) {
  uint32_t b = 0;
  for (int i : which) b |= 1u << i;
  return b;
}

std::vector<Arrays> arrays_of(std::span<const UpdateTensor> tensors, uint32_t written) {
  std::vector<Arrays> all;
  all.reserve(tensors.size());
  for (const UpdateTensor& t : tensors)
    all.push_back(together({&t.parameter, &t.gradient, &t.state[0], &t.state[1], &t.state[2]}, written, "optimizer"));
  return all;
}

// If the items are on several devices: f(those of a device, their numbers) for each, and true.
template <class Item, class DeviceOf, class F>
bool by_device(std::span<const Item> items, DeviceOf&& device_of, F&& f) {
  auto same = [&](const Item& i) { return device_of(i) == device_of(items[0]); };
  if (std::all_of(items.begin(), items.end(), same)) [[likely]]
    return false;
  std::vector<Device> done;
  for (const Item& of : items) {
    const Device device = device_of(of);
    if (std::find(done.begin(), done.end(), device) != done.end()) continue;
    done.push_back(device);
    std::vector<Item> some;
    std::vector<size_t> which;
    for (size_t i = 0; i < items.size(); ++i)
      if (device_of(items[i]) == device) some.push_back(items[i]), which.push_back(i);
    f(std::span<const Item>(some), which);
  }
  return true;
}
Device device_of(const Array& a) { return a.device; }
Device parameter_device(const UpdateTensor& t) { return t.parameter.device; }

// If numbers in memory scale gradients: f(the tensors with copies that are scaled), and true. On the CPU gradients are
// scaled where they are clipped.
template <class F>
bool with_scaled_gradients(std::span<const UpdateTensor> tensors, F&& f) {
  auto has = [](const UpdateTensor& t) { return t.gradient_scale.defined(); };
  if (std::none_of(tensors.begin(), tensors.end(), has)) [[likely]]
    return false;
  std::vector<UpdateTensor> scaled(tensors.begin(), tensors.end());
  for (UpdateTensor& t : scaled) {
    if (!has(t)) continue;
    const DType dtype = t.rounded.defined() ? t.rounded.dtype : t.parameter.dtype;
    Array gradient = Array::empty(t.gradient.shape, dtype);
    copy(t.gradient, gradient);
    scale_by({&gradient, 1}, t.gradient_scale);
    t.gradient = gradient;
    t.gradient_scale = {};
  }
  f(std::span<const UpdateTensor>(scaled));
  return true;
}

// Likewise for ratios in memory.
template <class F>
bool with_ratios(UpdateRule rule, std::span<const UpdateTensor> tensors, F&& f) {
  auto has = [](const UpdateTensor& t) { return t.ratio.defined(); };
  if (std::none_of(tensors.begin(), tensors.end(), has)) [[likely]]
    return false;
  std::vector<UpdateTensor> known(tensors.begin(), tensors.end());
  for (UpdateTensor& t : known) {
    if (!has(t)) continue;
    if (rule == UpdateRule::kLamb)
      t.numbers.lr *= *t.ratio.data<double>();
    else
      t.numbers.scale = *t.ratio.data<double>();
    t.ratio = {};
  }
  f(std::span<const UpdateTensor>(known));
  return true;
}

int place_of(DType compute) { return compute == DType::kFloat64; }

int needed_states(UpdateRule rule) {
  switch (rule) {
    case UpdateRule::kSgd: return 0;
    case UpdateRule::kAdagrad:
    case UpdateRule::kRmsprop: return 1;
    default: return 2;
  }
}

}  // namespace

static thread_local RecordedUpdate* the_update = nullptr;
RecordedUpdateScope::RecordedUpdateScope(RecordedUpdate& update) { the_update = &update; }
RecordedUpdateScope::~RecordedUpdateScope() { the_update = nullptr; }
RecordedUpdate* recorded_update() { return the_update; }

void update(UpdateRule rule, std::span<const UpdateTensor> tensors) {
  if (by_device(tensors, parameter_device, [&](std::span<const UpdateTensor> some, auto&) { update(rule, some); }))
    return;
  if (!tensors.empty()) HOLON_ON_DEVICE(tensors[0].parameter, update, rule, tensors);
  if (the_update && !tensors.empty()) {
    the_update->fits = false;
    return;
  }
  if (with_scaled_gradients(tensors, [&](std::span<const UpdateTensor> scaled) { update(rule, scaled); })) return;
  if (with_ratios(rule, tensors, [&](std::span<const UpdateTensor> known) { update(rule, known); })) return;
  for (const UpdateTensor& t : tensors)
    for (int k = 0; k < needed_states(rule); ++k)
      HOLON_CHECK(t.state[k].defined(), "optimizer: a parameter without its state {}", k);
  const uint32_t written = rule == UpdateRule::kLamb ? bits({0}) : bits({0, 2, 3, 4});
  std::vector<Arrays> all = arrays_of(tensors, written);
  for (size_t i = 0; i < tensors.size(); ++i)
    if (tensors[i].rounded.defined()) {
      // Through the blocks, so that the rounded copy is written while the new value is at hand.
      const Array& r = tensors[i].rounded;
      HOLON_CHECK(r.shape == tensors[i].parameter.shape, "optimizer: a master copy of another shape");
      all[i].alike &= r.strides == tensors[i].parameter.strides;
      all[i].direct = false;
    }
  const auto& fns = table().update[static_cast<int>(rule)];
  for_chunks(chunks_of(all), [&](const Chunk& c, size_t) {
    const UpdateTensor& t = tensors[c.tensor];
    const UpdateFn run = fns[place_of(all[c.tensor].compute)];
    if (!t.rounded.defined()) {
      walk(all[c.tensor], c.begin, c.end, [&](void* const* p, int64_t n) { run(p, n, t.numbers); });
      return;
    }
    int64_t at = c.begin;
    alignas(64) std::byte scratch[kBlock * 8];
    walk(all[c.tensor], c.begin, c.end, [&](void* const* p, int64_t n) {
      run(p, n, t.numbers);
      const Array& r = t.rounded;
      int64_t stride = static_cast<int64_t>(size_bytes(r.dtype));
      std::byte* to = all[c.tensor].alike ? r.bytes() + at * stride : place(r, at, &stride);
      store_elements(p[0], all[c.tensor].compute, r.dtype, to, stride, n, scratch);
      at += n;
    });
  });
}

void update_norms(UpdateRule rule, std::span<const UpdateTensor> tensors, std::span<double> sums) {
  if (by_device(tensors, parameter_device, [&](std::span<const UpdateTensor> some, const std::vector<size_t>& which) {
        std::vector<double> found(which.size() * 2);
        update_norms(rule, some, found);
        for (size_t i = 0; i < which.size(); ++i)
          for (size_t k = 0; k < 2; ++k) sums[2 * which[i] + k] = found[2 * i + k];
      }))
    return;
  if (!tensors.empty()) HOLON_ON_DEVICE(tensors[0].parameter, update_norms, rule, tensors, sums);
  if (the_update && !tensors.empty()) {  // before states are changed
    the_update->fits = false;
    return;
  }
  HOLON_CHECK(rule == UpdateRule::kSgd || rule == UpdateRule::kLamb, "optimizer: this rule takes no norms");
  if (with_scaled_gradients(tensors, [&](std::span<const UpdateTensor> scaled) { update_norms(rule, scaled, sums); }))
    return;
  const bool lamb = rule == UpdateRule::kLamb;
  std::vector<Arrays> all = arrays_of(tensors, lamb ? bits({2, 3}) : 0);
  const std::vector<Chunk> chunks = chunks_of(all);
  std::vector<double> parts(chunks.size() * 2);
  for_chunks(chunks, [&](const Chunk& c, size_t i) {
    const auto& rules = lamb ? table().lamb_norms : table().sgd_norms;
    const UpdateNormsFn run = rules[place_of(all[c.tensor].compute)];
    double* part = &parts[2 * i];
    walk(all[c.tensor], c.begin, c.end, [&](void* const* p, int64_t n) { run(p, n, tensors[c.tensor].numbers, part); });
  });
  std::fill(sums.begin(), sums.end(), 0);
  for (size_t i = 0; i < chunks.size(); ++i)
    for (size_t k = 0; k < 2; ++k) sums[2 * chunks[i].tensor + k] += parts[2 * i + k];
}

namespace {

// What two parts of tensors have together; a NaN stays.
double joined(NormKind kind, double a, double b) {
  if (kind == NormKind::kLargest) return b != b || b > a ? b : a;
  if (kind == NormKind::kSmallest) return b != b || b < a ? b : a;
  return a + b;
}

}  // namespace

void norms_of(NormKind kind, double p, std::span<const Array> arrays, std::span<double> sums) {
  if (by_device(arrays, device_of, [&](std::span<const Array> some, const std::vector<size_t>& which) {
        std::vector<double> found(which.size());
        norms_of(kind, p, some, found);
        for (size_t i = 0; i < which.size(); ++i) sums[which[i]] = found[i];
      }))
    return;
  if (!arrays.empty()) HOLON_ON_DEVICE(arrays[0], norms_of, kind, p, arrays, sums);
  std::vector<Arrays> all;
  for (const Array& a : arrays) all.push_back(together({&a}, 0, "norm"));
  const std::vector<Chunk> chunks = chunks_of(all);
  std::vector<double> parts(chunks.size());
  const double nothing = kind == NormKind::kSmallest ? std::numeric_limits<double>::infinity() : 0;
  auto add = [&](double a, double b) { return joined(kind, a, b); };
  for_chunks(chunks, [&](const Chunk& c, size_t i) {
    const NormFnOf run = table().norm_of[static_cast<int>(kind)][place_of(all[c.tensor].compute)];
    double found = nothing;
    walk(all[c.tensor], c.begin, c.end, [&](void* const* q, int64_t n) { found = add(found, run(q[0], n, p)); });
    parts[i] = found;
  });
  std::fill(sums.begin(), sums.end(), nothing);
  for (size_t i = 0; i < chunks.size(); ++i) sums[chunks[i].tensor] = add(sums[chunks[i].tensor], parts[i]);
}

void update_norms_into(UpdateRule rule, std::span<const UpdateTensor> tensors, Array& sums) {
  HOLON_ON_DEVICE(sums, update_norms_into, rule, tensors, sums);
  update_norms(rule, tensors, {sums.data<double>(), to_size(sums.numel())});
}

void trust_ratios(UpdateRule rule, double coefficient, double decay, double eps, const Array& sums, Array& ratios) {
  HOLON_ON_DEVICE(sums, trust_ratios, rule, coefficient, decay, eps, sums, ratios);
  for (int64_t i = 0; i < ratios.numel(); ++i) {
    const double p = std::sqrt(sums.data<double>()[2 * i]), d = std::sqrt(sums.data<double>()[2 * i + 1]);
    double& ratio = ratios.data<double>()[i];
    ratio = !(p > 0 && d > 0) ? 1 : rule == UpdateRule::kLamb ? p / d : coefficient * p / (d + decay * p + eps);
  }
}

void norms_into(NormKind kind, double p, std::span<const Array> arrays, Array& sums) {
  HOLON_ON_DEVICE(sums, norms_into, kind, p, arrays, sums);
  norms_of(kind, p, arrays, {sums.data<double>(), to_size(sums.numel())});
}

void clip_factor(NormKind kind, double p, double limit, bool wide, std::span<const Array> rows, Array& result) {
  HOLON_ON_DEVICE(result, clip_factor, kind, p, limit, wide, rows, result);
  const double nothing = kind == NormKind::kSmallest ? std::numeric_limits<double>::infinity() : 0;
  double norm = nothing;
  for (const Array& row : rows)
    for (int64_t i = 0, tensors = row.shape[1]; i < tensors; ++i) {
      double one = nothing;
      for (int64_t r = 0; r < row.shape[0]; ++r) one = joined(kind, one, row.data<double>()[r * tensors + i]);
      // Of the norms of the single gradients, as PyTorch has it: of order 0 that is how many of them are not 0.
      norm = joined(kind, norm, kind == NormKind::kCount ? static_cast<double>(one != 0) : one);
    }
  if (kind == NormKind::kSquares) norm = std::sqrt(norm);
  if (kind == NormKind::kPowers) norm = std::pow(norm, 1 / p);
  const double rounded = wide ? norm : static_cast<double>(static_cast<float>(norm));
  const double factor = limit / (rounded + 1e-6);
  result.data<double>()[0] = norm;
  result.data<double>()[1] = factor < 1 ? factor : 1;
}

namespace {

bool change_all(std::span<const Array> arrays, const ScaleFn (&fns)[2], double factor, double low, double high) {
  std::vector<Arrays> all;
  for (const Array& a : arrays) all.push_back(together({&a}, 1, "scale"));
  std::atomic<bool> finite = true;
  for_chunks(chunks_of(all), [&](const Chunk& c, size_t) {
    walk(all[c.tensor], c.begin, c.end, [&](void* const* p, int64_t n) {
      if (!fns[place_of(all[c.tensor].compute)](p[0], n, factor, low, high))
        finite.store(false, std::memory_order_relaxed);
    });
  });
  return finite;
}

}  // namespace

void scale_all(std::span<const Array> arrays, double factor, bool* finite) {
  if (finite) *finite = true;
  if (by_device(arrays, device_of, [&](std::span<const Array> some, auto&) {
        bool of_some = true;
        scale_all(some, factor, finite ? &of_some : nullptr);
        if (finite) *finite = *finite && of_some;
      }))
    return;
  if (!arrays.empty()) HOLON_ON_DEVICE(arrays[0], scale_all, arrays, factor, finite);
  const bool all = change_all(arrays, table().scale, factor, 0, 0);
  if (finite) *finite = all;
}

void scale_by(std::span<const Array> arrays, const Array& factor) {
  HOLON_ON_DEVICE(factor, scale_by, arrays, factor);
  if (const double by = *factor.data<double>(); by != 1) scale_all(arrays, by);
}

void clamp_all(std::span<const Array> arrays, double low, double high) {
  if (by_device(arrays, device_of, [&](std::span<const Array> some, auto&) { clamp_all(some, low, high); })) return;
  if (!arrays.empty()) HOLON_ON_DEVICE(arrays[0], clamp_all, arrays, low, high);
  change_all(arrays, table().clamp, 1, low, high);
}

double squared_norm(const Array& a) {
  HOLON_ON_DEVICE(a, squared_norm, a);
  double sum = 0;
  norms_of(NormKind::kSquares, 2, {&a, 1}, {&sum, 1});
  return sum;
}

}  // namespace holon::kernels
