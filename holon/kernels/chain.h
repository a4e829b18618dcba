// Element-wise kernels as a list of steps, so that a device's backend can make one kernel of several ops. Nothing about
// an op is written down a second time: its kernel function is called as ever, on arrays without memory, and what the
// kernel functions of this folder (elementwise.h, copy.h) are called with is recorded.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "holon/array/array.h"
#include "holon/base/small_vec.h"

namespace holon::kernels {

struct ChainStep {
  enum class Kind : uint8_t { kUnary, kBinary, kTernary, kWhere, kMaskedFill, kConvert };
  Kind kind;
  uint8_t op = 0;             // the UnaryOp, BinaryOp or TernaryOp
  SmallVec<int16_t, 3> in{};  // values: the chain's inputs, then the steps' results; kNumber
  DType dtype;                // of the operands; of where() and masked_fill() that of what is selected
  DType out;                  // of the result
  // Numbers as elements of the type that is computed in (of masked_fill(): of the dtype): the operand kNumber, then
  // p0, p1, p2 as far as they are given.
  SmallVec<uint64_t, 4> numbers{};
  const char* name;  // of the op that it is a part of, for errors; never freed
};
inline constexpr int16_t kNumber = -1;

struct Chain {
  std::vector<DType> inputs;
  std::vector<ChainStep> steps;
  std::vector<int16_t> results;  // values
  DType dtype_of(int16_t value) const;
};

// Records the calls of kernel functions on this thread while it lives. Pre: one at a time on a thread.
class ChainRecorder {
 public:
  ChainRecorder();
  ~ChainRecorder();
  ChainRecorder(const ChainRecorder&) = delete;
  ChainRecorder& operator=(const ChainRecorder&) = delete;

  // Arrays are known by their storage, so each has its own (Array::placeholder). They are on a device.
  void add_input(const Array& a);
  void set_name(const char* op) { name_ = op; }
  // What was recorded, with the values that the arrays have now as results. nullopt: a kernel function was called that
  // is not element-wise, or with a window on an array.
  std::optional<Chain> take(std::span<const Array> results);

  // For the recorded kernel functions.
  void add(ChainStep step, std::initializer_list<const Array*> in, const Array& out);
  void give_up() { failed_ = true; }

 private:
  int16_t find(const Array& a) const;
  Chain chain_;
  std::vector<std::pair<Array, int16_t>> known_;  // in the order of their writing
  const char* name_ = "";
  bool failed_ = false;
};

// An axis that all arrays of a chain are gone through along, with the strides of its inputs and then of its outputs in
// elements, 0 where one is repeated.
struct ChainAxis {
  int64_t size;
  SmallVec<int64_t, 8> strides;
};

class ChainKernel {
 public:
  virtual ~ChainKernel() = default;
  // Puts the kernel on the current rank's stream; no output overlaps an input, except one of its dtype and strides at
  // the same place. False: it could not be made for the memory given, and nothing was done. Errors: those of the steps.
  virtual bool run(std::span<const Array* const> in, std::span<Array* const> out) = 0;
};

// Whether there is a variant of make_chain_kernel() for the device: else there is no use in recording.
bool compiles_chains(Device device);

// One kernel for the chain, over axes from the outermost to the innermost, at least one. It gives what the kernel
// functions give one after the other, bit by bit. nullptr where the backend cannot make one, which it says once.
std::unique_ptr<ChainKernel> make_chain_kernel(const Chain& chain, std::span<const ChainAxis> axes, Device device);

}  // namespace holon::kernels
