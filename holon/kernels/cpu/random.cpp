#define HOLON_UNFUSED  // every instruction set gives the same bits
#include "holon/kernels/random.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/base/parallel.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/cpu/loops.h"
#include "holon/kernels/cpu/rows.h"
#include "holon/kernels/device.h"

namespace holon::kernels {

Runs::Runs(const RandomPart& part, const Array& out) {
  HOLON_CHECK(part.logical_shape.size() == out.ndim() && part.offset.size() == out.ndim(),
              "random: {} as a part of {} at {}", out.shape, part.logical_shape, part.offset);
  for (int i = 0; i < out.ndim(); ++i) {
    HOLON_CHECK(part.offset[i] >= 0 && part.offset[i] + out.shape[i] <= part.logical_shape[i], "random: {} at {} of {}",
                out.shape, part.offset, part.logical_shape);
    if (n > 0 && out.shape[i] == part.logical_shape[i]) {
      shape[n - 1] *= out.shape[i];
      logical[n - 1] *= out.shape[i];
      offset[n - 1] *= out.shape[i];
    } else {
      shape[n] = out.shape[i];
      logical[n] = part.logical_shape[i];
      offset[n++] = part.offset[i];
    }
  }
  if (n == 0) {
    n = 1;
    shape[0] = logical[0] = 1;
    offset[0] = 0;
  }
}

namespace {

constexpr int64_t kBlock = 512;  // elements that are drawn at a time

// The bits of a few neighbouring groups, kept for the next run: short runs are often in the same group.
class Bits {
 public:
  Bits(const RandomPart& part, bool wide) : part_(part), wide_(wide), per_group_(wide ? 32 : 64) {}

  // The bits of n <= kBlock elements from index on.
  const void* at(uint64_t index, int64_t n) {
    const uint64_t first = index / per_group_, last = (index + static_cast<uint64_t>(n) - 1) / per_group_;
    if (first < begin_ || last >= end_) {
      table().random_bits[wide_](part_.seed, part_.counter, first, static_cast<int64_t>(last - first + 1), data_);
      begin_ = first;
      end_ = last + 1;
    }
    return data_ + (index - begin_ * per_group_) * (wide_ ? 8 : 4);
  }

 private:
  const RandomPart& part_;
  const bool wide_;
  const uint64_t per_group_;
  uint64_t begin_ = 0, end_ = 0;
  alignas(64) std::byte data_[(kBlock + 64) * 8];
};

// Strided elements in row-major order, in pieces.
struct Walker {
  const Array& a;
  int64_t size;
  bool contiguous;
  explicit Walker(const Array& x)
      : a(x), size(static_cast<int64_t>(size_bytes(x.dtype))), contiguous(x.is_contiguous()) {}

