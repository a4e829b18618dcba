// One line of a contract: what moves, from which layout to which, by which path, how many bytes, how often.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "holon/array/dims.h"
#include "holon/array/dtype.h"
#include "holon/boxing/planner.h"
#include "holon/global/spec.h"

namespace holon::contract {

struct Entry {
  enum class Kind : uint8_t {
    kMove,    // from one spec to another
    kLocal,   // local parts become a global tensor: ranks along broadcast axes take the first one's value
    kChoice,  // an op took one of several algorithms that communicate differently
  };
  Kind kind = Kind::kMove;
  // "to_global"; "matmul.w (S(0), B)", an input that the op redistributes with the layouts that it takes its inputs in;
  // "backward of matmul: mul.y (B, B)"; of a choice "attention takes ring".
  std::string what;
  const GlobalSpec* from = nullptr;  // nullptr except of a move
  const GlobalSpec* to = nullptr;
  Dims shape;
  DType dtype = DType::kFloat32;
  std::vector<boxing::PathStep> path;
  std::vector<std::string> kinds;  // of the steps: "all_reduce"
  int64_t most_bytes = 0;          // that any rank reads from others each time
  int64_t all_bytes = 0;           // that all ranks do
  std::string links;               // who reads how much of whom, in words
  // How often in one step: the least and the most of those that were recorded.
  int64_t least = 0, most = 0;

  // What identifies it on its line: "matmul.w (S(0), B)  float32 [4, 8]  S(0) -> B cpu:0-3".
  std::string key() const;
  std::string tensor() const;  // "float32 [4, 8]"
  std::string change() const;  // "S(0) -> B cpu:0-3"
  std::string path_text() const;
  std::string times() const;  // "x12", "x0-1"
  std::string str() const;    // the line
};

// A move with the path and the bytes of its plan.
Entry entry_of(std::string what, const boxing::Plan& plan);
// That of a local tensor. Bytes as boxing::agree_on_value() reads them.
Entry entry_of_local(std::string what, const GlobalSpec* to, const Dims& shape, DType dtype);
Entry entry_of_choice(std::string_view op, std::string_view choice);

// What str() wrote. Errors (ValueError): what does not fit, in words.
Entry parse_entry(std::string_view line);

// "matmul" of "matmul.w (S(0), B)", with what comes before it; and the layouts there, without a list where an input is
// absent. Empty where an entry is not an op's input.
std::string_view op_of(const Entry& e);
std::vector<NdSbp> targets_of(const Entry& e);

// "cpu:0-3", "cuda:2x2:0-3", "cpu:0,2,5"; "S(0) cpu:0-3". parse_placement errors: the world does not have the ranks.
std::string text_of(const Placement& placement);
std::string text_of(const GlobalSpec& spec);
Placement parse_placement(std::string_view text);
NdSbp parse_nd_sbp(std::string_view text);
// "(S(0), -, (B, P))": the layouts of a call's operands; an empty one is that of an absent operand.
std::string text_of(std::span<const NdSbp> operands);
std::vector<NdSbp> parse_operands(std::string_view text);

// The plan along the path of a move, by this machine's figures. Errors (RuntimeError): it reads other bytes than the
// entry says; file and where are for the message.
boxing::Plan plan_of(const Entry& e, const std::string& file, const std::string& where);

// While it exists, placements of other devices are read as the CPU's on this thread: what a contract says of them is
// known where the devices are not.
class AnyDevice {
 public:
  AnyDevice();
  ~AnyDevice();
  AnyDevice(const AnyDevice&) = delete;
  AnyDevice& operator=(const AnyDevice&) = delete;
};

// Between columns are two spaces or more.
std::vector<std::string_view> columns_of(std::string_view line);

}  // namespace holon::contract
