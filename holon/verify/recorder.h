// Records what a rank's program computes (recording.h).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "holon/tensor/observer.h"
#include "holon/verify/recording.h"

namespace holon::verify {

struct RecorderOptions {
  uint64_t perturbation = 0;          // rounds every result otherwise, by this seed (perturb.h); 0: no
  int64_t steps = 0;                  // of optimizers, after which on_end is called, before the next one begins; 0: all
  std::function<void()> on_end = {};  // to end the program, by an exception
};

// Observes this thread's rank from its making to its end. It keeps all tensors that it has seen, so that no other
// takes an address: for a few steps with small batches.
class Recorder final : public Observer {
 public:
  // Errors: see RecordingWriter.
  Recorder(const std::string& path, RecorderOptions options = {});
  ~Recorder() override;
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  // A tensor of a module, at the end of the program.
  void state(const std::string& name, const Tensor& t);
  // The program has ended, by itself if error is empty.
  void end(const std::string& error);

  void op(const char* name, const OpKind& kind, std::span<const Tensor> inputs,
          std::span<const Tensor> outputs) override;
  void wrote(const char* name, std::span<const Tensor> inputs, const Tensor& self) override;
  void made(const char* call, const Tensor& t) override;
  void read(const Tensor& t) override;
  void backward_begins(std::span<const Tensor> roots) override;
  void backward_ends() override;
  void backward(const Node& node, std::span<const Tensor> gradients, std::span<const Tensor> of_inputs) override;
  void leaf_gradient(TensorImpl& leaf, const Tensor& gradient) override;
  void update(const char* rule, size_t index, const Tensor& parameter, const Tensor& gradient) override;
  void updated(const char* rule, size_t index, const Tensor& parameter,
               std::span<const std::pair<const char*, Tensor>> state) override;
  void norm(const char* call, std::span<const Tensor> gradients, const Tensor& norm) override;

 private:
  int add(Record record);
  // The record that made the value that t has now; a new one where none did.
  int maker(const Tensor& t);
  std::vector<int> makers(std::span<const Tensor> list);
  void made_by(const Tensor& t, int record);
  void written_by(const Tensor& t, int record);
  bool in_engine(const std::string& site) const { return walking_ > 0 && site == walk_site_; }

  RecordingWriter writer_;
  RecorderOptions options_;
  Observer* before_;
  int n_ = 0;  // records so far
  bool ended_ = false;

  std::unordered_map<const TensorImpl*, int> maker_;    // of tensors
  std::unordered_map<const Storage*, int> owner_;       // that made the memory
  std::unordered_map<const Storage*, int> last_write_;  // into it
  std::vector<Tensor> kept_;

  struct Forward {
    int record;
    std::string op, site;
    std::vector<int> inputs;
  };
  std::unordered_map<const Node*, Forward> forward_;
  int walking_ = 0;
  std::string walk_site_;
  std::map<std::pair<const void*, uint32_t>, std::vector<int>> given_;  // to outputs of nodes, and to leaves
  std::vector<std::pair<Ref<TensorImpl>, Tensor>> leaves_;              // that a walk has reached
  std::unordered_map<const TensorImpl*, std::string> leaf_site_;        // where the gradient came from

  std::unordered_map<const TensorImpl*, int64_t> steps_;
  std::unordered_map<const TensorImpl*, int> used_;  // its gradient, by the rule
};

// A rank's part, with its layout.
Value value_of(const Tensor& t);

}  // namespace holon::verify
