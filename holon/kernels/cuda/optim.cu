// Optimizer steps and norms over many tensors at once. Tensors are cut into chunks; a launch takes a table of some of
// them as its parameter, and its blocks stride over all of their chunks.
#include "holon/kernels/optim.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <vector>

#include "holon/array/device_runtime.h"
#include "holon/base/error.h"
#include "holon/base/hash.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/cuda/launch.h"
#include "holon/kernels/cuda/types.h"
#include "holon/kernels/update_rules.h"
#include "holon/kernels/variants.h"

namespace holon::kernels::cuda {
namespace {

namespace rules = HOLON_ISA::rules;

constexpr int kThreads = 256, kLane = 4;  // elements that a thread takes at a time
constexpr int kArrays = 6;                // parameter, gradient, states, rounded
constexpr int kItems = 46;                // tables are passed as kernel parameters, which have 4 KiB
constexpr int64_t kUpdateChunk = 4096, kNormChunk = 16384;

enum class Kind : uint8_t { kPlain, kFloat16, kBFloat16 };  // kPlain: the type computed in

struct Item {
  void* a[kArrays];  // null where there is none
  int64_t n;
  double lr, scale;  // what differs between tensors of one step, for LAMB and LARS
  Kind kind[kArrays];
  bool packed;  // addresses allow kLane elements at a time
};
struct Table {
  int items;
  uint32_t first[kItems + 1];  // chunk of each item; the last is their number
  Item item[kItems];
};
static_assert(sizeof(Table) + 128 <= 4096);

__device__ __forceinline__ int item_of(const Table& table, uint32_t chunk) {
  int low = 0, high = table.items;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (table.first[middle] <= chunk ? low : high) = middle;
  }
  return low;
}

// Stored elements as they are, to be converted when all loads are under way.
template <class T>
struct Stored {
  Pack<T, 2> half[kLane / 2];
};

template <class T>
__device__ __forceinline__ Stored<T> load(const void* p, Kind kind, int64_t i) {
  Stored<T> s;
  if constexpr (sizeof(T) == 8) {
    s.half[0] = reinterpret_cast<const Pack<T, 2>*>(static_cast<const T*>(p) + i)[0];
    s.half[1] = reinterpret_cast<const Pack<T, 2>*>(static_cast<const T*>(p) + i)[1];
  } else if (kind == Kind::kPlain) {
    const auto all = *reinterpret_cast<const Pack<T, kLane>*>(static_cast<const T*>(p) + i);
    s = {{{{all.v[0], all.v[1]}}, {{all.v[2], all.v[3]}}}};
  } else {
    const auto two = *reinterpret_cast<const Pack<T, 2>*>(static_cast<const uint16_t*>(p) + i);
    s.half[0] = s.half[1] = two;
  }
  return s;
}

template <class T>
__device__ __forceinline__ T number(uint16_t bits, Kind kind) {
  if (kind == Kind::kFloat16) {
    Float16 h;
    h.bits = bits;
    return static_cast<T>(widen(h));
  }
  BFloat16 b;
  b.bits = bits;
  return static_cast<T>(widen(b));
}
template <class T>
__device__ __forceinline__ uint16_t rounded(T x, Kind kind) {
  return kind == Kind::kFloat16 ? narrow<Float16>(static_cast<float>(x)).bits
                                : narrow<BFloat16>(static_cast<float>(x)).bits;
}

template <class T>
__device__ __forceinline__ void numbers(const Stored<T>& s, Kind kind, T* to) {
  if (sizeof(T) == 8 || kind == Kind::kPlain) {
#pragma unroll
    for (int k = 0; k < kLane; ++k) to[k] = s.half[k / 2].v[k % 2];
    return;
  }
  if constexpr (sizeof(T) == 4) {
#pragma unroll
    for (int k = 0; k < kLane; ++k)
      to[k] = number<T>(static_cast<uint16_t>(__float_as_uint(s.half[0].v[k / 2]) >> (k % 2 * 16)), kind);
  }
}

template <class T>
__device__ __forceinline__ void store(void* p, Kind kind, int64_t i, const T* from) {
  if (kind == Kind::kPlain) {
    T* to = static_cast<T*>(p) + i;
    if constexpr (sizeof(T) == 8) {
      reinterpret_cast<Pack<T, 2>*>(to)[0] = {{from[0], from[1]}};
      reinterpret_cast<Pack<T, 2>*>(to)[1] = {{from[2], from[3]}};
    } else {
      *reinterpret_cast<Pack<T, kLane>*>(to) = {{from[0], from[1], from[2], from[3]}};
    }
    return;
  }
  Pack<uint16_t, kLane> out;
#pragma unroll
  for (int k = 0; k < kLane; ++k) out.v[k] = rounded(from[k], kind);
  *reinterpret_cast<Pack<uint16_t, kLane>*>(static_cast<uint16_t*>(p) + i) = out;
}

template <class T>
__device__ __forceinline__ T load_one(const void* p, Kind kind, int64_t i) {
  return kind == Kind::kPlain ? static_cast<const T*>(p)[i] : number<T>(static_cast<const uint16_t*>(p)[i], kind);
}
template <class T>
__device__ __forceinline__ void store_one(void* p, Kind kind, int64_t i, T x) {
  if (kind == Kind::kPlain)
    static_cast<T*>(p)[i] = x;
  else
    static_cast<uint16_t*>(p)[i] = rounded(x, kind);
}

// Calls step(values of arrays, x[k] being array k's) for this thread's elements of [begin, end) of an item; reads the
// arrays that `read` names and then writes those that `written` names. begin is a multiple of kLane.
template <class T, int kFirst, class F>
__device__ __forceinline__ void walk(const Item& item, uint32_t read, uint32_t written, int64_t begin, int64_t end,
                                     F&& step) {
  int64_t single = begin;
  if (item.packed) {
    single = begin + (end - begin) / kLane * kLane;
    for (int64_t i = begin + static_cast<int64_t>(threadIdx.x) * kLane; i < single; i += kThreads * kLane) {
      Stored<T> stored[kFirst];
      T x[kFirst][kLane];
#pragma unroll
      for (int k = 0; k < kFirst; ++k)
        if (read >> k & 1) stored[k] = load<T>(item.a[k], item.kind[k], i);
#pragma unroll
      for (int k = 0; k < kFirst; ++k)
        if (read >> k & 1) numbers(stored[k], item.kind[k], x[k]);
#pragma unroll
      for (int e = 0; e < kLane; ++e) {
        T one[kFirst];
#pragma unroll
        for (int k = 0; k < kFirst; ++k) one[k] = read >> k & 1 ? x[k][e] : T(0);
        step(one);
#pragma unroll
        for (int k = 0; k < kFirst; ++k) x[k][e] = one[k];
      }
#pragma unroll
      for (int k = 0; k < kFirst; ++k)
        if (written >> k & 1) store(item.a[k], item.kind[k], i, x[k]);
      if constexpr (kFirst == kArrays - 1)
        if (item.a[kArrays - 1]) store(item.a[kArrays - 1], item.kind[kArrays - 1], i, x[0]);
    }
  }
  for (int64_t i = single + threadIdx.x; i < end; i += kThreads) {
    T one[kFirst];
#pragma unroll
    for (int k = 0; k < kFirst; ++k) one[k] = read >> k & 1 ? load_one<T>(item.a[k], item.kind[k], i) : T(0);
    step(one);
#pragma unroll
    for (int k = 0; k < kFirst; ++k)
      if (written >> k & 1) store_one(item.a[k], item.kind[k], i, one[k]);
    if constexpr (kFirst == kArrays - 1)
      if (item.a[kArrays - 1]) store_one(item.a[kArrays - 1], item.kind[kArrays - 1], i, one[0]);
  }
}

// f(item, its number, first element, the one after the last, chunk) for the chunks of this block.
template <class F>
__device__ __forceinline__ void over_chunks(const Table& table, int64_t size, F&& f) {
  const uint32_t chunks = table.first[table.items];
  for (uint32_t chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
    const int k = item_of(table, chunk);
    const int64_t begin = static_cast<int64_t>(chunk - table.first[k]) * size, n = table.item[k].n;
    f(table.item[k], begin, begin + size < n ? begin + size : n, chunk);
  }
}

template <class Rule, class T>
__global__ void __launch_bounds__(kThreads) update_tensors(Table table, Rule given, const UpdateNumbers* there) {
  constexpr bool only_reads = requires { Rule::kOnlyReads; };
  constexpr uint32_t states = Rule::kTouched << 2;
  over_chunks(table, kUpdateChunk, [&](const Item& item, int64_t begin, int64_t end, uint32_t) {
    Rule rule = there ? Rule(*there) : given;
    if (!there) {
      rule.lr = static_cast<T>(item.lr);
      if constexpr (requires { rule.scale; }) rule.scale = static_cast<T>(item.scale);
    }
    walk<T, kArrays - 1>(item, (only_reads ? 1u : 3u) | states, 1u | (only_reads ? 0u : states), begin, end,
                         [&](T* x) { rule(x[0], x[1], x[2], x[3], x[4]); });
  });
}

// parts[chunk kWidth + k]: the chunk's sums.
template <class T, class Sums>
__global__ void __launch_bounds__(kThreads) sums_of_chunks(Table table, Sums sums, double* parts) {
  over_chunks(table, kNormChunk, [&](const Item& item, int64_t begin, int64_t end, uint32_t chunk) {
    T found[Sums::kWidth];
#pragma unroll
    for (int k = 0; k < Sums::kWidth; ++k) found[k] = static_cast<T>(Sums::nothing());
    walk<T, Sums::kFirst>(item, (1u << Sums::kFirst) - 1, Sums::kWritten, begin, end, [&](T* x) { sums(x, found); });
#pragma unroll
    for (int k = 0; k < Sums::kWidth; ++k) {
      const double all = block_reduce(static_cast<double>(found[k]), Sums::nothing(), typename Sums::Combine());
      if (threadIdx.x == 0) parts[static_cast<int64_t>(chunk) * Sums::kWidth + k] = all;
    }
  });
}

// to[item kWidth + k]: the sums of an item, a block for each.
template <class Sums>
__global__ void __launch_bounds__(kThreads) sums_of_items(Table table, const double* parts, double* to) {
  const uint32_t begin = table.first[blockIdx.x], end = table.first[blockIdx.x + 1];
  const typename Sums::Combine combine;
#pragma unroll
  for (int k = 0; k < Sums::kWidth; ++k) {
    double all = Sums::nothing();
    for (uint32_t c = begin + threadIdx.x; c < end; c += kThreads)
      all = combine(all, parts[static_cast<int64_t>(c) * Sums::kWidth + k]);
    all = block_reduce(all, Sums::nothing(), combine);
    if (threadIdx.x == 0) to[static_cast<int64_t>(blockIdx.x) * Sums::kWidth + k] = all;
  }
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
  HOLON_FN static double nothing() { return 0; }
  __device__ __forceinline__ void operator()(T* x, T* sums) const {
    const T r = rule(x[0], x[1], x[2], x[3]);
    sums[0] += x[0] * x[0];
    sums[1] += r * r;
  }
};
template <class T, NormKind kind>
struct Norm {
  static constexpr bool kSum = kind != NormKind::kLargest && kind != NormKind::kSmallest;
  static constexpr int kFirst = 1, kWidth = 1;
  static constexpr uint32_t kWritten = 0;
  using Combine = std::conditional_t<kSum, Add, std::conditional_t<kind == NormKind::kLargest, Max, Min>>;
  T power;
  HOLON_FN static double nothing() { return kind == NormKind::kSmallest ? __builtin_inf() : 0; }
  __device__ __forceinline__ void operator()(T* x, T* sums) const {
    sums[0] = Combine()(sums[0], rules::norm_term<kind>(x[0], power));
  }
};

// not_finite is set to 1 where an element was not, if it is not null.
template <class T, bool clamped>
__global__ void __launch_bounds__(kThreads) scale_tensors(Table table, T factor, T low, T high, int* not_finite) {
  bool finite = true;
  over_chunks(table, kUpdateChunk, [&](const Item& item, int64_t begin, int64_t end, uint32_t) {
    walk<T, 1>(item, 1, 1, begin, end, [&](T* x) {
      finite = finite && HOLON_ISA::f::is_finite(x[0]);
      x[0] = rules::scaled<clamped>(x[0], factor, low, high);
    });
  });
  if (not_finite && !finite) *not_finite = 1;  // whoever writes it writes the same
}

// ---- on the host ----

bool same_layout(const Array& a, const Dims& strides) {
  for (int i = 0; i < a.ndim(); ++i)
    if (a.shape[i] != 1 && a.strides[i] != strides[i]) return false;
  return true;
}

// Arrays that are walked through as they are. Those in another order than the first, or are of a type that kernels do
// not read, have stand-ins, which are copied back when this goes.
class Together {
 public:
  Together(std::initializer_list<const Array*> arrays, uint32_t written, const char* op) {
    const Array& first = **arrays.begin();
    if (!is_floating(first.dtype))
      fail_type("{} takes floating point tensors, found {}. Convert it first.", op, name(first.dtype));
    compute_ = first.dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
    const Dims layout = first.is_dense() ? first.strides : contiguous_strides(first.shape);
    item_.n = first.numel();
    item_.packed = true;
    int k = 0;
    for (const Array* a : arrays) {
      add(a, k, written >> k & 1, layout, first, op);
      ++k;
    }
  }
  Together(Together&&) = default;
  void finish() {
    for (auto& [stand_in, to] : back_) copy(stand_in, to);
  }
  bool stands_in() const { return !kept_.empty(); }
  const Item& item() const { return item_; }
  DType compute() const { return compute_; }

