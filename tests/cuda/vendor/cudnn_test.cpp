// Convolutions and attention as cuDNN is told of them: its own checks, heuristics and compiler see the graphs, and
// cudnn_backend.cpp computes them.
#if __has_include(<cudnn.h>) && __has_include(<cudnn_frontend.h>)
#include <cudnn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "cudnn_backend.h"
#include "holon/kernels/attention.h"
#include "holon/kernels/conv.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/cuda/attention_library.h"
#include "holon/kernels/cuda/conv_library.h"
#include "holon/kernels/cuda/dnn.h"
#include "holon/kernels/cudnn.h"
#include "holon/kernels/tf32.h"

using namespace holon;
using kernels::Conv2d;
using namespace kernels::cuda;

namespace {

class Cudnn : public testing::Test {
 protected:
  void SetUp() override {
    cudnn_backend::capability = 90;
    supports(Convolution{});  // looks for it
    if (const auto why = cudnn_backend::why_not(); !why.empty()) GTEST_SKIP() << why;
  }
};

Array random_array(const Dims& shape, const Dims& strides, DType dtype, std::mt19937& random) {
  Array a = Array::empty_strided(shape, strides, dtype), values = Array::empty(shape, DType::kFloat32);
  for (int64_t i = 0; i < values.numel(); ++i) values.data<float>()[i] = static_cast<float>(random() % 17) / 8 - 1;
  kernels::copy(values, a);
  return a;
}

double tolerance(DType dtype) {
  return dtype == DType::kFloat64 ? 1e-12 : dtype == DType::kFloat32 ? 1e-5 : dtype == DType::kFloat16 ? 4e-3 : 3e-2;
}
void expect_same(const Array& got, const Array& want, DType dtype) {
  Array x = Array::empty(got.shape, DType::kFloat64), y = Array::empty(got.shape, DType::kFloat64);
  kernels::copy(got, x);
  kernels::copy(want, y);
  for (int64_t i = 0; i < x.numel(); ++i) {
    const double v = y.data<double>()[i];
    ASSERT_NEAR(x.data<double>()[i], v, tolerance(dtype) * (1 + std::abs(v))) << i;
  }
}
bool has_note(int64_t note) {
  const auto& notes = cudnn_backend::last_run().numerical_notes;
  return std::find(notes.begin(), notes.end(), note) != notes.end();
}

struct Case {
  Dims x, w;
  Conv2d conv;
};
Conv2d conv_of(const Dims& stride, const Dims& before, const Dims& after, const Dims& dilation, int64_t groups) {
  Conv2d c;
  const int n = stride.size();
  for (int i = 0; i < n; ++i) {
    c.stride[i] = stride[i], c.dilation[i] = dilation[i];
    c.padding[i] = before[i], c.padding[n + i] = after[i];
  }
  c.groups = groups;
  return c;
}
Dims out_shape(const Case& c) {
  Dims out{c.x[0], c.w[0]};
  const int n = c.x.size() - 2;
  for (int i = 0; i < n; ++i)
    out.push_back(kernels::conv_out_size(c.x[2 + i], c.w[2 + i], c.conv.stride[i], c.conv.padding[i],
                                         c.conv.padding[n + i], c.conv.dilation[i]));
  return out;
}
Dims strides_of(const Dims& shape, bool last) {
  return last ? channels_last_strides(shape) : contiguous_strides(shape);
}

// Where cuDNN has a way for this case on the device, the results are compared, else false is what was returned.
struct Found {
  bool forward = false, data = false, weights = false;
};
Found check(const Case& c, DType dtype, bool last, bool with_bias) {
  std::mt19937 random(3);
  const Dims out = out_shape(c);
  const Array x = random_array(c.x, strides_of(c.x, last), dtype, random),
              w = random_array(c.w, strides_of(c.w, last), dtype, random),
              bias = random_array({c.w[0]}, {1}, dtype, random),
              dy = random_array(out, strides_of(out, last), dtype, random);
  Array y = random_array(out, strides_of(out, last), dtype, random), want_y = Array::empty(out, dtype);
  Array dx = random_array(c.x, strides_of(c.x, last), dtype, random), want_dx = Array::empty(c.x, dtype);
  Array dw = random_array(c.w, strides_of(c.w, last), dtype, random), want_dw = Array::empty(c.w, dtype);
  auto expect_limits = [&] {
    EXPECT_FALSE(has_note(CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC));
    EXPECT_FALSE(has_note(CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION));
    EXPECT_LE(cudnn_backend::last_run().workspace_bytes, int64_t{512} << 20);
    if (dtype != DType::kFloat32 || kernels::tf32_allowed(kernels::Tf32::kConvolutions)) return;
    for (const int64_t note : {CUDNN_NUMERICAL_NOTE_TENSOR_CORE, CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS,
                               CUDNN_NUMERICAL_NOTE_FFT, CUDNN_NUMERICAL_NOTE_WINOGRAD})
      EXPECT_FALSE(has_note(note)) << note;
  };
  Found found;
  const int before = cudnn_backend::runs();
  if ((found.forward = library_conv(x, w, with_bias ? &bias : nullptr, c.conv, y))) {
    kernels::conv2d(x, w, with_bias ? &bias : nullptr, c.conv, want_y);
    expect_same(y, want_y, dtype);
    expect_limits();
  }
  if ((found.data = library_conv_backward_data(dy, w, c.conv, dx))) {
    kernels::conv2d_backward_data(dy, w, c.conv, want_dx);
    expect_same(dx, want_dx, dtype);
    expect_limits();
  }
  if ((found.weights = library_conv_backward_weights(dy, x, c.conv, dw))) {
    kernels::conv2d_backward_weights(dy, x, c.conv, want_dw, nullptr);
    expect_same(dw, want_dw, dtype);
    expect_limits();
  }
  EXPECT_EQ(cudnn_backend::runs() - before, found.forward + found.data + found.weights);
  return found;
}

TEST_F(Cudnn, ConvolutionsAndTheirGradients) {
  const Case cases[] = {
      {{2, 8, 7, 6}, {16, 8, 3, 2}, conv_of({1, 1}, {1, 0}, {1, 0}, {1, 1}, 1)},
      {{2, 16, 9, 8}, {8, 8, 3, 2}, conv_of({2, 1}, {0, 1}, {0, 1}, {1, 2}, 2)},
      {{1, 8, 4, 5, 6}, {8, 8, 2, 3, 1}, conv_of({1, 2, 1}, {1, 1, 0}, {1, 1, 0}, {1, 1, 1}, 1)},
  };
  for (const int capability : {80, 90})
    for (const Case& c : cases)
      for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16})
        for (const bool last : {false, true})
          for (const bool bias : {false, true}) {
            SCOPED_TRACE(testing::Message() << name(dtype) << " channels last " << last << " axes " << c.x.size()
                                            << " groups " << c.conv.groups << " bias " << bias);
            cudnn_backend::capability = capability;
            const Found found = check(c, dtype, last, bias);
            EXPECT_TRUE(found.forward && found.data && found.weights);
          }
}

