#include "holon/kernels/cpu/optim.h"

#include "holon/kernels/cpu/copy.h"
#include "tests/cpp/kernels/util.h"

namespace holon::kernels::testing {
namespace {

const DType kFloats[] = {float32, float64, bfloat16, float16};

// A parameter with its gradient and state, and the same in float64 for the reference.
struct State {
  Array p, g, a, b, c;
  std::vector<double> want_p, want_a, want_b, want_c;

  State(DType dtype, Layout layout, Noise& noise, DType state_dtype) {
    const Dims shape{9, 70};
    p = random(shape, dtype, layout, noise, -1, 1);
    g = make(shape, dtype, Layout::kTransposed);
    a = make(shape, state_dtype, layout), b = make(shape, state_dtype, layout), c = make(shape, state_dtype, layout);
    for (Array* x : {&a, &b, &c}) fill(*x, 0);
    each(shape, [&](const Dims& i) { want_p.push_back(get(p, i)); });
    want_a = want_b = want_c = std::vector<double>(want_p.size(), 0);
  }
  void new_gradient(Noise& noise) {
    each(g.shape, [&](const Dims& i) { put(g, i, noise.next(-1, 1)); });
  }
};

TEST(Sgd, EveryOptionAgainstTheReference) {
  on_every_isa([] {
    Noise noise;
    for (DType dtype : kFloats)
      for (Layout layout : {Layout::kContiguous, Layout::kTransposed, Layout::kSliced})
        for (double momentum : {0.0, 0.9})
          for (double decay : {0.0, 0.1})
            for (bool nesterov : {false, true})
              for (bool maximize : {false, true}) {
                State s(dtype, layout, noise, dtype);
                const Sgd o{.lr = 0.1, .momentum = momentum, .dampening = nesterov ? 0 : 0.2, .weight_decay = decay, .nesterov = nesterov, .maximize = maximize};
                fill(s.a, NAN);  // what the first step must not read
                for (int step = 0; step < 3; ++step) {
                  s.new_gradient(noise);
                  const SgdTensor t{s.p, s.g, momentum != 0 ? s.a : Array(), step == 0};
                  sgd(o, {&t, 1});
                  size_t k = 0;
                  each(s.p.shape, [&](const Dims& i) {
                    double d = (maximize ? -1 : 1) * get(s.g, i) + decay * s.want_p[k];
                    if (momentum != 0) {
                      double& m = s.want_a[k];
                      m = step == 0 ? d : momentum * m + (1 - o.dampening) * d;
                      d = nesterov ? d + momentum * m : m;
                    }
                    s.want_p[k] -= 0.1 * d;
                    expect_near(get(s.p, i), s.want_p[k], 0, 4 * epsilon(dtype), "parameter");
                    // Each step starts from what was stored.
                    s.want_p[k] = get(s.p, i);
                    if (momentum != 0) s.want_a[k] = get(s.a, i);
                    ++k;
                  });
                }
              }
  });
}

TEST(Adam, EveryOptionAgainstTheReference) {
  on_every_isa([] {
    Noise noise;
    for (DType dtype : kFloats)
      for (Layout layout : {Layout::kContiguous, Layout::kTransposed, Layout::kSliced})
        for (bool decoupled : {false, true})
          for (bool amsgrad : {false, true})
            for (bool maximize : {false, true}) {
              DType state = dtype == float64 ? float64 : float32;
              State s(dtype, layout, noise, state);
              const Adam o{.lr = 0.01, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-6, .weight_decay = 0.1, .decoupled = decoupled, .maximize = maximize};
              for (int64_t step = 1; step < 4; ++step) {
                s.new_gradient(noise);
                if (step == 3) fill(s.g, 0);  // amsgrad keeps the larger square
                const AdamTensor t{s.p, s.g, s.a, s.b, amsgrad ? s.c : Array(), step};
                adam(o, {&t, 1});
                size_t k = 0;
                each(s.p.shape, [&](const Dims& i) {
                  double d = (maximize ? -1 : 1) * get(s.g, i) + (decoupled ? 0 : 0.1 * s.want_p[k]);
                  double &m = s.want_a[k], &v = s.want_b[k], &l = s.want_c[k], p = s.want_p[k];
                  if (decoupled) p *= 1 - 0.01 * 0.1;
                  m = 0.8 * m + 0.2 * d;
                  v = 0.95 * v + 0.05 * d * d;
                  l = std::max(l, v);
                  p -= 0.01 / (1 - std::pow(0.8, step)) * m / (std::sqrt(amsgrad ? l : v) / std::sqrt(1 - std::pow(0.95, step)) + 1e-6);
                  expect_near(get(s.p, i), p, 0, 4 * epsilon(dtype), "parameter");
                  expect_near(get(s.a, i), m, 0, 4 * epsilon(state), "mean");
                  expect_near(get(s.b, i), v, 0, 4 * epsilon(state), "square");
                  if (amsgrad) expect_near(get(s.c, i), l, 0, 4 * epsilon(state), "largest square");
                  s.want_p[k] = get(s.p, i);
                  ++k;
                });
              }
            }
  });
}

TEST(Optim, ListsEmptyTensorsAndChecks) {
  Array p = of({1, 2}, float32), g = of({1, 1}, float32), none = make({0, 3}, float32), zero = make({}, float32), one = make({}, float32);
  put(zero, {}, 5);
  put(one, {}, 1);
  const SgdTensor list[] = {{p, g, {}, false}, {none, none, {}, false}, {zero, one, {}, false}};
  sgd({.lr = 0.5}, list);
  EXPECT_EQ(get(p, {1}), 1.5);
  EXPECT_EQ(get(zero, {}), 4.5);
  message_of(ErrorKind::kInternal, [&] { sgd({.lr = 0.5, .momentum = 0.9}, list); });
  Array k = of({1}, int32);
  const SgdTensor wrong{k, k, {}, false};
  message_of(ErrorKind::kType, [&] { sgd({.lr = 0.5}, {&wrong, 1}); });
}

TEST(Optim, NormAndScale) {
  on_every_isa([] {
    Noise noise;
    for (DType dtype : kFloats)
      for (Layout layout : {Layout::kContiguous, Layout::kTransposed, Layout::kSliced}) {
        Array a = random({9, 70}, dtype, layout, noise, -1, 1), before = make(a.shape, dtype);
        copy(a, before);
        double want = 0;
        each(a.shape, [&](const Dims& i) { want += get(a, i) * get(a, i); });
        EXPECT_NEAR(squared_norm(a), want, 1e-6 * want);
        scale(a, 0.5);
        each(a.shape, [&](const Dims& i) { EXPECT_NEAR(get(a, i), 0.5 * get(before, i), smallest(dtype)); });
      }
  });
}

}  // namespace
}  // namespace holon::kernels::testing
