// Update rules: functions of parameters, gradients, state and step, over many tensors at once.
//
// Tensors may be local or global, in any mixture. Each rank updates the parts that it holds; a gradient whose placement
// or sbp is not its parameter's is redistributed to it first (collective), and LAMB and LARS add up their norms over
// the ranks. An undefined gradient skips its parameter. The state has its parameter's layout, and its dtype, but
// float32 for bfloat16 and float16, in which arithmetic runs in float32. A partial sum is updated addend by addend
// where the rule is linear (SGD); otherwise as a broadcast tensor, whose layout its state then has. Nothing is recorded
// for backward; the version of every changed tensor is counted up.
//
// Common errors (holon::Error, before anything is changed): lists of unlike lengths; a gradient or a state of another
// shape, dtype or kind (local, global) than its parameter; a parameter that is not of floating point; options out of
// range.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "holon/tensor/tensor.h"

namespace holon::optim {

// The update rules.
enum class RuleKind : uint8_t { kSgd, kAdam, kAdagrad, kAdadelta, kRmsprop, kLamb, kLars };

// A rule with its options; what a rule does not know stays unread.
struct Rule {
  RuleKind kind = RuleKind::kSgd;
  double lr = 1e-3, weight_decay = 0, eps = 1e-8;
  double momentum = 0, dampening = 0;                  // SGD, RMSprop, LARS
  double beta1 = 0.9, beta2 = 0.999;                   // Adam, LAMB
  double rho = 0.9;                                    // Adadelta's rho, RMSprop's alpha
  double lr_decay = 0, initial_accumulator_value = 0;  // Adagrad
  double trust_coefficient = 1e-3;                     // LARS
  bool nesterov = false, maximize = false, amsgrad = false, centered = false;
  bool decoupled = false;  // Adam, LAMB: weight decay as in AdamW
  bool bias_correction = true;
  bool lr_in_momentum = false;      // SGD: v = momentum v - lr g and p += v, so that a step keeps the lr it was made by
  bool eps_in_root = false;         // RMSprop, LAMB: g / sqrt(v + eps) instead of g / (sqrt(v) + eps)
  bool ratio_before_decay = false;  // LAMB, decoupled: the trust ratio is that of the direction without the decay
  bool master_weights = false;      // parameters of two bytes are the rounded copies of float32 ones
};

// The most tensors that a rule keeps of a parameter.
inline constexpr int kMaxStates = 3;

// One parameter with what a rule keeps for it. State is undefined until the first step and made there.
struct Slot {
  Tensor param, grad;
  Tensor master;                         // float32; with master_weights
  std::array<Tensor, kMaxStates> state;  // named by state_name()
  Array gradient_scale;  // where what the gradient is multiplied by is, as kernels::UpdateTensor has it; undefined: 1
  bool narrow = false;   // the gradient may be of two bytes an element where the parameter is float32
  int64_t step = 0;      // steps done
};

// The name of a state as in PyTorch ("exp_avg"); nullptr where the rule, with its options, has none.
const char* state_name(const Rule& rule, int i);
// The dtype and layout that a state (or the master copy) of the parameter has. spec: nullptr for a local one.
DType state_dtype(const Tensor& param);
const GlobalSpec* state_spec(const Rule& rule, const Tensor& param);

// Errors (ValueError): an option out of range.
void check(const Rule& rule);

// One step of all slots that have a gradient. In the scope of a kernels::RecordedUpdate it is the next step that is
// recorded, or whose numbers are requested: nothing is counted, and what needs more than one kernel does not fit.
void update(const Rule& rule, std::span<Slot> slots);
// Counts a step that a recording has made.
void count_update(const Rule& rule, std::span<Slot> slots);

}  // namespace holon::optim
