// Attention on a device: by a library where it has a way (attention_library.h), by tiles (attention_tiles.h), and a
// plain variant in float64 that takes any widths.
#include "holon/kernels/cuda/attention.h"

#include <algorithm>

#include "holon/array/device_runtime.h"
#include "holon/base/error.h"
#include "holon/kernels/attention_limits.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/cuda/attention_library.h"
#include "holon/kernels/cuda/types.h"
#include "holon/kernels/variants.h"

namespace holon::kernels::cuda {
namespace {

using attention::draw_counter;
using attention::draw_row;
using attention::draw_seed;
using attention::draw_words;
using attention::first_seeing;
using attention::keys_seen;
using attention::MaskKind;
using attention::Numbers;
using attention::Rows;

constexpr int kMostWidth = 256;                  // of tiles
constexpr int64_t kMostRows = int64_t{1} << 30;  // which they count in 32 bits

// float64: a warp for each row, keys (queries) one to a lane, then columns.
constexpr int kWarps = 4, kParts = 8, kColumns = kParts * kWarp;

__device__ __forceinline__ double* row_of(const Rows& x, int64_t image, int64_t head, int64_t i) {
  return static_cast<double*>(x.data) + image * x.image + head * x.head + i * x.row;
}
__device__ __forceinline__ double dot(const double* x, const double* y, int n) {
  double sum = 0;
  for (int c = 0; c < n; ++c) sum += x[c] * y[c];
  return sum;
}
__device__ double score(const Numbers& p, int64_t image, int64_t head, int64_t i, int64_t j) {
  const double s = p.scale * dot(row_of(p.q, image, head, i), row_of(p.k, image, head / p.share, j), p.d);
  if (p.mask.kind == MaskKind::kNone) return s;
  const int64_t at = image * p.mask.image + head * p.mask.head + i * p.mask.row + j * p.mask.col;
  if (p.mask.kind == MaskKind::kBool) return static_cast<const bool*>(p.mask.data)[at] ? s : -INFINITY;
  return s + static_cast<const double*>(p.mask.data)[at];
}
// What probability (i, j) is multiplied by.
__device__ double kept_factor(const Numbers& p, int64_t image, int64_t head, int64_t i, int64_t j) {
  if (!p.dropout) return 1;
  const int64_t key = p.first_key + j;
  uint32_t words[4];
  draw_words(draw_seed(p), draw_counter(p),
             draw_row(p, image, head, i) * static_cast<uint64_t>(p.groups) + static_cast<uint64_t>(key / 64),
             static_cast<uint32_t>(key % 16), words);
  const int w = static_cast<int>(key % 64 / 16);
  const uint32_t word = w == 0 ? words[0] : w == 1 ? words[1] : w == 2 ? words[2] : words[3];
  return word < p.threshold ? 0 : p.factor64;
}
__device__ __forceinline__ int64_t lse_at(const Numbers& p, int64_t image, int64_t head, int64_t i) {
  return image * p.lse_image + head * p.lse_head + i * p.lse_row;
}

// f(image, head, row) for this warp's share of b * heads * rows.
template <class F>
__device__ __forceinline__ void each_row(int64_t b, int64_t heads, int64_t rows, F&& f) {
  for (int64_t n = blockIdx.x * int64_t{kWarps} + threadIdx.x / kWarp; n < b * heads * rows;
       n += int64_t{kWarps} * gridDim.x)
    f(n / rows / heads, n / rows % heads, n % rows);
}

// sums[k] += the column first + lane + 32 k of row, times weight
__device__ __forceinline__ void add_row(double (&sums)[kParts], double weight, const double* row, int first,
                                        int width) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int k = 0; k < kParts; ++k)
    if (first + lane + kWarp * k < width) sums[k] += weight * row[first + lane + kWarp * k];
}
__device__ __forceinline__ void store_row(const double (&sums)[kParts], double factor, double* row, int first,
                                          int width) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int k = 0; k < kParts; ++k)
    if (first + lane + kWarp * k < width) row[first + lane + kWarp * k] = sums[k] * factor;
}

