// What a rank's program computed, in order: each op's results with the line that called it, each gradient, each update.
// Written to a file as it comes, so that what a rank that fails has done is there.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "holon/array/dims.h"
#include "holon/array/dtype.h"
#include "holon/global/sbp.h"

namespace holon::verify {

// This rank's part of a tensor, and what it is a part of.
struct Value {
  DType dtype = DType::kFloat32;
  Dims shape;                // logical
  bool global = false;       // the rest of the layout is meant
  Dims hierarchy;            // of its placement
  std::vector<int> ranks{};  // row by row
  std::vector<Sbp> nd_sbp{};
  bool requires_grad = false;
  bool here = false;  // this rank has a part
  Dims part_shape;
  std::vector<double> part{};  // in row-major order
};

enum class Kind : uint8_t {
  kOp,
  kWrite,         // a tensor has a new value in its memory
  kInput,         // a value that no op made, where an op first reads it
  kMade,          // a tensor of the program's data, where it is made
  kRead,          // the program looks at the value of its input
  kGradient,      // the sum that reached a result of an op, which is `forward`
  kBackward,      // what the gradient of `forward` gives to its input number `place`
  kLeafGradient,  // after a backward walk
  kUse,           // a gradient that an update rule takes
  kUpdate,        // a parameter, and what a rule keeps for it, after an update
  kNorm,          // of gradients
  kState,         // a parameter or buffer of a module at the end of the program
};

struct Record {
  Kind kind = Kind::kOp;
  std::string op;       // "matmul"; an update rule; a module's tensor
  std::string site{};   // the user's file and line, "train.py:31"; "" where it is not known
  std::string label{};  // which of several: "parameter 0 [4, 8]"
  bool view = false, random = false, converts = false, of_parameter = false;
  int forward = -1, place = -1;
  std::vector<int> inputs{};  // the records that made what it reads
  std::vector<Value> values{};
};

struct Recording {
  int rank = 0, world = 1;
  std::vector<Record> records{};
  bool ended = false;   // the program came to its end, or to that of the requested steps
  std::string error{};  // what it raised
};

// Errors (RuntimeError): the file cannot be written.
class RecordingWriter {
 public:
  RecordingWriter(const std::string& path, int rank, int world);
  void add(const Record& record);
  // error: "" if the program ended by itself.
  void end(const std::string& error);

 private:
  void check();
  std::string path_;
  std::ofstream file_;
};

// Without the record at which a rank was stopped in the middle. Errors (RuntimeError): there is no such file, or it is
// not a recording.
Recording read_recording(const std::string& path);

}  // namespace holon::verify
