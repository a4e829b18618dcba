// Convolutions and attention on the emulated device: loops, one thread. There is no library until a test asks for one,
// so that the backend's own kernels are what is tested; what it then does not support are kinds that cuDNN has refused,
// too.
#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <vector>

#include "cuda_runtime.h"
#include "holon/kernels/cuda/dnn.h"
#include "holon/kernels/cuda/stream.h"
#include "holon/kernels/half.h"

namespace {

std::atomic<bool> there{false};
std::atomic<long> runs{0};

}  // namespace

// Whether there is a library from now on. Counts begin at 0.
extern "C" void emulated_dnn(int is_there) {
  there = is_there != 0;
  runs = 0;
}
// How many convolutions and attentions, forward or backward, it has done.
extern "C" long emulated_dnn_runs() { return runs.load(); }

namespace holon::kernels::cuda {
namespace {

double load(const void* from, int64_t dtype, int64_t at) {
  switch (static_cast<DType>(dtype)) {
    case DType::kFloat16: return static_cast<float>(static_cast<const Float16*>(from)[at]);
    case DType::kBFloat16: return static_cast<float>(static_cast<const BFloat16*>(from)[at]);
    case DType::kFloat64: return static_cast<const double*>(from)[at];
    default: return static_cast<const float*>(from)[at];
  }
}
void store(void* to, int64_t dtype, int64_t at, double value) {
  switch (static_cast<DType>(dtype)) {
    case DType::kFloat16: static_cast<Float16*>(to)[at] = Float16(static_cast<float>(value)); break;
    case DType::kBFloat16: static_cast<BFloat16*>(to)[at] = BFloat16(static_cast<float>(value)); break;
    case DType::kFloat64: static_cast<double*>(to)[at] = value; break;
    default: static_cast<float*>(to)[at] = static_cast<float>(value);
  }
}

int64_t count(const DnnTensor& t, int64_t axes) {
  int64_t n = 1;
  for (int64_t i = 0; i < axes; ++i) n *= t.sizes[i];
  return n;
}

// f(where in x, in w, in y, output channel) for every product, each axis from the last on the fastest.
template <class F>
void each_product(const Convolution& c, F&& f) {
  const int64_t n = c.axes - 2, groups = c.x.sizes[1] / c.w.sizes[1], of_group = c.w.sizes[0] / groups;
  const int64_t taps = count(c.w, c.axes) / c.w.sizes[0] / c.w.sizes[1];
  const int64_t places = count(c.y, c.axes) / c.y.sizes[0] / c.y.sizes[1];
  for (int64_t image = 0; image < c.y.sizes[0]; ++image)
    for (int64_t o = 0; o < c.y.sizes[1]; ++o)
      for (int64_t place = 0; place < places; ++place)
        for (int64_t i = 0; i < c.w.sizes[1]; ++i)
          for (int64_t tap = 0; tap < taps; ++tap) {
            int64_t x = image * c.x.strides[0] + (o / of_group * c.w.sizes[1] + i) * c.x.strides[1];
            int64_t w = o * c.w.strides[0] + i * c.w.strides[1], y = image * c.y.strides[0] + o * c.y.strides[1];
            int64_t rest = place, rest_tap = tap;
            bool inside = true;
            for (int64_t a = n - 1; a >= 0; --a) {
              const int64_t out = rest % c.y.sizes[2 + a], k = rest_tap % c.w.sizes[2 + a];
              rest /= c.y.sizes[2 + a], rest_tap /= c.w.sizes[2 + a];
              const int64_t in = out * c.stride[a] - c.before[a] + k * c.dilation[a];
              inside &= in >= 0 && in < c.x.sizes[2 + a];
              x += in * c.x.strides[2 + a], w += k * c.w.strides[2 + a], y += out * c.y.strides[2 + a];
            }
            if (inside) f(x, w, y, o);
          }
}

void run(const Convolution& c, const void* first, const void* second, const void* bias, void* out) {
  const bool forward = c.pass == ConvolutionPass::kForward, data = c.pass == ConvolutionPass::kData;
  std::vector<double> sums(static_cast<size_t>(count(forward ? c.y : data ? c.x : c.w, c.axes)));
  if (c.bias) {
    const int64_t places = count(c.y, c.axes) / c.y.sizes[0] / c.y.sizes[1];
    const bool last = c.y.strides[1] == 1;  // the channels' elements are neighbours
    for (size_t i = 0; i < sums.size(); ++i) {
      const auto at = static_cast<int64_t>(i);
      sums[i] = load(bias, c.dtype, (last ? at : at / places) % c.y.sizes[1]);
    }
  }
  each_product(c, [&](int64_t x, int64_t w, int64_t y, int64_t) {
    auto& sum = sums[static_cast<size_t>(forward ? y : data ? x : w)];
    sum += load(first, c.dtype, forward ? x : y) * load(second, c.dtype, forward || data ? w : x);
  });
  for (size_t i = 0; i < sums.size(); ++i) store(out, c.dtype, static_cast<int64_t>(i), sums[i]);
}

int64_t at(const int64_t (&strides)[3], int64_t image, int64_t head, int64_t row) {
  return image * strides[0] + head * strides[1] + row * strides[2];
}

// The keys that query i sees.
struct Sight {
  int64_t first, end;
  Sight(const Sdpa& a, int64_t i)
      : first(a.window ? std::max<int64_t>(i + a.diagonal - a.window + 1, 0) : 0),
        end(a.causal ? std::min(i + a.diagonal + 1, a.s) : a.s) {}
};

double dot(const Sdpa& a, const void* x, int64_t of_x, const void* y, int64_t of_y, int64_t n) {
  double sum = 0;
  for (int64_t c = 0; c < n; ++c) sum += load(x, a.dtype, of_x + c) * load(y, a.dtype, of_y + c);
  return sum;
}

void run_forward(const Sdpa& a, const void* q, const void* k, const void* v, void* out, float* lse) {
  const double scale = std::bit_cast<double>(a.scale);
  const int64_t share = a.h / a.g;
  for (int64_t n = 0; n < a.b * a.h * a.t; ++n) {
    const int64_t i = n % a.t, head = n / a.t % a.h, image = n / a.t / a.h, shared = head / share;
    const Sight seen(a, i);
    std::vector<double> row;
    double most = -INFINITY, sum = 0;
    for (int64_t j = seen.first; j < seen.end; ++j) {
      row.push_back(scale * dot(a, q, at(a.q, image, head, i), k, at(a.k, image, shared, j), a.d));
      most = std::max(most, row.back());
    }
    for (double& x : row) sum += x = std::exp(x - most);
    for (int64_t c = 0; c < a.e; ++c) {
      double y = 0;
      for (int64_t j = seen.first; j < seen.end; ++j)
        y += row[static_cast<size_t>(j - seen.first)] * load(v, a.dtype, at(a.v, image, shared, j) + c);
      store(out, a.dtype, at(a.out, image, head, i) + c, y / sum);
    }
    if (lse) lse[n] = static_cast<float>(most + std::log(sum));
  }
}

void run_backward(const Sdpa& a, const void* dout, const void* q, const void* k, const void* v, const void* out,
                  const float* lse, void* dq, void* dk, void* dv) {
  const double scale = std::bit_cast<double>(a.scale);
  const int64_t share = a.h / a.g;
  auto zeros = [](int64_t n) { return std::vector<double>(static_cast<size_t>(n)); };
  std::vector<double> keys = zeros(a.b * a.g * a.s * a.d), values = zeros(a.b * a.g * a.s * a.e);
  for (int64_t n = 0; n < a.b * a.h * a.t; ++n) {
    const int64_t i = n % a.t, head = n / a.t % a.h, image = n / a.t / a.h, shared = head / share;
    const int64_t of_q = at(a.q, image, head, i), of_dout = at(a.dout, image, head, i);
    const double delta = dot(a, dout, of_dout, out, at(a.out, image, head, i), a.e);
    const Sight seen(a, i);
    std::vector<double> sums = zeros(a.d);
    for (int64_t j = seen.first; j < seen.end; ++j) {
      const int64_t of_k = at(a.k, image, shared, j), row = (image * a.g + shared) * a.s + j;
      const double p = std::exp(scale * dot(a, q, of_q, k, of_k, a.d) - lse[n]);
      const double slope = scale * p * (dot(a, dout, of_dout, v, at(a.v, image, shared, j), a.e) - delta);
      for (int64_t c = 0; c < a.d; ++c) {
        sums[static_cast<size_t>(c)] += slope * load(k, a.dtype, of_k + c);
        keys[static_cast<size_t>(row * a.d + c)] += slope * load(q, a.dtype, of_q + c);
      }
      for (int64_t c = 0; c < a.e; ++c)
        values[static_cast<size_t>(row * a.e + c)] += p * load(dout, a.dtype, of_dout + c);
    }
    for (int64_t c = 0; c < a.d; ++c) store(dq, a.dtype, at(a.dq, image, head, i) + c, sums[static_cast<size_t>(c)]);
  }
  for (int64_t n = 0; n < a.b * a.g * a.s; ++n) {
    const int64_t j = n % a.s, head = n / a.s % a.g, image = n / a.s / a.g;
    for (int64_t c = 0; c < a.d; ++c)
      store(dk, a.dtype, at(a.dk, image, head, j) + c, keys[static_cast<size_t>(n * a.d + c)]);
    for (int64_t c = 0; c < a.e; ++c)
      store(dv, a.dtype, at(a.dv, image, head, j) + c, values[static_cast<size_t>(n * a.e + c)]);
  }
}

}  // namespace

bool supports(const Convolution& c) {
  if (!there) return false;
  for (int a = 0; a < 3; ++a)
    if (c.before[a] != c.after[a]) return false;
  return !c.bias || c.axes == 4;
}
bool convolution(const Convolution& c, const void* first, const void* second, const void* bias, void* out) {
  if (!supports(c)) return false;
  ++runs;
  emulator::enqueue(stream(), [=] { run(c, first, second, bias, out); });
  return true;
}

bool supports(const Sdpa& a) { return there && std::max(a.d, a.e) <= (a.backward ? 128 : 256); }
bool sdpa(const Sdpa& a, const void* q, const void* k, const void* v, void* out, float* lse) {
  if (!supports(a)) return false;
  ++runs;
  emulator::enqueue(stream(), [=] { run_forward(a, q, k, v, out, lse); });
  return true;
}
bool sdpa_backward(const Sdpa& a, const void* dout, const void* q, const void* k, const void* v, const void* out,
                   const float* lse, void* dq, void* dk, void* dv) {
  if (!supports(a)) return false;
  ++runs;
  emulator::enqueue(stream(), [=] { run_backward(a, dout, q, k, v, out, lse, dq, dk, dv); });
  return true;
}

}  // namespace holon::kernels::cuda
