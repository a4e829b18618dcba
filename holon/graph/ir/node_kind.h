// What a kind of node is, as one entry of a table: its name and text, what of it ranks compare, how it is checked and
// interpreted, and what passes ask of it. A new kind is an enumerator (graph.h), an entry in node_kind.cpp, and one in
// program/lower.cpp, which makes its instructions.
#pragma once

#include <string>

#include "holon/base/hash.h"
#include "holon/graph/ir/graph.h"

namespace holon::graph {

class NodeCheck;
class Interpreter;

// The list of the graph in which Node::target is a place.
enum class Target : uint8_t { kNone, kExternal, kUpdate, kBody, kClip };

struct KindTraits {
  bool moves = false;      // what comes out are the elements that go in, at least in part, and maybe the same memory
  bool computes = false;   // it takes time by its bytes or operations
  bool effects = false;    // something comes of it besides its outputs: it stays, where it is
  bool gradients = false;  // it takes all gradients: runs when they are there, and on every rank
};

struct KindDef {
  NodeKind kind;
  const char* name;
  Target target;
  KindTraits traits;
  // Its call, with the inputs' text; nullptr: "name(inputs)".
  std::string (*text)(const Graph& g, const Node& n, std::string inputs);
  // What ranks have to agree on besides the node's fields; nullptr: nothing.
  void (*hash)(const Graph& g, const Node& n, Hasher* h);
  // References, so that an entry without them does not compile.
  void (&verify)(NodeCheck& check, const Node& n);
  void (&interpret)(Interpreter& run, const Node& n);
};

inline constexpr size_t kNodeKinds = static_cast<size_t>(NodeKind::kClip) + 1;

extern const KindDef kKinds[kNodeKinds];  // by kind
inline const KindDef& def(NodeKind kind) { return kKinds[static_cast<size_t>(kind)]; }
inline const KindTraits& traits(const Node& n) { return def(n.kind).traits; }

// How many entries the list has in which the node's target is a place; 0 for kinds without one.
size_t target_count(const Graph& g, const Node& n);
inline bool has_target(const Graph& g, const Node& n) {
  return n.target >= 0 && static_cast<size_t>(n.target) < target_count(g, n);
}

// A window on its input's memory, or the same elements under another name or in other places.
inline bool is_view(const Node& n) { return traits(n).moves || (n.kind == NodeKind::kOp && n.op && n.op->view); }

}  // namespace holon::graph
