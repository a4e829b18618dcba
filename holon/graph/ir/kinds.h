// The functions of the table of kinds (node_kind.cpp), and what they are given.
#pragma once

#include <map>
#include <string>
#include <type_traits>
#include <vector>

#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/format.h"
#include "holon/dispatch/dispatch.h"
#include "holon/graph/ir/interpret.h"
#include "holon/graph/ir/node_kind.h"

namespace holon::graph {

// A node being checked.
class NodeCheck {
 public:
  NodeCheck(const Graph& g, const char* after) : g(g), after_(after) {}

  template <class... Args>
  [[noreturn]] void broken(FormatString<std::type_identity_t<Args>...> format, const Args&... args) const {
    fail(ErrorKind::kInternal, "graph after {}: {}.", after_, formatted<Args...>(format, args...));
  }
  template <class... Args>
  [[noreturn]] void wrong(const Node& n, FormatString<std::type_identity_t<Args>...> format,
                          const Args&... args) const {
    fail(ErrorKind::kInternal, "graph after {}: {}. The node: {}", after_, formatted<Args...>(format, args...),
         str(g, n));
  }
  // a and b have the same shape and dtype.
  void alike(const Node& n, const Value& a, const Value& b, const char* what) const;
  void counts(const Node& n, size_t in, size_t out) const;

  const Graph& g;

 private:
  const char* after_;
};

// A graph being interpreted.
class Interpreter {
 public:
  Interpreter(Graph& g, OptimizerState& state);
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  void give(std::span<const Tensor> inputs);
  template <class Wanted>
  void run(Wanted wanted) {
    auto node = [&](const Node& n) { def(n.kind).interpret(*this, n); };
    for (size_t i = 0; i < g.nodes.size(); ++i)
      if (wanted(g.nodes[i].section) && (late_.empty() || !late_[i])) node(g.nodes[i]);
    for (size_t i = 0; i < late_.size(); ++i)
      if (wanted(g.nodes[i].section) && late_[i]) node(g.nodes[i]);
  }
  void next_micro_batch() { ++micro_batch_; }
  // Those that are left out are undefined.
  std::vector<Tensor> outputs(const std::vector<bool>& left_out = {}) const;

  const Tensor& at(ValueId v) const;
  Tensor& slot_of(ValueId v) { return at_index(of_, v); }  // undefined: it has no value yet
  void make(const Node& n, size_t o, Tensor t);
  // With the seed and the counter that eager would have filled in at this place of the step.
  Attrs drawn(const Node& n) const;

  Graph& g;
  OptimizerState& state;
  std::map<GradClip::Of, Tensor> clipped;

 private:
  std::vector<Tensor> of_;
  std::vector<bool> late_;  // nodes that come when all gradients are there; empty: in their order
  const RandomState before_;
  int64_t micro_batch_ = 0;
};

// "%12", "input0", "model.fc1.weight".
std::string reference(const Graph& g, ValueId id);

Tensor redistributed(const Tensor& x, const GlobalSpec* to);
// A copy in new memory, with the same layout.
Tensor copied(const Tensor& x);

namespace kinds {

std::string op_text(const Graph& g, const Node& n, std::string inputs);
void verify_op(NodeCheck& check, const Node& n);
void interpret_op(Interpreter& run, const Node& n);

std::string fused_text(const Graph& g, const Node& n, std::string inputs);
void hash_fused(const Graph& g, const Node& n, Hasher* h);
void verify_fused(NodeCheck& check, const Node& n);
void interpret_fused(Interpreter& run, const Node& n);

void verify_boxing(NodeCheck& check, const Node& n);
void interpret_boxing(Interpreter& run, const Node& n);
void verify_relabel(NodeCheck& check, const Node& n);
void interpret_relabel(Interpreter& run, const Node& n);
void interpret_agree(Interpreter& run, const Node& n);

void verify_accumulate(NodeCheck& check, const Node& n);
void interpret_accumulate(Interpreter& run, const Node& n);

std::string assign_text(const Graph& g, const Node& n, std::string inputs);
void verify_assign(NodeCheck& check, const Node& n);
void interpret_assign(Interpreter& run, const Node& n);

std::string update_text(const Graph& g, const Node& n, std::string inputs);
void verify_update(NodeCheck& check, const Node& n);
void interpret_update(Interpreter& run, const Node& n);

std::string clip_text(const Graph& g, const Node& n, std::string inputs);
void verify_clip(NodeCheck& check, const Node& n);
void interpret_clip(Interpreter& run, const Node& n);

}  // namespace kinds

}  // namespace holon::graph
