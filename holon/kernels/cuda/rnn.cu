// Recurrent layers: for each step one product and one kernel for all that is done to the gates.
#include "holon/kernels/rnn.h"

#include "holon/base/error.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/cuda/launch.h"
#include "holon/kernels/cuda/types.h"
#include "holon/kernels/functors.h"
#include "holon/kernels/gemm.h"
#include "holon/kernels/variants.h"

namespace holon::kernels::cuda {
namespace {

namespace f = HOLON_ISA::f;

constexpr int kThreads = 256;

// Both kernels: a thread for each unit of each row; H units. Pointers are of one step, all arrays in order.
template <class T>
struct Forward {
  int64_t count, units;
  const T *gx, *gh, *bias;  // the input's part of the gates, the hidden one and its bias or null
  const T *h_before, *c_before;
  T *h, *c, *saved;
};

template <class T, RnnMode mode>
__global__ void __launch_bounds__(kThreads) forward_step(Forward<T> a) {
  constexpr int gates = mode == RnnMode::kLstm ? 4 : mode == RnnMode::kGru ? 3 : 1;
  const int64_t H = a.units;
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < a.count; i += int64_t{kThreads} * gridDim.x) {
    const int64_t row = i / H, j = i - row * H;
    T x[gates], g[gates];
#pragma unroll
    for (int k = 0; k < gates; ++k) {
      const int64_t at = (row * gates + k) * H + j;
      x[k] = a.gx[at];
      g[k] = a.gh[at] + (a.bias ? a.bias[k * H + j] : T(0));
    }
    if constexpr (mode == RnnMode::kTanh || mode == RnnMode::kRelu) {
      const T v = x[0] + g[0];
      a.h[i] = mode == RnnMode::kTanh ? f::tanh(v) : v < T(0) ? T(0) : v;
    } else {
      T* keep = a.saved + row * 4 * H + j;
      if constexpr (mode == RnnMode::kLstm) {
        const T in = f::sigmoid(x[0] + g[0]), forget = f::sigmoid(x[1] + g[1]), z = f::tanh(x[2] + g[2]),
                out = f::sigmoid(x[3] + g[3]);
        const T cell = forget * a.c_before[i] + in * z;
        keep[0] = in;
        keep[H] = forget;
        keep[2 * H] = z;
        keep[3 * H] = out;
        a.c[i] = cell;
        a.h[i] = f::tanh(cell) * out;
      } else {
        const T reset = f::sigmoid(x[0] + g[0]), z = f::sigmoid(x[1] + g[1]), candidate = f::tanh(x[2] + reset * g[2]);
        keep[0] = reset;
        keep[H] = z;
        keep[2 * H] = candidate;
        keep[3 * H] = g[2];
        a.h[i] = candidate + z * (a.h_before[i] - candidate);
      }
    }
  }
}

template <class T>
struct Backward {
  int64_t count, units;
  const T *dy, *dc;  // of this step, or null
  const T* through;  // what came through the product of the step after it; null at the last
  const T *y, *c, *c_before, *h_before, *saved;
  T *dh, *dcell;  // from the step after this one, in addition to `through`; becomes what goes to the one before it
  T *dgx, *dgh;
};

template <class T, RnnMode mode>
__global__ void __launch_bounds__(kThreads) backward_step(Backward<T> a) {
  const int64_t H = a.units;
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < a.count; i += int64_t{kThreads} * gridDim.x) {
    const int64_t row = i / H, j = i - row * H;
    T d = a.dh[i];
    if (a.through) d += a.through[i];
    if (a.dy) d += a.dy[i];
    if constexpr (mode == RnnMode::kTanh || mode == RnnMode::kRelu) {
      const T v = a.y[i];
      a.dgx[i] = mode == RnnMode::kTanh ? d * (1 - v * v) : v > 0 ? d : T(0);
      a.dh[i] = 0;
    } else {
      const T* keep = a.saved + row * 4 * H + j;
      if constexpr (mode == RnnMode::kLstm) {
        const T in = keep[0], forget = keep[H], z = keep[2 * H], out = keep[3 * H], k = f::tanh(a.c[i]);
        const T all = a.dcell[i] + (a.dc ? a.dc[i] : T(0)) + d * out * (1 - k * k);
        T* to = a.dgx + row * 4 * H + j;
        to[0] = all * z * in * (1 - in);
        to[H] = all * a.c_before[i] * forget * (1 - forget);
        to[2 * H] = all * in * (1 - z * z);
        to[3 * H] = d * k * out * (1 - out);
        a.dcell[i] = all * forget;
        a.dh[i] = 0;
      } else {
        const T reset = keep[0], z = keep[H], candidate = keep[2 * H], hidden = keep[3 * H];
        const T dn = d * (1 - z) * (1 - candidate * candidate);
        const T dz = d * (a.h_before[i] - candidate) * z * (1 - z);
        const T dr = dn * hidden * reset * (1 - reset);
        T *x = a.dgx + row * 3 * H + j, *g = a.dgh + row * 3 * H + j;
        x[0] = g[0] = dr;
        x[H] = g[H] = dz;
        x[2 * H] = dn;
        g[2 * H] = dn * reset;
        a.dh[i] = d * z;
      }
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) add_to(T* to, const T* from, int64_t n) {
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < n; i += int64_t{kThreads} * gridDim.x)
    to[i] += from[i];
}

// ---- on the host ----

Array ready(const Array& x, DType compute) {
  if (!x.defined()) return x;
  if (x.dtype == compute) return contiguous(x);
  Array y = Array::empty(x.shape, compute, x.device);
  copy(x, y);
  return y;
}
Array block_like(const Array& out, DType compute) {
  return !out.defined() || (out.dtype == compute && out.is_contiguous()) ? out
                                                                         : Array::empty(out.shape, compute, out.device);
}
void bring(const Array& from, Array& to) {
  if (from.storage.get() != to.storage.get()) copy(from, to);
}
Array step(const Array& x, int64_t t) {
  return x.view({x.shape[1], x.shape[2]}, {x.strides[1], x.strides[2]}, t * x.strides[0]);
}
template <class T>
T* at_step(const Array& x, int64_t t) {
  return x.defined() ? x.data<T>() + t * x.strides[0] : nullptr;
}

struct Sizes {
  int64_t t, b, h;
};
Sizes check_shapes(RnnMode mode, const Array& gx, const Array& h0, const Array& w, const Array& y) {
  HOLON_CHECK(gx.ndim() == 3 && h0.ndim() == 2 && w.ndim() == 2 && y.ndim() == 3, "rnn: {} {} {} {}", gx.shape,
              h0.shape, w.shape, y.shape);
  const Sizes n{gx.shape[0], gx.shape[1], h0.shape[1]};
  const int64_t g = rnn_gates(mode);
  HOLON_CHECK(gx.shape[2] == g * n.h && h0.shape[0] == n.b && w.shape == (Dims{g * n.h, n.h}) &&
                  y.shape == (Dims{n.t, n.b, n.h}),
              "rnn: {} {} {} {}", gx.shape, h0.shape, w.shape, y.shape);
  return n;
}
DType compute_of(DType dtype) {
  if (!is_floating(dtype)) fail_type("rnn of {} is not defined; convert to float32 first.", name(dtype));
  return dtype == DType::kFloat64 ? dtype : DType::kFloat32;
}

template <class F>
void visit_mode(RnnMode mode, F&& f) {
  switch (mode) {
    case RnnMode::kTanh: return f(std::integral_constant<RnnMode, RnnMode::kTanh>());
    case RnnMode::kRelu: return f(std::integral_constant<RnnMode, RnnMode::kRelu>());
    case RnnMode::kLstm: return f(std::integral_constant<RnnMode, RnnMode::kLstm>());
    case RnnMode::kGru: return f(std::integral_constant<RnnMode, RnnMode::kGru>());
  }
}
template <class F>
void visit(RnnMode mode, DType compute, F&& f) {
  visit_mode(mode, [&](auto m) { compute == DType::kFloat64 ? f(double{}, m) : f(float{}, m); });
}

void rnn_sequence(RnnMode mode, const Array& gx_, const Array& h0_, const Array& c0_, const Array& w_,
                  const Array& bias_, bool reverse, Array& y_, Array& c_, Array& saved_) {
  const Sizes n = check_shapes(mode, gx_, h0_, w_, y_);
  if (y_.numel() == 0) return;
  use_device_of(y_);
  const DType compute = compute_of(gx_.dtype);
  const bool lstm = mode == RnnMode::kLstm, keeps = rnn_saved(mode) > 0;
  const Array gx = ready(gx_, compute), h0 = ready(h0_, compute), w = ready(w_, compute), bias = ready(bias_, compute);
  const Array c0 = lstm ? ready(c0_, compute) : Array();
  const Array wt = w.view({n.h, rnn_gates(mode) * n.h}, {1, n.h});
  Array y = block_like(y_, compute), c = lstm ? block_like(c_, compute) : Array(),
        saved = keeps ? block_like(saved_, compute) : Array();
  Array gh = Array::empty({n.b, rnn_gates(mode) * n.h}, compute, y.device);
  visit(mode, compute, [&](auto zero, auto m) {
    using T = decltype(zero);
    const int64_t count = n.b * n.h;
    for (int64_t k = 0; k < n.t; ++k) {
      const int64_t t = reverse ? n.t - 1 - k : k, before = reverse ? t + 1 : t - 1;
      const Array h = k ? step(y, before) : h0;
      matmul(h, wt, gh);
      launch(forward_step<T, m.value>, blocks_for(count, kThreads), kThreads, 0,
             Forward<T>{count, n.h, at_step<T>(gx, t), gh.data<T>(), bias.defined() ? bias.data<T>() : nullptr,
                        h.data<T>(),
                        !lstm   ? nullptr
                            : k ? at_step<T>(c, before)
                                : c0.data<T>(),
                        at_step<T>(y, t), at_step<T>(c, t), at_step<T>(saved, t)});
    }
  });
  bring(y, y_);
  if (lstm) bring(c, c_);
  if (keeps) bring(saved, saved_);
}

void rnn_sequence_backward(RnnMode mode, const Array& dy_, const Array& dc_, const Array& y_, const Array& c_,
                           const Array& saved_, const Array& h0_, const Array& c0_, const Array& w_, bool reverse,
                           Array& dgx_, Array& dgh_, Array& dh0_, Array& dc0_) {
  const Sizes n = check_shapes(mode, dgx_, h0_, w_, y_);
  use_device_of(dgx_);
  const DType compute = compute_of(y_.dtype);
  const bool lstm = mode == RnnMode::kLstm, gru = mode == RnnMode::kGru;
  const Array dy = ready(dy_, compute), y = ready(y_, compute),
              saved = rnn_saved(mode) ? ready(saved_, compute) : Array(), h0 = ready(h0_, compute),
              w = ready(w_, compute);
  const Array dc = lstm ? ready(dc_, compute) : Array(), c = lstm ? ready(c_, compute) : Array(),
              c0 = lstm ? ready(c0_, compute) : Array();
  Array dgx = block_like(dgx_, compute), dgh = gru ? block_like(dgh_, compute) : Array();
  Array dh = Array::empty(h0.shape, compute, h0.device), through = Array::empty(h0.shape, compute, h0.device),
        dcell = lstm ? Array::empty(h0.shape, compute, h0.device) : Array();
  fill(dh, 0);
  if (lstm) fill(dcell, 0);
  if (y.numel() > 0)
    visit(mode, compute, [&](auto zero, auto m) {
      using T = decltype(zero);
      const int64_t count = n.b * n.h;
      for (int64_t k = n.t - 1; k >= 0; --k) {
        const int64_t t = reverse ? n.t - 1 - k : k, before = reverse ? t + 1 : t - 1;
        const Array h = k ? step(y, before) : h0;
        launch(backward_step<T, m.value>, blocks_for(count, kThreads), kThreads, 0,
               Backward<T>{count, n.h, at_step<T>(dy, t), at_step<T>(dc, t), k == n.t - 1 ? nullptr : through.data<T>(),
                           at_step<T>(y, t), at_step<T>(c, t),
                           !lstm   ? nullptr
                               : k ? at_step<T>(c, before)
                                   : c0.data<T>(),
                           h.data<T>(), at_step<T>(saved, t), dh.data<T>(), lstm ? dcell.data<T>() : nullptr,
                           at_step<T>(dgx, t), at_step<T>(dgh, t)});
        matmul(step(gru ? dgh : dgx, t), w, through);
      }
      launch(add_to<T>, blocks_for(count, kThreads), kThreads, 0, dh.data<T>(), through.data<T>(), count);
    });
  bring(dgx, dgx_);
  if (gru) bring(dgh, dgh_);
  copy(dh, dh0_);
  if (lstm) copy(dcell, dc0_);
}

HOLON_DEVICE_KERNEL(rnn_sequence, rnn_sequence);
HOLON_DEVICE_KERNEL(rnn_sequence_backward, rnn_sequence_backward);

}  // namespace
}  // namespace holon::kernels::cuda
