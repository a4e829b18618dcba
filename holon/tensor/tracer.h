// What records ops instead of running them: while a rank has a Tracer, dispatch infers, chooses signatures and
// records for backward as ever, but its tensors have no values and no kernel runs. holon/graph/capture is one, whose
// tensors are symbolic (TensorImpl::capture); holon/graph/virtual_rank.h is the other.
#pragma once

#include <span>

#include "holon/base/context.h"
#include "holon/tensor/tensor.h"

namespace holon {

struct OpDef;
class Attrs;

class Tracer {
 public:
  virtual ~Tracer() = default;
  // A call of an op with a kernel or a view. inputs have the specs of the chosen signature; outputs, made by dispatch
  // without data, become symbolic.
  virtual void op(const OpDef& op, const Attrs& attrs, std::span<const Tensor> inputs, std::span<Tensor> outputs) = 0;
  // t under another spec, outside the recorded graph. asked: by the user, who is not second-guessed.
  virtual Tensor redistribute(const Tensor& t, const GlobalSpec* to, bool asked) = 0;
  // This rank's part of t, seen as a part of a tensor of this shape and spec (nullptr: as a local tensor).
  virtual Tensor relabel(const Tensor& t, const Dims& shape, const GlobalSpec* spec) = 0;
  // t is this rank's part of a global tensor, and ranks along broadcast axes take the first one's value.
  virtual Tensor agree(const Tensor& t, const Dims& shape, const GlobalSpec* spec) = 0;
  // self = value, from here on. Both alike in shape, dtype and spec.
  virtual void write(const char* op, const Tensor& self, const Tensor& value) = 0;
  // Adds a gradient to that of a leaf. Like it in dtype and spec.
  virtual void gradient(TensorImpl& leaf, const Tensor& g) = 0;
  // The gradient of a leaf so far, or an undefined tensor.
  virtual Tensor gradient_of(const TensorImpl& leaf) const = 0;
  // A place among the random draws of the step; what it returns represents the counter.
  virtual int64_t draw(bool global) = 0;
  // What backward needs to have its nodes take the place of the forward one: the mark is kept with a tape node...
  virtual int32_t mark() const = 0;
  // ... and is set while its gradient runs. Returns the one before.
  virtual int32_t exchange_mark(int32_t mark) = 0;
  // backward() begins or ends.
  virtual void backward(bool begins) = 0;
  // The gradient with which backward() begins where none is given.
  virtual Tensor seed(Tensor ones) = 0;
  // copy is t outside the tape.
  virtual void detached(const Tensor& t, const Tensor& copy) = 0;
  // Whether the tensor, which has a value now, has another one at each step: a parameter, a buffer, what an op has
  // written to.
  virtual bool varies(const TensorImpl&) const { return false; }
  // The other ranks of the world are not there to be asked: they do as this one.
  virtual bool alone() const { return false; }
  // Ops are those of an eager program: what they move, they would move now, and gradients stay with their leaves.
  virtual bool eager() const { return false; }
  // A call of a module begins; what is returned takes its first input's place. It ends, by an exception if failed.
  virtual Tensor enter(const void* module, const Tensor& x) = 0;
  virtual void leave(bool failed) = 0;
};

// That of this rank, or nullptr.
inline Tracer* tracer() { return Context::current().tracer(); }

// That of a graph which is being captured, or nullptr.
inline Tracer* capturing_tracer() {
  Tracer* t = tracer();
  return t && !t->eager() ? t : nullptr;
}

// Errors (RuntimeError): this rank is one of a world that is not there, where `what` cannot be done.
void require_real_rank(const char* what);

// Ops run for a while, although a graph is being captured: on constants that a program looks at.
class TracerPause {
 public:
  TracerPause() : paused_(tracer()) { Context::current().set_tracer(nullptr); }
  ~TracerPause() { Context::current().set_tracer(paused_); }
  TracerPause(const TracerPause&) = delete;
  TracerPause& operator=(const TracerPause&) = delete;

 private:
  Tracer* paused_;
};

}  // namespace holon