struct Attended {
  Dims q, kv;  // [b, h, t, d], [b, g, s, d]
  int64_t e = 0, first_query = 0, window = 0;
  bool causal = false, transposed = false;
};
Array rows(const Dims& shape, bool transposed, DType dtype, std::mt19937& random) {
  Dims strides = contiguous_strides(shape);
  if (transposed) strides = {shape[2] * shape[1] * shape[3], shape[3], shape[1] * shape[3], 1};  // [b, t, h, d]
  return random_array(shape, strides, dtype, random);
}

struct FoundAttention {
  bool forward = false, backward = false;
};
FoundAttention check(const Attended& c, DType dtype) {
  std::mt19937 random(5);
  Dims v_shape = c.kv, out_shape = c.q, sums{c.q[0], c.q[1], c.q[2]};
  v_shape[3] = out_shape[3] = c.e ? c.e : c.q[3];
  auto make = [&](const Dims& shape) { return rows(shape, c.transposed, dtype, random); };
  const Array q = make(c.q), k = make(c.kv), v = make(v_shape), dout = make(out_shape);
  kernels::Attention o;
  o.causal = c.causal, o.window = c.window, o.first_query = c.first_query;
  o.scale = 1 / std::sqrt(static_cast<double>(c.q[3]));
  Array out = make(out_shape), lse = Array::empty(sums, DType::kFloat32), want = Array::empty(out_shape, dtype),
        want_lse = Array::empty(sums, DType::kFloat32);
  Array dq = make(c.q), dk = make(c.kv), dv = make(v_shape);
  Array want_q = Array::empty(c.q, dtype), want_k = Array::empty(c.kv, dtype), want_v = Array::empty(v_shape, dtype);
  FoundAttention found;
  const int before = cudnn_backend::runs();
  kernels::attention(q, k, v, o, want, &want_lse);
  if ((found.forward = library_attention(q, k, v, o, out, &lse))) {
    expect_same(out, want, dtype);
    expect_same(lse, want_lse, DType::kFloat16);  // of scores of two-byte numbers
  }
  if ((found.backward = library_attention_backward(dout, q, k, v, want, want_lse, o, dq, dk, dv))) {
    kernels::attention_backward(dout, q, k, v, want, want_lse, o, want_q, want_k, want_v);
    expect_same(dq, want_q, dtype);
    expect_same(dk, want_k, dtype);
    expect_same(dv, want_v, dtype);
    EXPECT_FALSE(has_note(CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC));
  }
  EXPECT_EQ(cudnn_backend::runs() - before, found.forward + found.backward);
  return found;
}