__global__ void __launch_bounds__(kWarps* kWarp) plain_forward(Numbers p) {
  const int lane = threadIdx.x % kWarp;
  each_row(p.b, p.h, p.t, [&](int64_t image, int64_t head, int64_t i) {
    const int64_t keys = keys_seen(p, i + 1);
    double max = -INFINITY, sum = 0;
    for (int64_t j = lane; j < keys; j += kWarp) {
      const double s = score(p, image, head, i, j);
      if (s > max) {
        sum = sum * exp(max - s) + 1;
        max = s;
      } else if (s != -INFINITY) {
        sum += exp(s - max);
      }
    }
    const double largest = warp_reduce(max, Max{}), base = largest == -INFINITY ? 0 : largest;
    sum = warp_reduce(max == -INFINITY ? sum : sum * exp(max - base), Add{});
    for (int first = 0; first < p.e; first += kColumns) {
      double sums[kParts] = {};
      for (int64_t j0 = 0; j0 < keys; j0 += kWarp) {
        const int64_t j = j0 + lane;
        const double weight =
            j < keys ? exp(score(p, image, head, i, j) - base) * kept_factor(p, image, head, i, j) : 0;
        const int n = static_cast<int>(keys - j0 < kWarp ? keys - j0 : kWarp);
        for (int l = 0; l < n; ++l)
          add_row(sums, __shfl_sync(kAllLanes, weight, l), row_of(p.v, image, head / p.share, j0 + l), first, p.e);
      }
      store_row(sums, sum != 0 ? 1 / sum : 0, row_of(p.out, image, head, i), first, p.e);
    }
    if (p.lse && lane == 0) static_cast<double*>(p.lse)[lse_at(p, image, head, i)] = base + log(sum);
  });
}

// A probability times its dropout's factor, and the gradient of its score.
struct Slope {
  double kept, slope;
};
__device__ Slope slope_at(const Numbers& p, int64_t image, int64_t head, int64_t i, int64_t j, double delta) {
  const double lse = static_cast<const double*>(p.lse)[lse_at(p, image, head, i)];
  if (lse == -INFINITY) return {0, 0};
  const double probability = exp(score(p, image, head, i, j) - lse), factor = kept_factor(p, image, head, i, j);
  const double dp = dot(row_of(p.dout, image, head, i), row_of(p.v, image, head / p.share, j), p.e);
  return {probability * factor, probability * (dp * factor - delta) * p.scale};
}

// dq, and delta for what follows.
__global__ void __launch_bounds__(kWarps* kWarp) plain_backward_queries(Numbers p) {
  const int lane = threadIdx.x % kWarp;
  each_row(p.b, p.h, p.t, [&](int64_t image, int64_t head, int64_t i) {
    const double *dout = row_of(p.dout, image, head, i), *out = row_of(p.out, image, head, i);
    double delta = 0;
    for (int c = lane; c < p.e; c += kWarp) delta += dout[c] * out[c];
    delta = warp_reduce(delta, Add{});
    if (lane == 0) static_cast<double*>(p.delta)[(image * p.h + head) * p.t + i] = delta;
    const int64_t keys = keys_seen(p, i + 1);
    for (int first = 0; first < p.d; first += kColumns) {
      double sums[kParts] = {};
      for (int64_t j0 = 0; j0 < keys; j0 += kWarp) {
        const double slope = j0 + lane < keys ? slope_at(p, image, head, i, j0 + lane, delta).slope : 0;
        const int n = static_cast<int>(keys - j0 < kWarp ? keys - j0 : kWarp);
        for (int l = 0; l < n; ++l)
          add_row(sums, __shfl_sync(kAllLanes, slope, l), row_of(p.k, image, head / p.share, j0 + l), first, p.d);
      }
      store_row(sums, 1, row_of(p.dq, image, head, i), first, p.d);
    }
  });
}

__global__ void __launch_bounds__(kWarps* kWarp) plain_backward_keys(Numbers p) {
  const int lane = threadIdx.x % kWarp;
  each_row(p.b, p.h / p.share, p.s, [&](int64_t image, int64_t shared, int64_t j) {
    for (int first = 0; first < p.d || first < p.e; first += kColumns) {
      double dk[kParts] = {}, dv[kParts] = {};
      for (int64_t head = shared * p.share; head < (shared + 1) * p.share; ++head)
        for (int64_t i0 = first_seeing(p, j); i0 < p.t; i0 += kWarp) {
          const int64_t i = i0 + lane;
          const Slope s = i < p.t
              ? slope_at(p, image, head, i, j, static_cast<const double*>(p.delta)[(image * p.h + head) * p.t + i])
              : Slope{0, 0};
          const int n = static_cast<int>(p.t - i0 < kWarp ? p.t - i0 : kWarp);
          for (int l = 0; l < n; ++l) {
            add_row(dk, __shfl_sync(kAllLanes, s.slope, l), row_of(p.q, image, head, i0 + l), first, p.d);
            add_row(dv, __shfl_sync(kAllLanes, s.kept, l), row_of(p.dout, image, head, i0 + l), first, p.e);
          }
        }
      store_row(dk, 1, row_of(p.dk, image, shared, j), first, p.d);
      store_row(dv, 1, row_of(p.dv, image, shared, j), first, p.e);
    }
  });
}

