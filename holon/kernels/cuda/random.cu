// Random numbers, the same as the CPU's: a thread draws one block of Philox and makes the two or four elements of it.
// Compiled without fused multiply-adds: -fmad=false, and a namespace of its own for functors without them.
#undef HOLON_ISA
#define HOLON_ISA isa_cuda_unfused
#define HOLON_UNFUSED
#include "holon/kernels/random.h"

#include "holon/array/device_runtime.h"
#include "holon/kernels/cuda/launch.h"
#include "holon/kernels/cuda/strides.h"
#include "holon/kernels/cuda/types.h"
#include "holon/kernels/random_functors.h"
#include "holon/kernels/variants.h"

namespace holon::kernels::cuda {
namespace {

namespace random = HOLON_ISA::random;
constexpr int kThreads = 256;

struct Draw {
  uint64_t seed, counter;
  Runs runs;
  const uint64_t* seed_at = nullptr;  // RecordedDraw
  const int64_t* base_at = nullptr;
  int64_t run = 0, blocks_of_run = 0, blocks = 0;
  uint64_t start = 0;  // of the first run in the logical tensor
  bool contiguous = false;
  Strided<2> index{};  // out, x
  void* out = nullptr;
  const void* x = nullptr;
  DType out_dtype{}, x_dtype{};
};

// The maps: from bits and x (where kHasInput) to a value.
struct Plain {
  static constexpr bool kHasInput = false;
};
template <class T>
struct Uniform : Plain {
  using Value = T;
  T low, span, last;
  template <class Bits>
  __device__ T operator()(Bits r, T) const {
    return random::uniform_between<T>(r, low, span, last);
  }
};
template <class T>
struct Normal : Plain {
  using Value = T;
  T mean, deviation;
  template <class Bits>
  __device__ T operator()(Bits r, T) const {
    return mean + deviation * random::normal(r);
  }
};
template <class T>
struct TruncatedNormal : Plain {
  using Value = T;
  random::Truncation t;
  template <class Bits>
  __device__ T operator()(Bits r, T) const {
    return random::truncated_normal<T>(r, t);
  }
};
struct Integers : Plain {
  using Value = int64_t;
  uint64_t from, span;
  __device__ int64_t operator()(uint64_t r, int64_t) const { return static_cast<int64_t>(from + __umul64hi(r, span)); }
};
struct Bernoulli : Plain {
  using Value = bool;
  uint64_t threshold;  // of 2^32
  __device__ bool operator()(uint32_t r, bool) const { return r < threshold; }
};
struct BernoulliOf {
  static constexpr bool kHasInput = true;
  using Value = float;
  __device__ float operator()(uint32_t r, float p) const { return random::uniform(r) < p ? 1.f : 0.f; }
};
template <class T>
struct Dropout {
  static constexpr bool kHasInput = true;
  using Value = T;
  uint64_t threshold;
  T scale;
  __device__ T operator()(uint32_t r, T x) const { return r < threshold ? T(0) : x * scale; }
};

template <class Map, class Bits>
__global__ void __launch_bounds__(kThreads) draw_elements(Draw d, Map map) {
  using Value = typename Map::Value;
  constexpr int n = sizeof(Bits) == 4 ? 4 : 2, per_group = 16 * n;
  const bool one_run = d.blocks == d.blocks_of_run;
  const uint64_t seed = d.seed_at ? *d.seed_at : d.seed;
  const uint64_t counter = d.base_at ? d.counter + static_cast<uint64_t>(*d.base_at) : d.counter;
  for (int64_t t = blockIdx.x * int64_t{kThreads} + threadIdx.x; t < d.blocks; t += int64_t{kThreads} * gridDim.x) {
    const int64_t run = one_run ? 0 : t / d.blocks_of_run;
    const uint64_t start = one_run ? d.start : d.runs.logical_index(run * d.run);
    const uint64_t number = start / per_group * 16 + static_cast<uint64_t>(t - run * d.blocks_of_run);
    // Where the block's elements are in the run: at first, first + 16 and so on.
    const auto first = static_cast<int64_t>(number / 16 * per_group + number % 16 - start);
    if (first >= d.run || first + 16 * (n - 1) < 0) continue;
    bool in[n];
    typename Strided<2>::At at[n];
#pragma unroll
    for (int w = 0; w < n; ++w) {
      const int64_t i = first + 16 * w;
      in[w] = i >= 0 && i < d.run;
      const int64_t linear = run * d.run + i;
      if (d.contiguous)
        at[w].v[0] = at[w].v[1] = linear;
      else if (in[w])
        at[w] = d.index.at(linear);
    }
    Value x[n] = {};
    if constexpr (Map::kHasInput) {
      const auto load = [&](auto tag) {
        using S = typename decltype(tag)::type;
#pragma unroll
        for (int w = 0; w < n; ++w)
          if (in[w]) x[w] = convert<Value>(static_cast<const S*>(d.x)[at[w].v[1]]);
      };
      if (d.x_dtype == DType::kFloat64)
        load(TypeTag<double>{});
      else
        with_stored<float>(d.x_dtype, load);
    }
    const auto words = random::block(seed, counter, number);
    Bits bits[n];
    if constexpr (n == 4) {
      bits[0] = static_cast<uint32_t>(words.a), bits[1] = static_cast<uint32_t>(words.b);
      bits[2] = static_cast<uint32_t>(words.c), bits[3] = static_cast<uint32_t>(words.d);
    } else {
      bits[0] = (words.a & 0xffffffffu) | words.b << 32;
      bits[1] = (words.c & 0xffffffffu) | words.d << 32;
    }
    Value v[n];
#pragma unroll
    for (int w = 0; w < n; ++w) v[w] = map(bits[w], x[w]);
    const auto store = [&](auto tag) {
      using S = typename decltype(tag)::type;
#pragma unroll
      for (int w = 0; w < n; ++w)
        if (in[w]) static_cast<S*>(d.out)[at[w].v[0]] = convert<S>(v[w]);
    };
    constexpr bool floats = std::is_floating_point_v<Value> && !std::is_same_v<Map, BernoulliOf>;
    if constexpr (floats)
      with_stored<Value>(d.out_dtype, store);
    else
      with_dtype(d.out_dtype, store);
  }
}

template <class Bits, class Map>
void run(const RandomPart& part, const Array* x, Array& out, const Map& map) {
  constexpr int64_t per_group = sizeof(Bits) == 4 ? 64 : 32;
  Draw d{.seed = part.seed, .counter = part.counter, .runs = Runs(part, out)};
  const int64_t count = out.numel();
  if (RecordedDraw* recorded = recorded_draw()) {
    d.seed_at = recorded->seed;
    d.base_at = recorded->base;
    recorded->read = true;
  }
  if (count == 0) return;
  use_device_of(out);
  d.run = d.runs.shape[d.runs.n - 1];
  const int64_t runs = count / d.run;
  // A run that does not begin where a group does reaches into one more.
  int64_t groups = (d.run + per_group - 1) / per_group + 1;
  d.start = d.runs.logical_index(0);
  if (runs == 1) groups = (static_cast<int64_t>(d.start % per_group) + d.run + per_group - 1) / per_group;
  d.blocks_of_run = groups * 16;
  d.blocks = d.blocks_of_run * runs;
  d.index = Strided<2>(out.shape, {out.strides, x ? x->strides : out.strides});
  d.contiguous = d.index.contiguous();
  d.out = out.bytes();
  d.x = x ? x->bytes() : nullptr;
  d.out_dtype = out.dtype;
  d.x_dtype = x ? x->dtype : out.dtype;
  launch(draw_elements<Map, Bits>, blocks_for(d.blocks, kThreads), kThreads, 0, d, map);
}

template <class T, class Bits>
void run_floats(Distribution distribution, const RandomPart& part, const RandomNumbers& p, const Array* x, Array& out) {
  const T a = static_cast<T>(p.a), b = static_cast<T>(p.b);
  switch (distribution) {
    case Distribution::kUniform: return run<Bits>(part, x, out, Uniform<T>{{}, a, b - a, static_cast<T>(p.c)});
    case Distribution::kNormal: return run<Bits>(part, x, out, Normal<T>{{}, a, b});
    case Distribution::kTruncatedNormal:
      return run<Bits>(part, x, out,
                       TruncatedNormal<T>{{}, {p.a, p.b, p.low, p.high, p.c, p.d, p.threshold != 0 ? -1.0 : 1.0}});
    default: return run<uint32_t>(part, x, out, Dropout<T>{p.threshold, a});
  }
}

void draw(Distribution distribution, const RandomPart& part, const RandomNumbers& p, const Array* x, Array& out) {
  switch (distribution) {
    case Distribution::kIntegers:
      return run<uint64_t>(part, x, out, Integers{{}, static_cast<uint64_t>(p.from), p.threshold});
    case Distribution::kBernoulli: return run<uint32_t>(part, x, out, Bernoulli{{}, p.threshold});
    case Distribution::kBernoulliOf: return run<uint32_t>(part, x, out, BernoulliOf{});
    default:
      if (out.dtype == DType::kFloat64) return run_floats<double, uint64_t>(distribution, part, p, x, out);
      return run_floats<float, uint32_t>(distribution, part, p, x, out);
  }
}

HOLON_DEVICE_KERNEL(draw, draw);

}  // namespace
}  // namespace holon::kernels::cuda
