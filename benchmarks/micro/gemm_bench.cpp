// Products, convolutions and pooling against oneDNN's own in the same run. One JSON object per line; ratio is the
// peer's time over Holon's (above 1: Holon is faster). Set OMP_NUM_THREADS=1 to compare single threads.
#include <omp.h>
#include <time.h>

#include <oneapi/dnnl/dnnl.hpp>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "holon/kernels/attention.h"
#include "holon/kernels/conv.h"
#include "holon/kernels/gemm.h"
#include "holon/kernels/pool.h"

namespace {

using namespace holon;

// Medians of interleaved runs, each long enough for the clock.
struct Times {
  double ours_us, theirs_us;
};

// A single thread is timed by its own clock, which stops while other programs have the core.
double now_us() {
  timespec t;
  clock_gettime(omp_get_max_threads() == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) * 1e6 + static_cast<double>(t.tv_nsec) / 1e3;
}

double once(const std::function<void()>& f, int64_t count) {
  const double start = now_us();
  for (int64_t i = 0; i < count; ++i) f();
  return (now_us() - start) / static_cast<double>(count);
}

Times compare(const std::function<void()>& ours, const std::function<void()>& theirs) {
  ours(), theirs();
  const int64_t count = std::clamp<int64_t>(static_cast<int64_t>(10000 / (once(ours, 1) + 0.01)), 1, 200000);
  const int64_t other = std::clamp<int64_t>(static_cast<int64_t>(10000 / (once(theirs, 1) + 0.01)), 1, 200000);
  std::vector<double> a, b;
  for (int i = 0; i < 7; ++i) a.push_back(once(ours, count)), b.push_back(once(theirs, other));
  std::sort(a.begin(), a.end()), std::sort(b.begin(), b.end());
  return {a[3], b[3]};
}

void print(const std::string& name, double value, const char* unit, const char* against, double ratio) {
  std::printf("{\"name\": \"%s\", \"value\": %.4g, \"unit\": \"%s\", \"against\": \"%s\", \"ratio\": %.3f}\n",
              name.c_str(), value, unit, against, ratio);
  std::fflush(stdout);
}

Array random(const Dims& shape) {
  Array x = Array::empty(shape, float32);
  for (int64_t i = 0; i < x.numel(); ++i) x.data<float>()[i] = static_cast<float>(i * 7919 % 1013) / 1013 - 0.5f;
  return x;
}

void product(int64_t m, int64_t n, int64_t k, bool ta, bool tb) {
  Array a = random(ta ? Dims{k, m} : Dims{m, k}), b = random(tb ? Dims{n, k} : Dims{k, n}), c = random({m, n});
  Array va = ta ? a.view({m, k}, {1, m}) : a, vb = tb ? b.view({k, n}, {1, k}) : b;
  auto ours = [&] { kernels::matmul(va, vb, c); };
  auto theirs = [&] {
    dnnl_sgemm(ta ? 'T' : 'N', tb ? 'T' : 'N', m, n, k, 1, a.data<float>(), ta ? m : k, b.data<float>(), tb ? k : n, 0,
               c.data<float>(), n);
  };
  Times t = compare(ours, theirs);
  const double flop = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  print("matmul " + std::to_string(m) + "x" + std::to_string(n) + "x" + std::to_string(k) + (ta ? " T" : " N") +
            (tb ? "T" : "N") + " (" + std::to_string(t.ours_us) + " us)",
        flop / t.ours_us / 1e3, "GFLOP/s", "dnnl_sgemm", t.theirs_us / t.ours_us);
}

void products() {
  for (int64_t s : {4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 512, 1024})
    for (int t = 0; t < 4; ++t) product(s, s, s, t & 1, t & 2);
  // Of a GPT's block, and a large one: forward, gradients of inputs, of weights.
  for (auto [m, n, k] : {std::array<int64_t, 3>{1024, 256, 256},
                         {1024, 1024, 256},
                         {1024, 256, 1024},
                         {2048, 3072, 768},
                         {2048, 2048, 2048}})
    product(m, n, k, false, true), product(m, k, n, false, false), product(n, k, m, true, false);
  product(256, 10, 512, false, true);
  product(256, 512, 10, false, false), product(256, 10, 512, false, false), product(256, 16, 512, false, false);
  product(10, 512, 256, true, false);
  product(256, 512, 784, false, true);
  product(512, 784, 256, true, false);
  product(1, 512, 512, false, true), product(1, 512, 512, false, false);
  product(512, 1, 512, false, false), product(512, 1, 512, true, false);
  product(1, 4096, 4096, false, true), product(1, 4096, 4096, false, false);
  product(8, 768, 768, false, true), product(8, 768, 768, false, false);
  product(64, 10, 128, false, true), product(32, 1000, 512, false, true);
}

Array image(const Dims& s, bool channels_last) {
  Array x = random(s);
  if (channels_last) x.strides = {s[1] * s[2] * s[3], 1, s[3] * s[1], s[1]};
  return x;
}

// Maximum over 2 x 2 windows, as LeNet has it, against oneDNN's primitive for training in the same layout.
void pooling(int64_t n, int64_t c, int64_t h, bool channels_last) {
  using namespace dnnl;
  const Dims in{n, c, h, h}, half{n, c, h / 2, h / 2};
  Array x = image(in, channels_last), out = image(half, channels_last), dx = image(in, channels_last);
  Array index = Array::empty_strided(half, out.strides, uint8);
  kernels::Pool2d pool{{2, 2}, {2, 2}};
  engine cpu(engine::kind::cpu, 0);
  stream run(cpu);
  const auto tag = channels_last ? memory::format_tag::nhwc : memory::format_tag::nchw;
  memory::desc src({n, c, h, h}, memory::data_type::f32, tag), dst({n, c, h / 2, h / 2}, memory::data_type::f32, tag);
  pooling_forward::primitive_desc forward(
      {prop_kind::forward_training, algorithm::pooling_max, src, dst, {2, 2}, {2, 2}, {0, 0}, {0, 0}}, cpu);
  pooling_backward::primitive_desc backward({algorithm::pooling_max, src, dst, {2, 2}, {2, 2}, {0, 0}, {0, 0}}, cpu,
                                            forward);
  memory msrc(src, cpu, x.data<float>()), mdst(dst, cpu, out.data<float>()), mdx(src, cpu, dx.data<float>());
  memory places(forward.workspace_desc(), cpu);
  pooling_forward f(forward);
  pooling_backward b(backward);
  const std::string what =
      std::to_string(n) + "x" + std::to_string(c) + "x" + std::to_string(h) + (channels_last ? " nhwc" : " nchw");
  Times t = compare([&] { kernels::max_pool2d(x, pool, out, &index); },
                    [&] {
                      f.execute(run, {{DNNL_ARG_SRC, msrc}, {DNNL_ARG_DST, mdst}, {DNNL_ARG_WORKSPACE, places}});
                      run.wait();
                    });
  print("max_pool2d " + what, t.ours_us, "us", "oneDNN pooling", t.theirs_us / t.ours_us);
  t = compare([&] { kernels::max_pool2d_backward(out, index, pool, dx); },
              [&] {
                b.execute(run, {{DNNL_ARG_DIFF_DST, mdst}, {DNNL_ARG_DIFF_SRC, mdx}, {DNNL_ARG_WORKSPACE, places}});
                run.wait();
              });
  print("max_pool2d_backward " + what, t.ours_us, "us", "oneDNN pooling", t.theirs_us / t.ours_us);
}

// Against oneDNN with layouts of its own choice, weights already in place.
void convolution(const char* name, int64_t n, int64_t c, int64_t o, int64_t h, int64_t k, int64_t pad) {
  using namespace dnnl;
  kernels::Conv2d conv;
  for (int64_t& p : conv.padding) p = pad;
  Array x = image({n, c, h, h}, true), y = image({n, o, h, h}, true), dx = image({n, c, h, h}, true);
  Array w = random({o, c, k, k}), b = random({o}), dw = random({o, c, k, k}), db = random({o});
  engine cpu(engine::kind::cpu, 0);
  stream run(cpu);
  const auto f32 = memory::data_type::f32;
  const auto any = memory::format_tag::any;
  const auto direct = algorithm::convolution_direct;
  const memory::dims one{1, 1}, none{0, 0}, pads{pad, pad};
  memory::desc mx({n, c, h, h}, f32, any), mw({o, c, k, k}, f32, any), mb({o}, f32, memory::format_tag::x),
      my({n, o, h, h}, f32, any);
  convolution_forward::primitive_desc fd({prop_kind::forward_training, direct, mx, mw, mb, my, one, none, pads, pads},
                                         cpu);
  convolution_backward_data::primitive_desc dd({direct, mx, mw, my, one, none, pads, pads}, cpu, fd);
  convolution_backward_weights::primitive_desc wd({direct, mx, mw, mb, my, one, none, pads, pads}, cpu, fd);
  const double flop = 2.0 * static_cast<double>(n * o * h * h * c * k * k);
  auto report = [&](const char* what, const std::function<void()>& ours, primitive p,
                    std::unordered_map<int, memory> args) {
    Times t = compare(ours, [&] {
      p.execute(run, args);
      run.wait();
    });
    print(std::string(name) + " " + what + " (" + std::to_string(t.ours_us) + " us)", flop / t.ours_us / 1e3, "GFLOP/s",
          "oneDNN, any layout", t.theirs_us / t.ours_us);
  };
  auto make = [&](const memory::desc& d) {
    memory m(d, cpu);
    std::fill_n(static_cast<float*>(m.get_data_handle()), d.get_size() / sizeof(float), 0.25f);
    return m;
  };
  report("forward", [&] { kernels::conv2d(x, w, &b, conv, y); }, convolution_forward(fd),
         {{DNNL_ARG_SRC, make(fd.src_desc())},
          {DNNL_ARG_WEIGHTS, make(fd.weights_desc())},
          {DNNL_ARG_BIAS, make(mb)},
          {DNNL_ARG_DST, make(fd.dst_desc())}});
  report("backward_data", [&] { kernels::conv2d_backward_data(y, w, conv, dx); }, convolution_backward_data(dd),
         {{DNNL_ARG_DIFF_SRC, make(dd.diff_src_desc())},
          {DNNL_ARG_WEIGHTS, make(dd.weights_desc())},
          {DNNL_ARG_DIFF_DST, make(dd.diff_dst_desc())}});
  report("backward_weights", [&] { kernels::conv2d_backward_weights(y, x, conv, dw, &db); },
         convolution_backward_weights(wd),
         {{DNNL_ARG_SRC, make(wd.src_desc())},
          {DNNL_ARG_DIFF_WEIGHTS, make(wd.diff_weights_desc())},
          {DNNL_ARG_DIFF_BIAS, make(mb)},
          {DNNL_ARG_DIFF_DST, make(wd.diff_dst_desc())}});
}

// Against a product of sgemm, a row-wise softmax and another product, one head at a time.
void attend(int64_t heads, int64_t t, bool causal) {
  const int64_t d = 64;
  Array q = random({1, heads, t, d}), k = random({1, heads, t, d}), v = random({1, heads, t, d}),
        out = random({1, heads, t, d});
  Array dq = random({1, heads, t, d}), dk = random({1, heads, t, d}), dv = random({1, heads, t, d}),
        lse = random({1, heads, t});
  Array scores = random({t, t});
  const float scale = 0.125f;
  kernels::Attention options;
  options.causal = causal;
  options.scale = scale;
  auto ours = [&] { kernels::attention(q, k, v, options, out, &lse); };
  auto theirs = [&] {
    for (int64_t i = 0; i < heads; ++i) {
      float* s = scores.data<float>();
      const int64_t at = i * t * d;
      dnnl_sgemm('N', 'T', t, t, d, scale, q.data<float>() + at, d, k.data<float>() + at, d, 0, s, t);
      dnnl::memory::desc desc({t, t}, dnnl::memory::data_type::f32, dnnl::memory::format_tag::ab);
      static dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
      static dnnl::stream run(cpu);
      dnnl::softmax_forward::primitive_desc pd({dnnl::prop_kind::forward_inference, desc, 1}, cpu);
      dnnl::memory m(desc, cpu, s);
      dnnl::softmax_forward(pd).execute(run, {{DNNL_ARG_SRC, m}, {DNNL_ARG_DST, m}});
      run.wait();
      dnnl_sgemm('N', 'N', t, d, t, 1, s, t, v.data<float>() + at, d, 0, out.data<float>() + at, d);
    }
  };
  const std::string what = std::to_string(heads) + "x" + std::to_string(t) + "x64" + (causal ? " causal" : "");
  Times f = compare(ours, theirs);
  print("attention " + what, f.ours_us, "us", "sgemm, oneDNN softmax, sgemm (not causal)", f.theirs_us / f.ours_us);
  ours();
  Times b = compare([&] { kernels::attention_backward(v, q, k, v, out, lse, options, dq, dk, dv); }, ours);
  print("attention_backward " + what, b.ours_us, "us", "attention", b.theirs_us / b.ours_us);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string only = argc > 1 ? argv[1] : "";
  if (only.empty() || only == "matmul") products();
  if (only.empty() || only == "conv") {
    convolution("conv 128x1x28 -> 32, 5x5", 128, 1, 32, 28, 5, 2);
    convolution("conv 128x32x14 -> 64, 5x5", 128, 32, 64, 14, 5, 2);
    convolution("conv 8x64x56 -> 64, 3x3", 8, 64, 64, 56, 3, 1);
  }
  if (only.empty() || only == "attention")
    for (bool causal : {false, true})
      for (int64_t t : {128, 512, 2048}) attend(4, t, causal);
  if (only.empty() || only == "pool")
    for (bool channels_last : {true, false}) pooling(128, 32, 28, channels_last), pooling(128, 64, 14, channels_last);
}
