// The kinds of instructions.
#pragma once

#include <optional>

#include "holon/boxing/prepared.h"
#include "holon/comm/core/background.h"
#include "holon/dispatch/local_call.h"
#include "holon/dispatch/on_device.h"
#include "holon/graph/program/fused.h"
#include "holon/graph/program/program.h"
#include "holon/optim/device_clip.h"

namespace holon::graph {

// One kernel of a registered op.
class KernelInstruction final : public Instruction {
 public:
  // part: nullptr for a call on local tensors. draws: nullptr for an op that draws nothing.
  KernelInstruction(const OpDef& op, const Attrs& attrs, SmallVec<const Array*, 4> in, SmallVec<Array*, 3> out,
                    const KernelCall::GlobalPart* part);
  void draw(const Draws* draws, bool global, int64_t place);
  // Instead of writing its outputs it adds to them. Pre: the op's kernel that does is there.
  void add_to_outputs() { kernel_ = op_.adds; }
  void run() override {
    if (draws_) return run_draw();
    if (on_device_) return run_on_device(op_, *call_, kernel_ == op_.adds);
    kernel_(*call_);
  }
  bool records() const override { return on_device_ && !op_.on_host && !draws_by_arguments_ && !communicates_; }
  std::string str() const override;

 private:
  void run_draw();
  const OpDef& op_;
  void (*kernel_)(KernelCall&);
  Attrs attrs_;
  SmallVec<const Array*, 4> in_;
  SmallVec<Array*, 3> out_;
  KernelCall::GlobalPart part_;
  std::optional<KernelCall> call_;
  const Draws* draws_ = nullptr;
  bool draws_globally_ = false, on_device_ = false, communicates_ = false;
  bool draws_by_arguments_ = false;  // its kernels know nothing of RecordedDraw, as a trial has shown
  int64_t place_ = 0;
};

class CopyInstruction final : public Instruction {
 public:
  CopyInstruction(const Array* from, Array* to, const char* what) : from_(from), to_(to), what_(what) {}
  void run() override;
  bool records() const override { return !from_->device.is_host() && from_->device == to_->device; }
  std::string str() const override;

 private:
  const Array* from_;
  Array* to_;
  const char* what_;
};

class BoxingInstruction final : public Instruction {
 public:
  BoxingInstruction(boxing::Prepared prepared, const Array* in, const Array* out, std::vector<Array> scratch)
      : prepared_(std::move(prepared)), in_(in), out_(out), scratch_(std::move(scratch)) {}
  void run() override { prepared_.run(*in_, *out_, scratch_); }
  void bind() override { prepared_.bind(); }
  bool records() const override {
    const Array& part = out_->defined() ? *out_ : *in_;
    return part.defined() && !part.device.is_host() &&
        (!prepared_.communicates() || prepared_.communicates_on_devices());
  }
  std::vector<std::span<const int>> collectives() const override { return prepared_.collectives(); }
  std::string str() const override;

 private:
  boxing::Prepared prepared_;
  const Array *in_, *out_;
  std::vector<Array> scratch_;
};

// Many boxings in one collective.
class BatchInstruction final : public Instruction {
 public:
  BatchInstruction(boxing::PreparedBatch batch, const Array* in, const Array* out)
      : batch_(std::move(batch)), in_(in), out_(out) {}
  void run() override { batch_.run(*in_, *out_); }
  void bind() override { batch_.bind(); }
  bool records() const override { return batch_.communicates_on_devices(); }
  std::vector<std::span<const int>> collectives() const override { return batch_.collectives(); }
  std::string str() const override;

 private:
  boxing::PreparedBatch batch_;
  const Array *in_, *out_;
};

// The same on the rank's second thread, or on a device's second stream, while this one goes on. Pre: one
// WaitInstruction follows.
class SumInBackground final : public Instruction {
 public:
  SumInBackground(boxing::PreparedBatch batch, const Array* in, const Array* out)
      : batch_(std::move(batch)), in_(in), out_(out) {}
  void run() override;
  void wait() const;
  bool records() const override { return batch_.communicates_on_devices(); }
  std::vector<std::span<const int>> collectives() const override { return batch_.collectives(); }
  std::string str() const override;
  const char* verb() const override { return "sum in background"; }
  bool on_device() const { return !out_->device.is_host(); }

 private:
  boxing::PreparedBatch batch_;
  const Array *in_, *out_;
  mutable comm::Work work_;
};

class WaitInstruction final : public Instruction {
 public:
  explicit WaitInstruction(const SumInBackground& sum) : sum_(sum) {}
  void run() override { sum_.wait(); }
  bool records() const override { return sum_.on_device(); }
  std::string str() const override { return "wait for " + sum_.str(); }
  const char* verb() const override { return "wait"; }
  bool waits() const override { return true; }

 private:
  const SumInBackground& sum_;
};

// From one stage of a pipeline to another: the source shows its part...
class SendInstruction final : public Instruction {
 public:
  SendInstruction(boxing::PointToPoint& transfer, const Array* in, std::vector<Array> scratch)
      : transfer_(transfer), in_(in), scratch_(std::move(scratch)) {}
  void run() override { transfer_.send(*in_, scratch_); }
  void bind() override { transfer_.bind(); }
  std::string str() const override;
  const char* verb() const override { return "send"; }

