// Rounding to float8 on a device, and products of such numbers: by the library where it has them, else in bfloat16.
#include "holon/kernels/float8.h"

#include <atomic>
#include <string>
#include <type_traits>

#include "holon/base/log.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/cuda/blas.h"
#include "holon/kernels/cuda/gemm.h"
#include "holon/kernels/cuda/launch.h"
#include "holon/kernels/cuda/types.h"
#include "holon/kernels/variants.h"

namespace holon::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kTile = 8 * kThreads;
constexpr unsigned kInfinity = 0x7f800000u;

// What a float8 dtype is made of: bits of the mantissa, the exponent's bias.
struct Form {
  int mantissa, bias;
  float limit;
  uint8_t infinity, nan;  // E4M3 has no infinity: NaN
};
Form form_of(DType dtype) {
  return dtype == float8_e4m3fn ? Form{3, 7, float8_limit(dtype), 0x7f, 0x7f}
                                : Form{2, 15, float8_limit(dtype), 0x7c, 0x7e};
}

// Rounds to nearest even. Pre: x is within the limit, or not finite.
__device__ __forceinline__ uint8_t to_float8(float x, const Form& f) {
  const unsigned all = __float_as_uint(x), u = all & 0x7fffffffu;
  const unsigned sign = all >> 24 & 0x80u;
  if (u > kInfinity) return static_cast<uint8_t>(sign | f.nan);
  if (u == kInfinity) return static_cast<uint8_t>(sign | f.infinity);
  const int smallest = 1 - f.bias;  // exponent of the normal numbers
  if (u < static_cast<unsigned>(smallest + 127) << 23) {
    // The sum's last bit is the smallest number's.
    const float shift = __uint_as_float(static_cast<unsigned>(smallest - f.mantissa + 23 + 127) << 23);
    const float sum = __fadd_rn(__uint_as_float(u), shift);
    return static_cast<uint8_t>(sign | (__float_as_uint(sum) - __float_as_uint(shift)));
  }
  const int cut = 23 - f.mantissa;
  const unsigned rounded = u + (u >> cut & 1u) + (1u << (cut - 1)) - 1u;
  return static_cast<uint8_t>(sign | ((rounded >> cut) - (static_cast<unsigned>(127 - f.bias) << f.mantissa)));
}

__device__ __forceinline__ float from_float8(uint8_t b, const Form& f) {
  const unsigned sign = static_cast<unsigned>(b & 0x80u) << 24, u = b & 0x7fu;
  const unsigned exponent = u >> f.mantissa, fraction = u & ((1u << f.mantissa) - 1u);
  if (u > f.infinity || (u == 0x7f)) return __uint_as_float(sign | 0x7fc00000u);
  if (u == f.infinity) return __uint_as_float(sign | kInfinity);
  if (exponent == 0) {
    const float unit = __uint_as_float(static_cast<unsigned>(1 - f.bias - f.mantissa + 127) << 23);
    return __uint_as_float(sign | __float_as_uint(static_cast<float>(fraction) * unit));
  }
  return __uint_as_float(sign | (exponent + 127u - static_cast<unsigned>(f.bias)) << 23 |
                         fraction << (23 - f.mantissa));
}

__device__ __forceinline__ bool is_finite(float x) { return (__float_as_uint(x) & kInfinity) != kInfinity; }
__device__ __forceinline__ float saturated(float x, float scale, float limit) {
  return is_finite(x) ? fminf(fmaxf(x * scale, -limit), limit) : x;
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    quantize_elements(const T* x, const float* scale, uint8_t* out, int64_t n, Form form) {
  const float factor = *scale;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < n; i += int64_t{gridDim.x} * kThreads)
    out[i] = to_float8(saturated(static_cast<float>(widen(x[i])), factor, form.limit), form);
}

// largest: the bits of a float that is not negative, which are ordered as integers. D: T, or bytes of float8.
template <class T, class D>
__global__ void __launch_bounds__(kThreads)
    round_elements(const T* x, const float* scale, D* out, unsigned* largest, int64_t n, Form form) {
  const float factor = *scale;
  unsigned found = 0;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < n; i += int64_t{gridDim.x} * kThreads) {
    const float v = static_cast<float>(widen(x[i]));
    const unsigned magnitude = __float_as_uint(v) & 0x7fffffffu;
    found = magnitude > kInfinity ? kInfinity : magnitude > found ? magnitude : found;
    if (!is_finite(v)) found = kInfinity;
    const uint8_t bits = to_float8(saturated(v, factor, form.limit), form);
    if constexpr (std::is_same_v<D, uint8_t>)
      out[i] = bits;
    else
      out[i] = narrow<T>(is_finite(v) ? from_float8(bits, form) / factor : v);
  }
  found = block_reduce(found, 0u, [] __device__(unsigned a, unsigned b) { return a > b ? a : b; });
  if (threadIdx.x == 0) atomicMax(largest, found);
}

__global__ void take_largest(const float* before, const unsigned* largest, float* out, int64_t n) {
  for (int64_t i = threadIdx.x; i < n; i += kThreads) out[i] = fmaxf(before[i], __uint_as_float(*largest));
}

