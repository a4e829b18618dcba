// Between what moves data and the contract that is recorded or in force: every boxing gets its plan here.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "holon/boxing/planner.h"
#include "holon/contract/document.h"

namespace holon::contract {

enum class Why : uint8_t {
  kAsked,    // by the program, or by what belongs to the call
  kInput,    // an op redistributes an input by itself
  kInside,   // the kernel reads what it lacks of an input
  kWritten,  // a result is written into a tensor of another layout
};

// One boxing.
struct Move {
  std::string_view op;
  const GlobalSpec* from;
  const GlobalSpec* to;
  const Dims& shape;
  DType dtype;
  Why why = Why::kAsked;
  std::string_view input = {};                      // its name, of kInput and kInside
  std::span<const GlobalSpec* const> targets = {};  // of kInput: of all inputs, nullptr for absent ones
};

// The plan to carry out: the contract's, or else the planner's. To be called by all ranks, once for each move, before
// it. Pre: from is not to; no graph is being captured. Errors: the contract in force does not have it.
boxing::Plan plan_move(const Move& move);

// A local tensor becomes a global one.
void note_local(const GlobalSpec* to, const Dims& shape, DType dtype);

// An input of an op; spec is nullptr for an absent one.
struct OpInput {
  const GlobalSpec* spec = nullptr;
  Dims shape = {};
  DType dtype = DType::kFloat32;
};
// The layouts that calls of the op with these inputs take in the contract in force: on the user's line, or else on any.
// Empty where there is none.
std::vector<std::vector<NdSbp>> frozen_inputs(std::string_view op, std::span<const OpInput> inputs);

// Which of several algorithms the op takes in the contract in force; and what it takes, to be recorded or checked.
std::optional<std::string> frozen_choice(std::string_view op);
void note_choice(std::string_view op, std::string_view choice);

// The op of a move of several gradients as one tensor, on their way to their leaves.
inline constexpr const char* kGradientsTogether = "gradients together";
// Whether the contract in force has such moves at all, and whether it has this one; nullopt where none is in force.
std::optional<bool> sums_gradients_together();
std::optional<bool> sums_gradients_together(const GlobalSpec* from, const GlobalSpec* to, const Dims& shape,
                                            DType dtype);
// Its plan there, else the planner's: to look at, not to carry out.
boxing::Plan plan_of(const GlobalSpec* from, const GlobalSpec* to, const Dims& shape, DType dtype);

// The node of the tape whose gradient is computed, until the end of its scope.
class BackwardOf {
 public:
  explicit BackwardOf(const char* node);
  ~BackwardOf();
  BackwardOf(const BackwardOf&) = delete;
  BackwardOf& operator=(const BackwardOf&) = delete;

 private:
  const char* before_;
};

// Called on the rank whose contract begins or ends: what was kept for it is no longer valid.
void on_change(void (*f)());

}  // namespace holon::contract
