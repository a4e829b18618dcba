// A program's instructions on a device, recorded once and launched as one from then on (CUDA graphs).
//
// Recorded are runs of neighbours that do the same in every step. What needs the host (an op without a kernel on the
// device, a number that is read back), draws random numbers, meets other ranks or updates parameters stays as it is.
// The first step finds out, the second one records, and a recording that fails is never tried again: then everything is
// launched one by one.
#pragma once

#include <memory>
#include <vector>

#include "holon/array/device_runtime.h"
#include "holon/graph/program/program.h"

namespace holon::graph {

class Recordings {
 public:
  explicit Recordings(Program& program);
  ~Recordings();
  Recordings(const Recordings&) = delete;
  Recordings& operator=(const Recordings&) = delete;

  // What is recorded reads inputs and writes outputs in memory of its own. Call it when the buffers are bound: it binds
  // them anew and copies the inputs...
  void before_step();
  // ... and this one copies the outputs to where they were bound.
  void after_step();

  // All instructions from `at` on, which is the one in progress when an error is raised.
  void run(size_t& at);

  size_t recorded() const;  // launches that stand for many

 private:
  struct Range {
    size_t first = 0, end = 0;
    std::unique_ptr<DeviceGraph> graph;
  };
  // Memory of a buffer that is found anew in each step.
  struct Fixed {
    Buffer* buffer = nullptr;
    Ref<Storage> storage;
    std::byte* given = nullptr;
  };
  void look_at(size_t& at);
  void find_ranges();
  void record(Range& range);
  void give_up(const char* why);
  // Where the parameters and other values from outside lie.
  bool moved();

  Program& program_;
  Device device_;
  bool on_ = false, looked_ = false, ready_ = false;
  int times_moved_ = 0;
  std::vector<bool> may_;  // of each instruction
  std::vector<Range> ranges_;
  std::vector<Fixed> inputs_, outputs_;
  std::vector<std::pair<const Buffer*, const std::byte*>> outside_;
};

}  // namespace holon::graph