 private:
  void add(const Array* given, int k, bool written, const Dims& strides, const Array& first, const char* op) {
    item_.a[k] = nullptr;
    item_.kind[k] = Kind::kPlain;
    if (!given || !given->defined()) return;
    HOLON_CHECK(given->shape == first.shape && is_floating(given->dtype),
                "{}: a parameter of shape {} with a {} of shape {}", op, first.shape, name(given->dtype), given->shape);
    Array a = *given;
    const bool read = a.dtype == compute_ || (compute_ == DType::kFloat32 && size_bytes(a.dtype) == 2);
    if (!read || !same_layout(a, strides)) {
      a = Array::empty_strided(a.shape, strides, read ? a.dtype : compute_, a.device);
      copy(*given, a);
      if (written) back_.emplace_back(a, *given);
      kept_.push_back(a);
    }
    item_.a[k] = a.bytes();
    item_.kind[k] = a.dtype == DType::kFloat16 ? Kind::kFloat16
        : a.dtype == DType::kBFloat16          ? Kind::kBFloat16
                                               : Kind::kPlain;
    item_.packed =
        item_.packed && reinterpret_cast<uintptr_t>(a.bytes()) % std::min<size_t>(16, kLane * size_bytes(a.dtype)) == 0;
  }

  Item item_{};
  DType compute_ = DType::kFloat32;
  std::vector<std::pair<Array, Array>> back_;
  std::vector<Array> kept_;
};

// f(table, first item) for the items [begin, end), as many at a time as a table holds.
template <class Items, class F>
void over_tables(const Items& all, size_t begin, size_t end, int64_t chunk, F&& f) {
  auto table = std::make_unique<Table>();
  while (begin < end) {
    table->items = static_cast<int>(std::min<size_t>(end - begin, kItems));
    int64_t chunks = 0;
    for (int k = 0; k < table->items; ++k) {
      table->item[k] = all[begin + static_cast<size_t>(k)].item();
      table->first[k] = static_cast<uint32_t>(chunks);
      chunks += (table->item[k].n + chunk - 1) / chunk;
    }
    HOLON_CHECK(chunks < (int64_t{1} << 32), "tensors of more elements than are counted");
    table->first[table->items] = static_cast<uint32_t>(chunks);
    f(*table, begin);
    begin += static_cast<size_t>(table->items);
  }
}

template <class F>
void visit_compute(DType compute, F&& f) {
  compute == DType::kFloat64 ? f(double{}) : f(float{});
}

struct Update : Together {
  Update(const UpdateTensor& t, uint32_t written, const char* op)
      : Together({&t.parameter, &t.gradient, &t.state[0], &t.state[1], &t.state[2], &t.rounded}, written, op),
        numbers(t.numbers) {}
  Item item() const {
    Item i = Together::item();
    i.lr = numbers.lr;
    i.scale = numbers.scale;
    return i;
  }
  UpdateNumbers numbers;
};

// Whether one launch may update both.
bool alike(const Update& a, const Update& b) {
  const UpdateNumbers &x = a.numbers, &y = b.numbers;
  for (int k = 2; k < kArrays - 1; ++k)
    if (!a.item().a[k] != !b.item().a[k]) return false;
  return a.compute() == b.compute() && x.weight_decay == y.weight_decay && x.shrink == y.shrink &&
      x.late_decay == y.late_decay && x.beta1 == y.beta1 && x.beta2 == y.beta2 && x.take == y.take && x.eps == y.eps &&
      x.root_eps == y.root_eps && x.correction == y.correction && x.root_correction == y.root_correction &&
      x.maximize == y.maximize && x.nesterov == y.nesterov && x.first == y.first;
}

// Takes down a launch; returns where it finds its numbers, nullptr where it is not to be.
const UpdateNumbers* note(RecordedUpdate& recorded, UpdateRule rule, std::span<const Update> some) {
  auto add = [&](uint64_t x) { recorded.shape = hash_combine(recorded.shape, x); };
  add(static_cast<uint64_t>(rule) * 2 + some[0].numbers.nesterov);
  add(some.size());
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
                 there);
        });
      });
    });
  }
  for (Update& u : all) u.finish();
}

