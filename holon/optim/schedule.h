// Learning rates as pure functions of the step, which counts from 0: a factor of the base rate, or the rate itself
// where it does not only scale. Errors (ValueError): sizes of steps below 1, and options that a line names.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string_view>

namespace holon::optim {

// Rises linearly to peak over warmup_steps (the first step takes peak / warmup_steps), then falls along half a cosine
// to `lowest`, which it has from total_steps on.
double cosine_lr(int64_t step, double peak, int64_t warmup_steps, int64_t total_steps, double lowest = 0);

// base * gamma^(step / period), with the quotient rounded down.
double step_lr(int64_t step, double base, int64_t period, double gamma = 0.1);

double step_factor(int64_t step, int64_t period, double gamma);                             // gamma^(step / period)
double multi_step_factor(int64_t step, std::span<const int64_t> milestones, double gamma);  // gamma^(milestones passed)
double exponential_factor(int64_t step, double gamma);                                      // gamma^step
double constant_factor(int64_t step, double factor, int64_t total_iters);  // factor, and 1 from total_iters on
// From start to end along a line over total_iters steps.
double linear_factor(int64_t step, double start, double end, int64_t total_iters);
// From 1 to alpha along half a cosine over decay_steps, then alpha.
double cosine_decay_factor(int64_t step, int64_t decay_steps, double alpha);
// What warms up before a schedule: linear from `factor` to 1, or constant at `factor`; 1 from iters on. Errors: another
// method.
double warmup_factor(int64_t step, double factor, int64_t iters, std::string_view method);

// From base to eta_min along half a cosine over t_max steps, and back over the next t_max.
double cosine_annealing_lr(int64_t step, double base, int64_t t_max, double eta_min);
// Half a cosine from base to eta_min over t_0 steps, then again over t_0 * t_mult, and so on. Errors: t_mult below 1.
// The base is multiplied by decay_rate at each restart; from restart number restart_limit on (0: never) the rate is
// eta_min.
double cosine_warm_restarts_lr(int64_t step, double base, int64_t t_0, int64_t t_mult, double eta_min,
                               double decay_rate = 1, int64_t restart_limit = 0);
// (base - end) (1 - step / steps)^power + end; from `steps` on it is end, or with cycle falls again over twice, three
// times ... as many steps.
double polynomial_lr(int64_t step, double base, int64_t steps, double end, double power, bool cycle);

// One rise and one fall (https://arxiv.org/abs/1708.07120): from peak / div_factor to peak over pct_start of the steps,
// down to peak / div_factor / final_div_factor; with three_phase first down to where it began, as fast as it rose.
struct OneCycle {
  double peak = 0;
  int64_t total_steps = 0;
  double pct_start = 0.3;
  bool linear = false;  // else along cosines
  double div_factor = 25, final_div_factor = 1e4;
  bool three_phase = false;
  double base_momentum = 0.85, max_momentum = 0.95;  // the momentum goes the other way
  // Errors: step beyond total_steps; pct_start outside [0, 1].
  double lr(int64_t step) const;
  double momentum(int64_t step) const;

 private:
  double at(int64_t step, double start, double middle, double end) const;
};

// Back and forth between a base and a highest rate (https://arxiv.org/abs/1506.01186).
struct Cyclic {
  enum class Mode { kTriangular, kTriangular2, kExpRange };  // amplitude constant, halved each cycle, times gamma^step
  int64_t step_size_up = 2000, step_size_down = 2000;
  Mode mode = Mode::kTriangular;
  double gamma = 1;
  // Where between the base (0) and the highest rate (1) the step is, with the mode's shrinking.
  double share(int64_t step) const;
  double lr(int64_t step, double base, double highest) const { return base + (highest - base) * share(step); }
};

// The factor falls each time a metric has not improved for more than `patience` steps.
struct Plateau {
  bool maximize = false;  // the metric should rise
  double factor = 0.1;
  int64_t patience = 10, cooldown = 0;
  double threshold = 1e-4;
  bool relative = true;  // threshold is a share of the best value, else a difference

  double best = std::numeric_limits<double>::quiet_NaN();  // none yet
  int64_t bad_steps = 0, cooling = 0;
  // Takes in one metric; returns true if the rates are to be multiplied by factor now.
  bool observe(double metric);
  bool better(double metric) const;
};

}  // namespace holon::optim
