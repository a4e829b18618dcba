#include "holon/kernels/rnn.h"

#include <algorithm>
#include <cstring>

#include "holon/base/error.h"
#include "holon/base/parallel.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/cpu/rows.h"
#include "holon/kernels/cpu/table.h"
#include "holon/kernels/device.h"
#include "holon/kernels/gemm.h"

namespace holon::kernels {

namespace {

constexpr int64_t kGrainElements = 16384;

Array ready(const Array& x, DType compute) {
  if (!x.defined()) return x;
  if (x.dtype == compute) return contiguous(x);
  Array y = Array::empty(x.shape, compute, x.device);
  copy(x, y);
  return y;
}
Array block_like(const Array& out, DType compute) {
  return out.dtype == compute && out.is_contiguous() ? out : Array::empty(out.shape, compute, out.device);
}
void bring(const Array& from, Array& to) {
  if (from.storage.get() != to.storage.get()) copy(from, to);
}

// Step t of a sequence as a matrix.
Array step(const Array& x, int64_t t) {
  return x.view({x.shape[1], x.shape[2]}, {x.strides[1], x.strides[2]}, t * x.strides[0]);
}

template <class T>
void apply(UnaryOp op, T* x, T* y, int64_t n) {
  const void* in[] = {x};
  const Number none[3] = {};
  table().unary[static_cast<int>(op)][static_cast<int>(sizeof(T) == 8 ? Compute::kF64 : Compute::kF32)](in, y, n, none);
}

struct Sizes {
  int64_t t, b, h;
};

template <class F>
void over_rows(const Sizes& n, F&& f) {
  parallel_for(n.b, std::max<int64_t>(1, kGrainElements / std::max<int64_t>(4 * n.h, 1)),
               [&](int64_t begin, int64_t end) {
                 for (int64_t r = begin; r < end; ++r) f(r);
               });
}

// One step: s [B, G H] holds the hidden part of the gates and is used up.
template <class T>
void forward_step(RnnMode mode, const Sizes& n, const T* gx, T* s, const T* h_before, const T* c_before, T* h, T* c,
                  T* saved) {
  const int64_t H = n.h;
  const int gates = rnn_gates(mode);
  over_rows(n, [&](int64_t r) {
    const T* x = gx + r * gates * H;
    T *g = s + r * gates * H, *to = h + r * H;
    switch (mode) {
      case RnnMode::kTanh:
      case RnnMode::kRelu:
        for (int64_t j = 0; j < H; ++j) to[j] = x[j] + g[j];
        apply(mode == RnnMode::kTanh ? UnaryOp::Tanh : UnaryOp::Relu, to, to, H);
        break;
      case RnnMode::kLstm: {
        T *keep = saved + r * 4 * H, *cell = c + r * H;
        const T* old = c_before + r * H;
        for (int64_t j = 0; j < 4 * H; ++j) keep[j] = x[j] + g[j];
        apply(UnaryOp::Sigmoid, keep, keep, 2 * H);
        apply(UnaryOp::Tanh, keep + 2 * H, keep + 2 * H, H);
        apply(UnaryOp::Sigmoid, keep + 3 * H, keep + 3 * H, H);
        const T *i = keep, *f = keep + H, *z = keep + 2 * H, *o = keep + 3 * H;
        for (int64_t j = 0; j < H; ++j) cell[j] = f[j] * old[j] + i[j] * z[j];
        apply(UnaryOp::Tanh, cell, to, H);
        for (int64_t j = 0; j < H; ++j) to[j] *= o[j];
        break;
      }
      case RnnMode::kGru: {
        T* keep = saved + r * 4 * H;
        const T* old = h_before + r * H;
        for (int64_t j = 0; j < 2 * H; ++j) keep[j] = x[j] + g[j];
        apply(UnaryOp::Sigmoid, keep, keep, 2 * H);
        T *candidate = keep + 2 * H, *hidden = keep + 3 * H;
        for (int64_t j = 0; j < H; ++j) {
          hidden[j] = g[2 * H + j];
          candidate[j] = x[2 * H + j] + keep[j] * hidden[j];
        }
        apply(UnaryOp::Tanh, candidate, candidate, H);
        for (int64_t j = 0; j < H; ++j) to[j] = candidate[j] + keep[H + j] * (old[j] - candidate[j]);
        break;
      }
    }
  });
}

// One step back: dh [B, H] is the gradient of this step's state and becomes what of the one before does not go through
// the product; dcell likewise.
template <class T>
void backward_step(RnnMode mode, const Sizes& n, const T* y, const T* c, const T* c_before, const T* h_before,
                   const T* saved, T* dh, T* dcell, T* dgx, T* dgh, T* scratch) {
  const int64_t H = n.h;
  over_rows(n, [&](int64_t r) {
    T* d = dh + r * H;
    switch (mode) {
      case RnnMode::kTanh:
      case RnnMode::kRelu:
        for (int64_t j = 0; j < H; ++j) {
          const T v = y[r * H + j];
          dgx[r * H + j] = mode == RnnMode::kTanh ? d[j] * (1 - v * v) : v > 0 ? d[j] : T(0);
          d[j] = 0;
        }
        break;
      case RnnMode::kLstm: {
        const T *i = saved + r * 4 * H, *f = i + H, *g = f + H, *o = g + H, *old = c_before + r * H;
        T *dc = dcell + r * H, *to = dgx + r * 4 * H, *tanh_c = scratch + r * H;
        apply(UnaryOp::Tanh, const_cast<T*>(c + r * H), tanh_c, H);
        for (int64_t j = 0; j < H; ++j) {
          const T k = tanh_c[j], all = dc[j] + d[j] * o[j] * (1 - k * k);
          to[j] = all * g[j] * i[j] * (1 - i[j]);
          to[H + j] = all * old[j] * f[j] * (1 - f[j]);
          to[2 * H + j] = all * i[j] * (1 - g[j] * g[j]);
          to[3 * H + j] = d[j] * k * o[j] * (1 - o[j]);
          dc[j] = all * f[j];
          d[j] = 0;
        }
        break;
      }
      case RnnMode::kGru: {
        const T *reset = saved + r * 4 * H, *z = reset + H, *candidate = z + H, *hidden = candidate + H,
                *old = h_before + r * H;
        T *x = dgx + r * 3 * H, *g = dgh + r * 3 * H;
        for (int64_t j = 0; j < H; ++j) {
          const T dn = d[j] * (1 - z[j]) * (1 - candidate[j] * candidate[j]);
          const T dz = d[j] * (old[j] - candidate[j]) * z[j] * (1 - z[j]);
          const T dr = dn * hidden[j] * reset[j] * (1 - reset[j]);
          x[j] = g[j] = dr;
          x[H + j] = g[H + j] = dz;
          x[2 * H + j] = dn;
          g[2 * H + j] = dn * reset[j];
          d[j] *= z[j];
        }
        break;
      }
    }
  });
}

void add_rows(const Array& from, Array& to) {
  visit_floating(to.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = typename DTypeOf<T>::Compute;
    const T* p = from.data<T>();
    T* q = to.data<T>();
    for (int64_t i = 0; i < to.numel(); ++i) q[i] = static_cast<T>(static_cast<C>(q[i]) + static_cast<C>(p[i]));
  });
}

Sizes check(RnnMode mode, const Array& gx, const Array& h0, const Array& w, const Array& y) {
  HOLON_CHECK(gx.ndim() == 3 && h0.ndim() == 2 && w.ndim() == 2 && y.ndim() == 3, "rnn: {} {} {} {}", gx.shape,
              h0.shape, w.shape, y.shape);
  const Sizes n{gx.shape[0], gx.shape[1], h0.shape[1]};
  const int64_t g = rnn_gates(mode);
  HOLON_CHECK(gx.shape[2] == g * n.h && h0.shape[0] == n.b && w.shape == (Dims{g * n.h, n.h}) &&
                  y.shape == (Dims{n.t, n.b, n.h}),
              "rnn: {} {} {} {}", gx.shape, h0.shape, w.shape, y.shape);
  return n;
}

// w [G H, H] transposed in memory: products read rows of it.
Array turned(const Array& w) {
  Array t = Array::empty({w.shape[1], w.shape[0]}, w.dtype);
  copy(w.view(t.shape, {w.strides[1], w.strides[0]}), t);
  return t;
}

}  // namespace

