// Checkpoints of a training run: one folder for each step, of which the newest ones stay.
//
//   checkpoint::Checkpointer checkpoints("run", {.keep = 3, .asynchronous = true});
//   if (auto found = checkpoints.load()) {
//     model.load_state_dict(found->value["model"].state_dict());
//     adam.load_state_dict(found->value["optimizer"].optimizer_state());
//     found->restore_random_state();
//     step = found->step;
//   }
//   ...
//   checkpoints.save(step, {{"model", model.state_dict()}, {"optimizer", adam.state_dict()}});
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "holon/base/file_path.h"
#include "holon/checkpoint/checkpoint.h"
#include "holon/dispatch/random_state.h"

namespace holon::checkpoint {

// What save() does while the last one is being written: it waits for it, or saves nothing.
enum class WhileSaving { kWait, kSkip };

struct CheckpointerOptions {
  // How many checkpoints stay; nothing: all. When a new one is complete, those of the lowest steps are removed.
  std::optional<int64_t> keep = 3;
  // save() returns when the state has been copied in memory; a thread writes it.
  bool asynchronous = false;
  WhileSaving while_saving = WhileSaving::kWait;
};

// What Checkpointer::load() returns.
struct Checkpoint {
  int64_t step = 0;
  Value value;
  // What this rank passed as `own`; that of rank 0, where there was no such rank.
  Value own;
  // This rank's random numbers when it saved; rank 0's, where there was no such rank.
  RandomState random;

  // This rank draws the numbers that it would have drawn next.
  void restore_random_state() const;
};

// The checkpoints in a folder: "step-00000100" is one, in the form of save()'s folders, so that holon::load() reads it,
// too. It is there when it is complete: programs that are killed, full disks and other programs that save into the same
// folder never leave half of one, or cost an older one. For one thread, that of the rank.
class Checkpointer {
 public:
  // Makes the folder, if it is not there, and removes what saves that were killed have left in it. Errors: keep is
  // below 1; the ranks' options differ; the folder cannot be made. Collective over the world.
  explicit Checkpointer(const FilePath& folder, const CheckpointerOptions& options = {});
  // Waits for a save that is under way; if it fails, a warning is printed.
  ~Checkpointer();
  Checkpointer(const Checkpointer&) = delete;
  Checkpointer& operator=(const Checkpointer&) = delete;

  // Writes a checkpoint, with the random state of each rank. Global tensors are written by all ranks, each element
  // once; of the rest of the value rank 0's counts. `own` is each rank's, and has no tensors. What the step had before
  // is replaced. Returns whether it was saved: false where it was skipped (WhileSaving::kSkip). Errors, on all ranks:
  // the step is negative; the ranks' steps or global tensors are not alike; a rank cannot write, also in the last save
  // that was asynchronous: then nothing new is saved. Collective over the world.
  bool save(int64_t step, const Value& value, const Value& own = {});
  // Returns when no save is under way. Errors: it has failed; raised once.
  void wait();

  // The steps of the complete checkpoints, in order; the last one's, if any. What is being written is not among them.
  std::vector<int64_t> steps() const;
  std::optional<int64_t> latest() const;
  // Reads the checkpoint of a step, or the latest; nothing where there is none. Waits for a save that is under way
  // first. A run that loads a step continues from there: at its next save(), checkpoints of later steps get other names
  // (abandoned-step-00000200), so that they are neither the latest nor counted by keep. To look at one only, use
  // holon::load(path(step)). options: without global_src_rank. Errors: those of holon::load() and wait(); there is no
  // checkpoint of the step. Collective over the world.
  std::optional<Checkpoint> load(std::optional<int64_t> step = {}, const LoadOptions& options = {});

  // The folder of a step's checkpoint.
  std::string path(int64_t step) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace holon::checkpoint
