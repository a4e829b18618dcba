// What one rank does in a step: a flat list of instructions over arrays whose memory is planned. A step allocates its
// outputs and nothing else, looks nothing up, and calls no Python.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "holon/boxing/point_to_point.h"
#include "holon/graph/ir/graph.h"
#include "holon/graph/program/memory.h"
#include "holon/graph/program/row_order.h"
#include "holon/graph/schedule/schedule.h"
#include "holon/kernels/optim.h"

namespace holon::graph {

struct Program;
struct UpdateGroup;

class Instruction {
 public:
  virtual ~Instruction() = default;
  virtual void run() = 0;
  // Called once, after memory was bound; may look up communicators. Not collective.
  virtual void bind() {}
  virtual std::string str() const = 0;
  // For traces: what it does between stages or threads ("receive", "wait"); nullptr for the work of its node.
  virtual const char* verb() const { return nullptr; }
  virtual bool waits() const { return false; }  // run() may wait until another rank or thread has done something
  // All that it does is on one device and the same in every step, so that it can be recorded: unless its kernels need
  // the host. Asked for before and after the first step.
  virtual bool records() const { return false; }
  // It takes part in collectives between devices, of these groups. Those that are recorded must be
  // by all members alike.
  virtual std::vector<std::span<const int>> collectives() const { return {}; }
  // The group that it updates by numbers which differ from step to step, if it can be recorded.
  virtual UpdateGroup* updates() { return nullptr; }
  int32_t node = -1;  // of the graph; -1: the program's own
  int16_t micro_batch = 0;
};

// Memory that several arrays may be windows on.
struct Buffer {
  enum class Kind : uint8_t { kArena, kInput, kExternal, kOutput };
  Kind kind = Kind::kArena;
  Ref<Storage> storage;  // what the arrays refer to; bound to memory when that is known
  Device device;
  size_t bytes = 0;
  Lifetime life;        // kArena
  int32_t index = -1;   // of the input, external or output
  int64_t at = 0;       // kInput: where the micro-batch begins, in bytes after the input's first element
  int64_t pending = 0;  // while lowering: reads to come
  uint8_t read_in = 0;  // a bit for each section that reads it
};

struct OutputPart {
  Array array;          // with all micro-batches' rows
  int32_t buffer = -1;  // -1: the rank has no part
  Dims shape;           // logical
  DType dtype = DType::kFloat32;
  const GlobalSpec* spec = nullptr;
  int32_t external = -1;  // the output is this external itself
};

// Where in the random streams a step begins.
struct DrawStart {
  uint64_t global_seed = 0, local_seed = 0;
  int64_t global_base = 0, local_base = 0;
};
struct Draws : DrawStart {
  enum class By : uint8_t {
    kArguments,  // of kernels
    kTrial,      // too, and it is looked which kernels could do it by
    kRecording,  // the numbers at `there`, which are those above when the recording is launched
  };
  By by = By::kArguments;
  const DrawStart* there = nullptr;  // memory of the device
};

struct UpdateGroup {
  optim::Rule rule;
  std::vector<optim::Slot> slots;
  int optimizer = 0;
  // Of a recorded update: where its launches find their numbers, whether it is being recorded, and what was.
  const kernels::UpdateNumbers* there = nullptr;
  bool recording = false;
  uint64_t recorded_shape = 0;
};

// Of losses, for a step.
struct LossScale {
  double factor = 1;            // of gradients: one by the scale
  std::vector<uint8_t> finite;  // of each optimizer: whether all gradients were; else it does nothing
};

// The instructions of a task of the schedule: [first, end).
struct TaskRange {
  Task task;
  int32_t first = 0, end = 0;
};

struct Program {
  std::vector<std::unique_ptr<Instruction>> instructions;
  std::deque<Array> arrays;  // addresses stay
  std::vector<Buffer> buffers;
  std::vector<OutputPart> outputs;
  // Of each input: rows (from, to) to be moved before the micro-batches are one after the other; none: they do, or each
  // is together somewhere.
  std::vector<std::vector<RowPiece>> moved_rows;
  std::deque<UpdateGroup> updates;
  std::unique_ptr<LossScale> loss_scale;  // nullptr: losses have none
  // Of the last step: what gradients were clipped by, of Graph::clips by norm, and the factor. float64 [2] each, on the
  // device where they are clipped, in memory of their own.
  std::vector<Array> norms;
  std::vector<Ref<Storage>> norms_memory;
  // Between stages, each shared by the instructions that send, receive and release it; addresses stay.
  std::deque<boxing::PointToPoint> transfers;
  std::vector<TaskRange> tasks;
  Schedule schedule;
  Draws draws;
  MemoryPlan memory;  // of the buffers of kind kArena in their order; bytes: of all arenas together
  struct Arena {
    Device device;
    size_t bytes = 0;
    Ref<Storage> storage;
  };
  std::vector<Arena> arenas;  // one for each device that values are on
  Program() = default;
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  // Gives the values their memory. Before the first step.
  void allocate();
};

struct LoweringOptions {
  Schedule schedule;        // of the graph's tasks: schedule_of()
  bool background = false;  // gradients are summed by the rank's second thread
};

// Lowers the graph for the current rank. Pre: passes have run.
std::unique_ptr<Program> lower(const Graph& g, const LoweringOptions& options);

}  // namespace holon::graph