// sums[item kWidth + k], on the host when this returns.
template <class T, class Sums, class Items>
void launch_sums(const Items& all, size_t begin, size_t end, const Sums& sums, double* to) {
  over_tables(all, begin, end, kNormChunk, [&](const Table& table, size_t first) {
    const uint32_t chunks = table.first[table.items];
    const Scratch parts(size_t{chunks} * Sums::kWidth * sizeof(double));
    launch(sums_of_chunks<T, Sums>, blocks_for(chunks, 1), kThreads, 0, table, sums, parts.data<double>());
    launch(sums_of_items<Sums>, static_cast<unsigned>(table.items), kThreads, 0, table,
           static_cast<const double*>(parts.data<double>()), to + first * Sums::kWidth);
  });
}

// Runs of items that `alike` joins, each through f(compute type's zero, begin, end, results on the device); waits for
// the results.
template <class Items, class Alike, class F>
void sums_on_host(const Items& all, int width, std::span<double> sums, Alike&& alike, F&& f) {
  const Scratch results(sums.size_bytes());
  HOLON_CHECK(sums.size() == all.size() * static_cast<size_t>(width), "{} sums of {} tensors", sums.size(), all.size());
  for (size_t begin = 0, end; begin < all.size(); begin = end) {
    for (end = begin + 1;
         end < all.size() && all[begin].compute() == all[end].compute() && alike(all[begin], all[end]);)
      ++end;
    visit_compute(all[begin].compute(), [&](auto zero) { f(zero, begin, end, results.data<double>()); });
  }
  device_runtime()->copy_to_host(device_index(), sums.data(), results.data<double>(), sums.size_bytes());
}

