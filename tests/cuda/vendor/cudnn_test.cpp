// Convolutions as cuDNN is told of them. Its descriptors are the real ones, of the library that is found at run time;
// the convolution itself is done here, by nothing but what the library reads from them.
#if __has_include(<cudnn.h>)
#include <cudnn.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "holon/kernels/conv.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/cuda/dnn.h"

using namespace holon;
using kernels::Conv2d;

namespace {

void* real_library = nullptr;  // as vendor_cudnn.cpp has opened it
template <class F>
F* real(F*, const char* name) {
  auto* f = reinterpret_cast<F*>(dlsym(real_library, name));
  if (!f) ADD_FAILURE() << "the library has no " << name;
  return f;
}
#define REAL(name) real(static_cast<decltype(&::name)>(nullptr), #name)

constexpr int kMost = 5;
struct Sizes {
  cudnnDataType_t type;
  int axes = 0;
  int size[kMost], stride[kMost];
};
Sizes read(cudnnTensorDescriptor_t d) {
  Sizes s;
  EXPECT_EQ(REAL(cudnnGetTensorNdDescriptor)(d, kMost, &s.type, &s.axes, s.size, s.stride), CUDNN_STATUS_SUCCESS);
  return s;
}
// "The number of dimensions and their order is [K, C, R, S]; format NHWC: the memory is KRSC."
Sizes read(cudnnFilterDescriptor_t d) {
  Sizes s;
  cudnnTensorFormat_t format;
  EXPECT_EQ(REAL(cudnnGetFilterNdDescriptor)(d, kMost, &s.type, &format, &s.axes, s.size), CUDNN_STATUS_SUCCESS);
  int step = 1;
  if (format == CUDNN_TENSOR_NHWC) s.stride[1] = 1, step = s.size[1];
  for (int i = s.axes - 1; i >= (format == CUDNN_TENSOR_NHWC ? 2 : 1); --i) s.stride[i] = step, step *= s.size[i];
  s.stride[0] = step;
  return s;
}
struct Window {
  int axes = 0, padding[3], stride[3], dilation[3], groups = 0;
  cudnnConvolutionMode_t mode;
  cudnnDataType_t compute;
  cudnnMathType_t math;
  explicit Window(cudnnConvolutionDescriptor_t d) {
    EXPECT_EQ(REAL(cudnnGetConvolutionNdDescriptor)(d, 3, &axes, padding, stride, dilation, &mode, &compute),
              CUDNN_STATUS_SUCCESS);
    EXPECT_EQ(REAL(cudnnGetConvolutionGroupCount)(d, &groups), CUDNN_STATUS_SUCCESS);
    EXPECT_EQ(REAL(cudnnGetConvolutionMathType)(d, &math), CUDNN_STATUS_SUCCESS);
  }
};

double load(const void* p, cudnnDataType_t type, int64_t i) {
  switch (type) {
    case CUDNN_DATA_HALF: return static_cast<float>(static_cast<const Float16*>(p)[i]);
    case CUDNN_DATA_BFLOAT16: return static_cast<float>(static_cast<const BFloat16*>(p)[i]);
    case CUDNN_DATA_FLOAT: return static_cast<const float*>(p)[i];
    default: return static_cast<const double*>(p)[i];
  }
}
void store(void* p, cudnnDataType_t type, int64_t i, double v) {
  switch (type) {
    case CUDNN_DATA_HALF: static_cast<Float16*>(p)[i] = Float16(static_cast<float>(v)); break;
    case CUDNN_DATA_BFLOAT16: static_cast<BFloat16*>(p)[i] = BFloat16(static_cast<float>(v)); break;
    case CUDNN_DATA_FLOAT: static_cast<float*>(p)[i] = static_cast<float>(v); break;
    default: static_cast<double*>(p)[i] = v;
  }
}

// What the stand-in for the heuristics offers: first what must not be taken.
constexpr size_t kWorkspace = 1 << 20;
cudnnMathType_t expected_math = CUDNN_DEFAULT_MATH;
int runs = 0;

cudnnConvolutionFwdAlgo_t winograd(cudnnConvolutionFwdAlgo_t) { return CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD_NONFUSED; }
cudnnConvolutionBwdDataAlgo_t winograd(cudnnConvolutionBwdDataAlgo_t) {
  return CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD;
}
cudnnConvolutionBwdFilterAlgo_t winograd(cudnnConvolutionBwdFilterAlgo_t) {
  return CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT_TILING;
}

template <class Perf>
cudnnStatus_t offer(cudnnTensorDescriptor_t x, cudnnFilterDescriptor_t w, cudnnConvolutionDescriptor_t conv,
                    cudnnTensorDescriptor_t y, int most, int* count, Perf* found) {
  EXPECT_GE(most, 6);
  const Sizes xs = read(x), ys = read(y);
  int want[kMost] = {};
  EXPECT_EQ(REAL(cudnnGetConvolutionNdForwardOutputDim)(conv, x, w, xs.axes, want), CUDNN_STATUS_SUCCESS);
  EXPECT_TRUE(std::equal(want, want + xs.axes, ys.size));  // the library's own idea of the output
  const Window window(conv);
  Perf p{};
  p.status = CUDNN_STATUS_NOT_SUPPORTED;
  found[0] = p;
  p.status = CUDNN_STATUS_SUCCESS;
  p.memory = size_t{8} << 30;
  found[1] = p;
  p.memory = 0;
  p.determinism = CUDNN_NON_DETERMINISTIC;
  found[2] = p;
  // For float32 that was asked for without TF32, and for others, another kind of arithmetic than was set.
  p.determinism = CUDNN_DETERMINISTIC;
  p.algo = static_cast<decltype(p.algo)>(1);
  p.mathType = window.math == CUDNN_FMA_MATH ? CUDNN_TENSOR_OP_MATH : CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION;
  found[3] = p;
  expected_math = window.math == CUDNN_FMA_MATH ? CUDNN_FMA_MATH : p.mathType;
  p.algo = winograd(p.algo);
  p.mathType = window.math;
  found[4] = p;
  p.algo = static_cast<decltype(p.algo)>(0);
  p.memory = kWorkspace;
  found[5] = p;
  *count = 6;
  return CUDNN_STATUS_SUCCESS;
}

// f(offset in x, in w, in y) for every product of the convolution.
void each(const Sizes& x, const Sizes& w, const Sizes& y, const Window& c,
          const std::function<void(int64_t, int64_t, int64_t)>& f) {
  EXPECT_EQ(c.mode, CUDNN_CROSS_CORRELATION);
  EXPECT_EQ(x.type, w.type);
  EXPECT_EQ(x.type, y.type);
  EXPECT_EQ(c.compute, x.type == CUDNN_DATA_DOUBLE ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT);
  EXPECT_EQ(c.math, expected_math);
  const int n = x.axes - 2;
  EXPECT_EQ(c.axes, n);
  EXPECT_EQ(w.size[1] * c.groups, x.size[1]);
  auto at = [&](const int* v, int i) { return i < n ? v[i] : 1; };
  const int per_group = w.size[0] / c.groups;
  for (int b = 0; b < y.size[0]; ++b)
    for (int o = 0; o < y.size[1]; ++o)
      for (int p = 0; p < at(y.size + 2, 0) * at(y.size + 2, 1) * at(y.size + 2, 2); ++p)
        for (int i = 0; i < w.size[1]; ++i)
          for (int t = 0; t < at(w.size + 2, 0) * at(w.size + 2, 1) * at(w.size + 2, 2); ++t) {
            int rest_p = p, rest_t = t;
            int64_t in_x = int64_t{b} * x.stride[0] + int64_t{o / per_group * w.size[1] + i} * x.stride[1],
                    in_w = int64_t{o} * w.stride[0] + int64_t{i} * w.stride[1],
                    in_y = int64_t{b} * y.stride[0] + int64_t{o} * y.stride[1];
            bool inside = true;
            for (int a = n - 1; a >= 0; --a) {
              const int q = rest_p % y.size[2 + a], k = rest_t % w.size[2 + a];
              rest_p /= y.size[2 + a], rest_t /= w.size[2 + a];
              const int from = q * c.stride[a] - c.padding[a] + k * c.dilation[a];
              inside &= from >= 0 && from < x.size[2 + a];
              in_x += int64_t{from} * x.stride[2 + a], in_w += int64_t{k} * w.stride[2 + a];
              in_y += int64_t{q} * y.stride[2 + a];
            }
            if (inside) f(in_x, in_w, in_y);
          }
}

void fill_sums(const std::map<int64_t, double>& sums, const Sizes& s, void* to) {
  int64_t count = 1, last = 0;
  for (int i = 0; i < s.axes; ++i) count *= s.size[i], last += int64_t{s.size[i] - 1} * s.stride[i];
  EXPECT_EQ(count, last + 1);  // dense
  for (int64_t i = 0; i < count; ++i) store(to, s.type, i, sums.contains(i) ? sums.at(i) : 0);
}
void expect_factors(const void* one, const void* zero, cudnnDataType_t type) {
  EXPECT_EQ(load(one, type == CUDNN_DATA_DOUBLE ? type : CUDNN_DATA_FLOAT, 0), 1);
  EXPECT_EQ(load(zero, type == CUDNN_DATA_DOUBLE ? type : CUDNN_DATA_FLOAT, 0), 0);
}
void expect_choice(int algo, cudnnConvolutionDescriptor_t conv, void* workspace, size_t bytes) {
  const bool exact = Window(conv).math == CUDNN_FMA_MATH;
  EXPECT_EQ(algo, exact ? 0 : 1);
  EXPECT_EQ(bytes, exact ? kWorkspace : 0u);
  EXPECT_EQ(workspace != nullptr, exact);
  ++runs;
}

cudnnStatus_t create(cudnnHandle_t* h) {
  static int here;
  *h = reinterpret_cast<cudnnHandle_t>(&here);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t set_stream(cudnnHandle_t, cudaStream_t) { return CUDNN_STATUS_SUCCESS; }
cudnnStatus_t choose_forward(cudnnHandle_t, const cudnnTensorDescriptor_t x, const cudnnFilterDescriptor_t w,
                             const cudnnConvolutionDescriptor_t conv, const cudnnTensorDescriptor_t y, const int most,
                             int* count, cudnnConvolutionFwdAlgoPerf_t* found) {
  return offer(x, w, conv, y, most, count, found);
}
cudnnStatus_t choose_data(cudnnHandle_t, const cudnnFilterDescriptor_t w, const cudnnTensorDescriptor_t dy,
                          const cudnnConvolutionDescriptor_t conv, const cudnnTensorDescriptor_t dx, const int most,
                          int* count, cudnnConvolutionBwdDataAlgoPerf_t* found) {
  return offer(dx, w, conv, dy, most, count, found);
}
cudnnStatus_t choose_weights(cudnnHandle_t, const cudnnTensorDescriptor_t x, const cudnnTensorDescriptor_t dy,
                             const cudnnConvolutionDescriptor_t conv, const cudnnFilterDescriptor_t dw, const int most,
                             int* count, cudnnConvolutionBwdFilterAlgoPerf_t* found) {
  return offer(x, dw, conv, dy, most, count, found);
}
cudnnStatus_t run_forward(cudnnHandle_t, const void* one, const cudnnTensorDescriptor_t xd, const void* x,
                          const cudnnFilterDescriptor_t wd, const void* w, const cudnnConvolutionDescriptor_t conv,
                          cudnnConvolutionFwdAlgo_t algo, void* workspace, size_t bytes, const void* zero,
                          const cudnnTensorDescriptor_t yd, void* y) {
  const Sizes xs = read(xd), ws = read(wd), ys = read(yd);
  expect_factors(one, zero, xs.type);
  expect_choice(algo, conv, workspace, bytes);
  std::map<int64_t, double> sums;
  each(xs, ws, ys, Window(conv),
       [&](int64_t i, int64_t j, int64_t k) { sums[k] += load(x, xs.type, i) * load(w, ws.type, j); });
  fill_sums(sums, ys, y);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t run_data(cudnnHandle_t, const void* one, const cudnnFilterDescriptor_t wd, const void* w,
                       const cudnnTensorDescriptor_t dyd, const void* dy, const cudnnConvolutionDescriptor_t conv,
                       cudnnConvolutionBwdDataAlgo_t algo, void* workspace, size_t bytes, const void* zero,
                       const cudnnTensorDescriptor_t dxd, void* dx) {
  const Sizes xs = read(dxd), ws = read(wd), ys = read(dyd);
  expect_factors(one, zero, xs.type);
  expect_choice(algo, conv, workspace, bytes);
  std::map<int64_t, double> sums;
  each(xs, ws, ys, Window(conv),
       [&](int64_t i, int64_t j, int64_t k) { sums[i] += load(dy, ys.type, k) * load(w, ws.type, j); });
  fill_sums(sums, xs, dx);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t run_weights(cudnnHandle_t, const void* one, const cudnnTensorDescriptor_t xd, const void* x,
                          const cudnnTensorDescriptor_t dyd, const void* dy, const cudnnConvolutionDescriptor_t conv,
                          cudnnConvolutionBwdFilterAlgo_t algo, void* workspace, size_t bytes, const void* zero,
                          const cudnnFilterDescriptor_t dwd, void* dw) {
  const Sizes xs = read(xd), ws = read(dwd), ys = read(dyd);
  expect_factors(one, zero, xs.type);
  expect_choice(algo, conv, workspace, bytes);
  std::map<int64_t, double> sums;
  each(xs, ws, ys, Window(conv),
       [&](int64_t i, int64_t j, int64_t k) { sums[j] += load(dy, ys.type, k) * load(x, xs.type, i); });
  fill_sums(sums, ws, dw);
  return CUDNN_STATUS_SUCCESS;
}

}  // namespace

// vendor_cudnn.cpp is compiled to look here: what needs a device is this file's, all else the library's own.
extern "C" void* holon_test_dlsym(void* library, const char* name) noexcept {
  if (std::strncmp(name, "cudnn", 5) == 0) real_library = library;
  static const std::map<std::string, void*> ours = {
      {"cudnnCreate", reinterpret_cast<void*>(&create)},
      {"cudnnSetStream", reinterpret_cast<void*>(&set_stream)},
      {"cudnnGetConvolutionForwardAlgorithm_v7", reinterpret_cast<void*>(&choose_forward)},
      {"cudnnGetConvolutionBackwardDataAlgorithm_v7", reinterpret_cast<void*>(&choose_data)},
      {"cudnnGetConvolutionBackwardFilterAlgorithm_v7", reinterpret_cast<void*>(&choose_weights)},
      {"cudnnConvolutionForward", reinterpret_cast<void*>(&run_forward)},
      {"cudnnConvolutionBackwardData", reinterpret_cast<void*>(&run_data)},
      {"cudnnConvolutionBackwardFilter", reinterpret_cast<void*>(&run_weights)},
  };
  void* theirs = dlsym(library, name);
  const auto found = ours.find(name);
  return theirs && found != ours.end() ? found->second : theirs;
}

namespace {

Array random_array(const Dims& shape, DType dtype, bool last, std::mt19937& random) {
  Array a = Array::empty_strided(shape, last ? channels_last_strides(shape) : contiguous_strides(shape), dtype);
  for (int64_t i = 0; i < a.numel(); ++i) {
    const double v = static_cast<double>(random() % 17) / 8 - 1;
    switch (dtype) {
      case DType::kFloat16: a.data<Float16>()[i] = Float16(static_cast<float>(v)); break;
      case DType::kBFloat16: a.data<BFloat16>()[i] = BFloat16(static_cast<float>(v)); break;
      case DType::kFloat32: a.data<float>()[i] = static_cast<float>(v); break;
      default: a.data<double>()[i] = v;
    }
  }
  return a;
}
void expect_same(const Array& got, const Array& want, DType dtype) {
  Array x = Array::empty(got.shape, DType::kFloat64), y = Array::empty(got.shape, DType::kFloat64);
  kernels::copy(got, x);
  kernels::copy(want, y);
  const double tolerance = dtype == DType::kFloat64 ? 1e-12
      : dtype == DType::kFloat32                    ? 1e-5
      : dtype == DType::kFloat16                    ? 4e-3
                                                    : 3e-2;
  for (int64_t i = 0; i < x.numel(); ++i) {
    const double v = y.data<double>()[i];
    ASSERT_NEAR(x.data<double>()[i], v, tolerance * (1 + std::abs(v))) << i;
  }
}

struct Case {
  Dims x, w;
  Conv2d conv;
};
Conv2d conv_of(const Dims& stride, const Dims& padding, const Dims& dilation, int64_t groups) {
  Conv2d c;
  const int n = stride.size();
  for (int i = 0; i < n; ++i) {
    c.stride[i] = stride[i], c.dilation[i] = dilation[i];
    c.padding[i] = c.padding[n + i] = padding[i];
  }
  c.groups = groups;
  return c;
}

TEST(Cudnn, ConvolutionsAndTheirGradients) {
  const Case cases[] = {
      {{2, 4, 7, 6}, {6, 4, 3, 2}, conv_of({1, 1}, {1, 0}, {1, 1}, 1)},
      {{2, 4, 9, 8}, {6, 2, 3, 2}, conv_of({2, 1}, {0, 1}, {1, 2}, 2)},
      {{1, 2, 4, 5, 6}, {3, 2, 2, 3, 1}, conv_of({1, 2, 1}, {1, 1, 0}, {1, 1, 1}, 1)},
  };
  std::mt19937 random(3);
  for (const Case& c : cases)
    for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16})
      for (const bool last : {false, true}) {
        SCOPED_TRACE(testing::Message() << name(dtype) << " channels last " << last << " axes " << c.x.size());
        const Array x = random_array(c.x, dtype, last, random), w = random_array(c.w, dtype, last, random);
        Dims out{c.x[0], c.w[0]};
        const int n = c.x.size() - 2;
        for (int i = 0; i < n; ++i)
          out.push_back(kernels::conv_out_size(c.x[2 + i], c.w[2 + i], c.conv.stride[i], c.conv.padding[i],
                                               c.conv.padding[n + i], c.conv.dilation[i]));
        const Array dy = random_array(out, dtype, last, random);
        Array y = random_array(out, dtype, last, random), want_y = Array::empty(out, dtype);
        runs = 0;
        if (!kernels::cuda::dnn_forward(x, w, c.conv, y)) {
          if (!real_library) GTEST_SKIP() << "libcudnn.so.9 is not found";
          FAIL() << "cuDNN refused a descriptor";
        }
        kernels::conv2d(x, w, nullptr, c.conv, want_y);
        expect_same(y, want_y, dtype);
        Array dx = random_array(c.x, dtype, last, random), want_dx = Array::empty(c.x, dtype);
        ASSERT_TRUE(kernels::cuda::dnn_backward_data(dy, w, c.conv, dx));
        kernels::conv2d_backward_data(dy, w, c.conv, want_dx);
        expect_same(dx, want_dx, dtype);
        Array dw = random_array(c.w, dtype, last, random), want_dw = Array::empty(c.w, dtype);
        ASSERT_TRUE(kernels::cuda::dnn_backward_weights(dy, x, c.conv, dw));
        kernels::conv2d_backward_weights(dy, x, c.conv, want_dw, nullptr);
        expect_same(dw, want_dw, dtype);
        EXPECT_EQ(runs, 3);
      }
}

}  // namespace
#endif
