// A graph whose boxings for ops are left out: an input of a node is then a value, its source, in a wanted layout. What
// all boxings cost is the sum over the different pairs of the two. Layouts of nodes can be changed, and priced, before
// boxings are put back.
#pragma once

#include <vector>

#include "holon/graph/passes/known_signatures.h"
#include "holon/graph/passes/node_layouts.h"
#include "holon/graph/passes/parameters.h"

namespace holon::graph {

class OpenLayouts {
 public:
  struct Wanted {
    const GlobalSpec* spec;
    int32_t readers = 0, often = 0;  // of them, those in each micro-batch
  };

  // keep_parameters: a split parameter that moves costs more than any time.
  OpenLayouts(Graph& g, bool keep_parameters) : g_(g), keep_(keep_parameters) {}

  // Which boxings are free to go, and who wants what of whom. False: none is. To be called first, once.
  bool look();
  // Puts boxings where sources are not as they are wanted, one for all readers of a layout that it can serve.
  void rebuild();

  // The layout of a value.
  const GlobalSpec* now(ValueId v) const { return at_index(now_, v); }
  // What a value is when free boxings are left out.
  ValueId source(ValueId v) const { return at_index(source_, v); }
  // What is wanted of a source.
  const std::vector<Wanted>& readers(ValueId source) const { return at_index(readers_, source); }
  // The first node that reads a source, and the one that makes it; -1: none.
  NodeId reader(ValueId source) const { return at_index(reader_, source); }
  NodeId made_by(ValueId source) const { return at_index(made_by_, source); }
  // The layouts that a node wants its inputs in.
  const SmallVec<const GlobalSpec*, 4>& wants(size_t at) const { return wants_[at]; }
  bool is_redistributed(size_t at) const;

  // nullptr: the node's signature is not to be changed.
  const KnownSignatures::Of* known(size_t at);
  NodeLayouts layouts(size_t at) const;
  void set(size_t at, const NodeLayouts& layouts);

  // Of the boxings of a source.
  BoxingCost cost(ValueId of) const;
  // Of what the node's kernel reads of other ranks' parts by itself.
  BoxingCost cost_inside(size_t at);
  // Of all boxings that the signatures of the node, or nodes, have a part in.
  BoxingCost cost_around(size_t at);
  BoxingCost cost_around(const std::vector<size_t>& nodes);
  // Of the boxings around a node that are not those of its source `link`, nor, unless it is the last, of its result.
  BoxingCost cost_beside(const Node& n, ValueId link, bool last) const;

  // Bytes on a rank: of a value and its copies in other layouts; of copies of the node's inputs that are made for it
  // alone, without those of the source `link`; of the node's results and copies.
  int64_t bytes_of_variants(ValueId of) const;
  int64_t bytes_of_copies(size_t at, ValueId link = kNoValue) const;
  int64_t held(size_t at) const;

 private:
  void want(ValueId of, const GlobalSpec* spec, const Node& by, int32_t more);
  BoxingCost cost_of_inputs(const Node& n, ValueId without) const;
  int64_t bytes_as(ValueId id, const GlobalSpec* spec) const;

  Graph& g_;
  const bool keep_;
  const std::vector<bool> of_parameter_ = parameter_values(g_);  // by value
  std::vector<ValueId> source_;                                  // of each value
  std::vector<const GlobalSpec*> now_;                           // of each value
  std::vector<bool> fixed_, free_;                               // by value, by node
  std::vector<std::vector<Wanted>> readers_;                     // of each source
  std::vector<NodeId> made_by_, reader_;                         // of each source
  KnownSignatures known_;
  std::vector<const KnownSignatures::Of*> known_of_;   // of each node
  std::vector<SmallVec<const GlobalSpec*, 4>> wants_;  // of each node's inputs
};

}  // namespace holon::graph
