// The tape: a node for each recorded op, with edges towards the leaves.
#pragma once

#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "holon/base/ref.h"
#include "holon/base/slice_range.h"
#include "holon/base/small_vec.h"
#include "holon/tensor/tensor.h"

namespace holon {

// What only leaves and hooked tensors have.
struct AutogradMeta : RefCounted {
  Tensor grad;
  bool retain_grad = false;
  std::vector<Ref<GradHook>> hooks;
};

// Where a gradient goes: an output of an earlier node, or a leaf that accumulates it, or nowhere.
struct Edge {
  Ref<Node> node;
  uint32_t index = 0;
  Ref<TensorImpl> leaf;
  bool valid() const { return node || leaf; }
};
Edge edge_of(const Tensor& t);

// A value kept for backward. An output is kept without its node, which would be a cycle, and gets it back on use.
class SavedTensor {
 public:
  SavedTensor() = default;
  SavedTensor(const Tensor& t, bool is_output);
  bool defined() const { return value_.defined(); }
  // Errors: the value was changed in place after it was kept.
  Tensor unpack(const Ref<Node>& owner, const char* op) const;
  void reset() { value_ = {}; }

 private:
  Tensor value_;
  uint32_t version_ = 0;
  uint32_t output_index_ = 0;
  bool is_output_ = false;
};

class Node : public RefCounted {
 public:
  Node();
  ~Node() override;
  virtual const char* name() const = 0;
  // grads[i]: the gradient of output i, undefined where nothing reached it. Returns one per edge; undefined represents
  // zero.
  virtual TensorVec backward(std::span<const Tensor> grads) = 0;
  // Drops what was kept; a later backward() raises.
  virtual void free_saved() = 0;

  // Where the output is in the only input, if it is a stretch of that. backward() puts the gradient into zeros; if the
  // stretches of one tensor are the whole of it, their gradients can be joined instead.
  virtual std::optional<Stretch> stretch() const { return std::nullopt; }

  SmallVec<Edge, 3> edges;
  SmallVec<DType, 4> output_dtypes;  // their gradients' too
  // Nodes are visited in falling order of this number, the same on every rank.
  uint64_t sequence;
  // Makes it more than that of a node below, which another thread may have made.
  void number_after(const Node& below);
  // While one exists, nodes of this thread are numbered right after those below them: when they are made does not
  // matter then. The numbers of later nodes are as if there had been none.
  class NumbersApart {
   public:
    NumbersApart();
    ~NumbersApart();
    NumbersApart(const NumbersApart&) = delete;
    NumbersApart& operator=(const NumbersApart&) = delete;

   private:
    uint64_t next_;
  };
  int32_t mark = -1;  // where in a captured graph the op is (Tracer::mark)
  // Outputs whose gradient is kept or hooked. What they have for it, not they themselves, which would be a cycle.
  SmallVec<std::pair<uint32_t, Ref<AutogradMeta>>, 1> retained;
};

}  // namespace holon