void update_norms(UpdateRule rule, std::span<const UpdateTensor> tensors, std::span<double> sums) {
  HOLON_CHECK(rule == UpdateRule::kSgd || rule == UpdateRule::kLamb, "optimizer: this rule takes no norms");
  use_device_of(tensors[0].parameter);
  const bool lamb = rule == UpdateRule::kLamb;
  std::vector<Update> all;
  all.reserve(tensors.size());
  for (const UpdateTensor& t : tensors) all.emplace_back(t, lamb ? 12u : 0u, "optimizer");
  sums_on_host(
      all, 2, sums, [&](const Update& a, const Update& b) { return !lamb || alike(a, b); },
      [&](auto zero, size_t begin, size_t end, double* to) {
        using T = decltype(zero);
        if (lamb)
          launch_sums<T>(all, begin, end, LambNorms<T>{rules::LambAverages<T>(all[begin].numbers)}, to);
        else
          launch_sums<T>(all, begin, end, SgdNorms<T>{}, to);
      });
  for (Update& u : all) u.finish();
}

std::vector<Together> each(std::span<const Array> arrays, uint32_t written, const char* op) {
  std::vector<Together> all;
  all.reserve(arrays.size());
  for (const Array& a : arrays) all.push_back(Together({&a}, written, op));
  return all;
}

