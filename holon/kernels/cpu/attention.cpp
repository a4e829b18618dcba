#include "holon/kernels/cpu/attention.h"

#include <omp.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "holon/base/error.h"
#include "holon/kernels/cpu/attention_loops.h"
#include "holon/kernels/cpu/gemm.h"
#include "holon/kernels/cpu/half.h"
#include "holon/kernels/cpu/scratch.h"

namespace holon::kernels {

namespace {

// Queries of one block: its scores (64 x 128) and sums stay in the first two caches.
constexpr int64_t kQueries = 64;
constexpr int64_t kKeys = kScoreStride;

struct Sizes {
  int64_t b, h, t, s, d, e;
};

Sizes check(const Array& q, const Array& k, const Array& v, const Array& out, const Array* lse) {
  HOLON_CHECK(q.ndim() == 4 && k.ndim() == 4 && v.ndim() == 4 && out.ndim() == 4, "attention: {}, {}, {} -> {}.",
              q.shape, k.shape, v.shape, out.shape);
  const Sizes n{q.shape[0], q.shape[1], q.shape[2], k.shape[2], q.shape[3], v.shape[3]};
  const DType of_lse = q.dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
  HOLON_CHECK(k.shape == (Dims{n.b, n.h, n.s, n.d}) && v.shape == (Dims{n.b, n.h, n.s, n.e}) &&
                  out.shape == (Dims{n.b, n.h, n.t, n.e}) && k.dtype == q.dtype && v.dtype == q.dtype &&
                  out.dtype == q.dtype && (!lse || (lse->shape == (Dims{n.b, n.h, n.t}) && lse->dtype == of_lse)),
              "attention: q {}, k {}, v {} do not give out {}, lse {}.", q.shape, k.shape, v.shape, out.shape,
              lse ? lse->shape : Dims{});
  return n;
}

// The same values with adjacent elements of the last axis.
Array with_dense_rows(const Array& x) {
  if (x.strides[3] == 1 || x.shape[3] <= 1) return x;
  Array y = Array::empty(x.shape, x.dtype);
  for_each_row(x.shape, x.strides, y.strides, [&](int64_t a, int64_t b) {
    for (int64_t i = 0; i < x.shape[3]; ++i) y.data<float>()[b + i] = x.data<float>()[a + i * x.strides[3]];
  });
  return y;
}

// One head of an array.
struct Head {
  float* data;
  int64_t row;
  Head(const Array& x, int64_t image, int64_t head)
      : data(x.data<float>() + image * x.strides[0] + head * x.strides[1]), row(x.strides[2]) {}
  float* at(int64_t i) const { return data + i * row; }
  MatrixView rows(int64_t i) const { return {at(i), row, 1}; }
};

// to[d, keys] (rows of kKeys) = from[keys, d]^T
void transpose(const float* from, int64_t row, int64_t keys, int64_t d, float* to) {
  constexpr int64_t kTile = 16;
  for (int64_t j0 = 0; j0 < keys; j0 += kTile)
    for (int64_t p0 = 0; p0 < d; p0 += kTile) {
      const int64_t j1 = std::min(keys, j0 + kTile), p1 = std::min(d, p0 + kTile);
      for (int64_t p = p0; p < p1; ++p)
        for (int64_t j = j0; j < j1; ++j) to[p * kKeys + j] = from[j * row + p];
    }
}

int64_t blocks(int64_t n, int64_t size) { return (n + size - 1) / size; }

// How many keys the first query of a block sees in a block of keys, and how that grows from row to row.
struct Visible {
  int64_t first, step;
};
Visible visible(bool causal, int64_t i, int64_t j) { return causal ? Visible{i - j + 1, 1} : Visible{kKeys, 0}; }

// f(image, head, the thread's scratch of `floats`): heads are shared out among the threads.
template <class F>
void over_heads(const Sizes& n, int64_t floats, F&& f) {
  const int threads = omp_in_parallel()
      ? 1
      : static_cast<int>(std::min<int64_t>(omp_get_max_threads(), std::max<int64_t>(n.b * n.h, 1)));
  floats = (floats + 15) / 16 * 16;
  Scratch block(static_cast<size_t>(floats * threads) * sizeof(float));
#pragma omp parallel for collapse(2) num_threads(threads) schedule(static) if (threads > 1)
  for (int64_t image = 0; image < n.b; ++image)
    for (int64_t head = 0; head < n.h; ++head)
      f(image, head, block.as<float>() + (threads > 1 ? omp_get_thread_num() : 0) * floats);
}

void forward(const Sizes& n, const Array& q, const Array& k, const Array& v, bool causal, float scale, Array& out,
             Array* lse) {
  const AttentionLoops& loops = attention_loops();
  const int64_t turned = blocks(n.s, kKeys) * n.d * kKeys, scores = kQueries * kKeys;
  over_heads(n, turned + scores + kQueries * (n.e + 2), [&](int64_t image, int64_t head, float* scratch) {
    float *kt = scratch, *s = kt + turned, *max = s + scores, *sum = max + kQueries, *o = sum + kQueries;
    const Head hq(q, image, head), hk(k, image, head), hv(v, image, head), ho(out, image, head);
    for (int64_t j = 0; j < n.s; j += kKeys) transpose(hk.at(j), hk.row, std::min(kKeys, n.s - j), n.d, kt + j * n.d);
    for (int64_t i = 0; i < n.t; i += kQueries) {
      const int64_t rows = std::min(kQueries, n.t - i);
      std::fill_n(max, rows, -std::numeric_limits<float>::infinity());
      std::fill_n(sum, rows, 0.0f);
      std::fill_n(o, rows * n.e, 0.0f);
      const int64_t seen = causal ? std::min(n.s, i + rows) : n.s;
      for (int64_t j = 0; j < seen; j += kKeys) {
        const int64_t keys = std::min(kKeys, seen - j);
        const Visible see = visible(causal, i, j);
        gemm(rows, keys, n.d, scale, hq.rows(i), {kt + j * n.d, kKeys, 1}, 0, s, kKeys);
        loops.online_softmax(s, rows, keys, see.first, see.step, max, sum, o, n.e);
        gemm(rows, n.e, keys, 1, {s, kKeys, 1}, hv.rows(j), 1, o, n.e);
      }
      for (int64_t r = 0; r < rows; ++r) {
        const float factor = sum[r] != 0 ? 1 / sum[r] : 0;
        float* to = ho.at(i + r);
        for (int64_t c = 0; c < n.e; ++c) to[c] = o[r * n.e + c] * factor;
        if (lse)
          lse->data<float>()[image * lse->strides[0] + head * lse->strides[1] + (i + r) * lse->strides[2]] =
              max[r] + std::log(sum[r]);
      }
    }
  });
}

void fill_zero(Array& x) {
  const size_t size = size_bytes(x.dtype);
  for_each_row(x.shape, x.strides, [&](int64_t at) {
    if (x.strides[3] == 1)
      std::memset(x.bytes() + static_cast<int64_t>(size) * at, 0, size * static_cast<size_t>(x.shape[3]));
    else
      for (int64_t i = 0; i < x.shape[3]; ++i)
        std::memset(x.bytes() + static_cast<int64_t>(size) * (at + i * x.strides[3]), 0, size);
  });
}

void backward(const Sizes& n, const Array& dout, const Array& q, const Array& k, const Array& v, const Array& out,
              const Array& lse, bool causal, float scale, Array& dq, Array& dk, Array& dv) {
  const AttentionLoops& loops = attention_loops();
  const int64_t scores = kQueries * kKeys;
  over_heads(n, (n.d + n.e) * kKeys + 2 * scores + 2 * n.t, [&](int64_t image, int64_t head, float* scratch) {
    float *kt = scratch, *vt = kt + n.d * kKeys, *p = vt + n.e * kKeys, *dp = p + scores, *delta = dp + scores,
          *sums = delta + n.t;
    const Head hq(q, image, head), hk(k, image, head), hv(v, image, head), ho(out, image, head), hdo(dout, image, head);
    const Head hdq(dq, image, head), hdk(dk, image, head), hdv(dv, image, head);
    for (int64_t i = 0; i < n.t; ++i) {
      float part[8] = {};
      int64_t c = 0;
      for (; c + 8 <= n.e; c += 8)
        for (int64_t l = 0; l < 8; ++l) part[l] += hdo.at(i)[c + l] * ho.at(i)[c + l];
      for (; c < n.e; ++c) part[0] += hdo.at(i)[c] * ho.at(i)[c];
      delta[i] = ((part[0] + part[1]) + (part[2] + part[3])) + ((part[4] + part[5]) + (part[6] + part[7]));
      sums[i] = lse.data<float>()[image * lse.strides[0] + head * lse.strides[1] + i * lse.strides[2]];
    }
    for (int64_t j = 0; j < n.s; j += kKeys) {
      const int64_t keys = std::min(kKeys, n.s - j);
      transpose(hk.at(j), hk.row, keys, n.d, kt);
      transpose(hv.at(j), hv.row, keys, n.e, vt);
      // The first block of queries that sees a key of this block.
      for (int64_t i = causal ? j / kQueries * kQueries : 0; i < n.t; i += kQueries) {
        const int64_t rows = std::min(kQueries, n.t - i);
        const Visible see = visible(causal, i, j);
        gemm(rows, keys, n.d, scale, hq.rows(i), {kt, kKeys, 1}, 0, p, kKeys);
        loops.probabilities(p, rows, keys, see.first, see.step, sums + i);
        gemm(keys, n.e, rows, 1, {p, 1, kKeys}, hdo.rows(i), 1, hdv.at(j), hdv.row);
        // What lies beyond the keys in dp is old, but finite, and is multiplied by a probability of 0.
        if (keys < kKeys) std::fill_n(dp, rows * kKeys, 0.0f);
        gemm(rows, keys, n.e, 1, hdo.rows(i), {vt, kKeys, 1}, 0, dp, kKeys);
        loops.score_gradient(p, dp, rows, delta + i, scale);
        gemm(rows, n.d, keys, 1, {dp, kKeys, 1}, hk.rows(j), 1, hdq.at(i), hdq.row);
        gemm(keys, n.d, rows, 1, {dp, 1, kKeys}, hq.rows(i), 1, hdk.at(j), hdk.row);
      }
    }
  });
}

// float64, for gradient checks: one row of scores at a time.
template <class F>
void plain_rows(const Sizes& n, bool causal, double scale, const Array& q, const Array& k, F&& f) {
  std::vector<double> scores(static_cast<size_t>(n.s));
  auto at = [](const Array& x, int64_t a, int64_t b, int64_t c) {
    return x.data<double>() + a * x.strides[0] + b * x.strides[1] + c * x.strides[2];
  };
  for (int64_t a = 0; a < n.b; ++a)
    for (int64_t b = 0; b < n.h; ++b)
      for (int64_t i = 0; i < n.t; ++i) {
        const int64_t keys = causal ? std::min(n.s, i + 1) : n.s;
        for (int64_t j = 0; j < keys; ++j) {
          double sum = 0;
          for (int64_t c = 0; c < n.d; ++c) sum += at(q, a, b, i)[c * q.strides[3]] * at(k, a, b, j)[c * k.strides[3]];
          scores[static_cast<size_t>(j)] = scale * sum;
        }
        f(a, b, i, keys, scores.data());
      }
}

void forward_plain(const Sizes& n, const Array& q, const Array& k, const Array& v, bool causal, double scale,
                   Array& out, Array* lse) {
  plain_rows(n, causal, scale, q, k, [&](int64_t a, int64_t b, int64_t i, int64_t keys, double* s) {
    double max = -std::numeric_limits<double>::infinity(), sum = 0;
    for (int64_t j = 0; j < keys; ++j) max = std::max(max, s[j]);
    for (int64_t j = 0; j < keys; ++j) sum += s[j] = std::exp(s[j] - max);
    for (int64_t c = 0; c < n.e; ++c) {
      double total = 0;
      for (int64_t j = 0; j < keys; ++j)
        total += s[j] * v.data<double>()[a * v.strides[0] + b * v.strides[1] + j * v.strides[2] + c * v.strides[3]];
      out.data<double>()[a * out.strides[0] + b * out.strides[1] + i * out.strides[2] + c * out.strides[3]] =
          keys ? total / sum : 0;
    }
    if (lse) lse->data<double>()[a * lse->strides[0] + b * lse->strides[1] + i * lse->strides[2]] = max + std::log(sum);
  });
}

void backward_plain(const Sizes& n, const Array& dout, const Array& q, const Array& k, const Array& v, const Array& out,
                    const Array& lse, bool causal, double scale, Array& dq, Array& dk, Array& dv) {
  auto at = [](const Array& x, int64_t a, int64_t b, int64_t i, int64_t c) -> double& {
    return x.data<double>()[a * x.strides[0] + b * x.strides[1] + i * x.strides[2] + c * x.strides[3]];
  };
  plain_rows(n, causal, scale, q, k, [&](int64_t a, int64_t b, int64_t i, int64_t keys, double* s) {
    const double sum = lse.data<double>()[a * lse.strides[0] + b * lse.strides[1] + i * lse.strides[2]];
    double delta = 0;
    for (int64_t c = 0; c < n.e; ++c) delta += at(dout, a, b, i, c) * at(out, a, b, i, c);
    for (int64_t j = 0; j < keys; ++j) {
      const double p = std::exp(s[j] - sum);
      double dp = 0;
      for (int64_t c = 0; c < n.e; ++c) {
        dp += at(dout, a, b, i, c) * at(v, a, b, j, c);
        at(dv, a, b, j, c) += p * at(dout, a, b, i, c);
      }
      const double ds = p * (dp - delta) * scale;
      for (int64_t c = 0; c < n.d; ++c) {
        at(dq, a, b, i, c) += ds * at(k, a, b, j, c);
        at(dk, a, b, j, c) += ds * at(q, a, b, i, c);
      }
    }
  });
}

[[noreturn]] void refuse(DType dtype) {
  fail_type("attention of {} is not defined; convert to float32 first.", name(dtype));
}

Array float_block(const Array& like) { return Array::empty(like.shape, DType::kFloat32); }

}  // namespace

void attention(const Array& q, const Array& k, const Array& v, bool causal, double scale, Array& out, Array* lse) {
  const Sizes n = check(q, k, v, out, lse);
  if (!is_floating(q.dtype)) refuse(q.dtype);
  if (n.b * n.h * n.t == 0) return;
  if (q.dtype == DType::kFloat64) {
    forward_plain(n, q, k, v, causal, scale, out, lse);
  } else if (is_half(q.dtype)) {
    Array y = float_block(out);
    attention(to_float(q), to_float(k), to_float(v), causal, scale, y, lse);
    from_float(y, out);
  } else if (out.strides[3] != 1 && n.e > 1) {
    Array y = float_block(out);
    attention(q, k, v, causal, scale, y, lse);
    for_each_row(out.shape, y.strides, out.strides, [&](int64_t a, int64_t b) {
      for (int64_t i = 0; i < n.e; ++i) out.data<float>()[b + i * out.strides[3]] = y.data<float>()[a + i];
    });
  } else {
    forward(n, with_dense_rows(q), with_dense_rows(k), with_dense_rows(v), causal, static_cast<float>(scale), out, lse);
  }
}

void attention_backward(const Array& dout, const Array& q, const Array& k, const Array& v, const Array& out,
                        const Array& lse, bool causal, double scale, Array& dq, Array& dk, Array& dv) {
  const Sizes n = check(q, k, v, out, &lse);
  HOLON_CHECK(dout.shape == out.shape && dq.shape == q.shape && dk.shape == k.shape && dv.shape == v.shape &&
                  dout.dtype == q.dtype && dq.dtype == q.dtype && dk.dtype == q.dtype && dv.dtype == q.dtype,
              "attention_backward: dout {}, dq {}, dk {}, dv {} do not fit q {}, k {}, v {}.", dout.shape, dq.shape,
              dk.shape, dv.shape, q.shape, k.shape, v.shape);
  if (!is_floating(q.dtype)) refuse(q.dtype);
  bool dense = true;
  for (const Array* x : {&dq, &dk, &dv}) dense = dense && (x->strides[3] == 1 || x->shape[3] <= 1);
  if (is_half(q.dtype) || (q.dtype == DType::kFloat32 && !dense)) {
    const bool half = is_half(q.dtype);
    Array fq = float_block(dq), fk = float_block(dk), fv = float_block(dv);
    attention_backward(half ? to_float(dout) : dout, half ? to_float(q) : q, half ? to_float(k) : k,
                       half ? to_float(v) : v, half ? to_float(out) : out, lse, causal, scale, fq, fk, fv);
    Array* targets[] = {&dq, &dk, &dv};
    const Array* sources[] = {&fq, &fk, &fv};
    for (int i = 0; i < 3; ++i) {
      Array& to = *targets[i];
      const Array& from = *sources[i];
      if (half)
        from_float(from, to);
      else
        for_each_row(to.shape, from.strides, to.strides, [&](int64_t a, int64_t b) {
          for (int64_t c = 0; c < to.shape[3]; ++c) to.data<float>()[b + c * to.strides[3]] = from.data<float>()[a + c];
        });
    }
    return;
  }
  fill_zero(dq), fill_zero(dk), fill_zero(dv);
  if (n.b * n.h * n.t * n.s == 0) return;
  if (q.dtype == DType::kFloat64)
    backward_plain(n, dout, q, k, v, out, lse, causal, scale, dq, dk, dv);
  else
    backward(n, with_dense_rows(dout), with_dense_rows(q), with_dense_rows(k), with_dense_rows(v), with_dense_rows(out),
             lse, causal, static_cast<float>(scale), dq, dk, dv);
}

}  // namespace holon::kernels
