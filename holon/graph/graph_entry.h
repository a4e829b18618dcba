// What a compiled signature of a graph consists of. Header of graph/'s own sources.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "holon/boxing/events.h"
#include "holon/graph/graph_core.h"

namespace holon::nn {

// What a compiled step has taken for granted of a tensor from outside. Its memory may move.
struct Fingerprint {
  TensorImpl* impl;  // held by the step's graph
  const GlobalSpec* spec;
  Dims shape, strides;
  DType dtype;
  bool requires_grad;

  explicit Fingerprint(const Tensor& t)
      : impl(t.impl()),
        spec(t.spec()),
        shape(t.shape()),
        strides(t.array().strides),
        dtype(t.dtype()),
        requires_grad(t.requires_grad()) {}
  bool holds() const {
    return impl->spec == spec && impl->requires_grad() == requires_grad && impl->dtype == dtype &&
        impl->shape == shape && impl->array.strides == strides;
  }
};

struct InputMeta {
  Dims shape;
  DType dtype;
  const GlobalSpec* spec;
  Device device;
  bool requires_grad;
  bool operator==(const InputMeta&) const = default;
};

// A compiled signature. Optimizers that have lent it their state keep it alive until they have it back.
struct GraphCore::Entry {
  struct Link {
    size_t optimizer, group;
    std::vector<size_t> params;  // of slot i: its place in the group
    GraphOptimizer::Group seen;
  };
  std::vector<InputMeta> inputs;
  struct SeenModule {
    Module module;
    bool training;
    uint64_t changes;  // of what is registered in it
  };
  std::vector<SeenModule> modules;
  uint64_t variant = 0, revision = 0;
  bool grad = true, autocast = false, layout_free = false;
  DType autocast_dtype = bfloat16;
  int64_t float8_block = 0;
  std::shared_ptr<Float8Recipe> float8_recipe{};
  boxing::ParameterPolicy parameters = boxing::ParameterPolicy::kKeep;
  std::vector<Fingerprint> externals;
  std::vector<Link> links;
  std::vector<size_t> n_groups;        // of each optimizer
  std::vector<graph::Graph> captured;  // for each variant of micro-batches
  std::vector<int8_t> variant_of;      // of each micro-batch; empty: there is one
  double capture_s = 0;
  std::unique_ptr<graph::Step> step;
};

}  // namespace holon::nn
