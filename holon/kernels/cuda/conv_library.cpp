#include "holon/kernels/cuda/conv_library.h"

#include <limits>

#include "holon/kernels/copy.h"
#include "holon/kernels/cuda/dnn.h"
#include "holon/kernels/cuda/library_layout.h"
#include "holon/kernels/cudnn.h"
#include "holon/kernels/elementwise.h"
#include "holon/kernels/tf32.h"

namespace holon::kernels::cuda {
namespace {

Dims dense(const Dims& shape, bool channels_last) {
  return channels_last ? channels_last_strides(shape) : contiguous_strides(shape);
}

bool lies_in(const Array& a, const Dims& strides) {
  for (int i = 0; i < a.ndim(); ++i)
    if (a.shape[i] != 1 && a.strides[i] != strides[i]) return false;
  return true;
}

bool fits(const Array& a, const Dims& strides) { return lies_in(a, strides) && is_aligned(a); }

Array laid_out(const Array& a, bool channels_last) {
  const Dims strides = dense(a.shape, channels_last);
  return fits(a, strides) ? a : copy_of(a, strides);
}

// Activations are channels-last, except float64, which cuDNN does not have so.
bool wants_channels_last(const Array& activations) {
  return activations.dtype != DType::kFloat64 && lies_in(activations, channels_last_strides(activations.shape));
}

DnnTensor tensor(const Array& a, bool channels_last) {
  const Dims strides = dense(a.shape, channels_last);
  DnnTensor t;
  for (int i = 0; i < a.ndim(); ++i) t.sizes[i] = a.shape[i], t.strides[i] = strides[i];
  return t;
}

// False: the sizes are beyond the library.
bool describe(ConvolutionPass pass, const Array& x, const Array& w, const Array& y, const Conv2d& conv, bool last,
              Convolution* c) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  if (!cudnn_enabled() || x.numel() > kMost || w.numel() > kMost || y.numel() > kMost) return false;
  *c = {};
  c->pass = pass;
  c->dtype = static_cast<int64_t>(x.dtype);
  c->axes = x.ndim();
  c->exact = x.dtype == DType::kFloat32 && !tf32_allowed(Tf32::kConvolutions);
  c->x = tensor(x, last), c->w = tensor(w, last), c->y = tensor(y, last);
  const int n = x.ndim() - 2;
  for (int i = 0; i < n; ++i) {
    c->before[i] = conv.padding[i], c->after[i] = conv.padding[n + i];
    c->stride[i] = conv.stride[i], c->dilation[i] = conv.dilation[i];
  }
  return true;
}

// f(array) writes out, or an array of the layout.
template <class F>
bool into(Array& out, bool last, F&& f) {
  const Dims strides = dense(out.shape, last);
  return into_layout(out, fits(out, strides), strides, f);
}

}  // namespace

bool library_conv(const Array& x, const Array& w, const Array* bias, const Conv2d& conv, Array& y) {
  const bool last = wants_channels_last(y);
  Convolution c;
  if (!describe(ConvolutionPass::kForward, x, w, y, conv, last, &c)) return false;
  c.bias = bias && bias->dtype == x.dtype;
  const bool with_bias = c.bias && supports(c);
  c.bias = with_bias;
  if (!with_bias && !supports(c)) return false;
  const Array from = laid_out(x, last), filter = laid_out(w, last);
  const Array added = with_bias ? laid_out(*bias, false) : Array();
  if (!into(y, last, [&](const Array& to) {
        return convolution(c, from.bytes(), filter.bytes(), with_bias ? added.bytes() : nullptr, to.bytes());
      }))
    return false;
  if (bias && !with_bias) {
    Dims strides = Dims::filled(y.shape.size(), 0);
    strides[1] = bias->strides[0];
    binary(BinaryOp::Add, y, bias->view(y.shape, strides), y);
  }
  return true;
}

bool library_conv_backward_data(const Array& dy, const Array& w, const Conv2d& conv, Array& dx) {
  const bool last = wants_channels_last(dx);
  Convolution c;
  if (!describe(ConvolutionPass::kData, dx, w, dy, conv, last, &c) || !supports(c)) return false;
  const Array from = laid_out(dy, last), filter = laid_out(w, last);
  return into(dx, last,
              [&](const Array& to) { return convolution(c, from.bytes(), filter.bytes(), nullptr, to.bytes()); });
}

bool library_conv_backward_weights(const Array& dy, const Array& x, const Conv2d& conv, Array& dw) {
  const bool last = wants_channels_last(x) || wants_channels_last(dy);
  Convolution c;
  if (!describe(ConvolutionPass::kWeights, x, dw, dy, conv, last, &c) || !supports(c)) return false;
  const Array gradients = laid_out(dy, last), inputs = laid_out(x, last);
  return into(dw, last,
              [&](const Array& to) { return convolution(c, gradients.bytes(), inputs.bytes(), nullptr, to.bytes()); });
}

}  // namespace holon::kernels::cuda
