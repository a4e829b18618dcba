// The rules of the optimizers for one element: for the loops of the CPU and the kernels of devices alike.
//
// A rule is made of a step's numbers and then called with an element's parameter, gradient and three states in the
// order of optim.h. It touches those states that kTouched names, bit k for state k; the others may be anything. T is
// float or double.
#pragma once

#include "holon/kernels/functors.h"
#include "holon/kernels/numbers.h"

namespace holon::kernels::HOLON_ISA::rules {

// What all rules do to a gradient first.
template <class T>
struct Gradient {
  T sign, decay;
  HOLON_FN explicit Gradient(const UpdateNumbers& c)
      : sign(c.maximize ? T(-1) : T(1)), decay(static_cast<T>(c.weight_decay)) {}
  HOLON_FN T operator()(T g, T p) const { return sign * g + decay * p; }
};

template <class T, bool momentum, bool nesterov>
struct Sgd {
  static constexpr uint32_t kTouched = momentum ? 1 : 0;
  T lr, scale, keep, take;
  bool first;
  Gradient<T> gradient;
  // At the first step the momentum is the gradient, whatever the buffer holds (it may be uninitialised).
  HOLON_FN explicit Sgd(const UpdateNumbers& c)
      : lr(static_cast<T>(c.lr)),
        scale(static_cast<T>(c.scale)),
        keep(static_cast<T>(c.beta1)),
        take(c.first ? T(1) : static_cast<T>(c.take)),
        first(c.first),
        gradient(c) {}
  HOLON_FN void operator()(T& p, T g, T& b, T&, T&) const {
    T d = scale * gradient(g, p);
    if constexpr (momentum) {
      const T old = first ? T(0) : b;
      const T m = keep * old + take * d;
      b = m;
      d = nesterov ? d + keep * m : m;
    }
    p -= lr * d;
  }
};

template <class T, bool amsgrad>
struct Adam {
  static constexpr uint32_t kTouched = amsgrad ? 7 : 3;
  T b1, b2, a1, a2, eps, shrink, lr, root;
  Gradient<T> gradient;
  HOLON_FN explicit Adam(const UpdateNumbers& c)
      : b1(static_cast<T>(c.beta1)),
        b2(static_cast<T>(c.beta2)),
        a1(static_cast<T>(1 - c.beta1)),
        a2(static_cast<T>(1 - c.beta2)),
        eps(static_cast<T>(c.eps)),
        shrink(static_cast<T>(c.shrink)),
        lr(static_cast<T>(c.lr)),
        root(static_cast<T>(c.root_correction)),
        gradient(c) {}
  HOLON_FN void operator()(T& p, T g, T& m, T& v, T& largest) const {
    const T d = gradient(g, p);
    const T first = b1 * m + a1 * d, second = b2 * v + a2 * d * d;
    m = first;
    v = second;
    T size = second;
    if constexpr (amsgrad) {
      size = largest > second ? largest : second;
      largest = size;
    }
    p = p * shrink - lr * first / (f::sqrt(size) * root + eps);
  }
};

template <class T>
struct Adagrad {
  static constexpr uint32_t kTouched = 1;
  T lr, eps;
  Gradient<T> gradient;
  HOLON_FN explicit Adagrad(const UpdateNumbers& c)
      : lr(static_cast<T>(c.lr)), eps(static_cast<T>(c.eps)), gradient(c) {}
  HOLON_FN void operator()(T& p, T g, T& sum, T&, T&) const {
    const T d = gradient(g, p), s = sum + d * d;
    sum = s;
    p -= lr * d / (f::sqrt(s) + eps);
  }
};

template <class T>
struct Adadelta {
  static constexpr uint32_t kTouched = 3;
  T lr, eps, rho, rest;
  Gradient<T> gradient;
  HOLON_FN explicit Adadelta(const UpdateNumbers& c)
      : lr(static_cast<T>(c.lr)),
        eps(static_cast<T>(c.eps)),
        rho(static_cast<T>(c.beta1)),
        rest(static_cast<T>(1 - c.beta1)),
        gradient(c) {}
  HOLON_FN void operator()(T& p, T g, T& squares, T& steps, T&) const {
    const T d = gradient(g, p), s = rho * squares + rest * d * d, old = steps;
    const T step = f::sqrt(old + eps) / f::sqrt(s + eps) * d;
    squares = s;
    steps = rho * old + rest * step * step;
    p -= lr * step;
  }
};

template <class T, bool centered, bool momentum>
struct Rmsprop {
  static constexpr uint32_t kTouched = 1 | (centered ? 2 : 0) | (momentum ? 4 : 0);
  T lr, eps, root_eps, alpha, rest, keep;
  Gradient<T> gradient;
  HOLON_FN explicit Rmsprop(const UpdateNumbers& c)
      : lr(static_cast<T>(c.lr)),
        eps(static_cast<T>(c.eps)),
        root_eps(static_cast<T>(c.root_eps)),
        alpha(static_cast<T>(c.beta2)),
        rest(static_cast<T>(1 - c.beta2)),
        keep(static_cast<T>(c.beta1)),
        gradient(c) {}
  HOLON_FN void operator()(T& p, T g, T& squares, T& means, T& b) const {
    const T d = gradient(g, p);
    T s = alpha * squares + rest * d * d;
    squares = s;
    if constexpr (centered) {
      const T mean = alpha * means + rest * d;
      means = mean;
      s = s - mean * mean;
      s = s < T(0) ? T(0) : s;  // rounding may take the variance below 0
    }
    T step = d / (f::sqrt(s + root_eps) + eps);
    if constexpr (momentum) {
      step = keep * b + step;
      b = step;
    }
    p -= lr * step;
  }
};

// The direction of Lamb is not kept: the second pass makes it again from what it is made of.
template <class T>
struct LambDirection {
  T correction, root, root_eps, eps, decay;
  HOLON_FN explicit LambDirection(const UpdateNumbers& c)
      : correction(static_cast<T>(c.correction)),
        root(static_cast<T>(c.root_correction)),
        root_eps(static_cast<T>(c.root_eps)),
        eps(static_cast<T>(c.eps)),
        decay(static_cast<T>(c.late_decay)) {}
  HOLON_FN T operator()(T p, T m, T v) const {
    return correction * m / (f::sqrt(v + root_eps) * root + eps) + decay * p;
  }
};

template <class T>
struct Lamb {
  static constexpr uint32_t kTouched = 3;
  static constexpr bool kOnlyReads = true;  // the gradient is in its averages
  T lr;
  LambDirection<T> direction;
  HOLON_FN explicit Lamb(const UpdateNumbers& c) : lr(static_cast<T>(c.lr)), direction(c) {}
  HOLON_FN void operator()(T& p, T, T& m, T& v, T&) const { p -= lr * direction(p, m, v); }
};

// The first pass of Lamb: updates the averages and returns the direction.
template <class T>
struct LambAverages {
  T b1, b2, a1, a2;
  LambDirection<T> direction;
  Gradient<T> gradient;
  HOLON_FN explicit LambAverages(const UpdateNumbers& c)
      : b1(static_cast<T>(c.beta1)),
        b2(static_cast<T>(c.beta2)),
        a1(static_cast<T>(1 - c.beta1)),
        a2(static_cast<T>(1 - c.beta2)),
        direction(c),
        gradient(c) {}
  HOLON_FN T operator()(T p, T g, T& m, T& v) const {
    const T d = gradient(g, p), first = b1 * m + a1 * d, second = b2 * v + a2 * d * d;
    m = first;
    v = second;
    return direction(p, first, second);
  }
};

// One of the terms that a norm is the sum of.
template <NormKind kind, class T>
HOLON_FN T norm_term(T x, T power) {
  if constexpr (kind == NormKind::kSquares)
    return x * x;
  else if constexpr (kind == NormKind::kPowers)
    return f::pow(f::abs(x), power);
  else if constexpr (kind == NormKind::kCount)
    return x != T(0) ? T(1) : T(0);
  else
    return f::abs(x);
}

// As trust_ratios() in optim.h has it, of sums of squares.
HOLON_FN double trust_ratio(bool lamb, double coefficient, double decay, double eps, double p2, double d2) {
  const double p = f::sqrt(p2), d = f::sqrt(d2);
  if (!(p > 0 && d > 0)) return 1;
  return lamb ? p / d : coefficient * p / (d + decay * p + eps);
}

// Of the norm_terms' sum, or of their extreme.
HOLON_FN double norm_of_sum(NormKind kind, double power, double sum) {
  if (kind == NormKind::kSquares) return f::sqrt(sum);
  return kind == NormKind::kPowers ? f::pow(sum, 1 / power) : sum;
}

// By what tensors of this norm are multiplied so that it is at most limit: 1 or less, 1 where the norm is NaN. wide: as
// in optim.h.
HOLON_FN double clip_factor(double norm, double limit, bool wide) {
  const double rounded = wide ? norm : static_cast<double>(static_cast<float>(norm));
  const double factor = limit / (rounded + 1e-6);
  return factor < 1 ? factor : 1;
}

// x * factor, then not below low and not above high; a NaN stays.
template <bool clamped, class T>
HOLON_FN T scaled(T x, T factor, T low, T high) {
  x *= factor;
  if constexpr (clamped) {
    x = x < low ? low : x;
    x = x > high ? high : x;
  }
  return x;
}

}  // namespace holon::kernels::HOLON_ISA::rules