TEST_F(Cudnn, AttentionAndItsGradients) {
  // A plan for each takes a second.
  struct Expected {
    int capability;
    DType dtype;
    Attended c;
    bool backward = true;
  };
  const Expected all[] = {
      {90, DType::kBFloat16, {.q = {2, 4, 64, 64}, .kv = {2, 4, 64, 64}, .causal = true, .transposed = true}},
      {90, DType::kFloat16, {.q = {1, 6, 64, 32}, .kv = {1, 2, 128, 32}}},
      {90, DType::kBFloat16, {.q = {1, 4, 128, 32}, .kv = {1, 2, 64, 32}, .causal = true}},
      {90, DType::kBFloat16, {.q = {1, 2, 64, 128}, .kv = {1, 1, 64, 128}, .e = 64, .causal = true}},
      {90, DType::kBFloat16, {.q = {1, 2, 64, 64}, .kv = {1, 2, 128, 64}, .first_query = 64, .causal = true}},
      {90, DType::kBFloat16, {.q = {1, 2, 128, 64}, .kv = {1, 2, 128, 64}, .window = 20, .causal = true}},
      {90,
       DType::kBFloat16,
       {.q = {1, 2, 64, 64}, .kv = {1, 2, 128, 64}, .first_query = 64, .window = 20, .causal = true}},
      {90, DType::kBFloat16, {.q = {1, 2, 64, 256}, .kv = {1, 2, 64, 256}, .causal = true}},
      {80, DType::kFloat16, {.q = {2, 4, 64, 64}, .kv = {2, 2, 64, 64}, .causal = true, .transposed = true}},
      {80, DType::kBFloat16, {.q = {1, 2, 64, 256}, .kv = {1, 2, 64, 256}}, false},
  };
  for (const auto& [capability, dtype, c, backward] : all) {
    SCOPED_TRACE(testing::Message() << "sm_" << capability << " " << name(dtype) << " " << c.q[1] << " heads of "
                                    << c.q[2] << " x " << c.q[3] << ", " << c.kv[1] << " of " << c.kv[2] << " causal "
                                    << c.causal << " window " << c.window << " from " << c.first_query);
    cudnn_backend::capability = capability;
    const FoundAttention found = check(c, dtype);
    EXPECT_TRUE(found.forward);
    EXPECT_EQ(found.backward, backward);
  }
}

// What the library is not asked for: whose result it leaves open, or whose bits must be those of other devices.
TEST_F(Cudnn, AttentionThatIsLeftToOtherKernels) {
  const int plans = cudnn_backend::plans();
  auto expect_left = [](const Attended& c, DType dtype = DType::kBFloat16) {
    const FoundAttention found = check(c, dtype);
    EXPECT_FALSE(found.forward || found.backward);
  };
  expect_left({.q = {1, 2, 64, 64}, .kv = {1, 2, 64, 64}}, DType::kFloat32);
  expect_left({.q = {1, 2, 64, 60}, .kv = {1, 2, 64, 60}});
  expect_left({.q = {1, 2, 63, 64}, .kv = {1, 2, 64, 64}});
  expect_left({.q = {1, 2, 64, 64}, .kv = {1, 2, 64, 64}, .first_query = -10, .causal = true});
  expect_left({.q = {1, 2, 64, 64}, .kv = {1, 2, 128, 64}, .first_query = 10, .causal = true});
  expect_left({.q = {1, 2, 128, 64}, .kv = {1, 2, 64, 64}, .window = 10, .causal = true});
  EXPECT_EQ(cudnn_backend::plans(), plans);
}

// A shape is planned once; another one is planned anew.
TEST_F(Cudnn, PlansAreKept) {
  const Case c{{1, 8, 5, 5}, {8, 8, 3, 3}, conv_of({1, 1}, {1, 1}, {1, 1}, {1, 1}, 1)};
  check(c, DType::kFloat16, true, false);
  const int plans = cudnn_backend::plans(), runs = cudnn_backend::runs();
  check(c, DType::kFloat16, true, false);
  EXPECT_EQ(cudnn_backend::plans(), plans);
  EXPECT_EQ(cudnn_backend::runs(), runs + 3);
  kernels::enable_cudnn(false);
  const Found found = check(c, DType::kFloat16, true, false);
  kernels::enable_cudnn(true);
  EXPECT_FALSE(found.forward || found.data || found.weights);
}

}  // namespace
#endif