unsigned plain_blocks(int64_t rows) { return blocks_for(rows, kWarps); }

Rows rows_of(const Array& x) {
  Rows r{x.bytes(), x.strides[0], x.strides[1], x.strides[2], false};
  const int64_t pack = 16 / static_cast<int64_t>(size_bytes(x.dtype));
  r.packs = reinterpret_cast<uintptr_t>(x.bytes()) % 16 == 0 && x.shape[3] % pack == 0;
  for (int a = 0; a < 3; ++a) r.packs = r.packs && (x.shape[a] == 1 || x.strides[a] % pack == 0);
  return r;
}

Array converted(const Array& x, DType dtype) {
  Array y = Array::empty(x.shape, dtype, x.device);
  kernels::copy(x, y);
  return y;
}
bool rows_are_dense(const Array& x) { return x.strides[3] == 1 || x.shape[3] <= 1; }
Array with_dense_rows(const Array& x) { return rows_are_dense(x) ? x : converted(x, x.dtype); }

// An output as the kernels write it: itself, or an array of its own that finish() copies to it.
class Output {
 public:
  explicit Output(Array& to) : to_(to), made_(rows_are_dense(to) ? to : Array::empty(to.shape, to.dtype, to.device)) {}
  Rows rows() const { return rows_of(made_); }
  void finish() {
    if (!rows_are_dense(to_)) kernels::copy(made_, to_);
  }

 private:
  Array& to_;
  Array made_;
};

// The options with a mask that the kernels read.
Attention with_mask(const Attention& o, DType dtype) {
  Attention with = o;
  const DType compute = dtype == float64 ? float64 : float32;
  if (o.mask.defined() && o.mask.dtype != boolean && o.mask.dtype != dtype && o.mask.dtype != compute)
    with.mask = converted(o.mask, compute);
  return with;
}

Numbers numbers(const Array& q, const Array& k, const Array& v, const Attention& o, const Array* lse) {
  Numbers p;
  p.q = rows_of(q), p.k = rows_of(k), p.v = rows_of(v);
  p.b = q.shape[0], p.h = q.shape[1], p.t = q.shape[2], p.s = k.shape[2];
  p.d = static_cast<int>(q.shape[3]), p.e = static_cast<int>(v.shape[3]);
  p.share = static_cast<int>(q.shape[1] / k.shape[1]);
  p.scale = o.scale;
  p.causal = o.causal;
  p.diagonal = std::clamp(o.first_query - o.first_key, -p.t, p.s);  // beyond, all or nothing is seen, too
  HOLON_CHECK(q.dtype == float64 || std::max(p.t, p.s) <= kMostRows,
              "attention: {} queries and {} keys; at most {} of {}", p.t, p.s, kMostRows, name(q.dtype));
  if (o.mask.defined()) {
    auto step = [&](int a) { return o.mask.shape[a] == 1 ? 0 : o.mask.strides[a]; };
    p.mask = {o.mask.bytes(),
              step(0),
              step(1),
              step(2),
              step(3),
              o.mask.dtype == boolean       ? MaskKind::kBool
                  : o.mask.dtype == q.dtype ? MaskKind::kSame
                                            : MaskKind::kFloat};
  }
  if (lse)
    p.lse = lse->bytes(), p.lse_image = lse->strides[0], p.lse_head = lse->strides[1], p.lse_row = lse->strides[2];
  if (o.dropout > 0) {
    p.dropout = true;
    p.threshold = static_cast<uint64_t>(o.dropout * 4294967296.0 + 0.5);
    p.factor64 = o.dropout < 1 ? 1 / (1 - o.dropout) : 0;
    p.factor = static_cast<float>(p.factor64);
    p.seed = o.seed, p.counter = o.counter;
    if (RecordedDraw* recorded = recorded_draw())
      p.seed_at = recorded->seed, p.base_at = recorded->base, recorded->read = true;
    p.first_image = o.first_image, p.first_head = o.first_head, p.first_query = o.first_query,
    p.first_key = o.first_key;
    p.heads = o.heads, p.queries = o.queries, p.groups = (o.keys + 63) / 64;
  }
  return p;
}