int rnn_gates(RnnMode mode) { return mode == RnnMode::kLstm ? 4 : mode == RnnMode::kGru ? 3 : 1; }
int rnn_saved(RnnMode mode) { return mode == RnnMode::kLstm || mode == RnnMode::kGru ? 4 : 0; }

void rnn_sequence(RnnMode mode, const Array& gx_, const Array& h0_, const Array& c0_, const Array& w_,
                  const Array& bias_, bool reverse, Array& y_, Array& c_, Array& saved_) {
  HOLON_ON_DEVICE(y_, rnn_sequence, mode, gx_, h0_, c0_, w_, bias_, reverse, y_, c_, saved_);
  const Sizes n = check(mode, gx_, h0_, w_, y_);
  if (y_.numel() == 0) return;
  const DType compute = float_compute(gx_.dtype, "rnn");
  const Array gx = ready(gx_, compute), h0 = ready(h0_, compute), c0 = ready(c0_, compute),
              wt = turned(ready(w_, compute)), bias = ready(bias_, compute);
  Array y = block_like(y_, compute), c = block_like(c_, compute), saved = block_like(saved_, compute);
  const int64_t width = rnn_gates(mode) * n.h, kept = rnn_saved(mode) * n.h;
  Array s = Array::empty({n.b, width}, compute);
  auto run = [&](auto zero) {
    using T = decltype(zero);
    for (int64_t k = 0; k < n.t; ++k) {
      const int64_t t = reverse ? n.t - 1 - k : k, before = reverse ? t + 1 : t - 1;
      const Array h = k ? step(y, before) : h0;
      const T* cell = mode != RnnMode::kLstm ? nullptr : k ? c.data<T>() + before * n.b * n.h : c0.data<T>();
      matmul(h, wt, s);
      if (bias.defined()) {
        const T* b = bias.data<T>();
        for (int64_t r = 0; r < n.b; ++r)
          for (int64_t j = 0; j < width; ++j) s.data<T>()[r * width + j] += b[j];
      }
      forward_step<T>(mode, n, gx.data<T>() + t * n.b * width, s.data<T>(), h.data<T>(), cell,
                      y.data<T>() + t * n.b * n.h, mode == RnnMode::kLstm ? c.data<T>() + t * n.b * n.h : nullptr,
                      kept ? saved.data<T>() + t * n.b * kept : nullptr);
    }
  };
  compute == DType::kFloat64 ? run(double{}) : run(float{});
  bring(y, y_);
  if (mode == RnnMode::kLstm) bring(c, c_);
  if (kept) bring(saved, saved_);
}

