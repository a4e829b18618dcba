// Convolutions and attention by a library: cuDNN on devices (vendor_cudnn_conv.cpp, vendor_cudnn_attention.cpp), loops
// in the emulator. What they are told is numbers; conv_library.h and attention_library.h tell it of arrays.
#pragma once

#include <cstdint>

#include "holon/array/dtype.h"

namespace holon::kernels::cuda {

constexpr int kDnnAxes = 5;

// Sizes and strides, in elements. Of 64 bits each, so that what is made of them is a key, byte by byte.
struct DnnTensor {
  int64_t sizes[kDnnAxes] = {}, strides[kDnnAxes] = {};
};

enum class ConvolutionPass : int64_t { kForward, kData, kWeights };

// x [n, c, ...], w [o, c / groups, ...], y [n, o, ...] with two or three axes of places, each dense in some order of
// its axes. The groups follow from the sizes.
struct Convolution {
  ConvolutionPass pass = ConvolutionPass::kForward;
  int64_t dtype = 0;  // a DType: a floating one
  int64_t axes = 4;
  int64_t exact = 0;  // float32: no factor is rounded, and windows are not transformed
  int64_t bias = 0;   // kForward: adds bias [o]
  DnnTensor x, w, y;
  int64_t before[3] = {}, after[3] = {};  // padding
  int64_t stride[3] = {}, dilation[3] = {};
};

// Whether there is a library that has a way to do this one on the current device.
bool supports(const Convolution& c);
// Puts y, dx or dw on the current stream (stream.h): of x, w and bias; of dy and w; of dy and x. Addresses are
// multiples of 16. The bits are the same in every run. False, with nothing done: it is not supported, after all.
bool convolution(const Convolution& c, const void* first, const void* second, const void* bias, void* out);

// softmax(scale * q k^T + what is hidden) v: q [b, h, t, d], k [b, g, s, d], v [b, g, s, e], out [b, h, t, e] with
// adjacent columns, h a multiple of g. Strides and addresses are multiples of 16 bytes.
struct Sdpa {
  int64_t backward = 0;  // whether it is for sdpa_backward
  int64_t dtype = 0;     // float16 or bfloat16
  int64_t b = 0, h = 0, g = 0, t = 0, s = 0, d = 0, e = 0;
  int64_t q[3] = {}, k[3] = {}, v[3] = {}, out[3] = {};      // strides of images, heads and rows
  int64_t dout[3] = {}, dq[3] = {}, dk[3] = {}, dv[3] = {};  // likewise: backward
  int64_t scale = 0;                                         // a double's bits
  // Query i sees the keys j <= i + diagonal, which is 0 or s - t >= 0, and of those the last `window`; 0: all.
  int64_t causal = 0, diagonal = 0, window = 0;
  int64_t lse = 0;  // forward: whether it is requested
};

// As above. lse: [b, h, t], contiguous, float32: the natural logarithms of the sums.
bool supports(const Sdpa& a);
bool sdpa(const Sdpa& a, const void* q, const void* k, const void* v, void* out, float* lse);
bool sdpa_backward(const Sdpa& a, const void* dout, const void* q, const void* k, const void* v, const void* out,
                   const float* lse, void* dq, void* dk, void* dv);

}  // namespace holon::kernels::cuda