  // f(address, stride, elements, elements before) for the pieces of [begin, begin + m).
  template <class F>
  void pieces(int64_t begin, int64_t m, F&& f) const {
    if (contiguous) return f(a.bytes() + begin * size, size, m, int64_t{0});
    const int64_t inner = a.shape.back();
    for (int64_t done = 0; done < m;) {
      int64_t rest = begin + done, at = 0;
      const int64_t take = std::min(m - done, inner - rest % inner);
      for (int i = a.ndim() - 1; i >= 0; --i) {
        at += rest % a.shape[i] * a.strides[i];
        rest /= a.shape[i];
      }
      f(a.bytes() + at * size, a.strides.back() * size, take, done);
      done += take;
    }
  }
};

// out = map(bits, x) through buffers of the types that the map reads and writes.
template <class F>
void draw_blocks(const RandomPart& part, bool wide, const Array* x, DType x_compute, Array& out, DType out_compute,
                 F&& map) {
  const int64_t n = out.numel();
  const Runs runs(part, out);
  if (n == 0) return;
  const int64_t run = runs.shape[runs.n - 1], width = static_cast<int64_t>(size_bytes(out_compute));
  const Walker to(out), from(x ? *x : out);
  parallel_for(n, kGrain / 4, [&](int64_t begin, int64_t end) {
    Bits bits(part, wide);
    alignas(64) std::byte in[kBlock * 8], result[kBlock * 8], scratch[kBlock * 8];
    while (begin < end) {
      // Long runs are cut where groups begin, so that none is drawn twice.
      const uint64_t index = runs.logical_index(begin);
      const int64_t room = kBlock - static_cast<int64_t>(index % 64);
      const int64_t m = std::min({end - begin, run - begin % run, room});
      const void* source = nullptr;
      if (x) {
        const int64_t x_width = static_cast<int64_t>(size_bytes(x_compute));
        if (from.contiguous && x->dtype == x_compute) {
          source = x->bytes() + begin * from.size;
        } else {
          source = in;
          from.pieces(begin, m, [&](const std::byte* p, int64_t stride, int64_t take, int64_t done) {
            load_elements(p, stride, x->dtype, x_compute, in + done * x_width, take, scratch);
          });
        }
      }
      const bool direct = to.contiguous && out.dtype == out_compute;
      map(bits.at(index, m), source, direct ? out.bytes() + begin * to.size : result, m);
      if (!direct)
        to.pieces(begin, m, [&](std::byte* p, int64_t stride, int64_t take, int64_t done) {
          store_elements(result + done * width, out_compute, out.dtype, p, stride, take, scratch);
        });
      begin += m;
    }
  });
}

uint64_t threshold_of(const char* op, double p) {
  if (!(p >= 0 && p <= 1)) fail_value("{}: the probability is {}. It must be in [0, 1].", op, p);
  return static_cast<uint64_t>(p * 4294967296.0 + 0.5);
}

// e^x for x <= 0, by plain arithmetic: the C library's last bit differs between machines.
double exp_plain(double x) {
  if (x < -745) return 0;
  const double k = std::floor(x * 1.4426950408889634 + 0.5);
  const double r = (x - k * 0.69314718036912381649) - k * 1.90821492927058770002e-10;
  double sum = 1, term = 1;
  for (int i = 1; i < 20; ++i) {
    term *= r / i;
    sum += term;
  }
  return std::ldexp(sum, static_cast<int>(k));
}

// The probability below x <= 0, to a relative error of about 1e-14: a series near 0, a continued fraction beyond.
double lower_tail(double x) {
  const double z = -x, density = exp_plain(-0.5 * z * z) * 0.39894228040143267794;
  if (z < 2.5) {
    double term = z, sum = z;
    for (int k = 1; k < 100; ++k) {
      term *= z * z / (2 * k + 1);
      sum += term;
    }
    return 0.5 - density * sum;
  }
  double fraction = 0;
  for (int k = 200; k >= 1; --k) fraction = k / (z + fraction);
  return density / (z + fraction);
}
double probability(double x) { return x <= 0 ? lower_tail(x) : 1 - lower_tail(-x); }

}  // namespace

void draw(Distribution distribution, const RandomPart& part, const RandomNumbers& p, const Array* x, Array& out) {
  HOLON_ON_DEVICE(out, draw, distribution, part, p, x, out);
  const auto along_rows = [&](RandomRowFn rows, bool wide, DType x_compute, DType out_compute) {
    draw_blocks(part, wide, x, x_compute, out, out_compute,
                [&](const void* bits, const void* from, void* y, int64_t n) { rows(bits, from, y, n, p); });
  };
  const bool f64 = out.dtype == DType::kFloat64;
  const DType compute = f64 ? DType::kFloat64 : DType::kFloat32;
  switch (distribution) {
    case Distribution::kUniform: return along_rows(table().uniform[f64], f64, compute, compute);
    case Distribution::kNormal: return along_rows(table().normal[f64], f64, compute, compute);
    case Distribution::kTruncatedNormal: return along_rows(table().truncated_normal[f64], f64, compute, compute);
    case Distribution::kBernoulli: return along_rows(table().bernoulli, false, DType::kBool, DType::kBool);
    case Distribution::kBernoulliOf: return along_rows(table().bernoulli_of, false, DType::kFloat32, DType::kBool);
    case Distribution::kDropout: return along_rows(table().dropout[f64], false, compute, compute);
    case Distribution::kIntegers:
      return draw_blocks(part, true, nullptr, DType::kInt64, out, DType::kInt64,
                         [&](const void* bits, const void*, void* y, int64_t n) {
                           for (int64_t i = 0; i < n; ++i) {
                             const auto product =
                                 static_cast<unsigned __int128>(static_cast<const uint64_t*>(bits)[i]) * p.threshold;
                             static_cast<int64_t*>(y)[i] = static_cast<int64_t>(static_cast<uint64_t>(p.from) +
                                                                                static_cast<uint64_t>(product >> 64));
                           }
                         });
  }
}

void uniform(const RandomPart& part, double low, double high, Array& out) {
  if (!(low <= high)) fail_value("uniform: the range [{}, {}) is empty. Give the smaller number first.", low, high);
  RandomNumbers p;
  p.a = low;
  p.b = high;
  // Rounding must not reach the upper end.
  p.c = out.dtype == DType::kFloat64
      ? std::nextafter(high, low)
      : static_cast<double>(std::nextafter(static_cast<float>(high), static_cast<float>(low)));
  float_compute(out.dtype, "uniform");
  draw(Distribution::kUniform, part, p, nullptr, out);
}

void normal(const RandomPart& part, double mean, double deviation, Array& out) {
  RandomNumbers p;
  p.a = mean;
  p.b = deviation;
  float_compute(out.dtype, "normal");
  draw(Distribution::kNormal, part, p, nullptr, out);
}

void truncated_normal(const RandomPart& part, double mean, double deviation, double low, double high, Array& out) {
  if (!(low < high) || !(deviation > 0))
    fail_value("truncated_normal: mean {}, deviation {}, range [{}, {}]. It needs a positive deviation and low < high.",
               mean, deviation, low, high);
  RandomNumbers p;
  p.a = mean;
  p.b = deviation;
  p.low = low;
  p.high = high;
  double a = (low - mean) / deviation, b = (high - mean) / deviation;
  // The upper tail is drawn as the lower one, where probabilities are precise.
  const bool mirrored = a > 0;
  if (mirrored) {
    std::swap(a, b);
    a = -a;
    b = -b;
  }
  p.c = probability(a);
  p.d = probability(b);
  p.threshold = mirrored;
  float_compute(out.dtype, "truncated_normal");
  draw(Distribution::kTruncatedNormal, part, p, nullptr, out);
}

void randint(const RandomPart& part, int64_t low, int64_t high, Array& out) {
  if (low >= high) fail_value("randint: the range [{}, {}) is empty. The upper end is not part of it.", low, high);
  RandomNumbers p;
  p.from = low;
  p.threshold = static_cast<uint64_t>(high) - static_cast<uint64_t>(low);
  draw(Distribution::kIntegers, part, p, nullptr, out);
}

void bernoulli(const RandomPart& part, double probability_of_one, Array& out) {
  RandomNumbers p;
  p.threshold = threshold_of("bernoulli", probability_of_one);
  draw(Distribution::kBernoulli, part, p, nullptr, out);
}

void bernoulli(const RandomPart& part, const Array& probabilities, Array& out) {
  HOLON_CHECK(probabilities.shape == out.shape, "bernoulli: {} into {}", probabilities.shape, out.shape);
  draw(Distribution::kBernoulliOf, part, {}, &probabilities, out);
}

void dropout(const RandomPart& part, const Array& x, double p, Array& out) {
  HOLON_CHECK(x.shape == out.shape && x.dtype == out.dtype, "dropout: {} into {}", x.shape, out.shape);
  RandomNumbers numbers;
  numbers.threshold = threshold_of("dropout", p);
  numbers.a = p < 1 ? 1 / (1 - p) : 0;
  float_compute(x.dtype, "dropout");
  draw(Distribution::kDropout, part, numbers, &x, out);
}

void randperm(const RandomPart& part, Array& out) {
  HOLON_CHECK(out.ndim() == 1 && part.logical_shape.size() == 1 && part.offset[0] >= 0 &&
                  part.offset[0] + out.shape[0] <= part.logical_shape[0],
              "randperm: {} at {} of {}", out.shape, part.offset, part.logical_shape);
  HOLON_ON_DEVICE(out, randperm, part, out);
  // Every part orders all of it by random keys; ties (one pair in 2^64) by number.
  const int64_t n = part.logical_shape[0];
  std::vector<uint64_t> keys(to_size((n + 31) / 32 * 32));
  table().random_bits[1](part.seed, part.counter, 0, (n + 31) / 32, keys.data());
  Array order = Array::empty({n}, DType::kInt64);
  int64_t* p = order.data<int64_t>();
  std::iota(p, p + n, int64_t{0});
  std::sort(p, p + n, [&](int64_t a, int64_t b) {
    const uint64_t x = at_index(keys, a), y = at_index(keys, b);
    return x != y ? x < y : a < b;
  });
  copy(order.view(out.shape, order.strides, part.offset[0]), out);
}

}  // namespace holon::kernels
