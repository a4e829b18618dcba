// The graph that a captured build() becomes: nodes in an order in which they can run, and the values between them.
//
// Everything is logical, as the user sees it: shapes and sbps of whole tensors, alike on every rank. Boxing is
// explicit: a node's inputs have the very specs that its signature asks for. What one rank does of it is found by
// lowering (graph/program). With several micro-batches the graph describes one of them; what happens once per step
// (before, after) is told by the node's section. Where micro-batches have unequal rows it has a variant of what happens
// for each of them per number of rows, next to each other; what happens once, and the sums over micro-batches, they
// share.
#pragma once

#include <string>
#include <vector>

#include "holon/base/index.h"
#include "holon/optim/clip.h"
#include "holon/optim/rule.h"
#include "holon/registry/op_def.h"

namespace holon::graph {

using ValueId = int32_t;
using NodeId = int32_t;  // a place in Graph::nodes: passes change it
inline constexpr ValueId kNoValue = -1;

enum class NodeKind : uint8_t {
  kOp,      // a registered op with a kernel or a view
  kBoxing,  // in[i] under another spec or placement: out[i]; several in one collective, if layouts and dtypes are alike
  kRelabel,     // this rank's part of in[0], seen as a local tensor or as a part of a global one; no bytes move
  kAgree,       // a part in which ranks along broadcast axes take the first one's value (a local tensor made global)
  kAccumulate,  // the sum of in[0] over the micro-batches; its output exists once per step, and each variant adds to it
  kAssign,      // in[0] is written into the external `target`
  kUpdate,      // one group of an optimizer: in[i] is the gradient of slot i; out: the new values of slots with a shard
  kFused,       // an element-wise chain run block by block (body)
  kClip,        // clips gradients before the updates take them (Graph::clips); out: the norm before, unless by value
};
const char* name(NodeKind kind);

enum class Section : uint8_t {
  kOnceBefore,  // of parameters and constants only: once per step, before the first micro-batch
  kForward,     // for each micro-batch
  kBackward,    // likewise; with zero-bubble schedules what gives the gradients of inputs to earlier stages
  kWeight,      // likewise: what only gradients of parameters need, where the schedule splits it off
  kOnceAfter,   // once per step, after the last micro-batch
};
const char* name(Section section);
// Whether it runs for each micro-batch.
inline bool per_micro_batch(Section s) { return s != Section::kOnceBefore && s != Section::kOnceAfter; }

// One element-wise op inside a fused node: operands are inputs of the node (0, 1, ...), or results of earlier parts
// (n_in + part).
struct FusedPart {
  const OpDef* op = nullptr;
  Attrs attrs;
  SmallVec<int16_t, 3> in;
};
struct FusedBody {
  std::vector<FusedPart> parts;
  SmallVec<int16_t, 2> results;  // parts whose result is an output of the node
};

struct Node {
  NodeKind kind = NodeKind::kOp;
  Section section = Section::kForward;
  int16_t stage = 0;
  bool pinned = false;  // stays and is not merged: computed again; in forward also a layout that the user requested
  int8_t variant = 0;   // of the micro-batches for which it runs
  int32_t scope = 0;    // in Graph::scopes: the module's path
  int32_t site = 0;     // in Graph::sites: the user's line
  const OpDef* op = nullptr;
  Attrs attrs;
  SmallVec<ValueId, 4> in;  // kNoValue: an absent optional input
  SmallVec<ValueId, 2> out;
  int32_t target = -1;  // kAssign: an external; kUpdate, kFused, kClip: in Graph::updates, bodies, clips
  int32_t draw = -1;    // the op draws random numbers: the place of the draw among the local or global ones of a
                        // micro-batch; its seed and counter attributes are given by the step
};

enum class ValueKind : uint8_t { kNode, kInput, kExternal };

struct Value {
  Dims shape;  // logical; of one micro-batch where it depends on one
  DType dtype = DType::kFloat32;
  const GlobalSpec* spec = nullptr;  // nullptr: local
  Device device;
  ValueKind kind = ValueKind::kNode;
  int32_t index = -1;  // of the input or external
  bool is_global() const { return spec != nullptr; }
};

// A tensor from outside: a parameter, a buffer, a constant. Its memory is read, and written by kAssign and kUpdate, in
// place.
struct External {
  Tensor tensor;
  ValueId value = kNoValue;
  std::string name;  // "model.stage0.weight", or "" for a constant
  bool parameter = false;
  bool assigned = false;  // some node writes to it
};

// A group of an optimizer. Slots have parameters and state; gradients come from the graph.
struct Update {
  optim::Rule rule;
  std::vector<int32_t> externals;         // of slot i
  std::vector<const GlobalSpec*> shards;  // ZeRO: the layout in which slot i is updated; nullptr: the parameter's own
  int optimizer = 0;                      // groups of one are updated together or, under a loss scale, not at all
  bool idle = false;  // no optimizer has these parameters: a clipping counts their gradients, and nothing is updated
};

// Gradients that are clipped together: those that these slots of updates take. It happens once per step when all
// gradients are there, in the order of the nodes, on what the updates read, so that passes need not know of it.
struct GradClip {
  optim::Clip how;
  struct Of {
    int32_t update, slot;
    auto operator<=>(const Of&) const = default;
  };
  std::vector<Of> of;
};

struct Graph {
  std::vector<Node> nodes;
  std::vector<Value> values;
  std::vector<External> externals;
  std::vector<Update> updates;
  std::vector<GradClip> clips;
  std::vector<FusedBody> bodies;
  std::vector<std::string> scopes{""}, sites{""};
  int local_draws = 0, global_draws = 0;  // of random numbers, per micro-batch
  int micro_batches = 1;
  int stages = 1;
  bool scaled = false;  // the loss is multiplied by a scale, by which gradients are divided before the updates
  std::vector<int8_t> variant_of;  // of each micro-batch; empty: all have variant 0
  // What micro-batches of different numbers of rows have each for itself, besides nodes. Inputs and outputs are as many
  // in all variants, and an output that is there once per step is the same value in all.
  struct Variant {
    std::vector<ValueId> inputs;
    std::vector<ValueId> outputs;  // of one micro-batch, or once per step
    // How many of a micro-batch's rows are of each of the ranks between which the batch's rows are split, in their
    // order; empty: it is not known.
    std::vector<int64_t> row_parts;
  };
  std::vector<Variant> of_variant = std::vector<Variant>(1);  // at least one; a captured graph has one