 private:
  boxing::PointToPoint& transfer_;
  const Array* in_;
  std::vector<Array> scratch_;
};

// ... the target receives it...
class ReceiveInstruction final : public Instruction {
 public:
  ReceiveInstruction(boxing::PointToPoint& transfer, const Array* out, std::vector<Array> scratch)
      : transfer_(transfer), out_(out), scratch_(std::move(scratch)) {}
  void run() override { transfer_.receive(*out_, scratch_); }
  void bind() override { transfer_.bind(); }
  std::string str() const override;
  const char* verb() const override { return "receive"; }
  bool waits() const override { return true; }

 private:
  boxing::PointToPoint& transfer_;
  const Array* out_;
  std::vector<Array> scratch_;
};

// ... and the source may use the memory again.
class ReleaseInstruction final : public Instruction {
 public:
  explicit ReleaseInstruction(boxing::PointToPoint& transfer) : transfer_(transfer) {}
  void run() override { transfer_.release(); }
  std::string str() const override;
  const char* verb() const override { return "release"; }
  bool waits() const override { return true; }

 private:
  boxing::PointToPoint& transfer_;
};

// A chain of element-wise ops, block by block.
class FusedInstruction final : public Instruction {
 public:
  FusedInstruction(FusedChain chain, SmallVec<const Array*, 4> in, SmallVec<Array*, 3> out)
      : chain_(std::move(chain)), in_(std::move(in)), out_(std::move(out)) {}
  void run() override { chain_.run(in_, out_); }
  bool records() const override { return !out_[0]->device.is_host(); }
  std::string str() const override;

 private:
  FusedChain chain_;
  SmallVec<const Array*, 4> in_;
  SmallVec<Array*, 3> out_;
};

// Ranks take the value of the first one among them.
class AgreeInstruction final : public Instruction {
 public:
  AgreeInstruction(const Array* in, Array* out, const GlobalSpec* spec, const Dims& shape)
      : in_(in), out_(out), spec_(spec), shape_(shape) {}
  void run() override;
  std::string str() const override;

 private:
  const Array* in_;
  Array* out_;
  const GlobalSpec* spec_;
  Dims shape_;
};

// All gradients divided by the scale of the loss, and a look whether they are finite.
class UnscaleInstruction final : public Instruction {
 public:
  struct Gradient {
    const Array* in;
    Array* out;  // may be the same
    const GlobalSpec* spec;
    int optimizer;  // -1: none, whose gradients do not decide about an update
  };
  UnscaleInstruction(LossScale& scale, const std::vector<Gradient>& gradients);
  void run() override;
  std::string str() const override;

 private:
  struct Copy {
    const Array* from;
    Array* to;
  };
  LossScale& scale_;
  std::vector<Copy> copies_;
  std::vector<std::vector<Array>> arrays_;             // of each optimizer, on this rank; then of none
  std::vector<std::vector<const GlobalSpec*>> specs_;  // where else they are: a row over each placement
  std::vector<double> found_;
};

// Gradients clipped together.
class ClipInstruction final : public Instruction {
 public:
  struct Gradient {
    const Array* array;
    const GlobalSpec* spec;
    DType dtype;
  };
  // result: gets the norm, which is also put into out, and the factor: float64 [2], on optim::clip_device(). Undefined:
  // by value. changed: which gradients are multiplied here; of the others their reader takes the factor.
  ClipInstruction(const optim::Clip& how, const std::vector<Gradient>& gradients, const std::vector<bool>& changed,
                  const Array& result, Array* out);
  void run() override;
  void bind() override;
  bool records() const override;
  std::vector<std::span<const int>> collectives() const override;
  std::string str() const override;

 private:
  bool by_norm() const { return result_.defined(); }
  const optim::Clip how_;
  std::vector<Array> parts_, changed_;  // of all gradients; those that are on this rank and are changed
  std::vector<const GlobalSpec*> specs_;
  Array result_;
  Array* out_;
  bool wide_ = false;
  std::optional<optim::DeviceClipping> on_device_;
};

// The update of an optimizer's group.
class UpdateInstruction final : public Instruction {
 public:
  // scale: nullptr where gradients are as they are.
  UpdateInstruction(UpdateGroup& group, const LossScale* scale) : group_(group), scale_(scale) {}
  void run() override;
  bool records() const override { return records_; }
  UpdateGroup* updates() override { return records_ ? &group_ : nullptr; }
  std::string str() const override;

 private:
  UpdateGroup& group_;
  const LossScale* scale_;
  // Whether it takes place the host decides. After the first run: whether kernels alone make it.
  bool records_ = !scale_, looked_ = false;
};

// What the update's next step would be.
kernels::RecordedUpdate next_update(UpdateGroup& group);

std::string text_of(const Array& a);

}  // namespace holon::graph
