#include "holon/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "holon/base/ceil_div.h"
#include "holon/base/error.h"

namespace holon::optim {

namespace {

void at_least_one(int64_t n, const char* what) {
  if (n < 1) fail_value("{} must be at least 1 step, found {}.", what, n);
}

double real(int64_t n) { return static_cast<double>(n); }

// 1 at 0, 0 at 1.
double half_cosine(double done) { return 0.5 * (1 + std::cos(std::numbers::pi * done)); }

}  // namespace

double cosine_lr(int64_t step, double peak, int64_t warmup_steps, int64_t total_steps, double lowest) {
  if (step < warmup_steps) return peak * real(step + 1) / real(warmup_steps);
  if (step >= total_steps) return lowest;
  double done = real(step - warmup_steps) / real(total_steps - warmup_steps);
  return lowest + (peak - lowest) * half_cosine(done);
}

double step_lr(int64_t step, double base, int64_t period, double gamma) {
  return base * step_factor(step, period, gamma);
}

double step_factor(int64_t step, int64_t period, double gamma) {
  at_least_one(period, "step_lr: the period");
  return std::pow(gamma, real(step / period));
}

double multi_step_factor(int64_t step, std::span<const int64_t> milestones, double gamma) {
  auto passed = std::count_if(milestones.begin(), milestones.end(), [&](int64_t m) { return m <= step; });
  return std::pow(gamma, real(passed));
}

double exponential_factor(int64_t step, double gamma) { return std::pow(gamma, real(step)); }

double constant_factor(int64_t step, double factor, int64_t total_iters) { return step < total_iters ? factor : 1; }

double linear_factor(int64_t step, double start, double end, int64_t total_iters) {
  if (step >= total_iters) return end;
  return start + (end - start) * real(step) / real(total_iters);
}

double cosine_decay_factor(int64_t step, int64_t decay_steps, double alpha) {
  at_least_one(decay_steps, "cosine_decay_factor: decay_steps");
  return step < decay_steps ? (1 - alpha) * half_cosine(real(step) / real(decay_steps)) + alpha : alpha;
}

double warmup_factor(int64_t step, double factor, int64_t iters, std::string_view method) {
  if (method != "linear" && method != "constant")
    fail_value("warmup: the method is '{}'; it must be 'linear' or 'constant'.", method);
  return method == "linear" ? linear_factor(step, factor, 1, iters) : constant_factor(step, factor, iters);
}

double cosine_annealing_lr(int64_t step, double base, int64_t t_max, double eta_min) {
  at_least_one(t_max, "cosine_annealing_lr: t_max");
  return eta_min + (base - eta_min) * half_cosine(real(step) / real(t_max));
}

double cosine_warm_restarts_lr(int64_t step, double base, int64_t t_0, int64_t t_mult, double eta_min,
                               double decay_rate, int64_t restart_limit) {
  at_least_one(t_0, "cosine_warm_restarts_lr: t_0");
  if (t_mult < 1) fail_value("cosine_warm_restarts_lr: t_mult must be at least 1, found {}.", t_mult);
  int64_t period = t_0, restarts = 0;
  if (t_mult == 1) {
    restarts = step / t_0;
    step %= t_0;
  } else {
    for (; step >= period; period *= t_mult, ++restarts) step -= period;
  }
  if (restart_limit > 0 && restarts >= restart_limit) return eta_min;
  base *= std::pow(decay_rate, real(restarts));
  return eta_min + (base - eta_min) * half_cosine(real(step) / real(period));
}

double polynomial_lr(int64_t step, double base, int64_t steps, double end, double power, bool cycle) {
  at_least_one(steps, "polynomial_lr: steps");
  double period = real(steps);
  if (cycle) {
    step = std::max<int64_t>(1, step);
    period *= real(ceil_div(step, steps));
  } else {
    step = std::min(step, steps);
  }
  return (base - end) * std::pow(1 - real(step) / period, power) + end;
}

double OneCycle::at(int64_t step, double start, double middle, double end) const {
  at_least_one(total_steps, "OneCycle: total_steps");
  if (!(pct_start >= 0 && pct_start <= 1)) fail_value("OneCycle: pct_start must be in [0, 1], found {}.", pct_start);
  if (step < 0 || step > total_steps)
    fail_value("OneCycle: step {} of {}. Pass the number of all steps as total_steps.", step, total_steps);
  const double total = real(total_steps), up = pct_start * total - 1;
  struct Phase {
    double last, from, to;
  };
  const Phase two[] = {{up, start, middle}, {total - 1, middle, end}};
  const Phase three[] = {{up, start, middle}, {2 * pct_start * total - 2, middle, start}, {total - 1, start, end}};
  const std::span<const Phase> phases = three_phase ? std::span<const Phase>(three) : std::span<const Phase>(two);
  double first = 0;
  for (size_t i = 0; i < phases.size(); ++i) {
    if (real(step) <= phases[i].last || i + 1 == phases.size()) {
      const double length = phases[i].last - first, done = length > 0 ? (real(step) - first) / length : 1;
      const double share = linear ? 1 - done : half_cosine(done);
      return phases[i].to + (phases[i].from - phases[i].to) * share;
    }
    first = phases[i].last;
  }
  return end;
}

double OneCycle::lr(int64_t step) const {
  return at(step, peak / div_factor, peak, peak / div_factor / final_div_factor);
}

double OneCycle::momentum(int64_t step) const { return at(step, max_momentum, base_momentum, max_momentum); }

double Cyclic::share(int64_t step) const {
  at_least_one(step_size_up, "Cyclic: step_size_up");
  at_least_one(step_size_down, "Cyclic: step_size_down");
  const int64_t period = step_size_up + step_size_down, at = step % period;
  const double height = at <= step_size_up ? real(at) / real(step_size_up) : real(period - at) / real(step_size_down);
  switch (mode) {
    case Mode::kTriangular: return height;
    case Mode::kTriangular2: return height / std::pow(2, real(step / period));
    case Mode::kExpRange: return height * std::pow(gamma, real(step));
  }
  return height;
}

bool Plateau::better(double metric) const {
  if (std::isnan(best)) return !std::isnan(metric);
  const double by = relative ? threshold * best : threshold;
  return maximize ? metric > best + by : metric < best - by;
}

bool Plateau::observe(double metric) {
  if (better(metric)) {
    best = metric;
    bad_steps = 0;
  } else {
    ++bad_steps;
  }
  if (cooling > 0) {
    --cooling;
    bad_steps = 0;
  }
  if (bad_steps <= patience) return false;
  cooling = cooldown;
  bad_steps = 0;
  return true;
}

}  // namespace holon::optim
