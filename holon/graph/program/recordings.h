// A program's instructions on a device, recorded once and launched as one from then on (CUDA graphs).
//
// Recorded are runs of neighbours that do the same in every step. What draws random numbers does: it reads where the
// step's draws begin from a block of device memory that is written before each step. So do updates, whose numbers (the
// learning rate, what depends on the step) are there, too, and collectives between devices, in their own branch
// in parallel with the computing where they are summed in the background. What needs the host (an op without a kernel
// on the device, a number that is read back, an update that depends on finite gradients) or sends between stages stays
// as it is. The first step finds out, the second one records, and a recording that fails is never tried
// again: then everything is launched one by one.
//
// NCCL wants a collective to be recorded, or not, by all ranks of its group alike, and a recording to be launched by
// all that it was recorded with. So ranks compare before the second step what they would record; those whose programs
// have the same shape and communicate with each other alone record their collectives together (partners). Before each
// later step, and after each recording, partners say to each other whether they launch: one that cannot (its parameters
// have moved, it is traced, its recording failed) keeps the others from it. That is a small exchange between the hosts;
// devices do not wait.
#pragma once

#include <memory>
#include <vector>

#include "holon/array/device_runtime.h"
#include "holon/comm/device/recorded_calls.h"
#include "holon/graph/program/program.h"

namespace holon::graph {

class Recordings {
 public:
  Recordings(Program& program, const Graph& graph);
  ~Recordings();
  Recordings(const Recordings&) = delete;
  Recordings& operator=(const Recordings&) = delete;

  // What is recorded reads inputs and writes outputs in its own memory. Call it when the buffers are bound and the
  // step's draws known: it binds them again and copies the inputs... traced: run() will not be called in this step.
  // Collective where the graph has collectives between devices.
  void before_step(bool traced);
  // ... and this one copies the outputs to where they were bound.
  void after_step();

  // All instructions from `at` on, which is the one in progress when an error is raised.
  void run(size_t& at);

  size_t recorded() const;  // launches that represent many

 private:
  struct Range {
    size_t first = 0, end = 0;
    bool communicates = false;  // partners, or waits for what they have begun
    std::unique_ptr<DeviceGraph> graph;
    comm::RecordedCalls calls;
    std::vector<UpdateGroup*> updates;
  };
  // Memory of a buffer that is found again in each step.
  struct Fixed {
    Buffer* buffer = nullptr;
    Ref<Storage> storage;
    std::byte* given = nullptr;
  };
  // What a rank says before a step; the largest word counts.
  enum class Decision : uint8_t {
    kLaunch,
    kRecord,      // all is recorded again
    kUnrecorded,  // this step goes without
    kNever,
  };
  Decision agree(Decision mine) const;  // collective among the partners

  DeviceRuntime& runtime() const;  // of the device that the program is for
  void look_at(size_t& at);
  void find_partners();
  void part();  // collectives are not recorded any more
  void find_ranges();
  void fix_buffers();
  bool usable(const Range& range) const { return !plain_ && (range.communicates ? !partners_.empty() : on_); }
  void record(Range& range);
  void capture(Range& range);
  void launch(Range& range);
  void give_up(const char* why);
  // Where the parameters and other values from outside are.
  bool moved();
  // What the updates' next step would be; false where one cannot be recorded now. changed: the recorded ones are
  // others.
  bool read_updates(bool* changed);

  Program& program_;
  Device device_;
  bool on_ = false, looked_ = false, ready_ = false;
  bool plain_ = false;  // in this step
  int steps_ = 0, times_moved_ = 0;
  std::vector<bool> may_;      // of each instruction
  std::vector<int> ranks_;     // between whose devices the graph has collectives
  std::vector<int> partners_;  // this rank among them; none: collectives are not recorded
  std::vector<Range> ranges_;
  std::vector<Fixed> inputs_, outputs_;
  std::vector<std::pair<const Buffer*, const std::byte*>> outside_;
  // Of the step: a DrawStart, and the numbers of each update.
  Ref<Storage> numbers_;
  std::vector<std::byte> host_numbers_;
};

}  // namespace holon::graph
