#include "holon/kernels/ctc.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/base/parallel.h"
#include "holon/kernels/device.h"

namespace holon::kernels {
namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();

double log_sum(double a, double b) {
  const double most = std::max(a, b);
  return most == kNever ? kNever : most + std::log1p(std::exp(std::min(a, b) - most));
}

template <class T>
struct Problem {
  const T* log_probs;
  const int64_t *targets, *input_lengths, *target_lengths;
  int64_t steps, n, classes, longest, blank;

  Problem(const Array& p, const Array& t, const Array& in, const Array& out, int64_t blank_class)
      : log_probs(p.data<T>()),
        targets(t.data<int64_t>()),
        input_lengths(in.data<int64_t>()),
        target_lengths(out.data<int64_t>()),
        steps(p.shape[0]),
        n(p.shape[1]),
        classes(p.shape[2]),
        longest(t.shape[1]),
        blank(blank_class) {
    for (int64_t i = 0; i < n; ++i) {
      if (input_lengths[i] < 0 || input_lengths[i] > steps)
        fail_value("ctc_loss: input length {} of sample {} is outside [0, {}], the steps of log_probs.",
                   input_lengths[i], i, steps);
      if (target_lengths[i] < 0 || target_lengths[i] > longest)
        fail_value("ctc_loss: target length {} of sample {} is outside [0, {}], the labels that there are.",
                   target_lengths[i], i, longest);
      for (int64_t k = 0; k < target_lengths[i]; ++k)
        if (const int64_t c = targets[i * longest + k]; c < 0 || c >= classes)
          fail(ErrorKind::kIndex, "ctc_loss: label {} of sample {} is {}, outside [0, {}). Check the targets.", k, i, c,
               classes);
    }
  }

  int64_t states() const { return 2 * longest + 1; }
  int64_t states(int64_t i) const { return 2 * target_lengths[i] + 1; }
  // The class of a state: labels with a blank before, between and behind.
  int64_t class_of(int64_t i, int64_t s) const { return s % 2 ? targets[i * longest + s / 2] : blank; }
  // Whether an alignment may go from state s - 2 to s without the blank between.
  bool skips(int64_t i, int64_t s) const { return s % 2 && s >= 2 && class_of(i, s) != class_of(i, s - 2); }
  double log_prob(int64_t t, int64_t i, int64_t s) const {
    return static_cast<double>(log_probs[(t * n + i) * classes + class_of(i, s)]);
  }
};

template <class T>
void forward(const Problem<T>& p, T* loss, double* alphas) {
  parallel_for(p.n, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      double* alpha = alphas + i * p.steps * p.states();
      std::fill(alpha, alpha + p.steps * p.states(), kNever);
      const int64_t steps = p.input_lengths[i], states = p.states(i);
      if (steps == 0) {  // the only alignment is the empty one, of no labels
        loss[i] = p.target_lengths[i] == 0 ? T(0) : std::numeric_limits<T>::infinity();
        continue;
      }
      alpha[0] = p.log_prob(0, i, 0);
      if (states > 1) alpha[1] = p.log_prob(0, i, 1);
      for (int64_t t = 1; t < steps; ++t) {
        const double* before = alpha + (t - 1) * p.states();
        double* now = alpha + t * p.states();
        for (int64_t s = 0; s < states; ++s) {
          double sum = before[s];
          if (s >= 1) sum = log_sum(sum, before[s - 1]);
          if (p.skips(i, s)) sum = log_sum(sum, before[s - 2]);
          now[s] = sum + p.log_prob(t, i, s);
        }
      }
      const double* last = alpha + (steps - 1) * p.states();
      loss[i] = static_cast<T>(-(states > 1 ? log_sum(last[states - 1], last[states - 2]) : last[0]));
    }
  });
}

template <class T>
void backward(const Problem<T>& p, const T* dloss, const double* alphas, T* d) {
  parallel_for(p.n, 1, [&](int64_t begin, int64_t end) {
    // beta: the logarithm of the probability of what follows step t, from state s on.
    std::vector<double> beta(to_size(p.states())), later(to_size(p.states()));
    for (int64_t i = begin; i < end; ++i) {
      const int64_t steps = p.input_lengths[i], states = p.states(i);
      for (int64_t t = 0; t < p.steps; ++t) std::fill_n(d + (t * p.n + i) * p.classes, p.classes, T(0));
      if (dloss[i] == T(0)) continue;
      const double* alpha = alphas + i * p.steps * p.states();
      double total = kNever;
      if (steps > 0) {
        const double* last = alpha + (steps - 1) * p.states();
        total = states > 1 ? log_sum(last[states - 1], last[states - 2]) : last[0];
      }
      for (int64_t t = steps - 1; t >= 0; --t) {
        if (t == steps - 1) {
          std::fill(beta.begin(), beta.end(), kNever);
          at_index(beta, states - 1) = 0;
          if (states > 1) at_index(beta, states - 2) = 0;
        } else {
          std::swap(beta, later);
          for (int64_t s = 0; s < states; ++s) {
            double sum = at_index(later, s) + p.log_prob(t + 1, i, s);
            if (s + 1 < states) sum = log_sum(sum, at_index(later, s + 1) + p.log_prob(t + 1, i, s + 1));
            if (s + 2 < states && p.skips(i, s + 2))
              sum = log_sum(sum, at_index(later, s + 2) + p.log_prob(t + 1, i, s + 2));
            at_index(beta, s) = sum;
          }
        }
        T* row = d + (t * p.n + i) * p.classes;
        for (int64_t s = 0; s < states; ++s) {
          // An impossible labelling has no derivative: NaN, unless its dloss is 0.
          const double through = alpha[t * p.states() + s] + at_index(beta, s) - total;
          row[p.class_of(i, s)] -= static_cast<T>(static_cast<double>(dloss[i]) * std::exp(through));
        }
      }
    }
  });
}

template <class F>
void visit(const Array& log_probs, F f) {
  HOLON_CHECK(log_probs.dtype == DType::kFloat32 || log_probs.dtype == DType::kFloat64, "ctc_loss of {}",
              name(log_probs.dtype));
  if (log_probs.dtype == DType::kFloat64)
    f(double{});
  else
    f(float{});
}

}  // namespace

void ctc_loss(const Array& log_probs, const Array& targets, const Array& input_lengths, const Array& target_lengths,
              int64_t blank, Array& loss, Array& alpha) {
  HOLON_ON_DEVICE(loss, ctc_loss, log_probs, targets, input_lengths, target_lengths, blank, loss, alpha);
  visit(log_probs, [&](auto tag) {
    using T = decltype(tag);
    const Problem<T> p(log_probs, targets, input_lengths, target_lengths, blank);
    forward(p, loss.data<T>(), alpha.data<double>());
  });
}

void ctc_loss_backward(const Array& dloss, const Array& log_probs, const Array& targets, const Array& input_lengths,
                       const Array& target_lengths, const Array& alpha, int64_t blank, Array& d) {
  HOLON_ON_DEVICE(d, ctc_loss_backward, dloss, log_probs, targets, input_lengths, target_lengths, alpha, blank, d);
  visit(log_probs, [&](auto tag) {
    using T = decltype(tag);
    const Problem<T> p(log_probs, targets, input_lengths, target_lengths, blank);
    backward(p, dloss.data<T>(), alpha.data<double>(), d.data<T>());
  });
}

}  // namespace holon::kernels