void rnn_sequence_backward(RnnMode mode, const Array& dy_, const Array& dc_, const Array& y_, const Array& c_,
                           const Array& saved_, const Array& h0_, const Array& c0_, const Array& w_, bool reverse,
                           Array& dgx_, Array& dgh_, Array& dh0_, Array& dc0_) {
  HOLON_ON_DEVICE(dgx_, rnn_sequence_backward, mode, dy_, dc_, y_, c_, saved_, h0_, c0_, w_, reverse, dgx_, dgh_, dh0_,
                  dc0_);
  const Sizes n = check(mode, dgx_, h0_, w_, y_);
  const DType compute = float_compute(y_.dtype, "rnn");
  const bool lstm = mode == RnnMode::kLstm, gru = mode == RnnMode::kGru;
  const Array dy = ready(dy_, compute), dc = ready(dc_, compute), y = ready(y_, compute), c = ready(c_, compute),
              saved = ready(saved_, compute), h0 = ready(h0_, compute), c0 = ready(c0_, compute),
              w = ready(w_, compute);
  Array dgx = block_like(dgx_, compute), dgh = block_like(dgh_, compute), dh = Array::empty(h0.shape, compute),
        dcell = Array::empty(h0.shape, compute), through = Array::empty(h0.shape, compute),
        scratch = Array::empty(h0.shape, compute);
  std::memset(dh.bytes(), 0, dh.nbytes());
  std::memset(dcell.bytes(), 0, dcell.nbytes());
  const int64_t width = rnn_gates(mode) * n.h, kept = rnn_saved(mode) * n.h;
  auto run = [&](auto zero) {
    using T = decltype(zero);
    for (int64_t k = n.t - 1; k >= 0; --k) {
      const int64_t t = reverse ? n.t - 1 - k : k, before = reverse ? t + 1 : t - 1;
      if (dy.defined()) add_rows(step(dy, t), dh);
      if (lstm && dc.defined()) add_rows(step(dc, t), dcell);
      const Array h = k ? step(y, before) : h0;
      const T* cell = !lstm ? nullptr : k ? c.data<T>() + before * n.b * n.h : c0.data<T>();
      backward_step<T>(mode, n, y.data<T>() + t * n.b * n.h, lstm ? c.data<T>() + t * n.b * n.h : nullptr, cell,
                       h.data<T>(), kept ? saved.data<T>() + t * n.b * kept : nullptr, dh.data<T>(), dcell.data<T>(),
                       dgx.data<T>() + t * n.b * width, gru ? dgh.data<T>() + t * n.b * width : nullptr,
                       scratch.data<T>());
      matmul(step(gru ? dgh : dgx, t), w, through);
      add_rows(through, dh);
    }
  };
  if (y.numel() > 0) compute == DType::kFloat64 ? run(double{}) : run(float{});
  bring(dgx, dgx_);
  if (gru) bring(dgh, dgh_);
  copy(dh, dh0_);
  if (lstm) copy(dcell, dc0_);
}

}  // namespace holon::kernels
