// Regions in which ops cast their inputs: products run in bfloat16 (or float16), losses and sums in float32, each op
// after its class (Autocast in holon/registry/op_def.h). The casts are recorded, so that gradients arrive at float32
// leaves in float32. A region belongs to the rank, like the gradient mode.
#pragma once

#include "holon/array/dtype.h"
#include "holon/tensor/tensor.h"

namespace holon {

struct OpDef;

// Whether a region is open, and what it casts to.
struct AutocastMode {
  bool enabled = false;
  DType dtype = DType::kBFloat16;
  bool cache = true;  // a leaf that requires grad is cast once in the outermost region, not at each use
  int depth = 0;      // regions that are open
};
// The mode of this rank.
const AutocastMode& autocast_mode();
// Puts a mode in place and returns the one before. At depth 0 the cast leaves are let go.
// Errors: enabled with a dtype that is neither bfloat16 nor float16 (ValueError).
AutocastMode exchange_autocast(const AutocastMode& mode);
// Forgets the casts of leaves that the region has kept.
void clear_autocast_cache();

// A region for a scope. enabled = false: ops inside it run as written.
class AutocastGuard {
 public:
  explicit AutocastGuard(DType dtype = DType::kBFloat16, bool enabled = true, bool cache = true)
      : before_(exchange_autocast({enabled, dtype, cache, autocast_mode().depth + 1})) {}
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
    if (active_)
      before_ = exchange_autocast({false, autocast_mode().dtype, autocast_mode().cache, autocast_mode().depth});
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

// Casts inputs as the op's class says. Pre: a region is open and enabled.
void autocast_inputs(const OpDef& op, TensorVec& inputs);

}  // namespace holon
