// Numbers and choices that kernels are given, on every device. The CPU's files for each instruction set include it, so
// it has no function that is not inlined (cpu/table.h).
#pragma once

#include <cstdint>

namespace holon::kernels {

// The types that loops compute in.
enum class Compute : uint8_t { kF32, kF64, kI32, kI64 };
inline constexpr int kComputeCount = 4;

// A number given as an argument: exact as an integer if it was one.
struct Number {
  double d;
  int64_t i;

  template <class T>
  [[gnu::always_inline]] constexpr T to() const {
    return static_cast<T>(0.5) != 0 ? static_cast<T>(d) : static_cast<T>(i);
  }
};

enum class ReduceOp : uint8_t { Sum, Prod, Max, Min, SumSquares, AbsMax, SumAbs, kCount, Mean, Any, All };

// Of a distribution (random.h).
struct RandomNumbers {
  double a = 0, b = 0, c = 0, d = 0, low = 0, high = 0;
  uint64_t threshold = 0;
  int64_t from = 0;
};

// Optimizer steps.
enum class UpdateRule : uint8_t { kSgd, kAdam, kAdagrad, kAdadelta, kRmsprop, kLamb, kCount };
struct UpdateNumbers {
  double lr = 0;                // of this step, with what a rule divides out of it
  double weight_decay = 0;      // times the parameter, is added to the gradient
  double shrink = 1;            // the parameter is multiplied by it first: decoupled weight decay
  double late_decay = 0;        // Lamb: times the parameter, is added to the direction
  double beta1 = 0, beta2 = 0;  // how much of the averages is kept; Sgd: beta1 is the momentum
  double take = 1;              // Sgd: how much of the gradient joins the momentum
  double eps = 0;
  double root_eps = 0;         // Rmsprop, Lamb: is added under the root
  double correction = 1;       // Lamb: of the mean's bias
  double root_correction = 1;  // Adam, Lamb: of the bias of the square's root
  double scale = 1;            // Sgd: of gradient and decay (LARS)
  bool maximize = false, nesterov = false;
  bool first = false;  // Sgd: the momentum is the gradient; nothing is read from its buffer
};

// What becomes one number of many: sums of squares, of absolute values, of powers of them, counts of what is not 0,
// extremes.
enum class NormKind : uint8_t { kSquares, kSum, kPowers, kCount, kLargest, kSmallest };

}  // namespace holon::kernels
