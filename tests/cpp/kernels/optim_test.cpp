#include "holon/kernels/optim.h"

#include <algorithm>

#include "holon/base/parallel.h"
#include "holon/kernels/copy.h"
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
                const double dampening = nesterov ? 0 : 0.2;
                fill(s.a, NAN);  // what the first step must not read
                for (int step = 0; step < 3; ++step) {
                  s.new_gradient(noise);
                  UpdateTensor t{s.p, s.g, {momentum != 0 ? s.a : Array(), {}, {}}, {}, {}};
                  t.numbers = {.lr = 0.1,
                               .weight_decay = decay,
                               .beta1 = momentum,
                               .take = 1 - dampening,
                               .maximize = maximize,
                               .nesterov = nesterov,
                               .first = step == 0};
                  update(UpdateRule::kSgd, {&t, 1});
                  size_t k = 0;
                  each(s.p.shape, [&](const Dims& i) {
                    double d = (maximize ? -1 : 1) * get(s.g, i) + decay * s.want_p[k];
                    if (momentum != 0) {
                      double& m = s.want_a[k];
                      m = step == 0 ? d : momentum * m + (1 - dampening) * d;
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
              for (int64_t step = 1; step < 4; ++step) {
                s.new_gradient(noise);
                if (step == 3) fill(s.g, 0);  // amsgrad keeps the larger square
                UpdateTensor t{s.p, s.g, {s.a, s.b, amsgrad ? s.c : Array()}, {}, {}};
                t.numbers = {.lr = 0.01 / (1 - std::pow(0.8, step)),
                             .weight_decay = decoupled ? 0 : 0.1,
                             .shrink = decoupled ? 1 - 0.01 * 0.1 : 1,
                             .beta1 = 0.8,
                             .beta2 = 0.95,
                             .eps = 1e-6,
                             .root_correction = 1 / std::sqrt(1 - std::pow(0.95, step)),
                             .maximize = maximize};
                update(UpdateRule::kAdam, {&t, 1});
                size_t k = 0;
                each(s.p.shape, [&](const Dims& i) {
                  double d = (maximize ? -1 : 1) * get(s.g, i) + (decoupled ? 0 : 0.1 * s.want_p[k]);
                  double &m = s.want_a[k], &v = s.want_b[k], &l = s.want_c[k], p = s.want_p[k];
                  if (decoupled) p *= 1 - 0.01 * 0.1;
                  m = 0.8 * m + 0.2 * d;
                  v = 0.95 * v + 0.05 * d * d;
                  l = std::max(l, v);
                  p -= 0.01 / (1 - std::pow(0.8, step)) * m /
                      (std::sqrt(amsgrad ? l : v) / std::sqrt(1 - std::pow(0.95, step)) + 1e-6);
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
  Array p = of({1, 2}, float32), g = of({1, 1}, float32), none = make({0, 3}, float32), zero = make({}, float32),
        one = make({}, float32);
  put(zero, {}, 5);
  put(one, {}, 1);
  UpdateNumbers half;
  half.lr = 0.5;
  const UpdateTensor list[] = {{p, g, {}, {}, half}, {none, none, {}, {}, half}, {zero, one, {}, {}, half}};
  update(UpdateRule::kSgd, list);
  EXPECT_EQ(get(p, {1}), 1.5);
  EXPECT_EQ(get(zero, {}), 4.5);
  update(UpdateRule::kSgd, {});
  message_of(ErrorKind::kInternal, [&] { update(UpdateRule::kAdam, list); });
  Array k = of({1}, int32);
  const UpdateTensor wrong{k, k, {}, {}, half};
  message_of(ErrorKind::kType, [&] { update(UpdateRule::kSgd, {&wrong, 1}); });
}

// A float32 master copy is what is updated; the parameter of two bytes is its rounded copy, whatever the strides of the
// two.
TEST(Optim, MasterCopiesAreRounded) {
  on_every_isa([] {
    Noise noise;
    for (DType dtype : {bfloat16, float16})
      for (Layout layout : {Layout::kContiguous, Layout::kTransposed, Layout::kSliced})
        for (int64_t rows : {3, 700}) {
          const Dims shape{rows, 70};
          Array master = random(shape, float32, Layout::kContiguous, noise, -1, 1),
                g = random(shape, dtype, layout, noise, -1, 1);
          Array rounded = make(shape, dtype, layout);
          std::vector<double> want;
          each(shape, [&](const Dims& i) {
            want.push_back(static_cast<float>(get(master, i)) - 0.25f * static_cast<float>(get(g, i)));
          });
          UpdateTensor t{master, g, {}, rounded, {}};
          t.numbers.lr = 0.25;
          update(UpdateRule::kSgd, {&t, 1});
          size_t k = 0;
          each(shape, [&](const Dims& i) {
            ASSERT_NEAR(get(master, i), want[k++], 1e-6);
            Array exact = make({}, dtype);
            put(exact, {}, get(master, i));
            ASSERT_EQ(get(rounded, i), get(exact, {}));
          });
        }
  });
}

TEST(Optim, ManyTensorsAtOnceInSeveralThreads) {
  const int before = num_threads();
  for (int threads : {1, 3}) {
    set_num_threads(threads);
    std::vector<UpdateTensor> list;
    for (int64_t n : {1, 0, 100000, 7, 32768, 65536, 3}) {
      UpdateTensor t{make({n}, float32), make({n}, float32), {}, {}, {}};
      fill(t.parameter, 2);
      fill(t.gradient, 1);
      t.numbers.lr = static_cast<double>(list.size() + 1);
      list.push_back(t);
    }
    update(UpdateRule::kSgd, list);
    for (size_t i = 0; i < list.size(); ++i)
      each(list[i].parameter.shape,
           [&](const Dims& at) { ASSERT_EQ(get(list[i].parameter, at), 2.0 - static_cast<double>(i + 1)); });
    std::vector<double> sums(list.size() * 2);
    update_norms(UpdateRule::kSgd, list, sums);
    for (size_t i = 0; i < list.size(); ++i) EXPECT_EQ(sums[2 * i + 1], static_cast<double>(list[i].gradient.numel()));
  }
  set_num_threads(before);
}

TEST(Optim, NormsOfEveryKindScaleAndClamp) {
  on_every_isa([] {
    Noise noise;
    for (DType dtype : kFloats)
      for (Layout layout : {Layout::kContiguous, Layout::kTransposed, Layout::kSliced}) {
        const Array list[] = {random({9, 70}, dtype, layout, noise, -1, 1), make({0}, dtype),
                              random({}, dtype, Layout::kContiguous, noise, -1, 1)};
        put(list[0], {3, 4}, 0);
        for (NormKind kind : {NormKind::kSquares, NormKind::kSum, NormKind::kPowers, NormKind::kCount,
                              NormKind::kLargest, NormKind::kSmallest}) {
          std::vector<double> found(3);
          norms_of(kind, 2.5, list, found);
          for (size_t k = 0; k < 3; ++k) {
            double want = kind == NormKind::kSmallest ? INFINITY : 0;
            each(list[k].shape, [&](const Dims& i) {
              const double a = std::abs(get(list[k], i));
              switch (kind) {
                case NormKind::kSquares: want += a * a; break;
                case NormKind::kSum: want += a; break;
                case NormKind::kPowers: want += std::pow(a, 2.5); break;
                case NormKind::kCount: want += a != 0; break;
                case NormKind::kLargest: want = std::max(want, a); break;
                case NormKind::kSmallest: want = std::min(want, a); break;
              }
            });
            if (std::isinf(want))
              EXPECT_EQ(found[k], want);
            else
              EXPECT_NEAR(found[k], want, 2e-6 * want) << static_cast<int>(kind);
          }
        }
        bool finite = false;
        scale_all(list, 4, &finite);
        EXPECT_TRUE(finite);
        clamp_all(list, -0.5, 0.5);
        each(list[0].shape, [&](const Dims& i) { EXPECT_LE(std::abs(get(list[0], i)), 0.5); });
        for (double bad : std::initializer_list<double>{INFINITY, -INFINITY, NAN}) {
          put(list[0], {8, 69}, bad);
          scale_all(list, 0.5, &finite);
          EXPECT_FALSE(finite);
        }
        clamp_all(list, -0.5, 0.5);
        EXPECT_TRUE(std::isnan(get(list[0], {8, 69})));
      }
  });
}

// What devices compute in their memory, on the host's.
TEST(Optim, ClipsByNumbersInMemory) {
  Array three = make({5}, float32), four = make({2, 3}, float64);
  const double root = std::sqrt(5 * 9 + 6 * 16);
  for (double limit : {1.0, 100.0}) {
    fill(three, 3), fill(four, 4);
    const Array list[] = {three, four};
    Array found = make({1, 2}, float64), result = make({2}, float64);
    norms_into(NormKind::kSquares, 2, list, found);
    EXPECT_EQ(found.data<double>()[0], 45);
    EXPECT_EQ(found.data<double>()[1], 96);
    clip_factor(NormKind::kSquares, 2, limit, true, {&found, 1}, result);
    const double factor = limit < root ? limit / (root + 1e-6) : 1;
    EXPECT_EQ(result.data<double>()[0], root);
    EXPECT_EQ(result.data<double>()[1], factor);
    scale_by(list, result.view({}, {}, 1));
    EXPECT_EQ(get(three, {4}), static_cast<float>(3 * static_cast<float>(factor)));
    EXPECT_EQ(get(four, {1, 2}), 4 * factor);
  }
  // Rows of two ranks: numbers about a tensor are joined over the ranks first.
  const Array rows = make({2, 3}, float64);
  Array result = make({2}, float64);
  const double of_ranks[] = {1, 0, 5, 2, 0, 0};
  std::copy(std::begin(of_ranks), std::end(of_ranks), rows.data<double>());
  auto norm = [&](NormKind kind) {
    clip_factor(kind, 3, 1, true, {&rows, 1}, result);
    return result.data<double>()[0];
  };
  EXPECT_EQ(norm(NormKind::kSum), 8);
  EXPECT_EQ(norm(NormKind::kCount), 2);
  EXPECT_EQ(norm(NormKind::kLargest), 5);
  EXPECT_EQ(norm(NormKind::kSmallest), 0);
  EXPECT_EQ(norm(NormKind::kPowers), std::pow(8, 1.0 / 3));
  rows.data<double>()[4] = NAN;
  for (NormKind kind : {NormKind::kSum, NormKind::kLargest, NormKind::kSmallest}) {
    EXPECT_TRUE(std::isnan(norm(kind)));
    EXPECT_EQ(result.data<double>()[1], 1);
  }
}

TEST(Optim, UpdatesTakeScalesAndRatiosFromMemory) {
  for (UpdateRule rule : {UpdateRule::kSgd, UpdateRule::kLamb}) {
    auto made = [&](double gradient) {
      UpdateTensor t{make({6}, float32), make({6}, float32), {make({6}, float32), make({6}, float32)}, {}, {}};
      fill(t.parameter, 2), fill(t.gradient, gradient), fill(t.state[0], 0), fill(t.state[1], 0);
      if (rule == UpdateRule::kSgd) t.state[0] = t.state[1] = {};
      t.numbers.lr = 0.5, t.numbers.beta1 = t.numbers.beta2 = 0.5;
      return t;
    };
    UpdateTensor plain = made(0.75), scaled = made(3);
    scaled.gradient_scale = make({}, float64);
    fill(scaled.gradient_scale, 0.25);
    Array sums = make({2}, float64), ratio = make({1}, float64);
    std::vector<double> wanted(2);
    update_norms(rule, {&plain, 1}, wanted);
    update_norms_into(rule, {&scaled, 1}, sums);
    for (size_t k = 0; k < 2; ++k) EXPECT_EQ(sums.data<double>()[k], wanted[k]);
    trust_ratios(rule, 0.5, 0.25, 1e-3, sums, ratio);
    const double p = std::sqrt(wanted[0]), d = std::sqrt(wanted[1]);
    const double found = ratio.data<double>()[0];
    EXPECT_EQ(found, rule == UpdateRule::kLamb ? p / d : 0.5 * p / (d + 0.25 * p + 1e-3));
    scaled.ratio = ratio.view({}, {}, 0);
    if (rule == UpdateRule::kLamb)
      plain.numbers.lr *= found;
    else
      plain.numbers.scale = found;
    update(rule, {&plain, 1});
    update(rule, {&scaled, 1});
    for (int64_t i = 0; i < 6; ++i) EXPECT_EQ(get(scaled.parameter, {i}), get(plain.parameter, {i}));
    EXPECT_EQ(get(scaled.gradient, {0}), 3);
  }
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
        scale_all({&a, 1}, 0.5);
        each(a.shape, [&](const Dims& i) { EXPECT_NEAR(get(a, i), 0.5 * get(before, i), smallest(dtype)); });
      }
  });
}

}  // namespace
}  // namespace holon::kernels::testing