void norms_of(NormKind kind, double p, std::span<const Array> arrays, std::span<double> sums) {
  use_device_of(arrays[0]);
  const std::vector<Together> all = each(arrays, 0, "norm");
  sums_on_host(
      all, 1, sums, [](auto&, auto&) { return true; },
      [&](auto zero, size_t begin, size_t end, double* to) {
        using T = decltype(zero);
        const T power = static_cast<T>(p);
        auto run = [&](auto norm) { launch_sums<T>(all, begin, end, norm, to); };
        switch (kind) {
          case NormKind::kSquares: return run(Norm<T, NormKind::kSquares>{power});
          case NormKind::kSum: return run(Norm<T, NormKind::kSum>{power});
          case NormKind::kPowers: return run(Norm<T, NormKind::kPowers>{power});
          case NormKind::kCount: return run(Norm<T, NormKind::kCount>{power});
          case NormKind::kLargest: return run(Norm<T, NormKind::kLargest>{power});
          case NormKind::kSmallest: return run(Norm<T, NormKind::kSmallest>{power});
        }
      });
}

template <bool clamped>
void change_all(std::span<const Array> arrays, double factor, double low, double high, int* not_finite) {
  std::vector<Together> all = each(arrays, 1, "scale");
  for (size_t begin = 0, end; begin < all.size(); begin = end) {
    for (end = begin + 1; end < all.size() && all[begin].compute() == all[end].compute();) ++end;
    visit_compute(all[begin].compute(), [&](auto zero) {
      using T = decltype(zero);
      over_tables(all, begin, end, kUpdateChunk, [&](const Table& table, size_t) {
        launch(scale_tensors<T, clamped>, blocks_for(table.first[table.items], 1), kThreads, 0, table,
               static_cast<T>(factor), static_cast<T>(low), static_cast<T>(high), not_finite);
      });
    });
  }
  for (Together& t : all) t.finish();
}

