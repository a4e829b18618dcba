// A program's communication, recorded in a file that people review, and held to it afterwards.
//
//   { contract::Guard recorded("train.contract", contract::Mode::kRecord);  run(); }
//   { contract::Guard frozen("train.contract");                              run(); }
//
// While a contract is recorded every boxing becomes an entry (document.h). While one is in force, ops take the layouts
// that it names and boxing the paths, without asking the planner; the first boxing that it does not have, one too many
// in a step and one too few are errors (RuntimeError) that name the line and say what it costs. All ranks see the same
// boxings, those outside of a placement too, so all raise alike before anything moves.
//
// A step ends where an optimizer's step() does, or at end_step(). What moves no bytes is in the file, for its layouts,
// but may come and go.
//
// Everything here belongs to the rank of the current thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace holon::contract {

// Whether a contract is written, or kept.
enum class Mode : uint8_t {
  kRecord,
  kReplay,
  kRecordAlone,  // on one rank of a world that is not there (graph/virtual_rank.h): others are not asked
};

class Watch;

// Records a contract, or puts one in force, until the end of its scope, or end(). Collective: all ranks of the world.
// Errors: the file cannot be read, or is of a world of another size (ValueError).
class Guard {
 public:
  explicit Guard(const std::string& file, Mode mode = Mode::kReplay);
  // At the end of a scope that is left by an exception nothing more is checked, and nothing is written.
  ~Guard() noexcept(false);
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;
  // Errors (RuntimeError): entries of the contract that did not happen; ranks that have recorded different things.
  // Collective.
  void end(bool failed = false);
  // From here on it ends with the program, not with the scope.
  void keep();

 private:
  std::shared_ptr<Watch> watch_, before_;
  int exceptions_;
  bool together_;
};

// The program ends by an error: what is in force or recorded is neither checked nor written any more.
void abandon();

// Names what a C++ program does from here on, as entries and messages have it: "forward"; "" for nothing. (Of Python
// the lines are known.) The text is copied.
void set_line(const char* text);

// A step ends here. Optimizers call it.
void end_step();

// Whether a contract is in force; whether one is recorded or in force.
bool is_replaying();
bool is_watching();

}  // namespace holon::contract
