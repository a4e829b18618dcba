// Who looks on while a rank's program runs: at each op's results, each gradient, each update of a parameter. Nothing
// that it is told may be changed, except that op() may round results otherwise (holon/verify/perturb.h). Off, a call
// costs one load and a branch.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

#include "holon/tensor/tensor.h"

namespace holon {

class Observer {
 public:
  virtual ~Observer() = default;

  // What an op is, as far as a look at its values needs it.
  struct OpKind {
    bool view = false;      // its result is memory of its input
    bool random = false;    // it draws numbers
    bool product = false;   // of two inputs, as of matrices: each element is a sum of products
    bool composed = false;  // of others, which have been told
    bool converts = false;  // to_global, to_local: the logical value is its input's
  };
  // An op has run, and is recorded for backward.
  virtual void op(const char* name, const OpKind& kind, std::span<const Tensor> inputs,
                  std::span<const Tensor> outputs) = 0;
  // self has a new value, in its own memory.
  virtual void wrote(const char* name, std::span<const Tensor> inputs, const Tensor& self) = 0;
  // The program made a tensor of its data.
  virtual void made(const char* call, const Tensor& t) = 0;
  // The program looks at the value of a global tensor.
  virtual void read(const Tensor& t) = 0;

  // A backward walk begins, with its roots, or ends.
  virtual void backward_begins(std::span<const Tensor> roots) = 0;
  virtual void backward_ends() = 0;
  // A node has turned the gradients of its outputs into those of its inputs, one for each edge.
  virtual void backward(const Node& node, std::span<const Tensor> gradients, std::span<const Tensor> of_inputs) = 0;
  // The walk has added to a leaf's gradient.
  virtual void leaf_gradient(TensorImpl& leaf, const Tensor& gradient) = 0;

  // An update rule begins with a parameter and its gradient (undefined: it has none); it is the index-th of `count`.
  virtual void update(const char* rule, size_t index, const Tensor& parameter, const Tensor& gradient) = 0;
  // It has updated the parameter, and what it keeps for it.
  virtual void updated(const char* rule, size_t index, const Tensor& parameter,
                       std::span<const std::pair<const char*, Tensor>> state) = 0;
  // The norm of gradients, before they are clipped.
  virtual void norm(const char* call, std::span<const Tensor> gradients, const Tensor& norm) = 0;
};

namespace detail {
extern constinit std::atomic<int> observers;  // of all ranks of the process
Observer* find_observer();
}  // namespace detail

// That of this rank's thread, or nullptr.
inline Observer* observer() {
  return detail::observers.load(std::memory_order_relaxed) == 0 ? nullptr : detail::find_observer();
}
// Puts an observer in place, nullptr for none; returns the one before. Pre: it lives until it is replaced.
Observer* exchange_observer(Observer* observer);

// Nothing is told while one exists: Holon's own steps inside one that is told as a whole.
class ObserverPause {
 public:
  ObserverPause() : paused_(observer()) {
    if (paused_) [[unlikely]]
      exchange_observer(nullptr);
  }
  ~ObserverPause() {
    if (paused_) [[unlikely]]
      exchange_observer(paused_);
  }
  ObserverPause(const ObserverPause&) = delete;
  ObserverPause& operator=(const ObserverPause&) = delete;

 private:
  Observer* paused_;
};

}  // namespace holon