bool too_wide(const Array& q, const Array& v) {
  return q.dtype != float64 && std::max(q.shape[3], v.shape[3]) > kMostWidth;
}

void attend(const Array& q, const Array& k, const Array& v, const Attention& given, Array& out, Array* lse) {
  if (q.shape[0] * q.shape[1] * q.shape[2] == 0) return;
  use_device_of(out);
  if (library_attention(q, k, v, given, out, lse)) return;
  const Attention options = limits_as_mask(given, q, k);
  if (too_wide(q, v)) {
    Array y = Array::empty(out.shape, float64, out.device), sums;
    if (lse) sums = Array::empty(lse->shape, float64, lse->device);
    attend(converted(q, float64), converted(k, float64), converted(v, float64), options, y, lse ? &sums : nullptr);
    kernels::copy(y, out);
    if (lse) kernels::copy(sums, *lse);
    return;
  }
  const Attention o = with_mask(options, q.dtype);
  const Array dense_q = with_dense_rows(q), dense_k = with_dense_rows(k), dense_v = with_dense_rows(v);
  Output to(out);
  Numbers p = numbers(dense_q, dense_k, dense_v, o, lse);
  p.out = to.rows();
  switch (q.dtype) {
    case float64: launch(plain_forward, plain_blocks(p.b * p.h * p.t), kWarps * kWarp, 0, p); break;
    case float32: attention::run_forward<float>(p); break;
    case float16: attention::run_forward<Float16>(p); break;
    default: attention::run_forward<BFloat16>(p);
  }
  to.finish();
}

void attend_backward(const Array& dout, const Array& q, const Array& k, const Array& v, const Array& out,
                     const Array& lse, const Attention& given, Array& dq, Array& dk, Array& dv) {
  use_device_of(dq);
  if (q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2] == 0) {
    for (Array* x : {&dq, &dk, &dv}) kernels::fill(*x, 0);
    return;
  }
  if (library_attention_backward(dout, q, k, v, out, lse, given, dq, dk, dv)) return;
  const Attention options = limits_as_mask(given, q, k);
  if (too_wide(q, v)) {
    Array made[3];
    Array* const to[] = {&dq, &dk, &dv};
    for (int i = 0; i < 3; ++i) made[i] = Array::empty(to[i]->shape, float64, to[i]->device);
    attend_backward(converted(dout, float64), converted(q, float64), converted(k, float64), converted(v, float64),
                    converted(out, float64), converted(lse, float64), options, made[0], made[1], made[2]);
    for (int i = 0; i < 3; ++i) kernels::copy(made[i], *to[i]);
    return;
  }
  const Attention o = with_mask(options, q.dtype);
  const Array dense_q = with_dense_rows(q), dense_k = with_dense_rows(k), dense_v = with_dense_rows(v),
              dense_dout = with_dense_rows(dout), dense_out = with_dense_rows(out);
  Output to_q(dq), to_k(dk), to_v(dv);
  Numbers p = numbers(dense_q, dense_k, dense_v, o, &lse);
  p.dout = rows_of(dense_dout), p.out = rows_of(dense_out);
  p.dq = to_q.rows(), p.dk = to_k.rows(), p.dv = to_v.rows();
  const Scratch delta(static_cast<size_t>(p.b * p.h * p.t) * size_bytes(lse.dtype));
  p.delta = delta.data<void>();
  switch (q.dtype) {
    case float64:
      launch(plain_backward_queries, plain_blocks(p.b * p.h * p.t), kWarps * kWarp, 0, p);
      launch(plain_backward_keys, plain_blocks(p.b * p.h / p.share * p.s), kWarps * kWarp, 0, p);
      break;
    case float32: attention::run_backward<float>(p); break;
    case float16: attention::run_backward<Float16>(p); break;
    default: attention::run_backward<BFloat16>(p);
  }
  to_q.finish(), to_k.finish(), to_v.finish();
}

HOLON_DEVICE_KERNEL(attention, attend);
HOLON_DEVICE_KERNEL(attention_backward, attend_backward);

}  // namespace
}  // namespace holon::kernels::cuda