void scale_all(std::span<const Array> arrays, double factor, bool* finite) {
  const cudaStream_t s = use_device_of(arrays[0]);
  if (!finite) return change_all<false>(arrays, factor, 0, 0, nullptr);
  const Scratch flag(sizeof(int));
  check(cudaMemsetAsync(flag.data<int>(), 0, sizeof(int), s), "cudaMemset");
  change_all<false>(arrays, factor, 0, 0, flag.data<int>());
  int found = 0;
  device_runtime()->copy_to_host(device_index(), &found, flag.data<int>(), sizeof found);
  *finite = found == 0;
}

void clamp_all(std::span<const Array> arrays, double low, double high) {
  use_device_of(arrays[0]);
  change_all<true>(arrays, 1, low, high, nullptr);
}

double squared_norm(const Array& a) {
  double sum = 0;
  cuda::norms_of(NormKind::kSquares, 2, {&a, 1}, {&sum, 1});
  return sum;
}

HOLON_DEVICE_KERNEL(update, update);
HOLON_DEVICE_KERNEL(update_norms, update_norms);
HOLON_DEVICE_KERNEL(norms_of, norms_of);
HOLON_DEVICE_KERNEL(scale_all, scale_all);
HOLON_DEVICE_KERNEL(clamp_all, clamp_all);
HOLON_DEVICE_KERNEL(squared_norm, squared_norm);

}  // namespace
}  // namespace holon::kernels::cuda
