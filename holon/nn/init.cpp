#include "holon/nn/init.h"

#include <cmath>

#include <utility>

#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/ops/create.h"
#include "holon/ops/random.h"

namespace holon::nn::init {

namespace {
struct Skipping {
  bool on = false;
};
bool& skipping() { return Context::current().part<Skipping>().on; }
}  // namespace

SkipGuard::SkipGuard() : before_(std::exchange(skipping(), true)) {}
SkipGuard::~SkipGuard() { skipping() = before_; }

void constant_(Tensor t, double value) {
  if (skipping()) return;
  NoGradGuard guard;
  fill_(std::move(t), value);
}

void uniform_(Tensor t, double low, double high) {
  if (skipping()) return;
  NoGradGuard guard;
  holon::uniform_(std::move(t), low, high);
}

void normal_(Tensor t, double mean, double std) {
  if (skipping()) return;
  NoGradGuard guard;
  holon::normal_(std::move(t), mean, std);
}

void trunc_normal_(Tensor t, double mean, double std, double low, double high) {
  if (skipping()) return;
  NoGradGuard guard;
  holon::trunc_normal_(std::move(t), mean, std, low, high);
}

Fan fan_of(const Dims& shape) {
  if (shape.size() < 2)
    fail_value("an initialiser that uses the fan needs a weight [out, in, ...] of at least two axes; found {}. Use "
               "uniform_ or normal_.",
               shape);
  int64_t window = 1;
  for (int i = 2; i < shape.size(); ++i) window *= shape[i];
  return {shape[1] * window, shape[0] * window};
}

namespace {
double rectifier_gain(double a) { return std::sqrt(2 / (1 + a * a)); }
// A weight without inputs has no elements: any bound will do.
double inverse_root(double n) { return n > 0 ? 1 / std::sqrt(n) : 0; }
}  // namespace

void kaiming_uniform_(Tensor t, double a) {
  double bound = rectifier_gain(a) * std::sqrt(3.0) * inverse_root(static_cast<double>(fan_of(t.shape()).in));
  init::uniform_(std::move(t), -bound, bound);
}

void kaiming_normal_(Tensor t, double a) {
  double std = rectifier_gain(a) * inverse_root(static_cast<double>(fan_of(t.shape()).in));
  init::normal_(std::move(t), 0, std);
}

void xavier_uniform_(Tensor t, double gain) {
  Fan fan = fan_of(t.shape());
  double bound = gain * std::sqrt(6.0) * inverse_root(static_cast<double>(fan.in + fan.out));
  init::uniform_(std::move(t), -bound, bound);
}

void xavier_normal_(Tensor t, double gain) {
  Fan fan = fan_of(t.shape());
  double std = gain * std::sqrt(2.0) * inverse_root(static_cast<double>(fan.in + fan.out));
  init::normal_(std::move(t), 0, std);
}

}  // namespace holon::nn::init