  int variants() const { return static_cast<int>(of_variant.size()); }
  int variant(int micro_batch) const { return variant_of.empty() ? 0 : at_index(variant_of, micro_batch); }
  const std::vector<ValueId>& inputs_of(int variant) const { return at_index(of_variant, variant).inputs; }
  const std::vector<ValueId>& outputs_of(int variant) const { return at_index(of_variant, variant).outputs; }
  const std::vector<int64_t>& row_parts_of(int variant) const { return at_index(of_variant, variant).row_parts; }
  size_t n_inputs() const { return of_variant[0].inputs.size(); }
  size_t n_outputs() const { return of_variant[0].outputs.size(); }
  // Pre: there is one variant, as before join_variants().
  Variant& only() { return of_variant[0]; }
  const Variant& only() const { return of_variant[0]; }
  ValueId add_value(const Value& v) {
    values.push_back(v);
    return static_cast<ValueId>(values.size()) - 1;
  }
  const Value& value(ValueId id) const { return at_index(values, id); }
  Value& value(ValueId id) { return at_index(values, id); }
};

// The node that makes each value; -1 for inputs and externals.
std::vector<NodeId> producers(const Graph& g);
// How many nodes read each value; outputs count once more each.
std::vector<int32_t> use_counts(const Graph& g);
// Nothing but its outputs comes of the node: it may be dropped when nobody reads them, merged and moved.
bool is_pure(const Node& n);
// The nodes that come when all gradients are there: clips, updates, and what is made of them; with clips also what is
// written once per step, which others may read before.
std::vector<bool> after_gradients(const Graph& g);

// Checks what every pass has to keep: values exist, are made once and before they are read; shapes, dtypes and specs
// are those that the ops infer for their inputs, in a signature that the op has; sections and stages in order. Errors:
// a sentence with the node's text (Error of kind kInternal). after: what has run last, for the message.
void verify(const Graph& g, const char* after);

// A line per node, e.g. "%12 = matmul(%3, %10)  float32 [4, 8] S(0) @cpu:[0, 1]  stage 0 forward  model.fc1".
std::string str(const Graph& g);
std::string str(const Graph& g, const Node& n);
// "forward of model.blocks.*.fc": the blocks of a model are alike.
std::string place_text(const Graph& g, const Node& n);

// The same on every rank that captured the same; depends on all that decides what ranks exchange.
uint64_t hash(const Graph& g);
// The same of each node by itself.
std::vector<uint64_t> node_hashes(const Graph& g);

// Runs the graph node by node with eager ops: the truth that passes and the executor are compared with. externals are
// read and, by assignments and updates, written. Collective. Pre: one micro-batch.
std::vector<Tensor> interpret(Graph& g, std::span<const Tensor> inputs);

}  // namespace holon::graph
