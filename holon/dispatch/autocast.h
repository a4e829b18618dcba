// Regions in which ops cast their inputs: products run in bfloat16 (or float16), losses and sums in float32, each op
// after its class (Autocast in holon/registry/op_def.h). The casts are recorded, so that gradients arrive at float32
// leaves in float32. A region belongs to the rank, like the gradient mode.
//
// In a region of a float8 dtype, ops of that class run in bfloat16, and the factors of matmul and linear are rounded to
// the dtype first, the gradients of their results to float8_e5m2, each scaled by a power of two (round_float8): the
// product of such numbers is what one in float8 that adds up in float32 gives, and has no need of one. The scales
// follow the values of the step itself, or a recipe.
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "holon/array/dtype.h"
#include "holon/dispatch/float8_recipe.h"
#include "holon/tensor/tensor.h"

namespace holon {

struct OpDef;

// Whether a region is open, and what it casts to.
struct AutocastMode {
  bool enabled = false;
  DType dtype = DType::kBFloat16;
  bool cache = true;  // a leaf that requires grad is cast once in the outermost region, not at each use
  int depth = 0;      // regions that are open
  // Of a float8 dtype: the sides of the blocks that have a scale each, of weights; of the other factor and of gradients
  // as many columns of one row. 0: one scale for a tensor.
  int64_t float8_block = 0;
  // Scales products by the parameters that it has; nullptr: there is none. Excludes blocks.
  std::shared_ptr<Float8Recipe> recipe{};
};
// Those that a region may have.
constexpr bool is_autocast_dtype(DType dtype) {
  return dtype == bfloat16 || dtype == float16 || dtype == float8_e4m3fn || dtype == float8_e5m2;
}
// The mode of this rank.
const AutocastMode& autocast_mode();
// Puts a mode in place and returns the one before. At depth 0 the cast leaves are let go.
// Errors (ValueError): enabled with a dtype that is none of bfloat16, float16, float8_e4m3fn and float8_e5m2; a
// negative block; a recipe with blocks, or with a dtype that is not float8.
AutocastMode exchange_autocast(const AutocastMode& mode);
// Forgets the casts of leaves that the region has kept.
void clear_autocast_cache();

// A region for a scope. enabled = false: ops inside it run as written.
class AutocastGuard {
 public:
  explicit AutocastGuard(DType dtype = DType::kBFloat16, bool enabled = true, bool cache = true,
                         int64_t float8_block = 0, std::shared_ptr<Float8Recipe> recipe = {})
      : before_(
            exchange_autocast({enabled, dtype, cache, autocast_mode().depth + 1, float8_block, std::move(recipe)})) {}
  ~AutocastGuard() { exchange_autocast(before_); }
  AutocastGuard(const AutocastGuard&) = delete;
  AutocastGuard& operator=(const AutocastGuard&) = delete;

 private:
  AutocastMode before_;
};

// For a backward walk: gradients run in the dtypes of what was recorded. The cast leaves are let go, whose nodes the
// walk frees.
class AutocastPause {
 public:
  AutocastPause() : active_(autocast_mode().depth > 0) {
    if (!active_) return;
    AutocastMode off = autocast_mode();
    off.enabled = false;
    before_ = exchange_autocast(off);
  }
  ~AutocastPause() {
    if (!active_) return;
    exchange_autocast(before_);
    clear_autocast_cache();
  }
  AutocastPause(const AutocastPause&) = delete;
  AutocastPause& operator=(const AutocastPause&) = delete;

 private:
  bool active_;
  AutocastMode before_;
};

// A product in a region of a float8 dtype, whose factors have been rounded: what the gradients of its results are to be
// rounded by.
struct Float8Product {
  int64_t block = 0;               // 0: one scale for a tensor
  Float8Scales* scales = nullptr;  // of the recipe
  Tensor result{};                 // defined where it is there already, with its gradients
};
// Casts inputs as the op's class says. For a product in float8, round_gradients() is to be called for the outputs,
// unless the result is there. Pre: a region is open and enabled.
std::optional<Float8Product> autocast_inputs(const OpDef& op, TensorVec& inputs);
void round_gradients(const Float8Product& product, TensorVec& outputs);

}  // namespace holon