template <class T>
__global__ void __launch_bounds__(kThreads) widen_elements(const uint8_t* x, T* out, int64_t n, Form form) {
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < n; i += int64_t{gridDim.x} * kThreads)
    out[i] = narrow<T>(from_float8(x[i], form));
}

__global__ void __launch_bounds__(kThreads) scale_elements(float* x, const float* a, const float* b, int64_t n) {
  const float factor = *a * *b;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < n; i += int64_t{gridDim.x} * kThreads)
    x[i] *= factor;
}

// As float8_scale() of the header.
__global__ void find_scale(const float* largest, float* out, float limit) {
  const float v = *largest;
  if (!is_finite(v) || v == 0) {
    *out = 1;
    return;
  }
  int exponent;
  frexpf(v, &exponent);  // v is below 2^exponent
  int limits;
  frexpf(limit, &limits);
  const int power = limits - exponent;
  const float scale = ldexpf(1.0f, power < -126 ? -126 : power > 126 ? 126 : power);
  *out = v * scale > limit ? scale / 2 : scale;
}

void scale_of(const Array& largest, DType dtype, Array& out) {
  use_device_of(out);
  Array number = Array::empty({}, float32, out.device);
  copy(largest, number);
  launch(find_scale, 1, 1, 0, number.data<float>(), out.data<float>(), float8_limit(dtype));
}

void quantize(const Array& x, const Array& scale, Array& out) {
  if (out.numel() == 0) return;
  use_device_of(out);
  const Array from = contiguous(x);
  visit_floating(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    launch(quantize_elements<T>, blocks_for(out.numel(), kTile), kThreads, 0, from.data<T>(), scale.data<float>(),
           reinterpret_cast<uint8_t*>(out.bytes()), out.numel(), form_of(out.dtype));
  });
}

void round(const Array& x, const Array& scale, const Array& before, DType dtype, Array& out, Array& amax) {
  const cudaStream_t s = use_device_of(amax);
  const Array from = contiguous(x), old = contiguous(before);
  const Scratch largest(sizeof(unsigned));
  check(cudaMemsetAsync(largest.data<unsigned>(), 0, sizeof(unsigned), s), "cudaMemsetAsync");
  if (out.numel() > 0)
    visit_floating(x.dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      auto run = [&](auto* to) {
        launch(round_elements<T, std::remove_pointer_t<decltype(to)>>, blocks_for(out.numel(), kTile), kThreads, 0,
               from.data<T>(), scale.data<float>(), to, largest.data<unsigned>(), out.numel(), form_of(dtype));
      };
      is_float8(out.dtype) ? run(reinterpret_cast<uint8_t*>(out.bytes())) : run(out.data<T>());
    });
  launch(take_largest, 1, kThreads, 0, old.data<float>(), largest.data<unsigned>(), amax.data<float>(), old.numel());
}

Array widened(const Array& x) {
  const Array from = contiguous(x);
  Array out = Array::empty(x.shape, bfloat16, x.device);
  launch(widen_elements<BFloat16>, blocks_for(out.numel(), kTile), kThreads, 0,
         reinterpret_cast<const uint8_t*>(from.bytes()), out.data<BFloat16>(), out.numel(), form_of(x.dtype));
  return out;
}

Array transposed(const Array& x) { return x.view({x.shape[1], x.shape[0]}, {x.strides[1], x.strides[0]}); }

// Each reason once for a process: products run often.
void note_refusal(const char* reason) {
  static std::atomic<const char*> last = nullptr;
  if (last.exchange(reason) == reason || !log::enabled(log::Channel::kDispatch)) return;
  log::line(log::Channel::kDispatch, std::string("scaled_mm runs in bfloat16: ") + reason);
}

void multiply_scaled(const Array& a, const Array& b, const Array& scale_a, const Array& scale_b, Array& out) {
  if (out.numel() == 0) return;
  use_device_of(out);
  const ScaledProduct p{a.dtype, b.dtype, out.dtype, out.shape[0], out.shape[1], a.shape[1]};
  const char* reason = refusal_of(p);
  if (!reason) {
    // Both have the inner axis last.
    const Array left = contiguous(a), right = contiguous(transposed(b));
    reason = scaled_product(p, left.bytes(), right.bytes(), scale_a.data<float>(), scale_b.data<float>(), out.bytes());
    if (!reason) return;
  }
  note_refusal(reason);
  Array product = out.dtype == float32 ? out : Array::empty(out.shape, float32, out.device);
  multiply(widened(a), widened(b), product, {});
  launch(scale_elements, blocks_for(product.numel(), kTile), kThreads, 0, product.data<float>(), scale_a.data<float>(),
         scale_b.data<float>(), product.numel());
  if (out.dtype != float32) copy(product, out);
}

HOLON_DEVICE_KERNEL(quantize_float8, quantize);
HOLON_DEVICE_KERNEL(round_float8, round);
HOLON_DEVICE_KERNEL(float8_scale_of, scale_of);
HOLON_DEVICE_KERNEL(scaled_matmul, multiply_scaled);

}  // namespace
}  // namespace holon::kernels::cuda
