// Consecutive steps of a plan on one rank, with everything worked out that can be before the arrays are there.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "holon/base/context.h"
#include "holon/base/index.h"
#include "holon/boxing/prepared.h"
#include "holon/boxing/rank_step.h"

namespace holon::boxing {

// prepared.h has what the calls mean.
class StepChain {
 public:
  // Steps [first, last). Pre: the plan outlives the chain.
  StepChain(const Plan& plan, size_t first, size_t last, int rank, Input input);

  bool has_in() const { return has_in_; }
  bool has_out() const { return has_out_; }
  const Dims& in_shape() const { return in_shape_; }
  const Dims& out_shape() const { return out_shape_; }
  bool communicates() const { return communicates_; }
  std::vector<std::span<const int>> collectives() const;
  bool communicates_on_devices() const;
  bool is_view() const { return is_view_; }
  Array view_of(const Array& in) const;
  int64_t read_bytes() const { return read_bytes_; }
  std::span<const size_t> scratch_bytes() const { return scratch_bytes_; }
  void run(const Array& in, const Array& out, std::span<const Array> scratch);
  // The same on memory that has been checked. in: with in_strides, row-major where prepared so.
  // On arrays of devices; into: where the result goes, or undefined. Returns the result.
  Array run_on_device(const Array& in, const Array& into);
  bool on_device() const { return on_device_; }
  void run_on(const std::byte* in, const Dims& in_strides, std::byte* out, std::span<const Array> scratch);
  void bind();

 private:
  static constexpr int kNone = -1, kOut = -2, kIn = -3;

  struct Op {
    RankStep step;
    int pack = kNone;  // the scratch array that may receive a row-major copy of the part before
    int part = kNone;  // where a new part is: a scratch array, or kOut
    comm::Communicator* group = nullptr;
  };

  void plan_memory(Input input);
  void check(const Array& in, const Array& out, std::span<const Array> scratch) const;
  size_t bytes_of(const Dims& shape) const { return to_size(shape.numel()) * size_bytes(plan_.dtype()); }

  const Plan& plan_;
  const Input input_;
  bool on_device_ = false;
  Device in_device_;
  bool has_in_ = false, has_out_ = false, communicates_ = false, is_view_ = false;
  int64_t read_bytes_ = 0;
  Dims in_shape_, out_shape_, out_strides_;
  std::vector<Op> ops_;
  std::vector<size_t> scratch_bytes_;
  const Context* bound_ = nullptr;  // the context that the groups belong to
};

// Errors: `a` is undefined, of another shape or dtype, or not row-major where it has to be. An array without elements
// may be undefined.
void check_part(const Array& a, const char* which, const Dims& shape, DType dtype, bool contiguous);

// Errors: too few arrays, or one that is too small or not in one piece.
void check_scratch(std::span<const Array> scratch, std::span<const size_t> bytes);

inline std::byte* memory_of(const Array& a) { return a.defined() ? a.bytes() : nullptr; }

}  // namespace holon::boxing
