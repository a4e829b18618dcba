#include "holon/graph/virtual_rank.h"

#include <algorithm>
#include <map>
#include <string_view>

#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/boxing/planner.h"
#include "holon/contract/contract.h"
#include "holon/contract/moves.h"
#include "holon/cost/machine.h"
#include "holon/registry/op_def.h"

namespace holon::graph {

namespace {

struct VirtualMode {
  bool on = false;
};

// This rank's part of a tensor, without memory.
Tensor shaped(const Dims& shape, DType dtype, const GlobalSpec* spec, Device device) {
  Tensor t = Tensor::without_data(shape, dtype, spec, device);
  Dims local = shape;
  if (spec) {
    const int index = spec->placement.index_of(Context::current().rank());
    if (index < 0) return t;
    local = region_of(shape, spec->placement, spec->nd_sbp, index).shape;
    device = spec->placement.device();
  }
  t.impl()->array = Array::placeholder(local, contiguous_strides(local), dtype, device);
  return t;
}

}  // namespace

bool is_virtual() { return Context::current().part<VirtualMode>().on; }

class VirtualRank::Shapes final : public Tracer {
 public:
  void op(const OpDef& op, const Attrs&, std::span<const Tensor> inputs, std::span<Tensor> outputs) override {
    // What such a kernel reads of other ranks' parts depends on its inputs, and no plan says it.
    if (op.communicates && contract::is_watching() &&
        std::any_of(inputs.begin(), inputs.end(), [](auto& t) { return t.defined() && t.is_global(); }))
      fail_eager(op.name(), "its kernel exchanges data with other ranks");
    for (auto& t : outputs) t.impl()->array = shaped(t.shape(), t.dtype(), t.spec(), t.impl()->device).array();
  }
  Tensor redistribute(const Tensor& t, const GlobalSpec* to, bool asked) override {
    if (contract::is_watching()) {
      if (asked)
        contract::plan_move({"to_global", t.spec(), to, t.shape(), t.dtype()});
      else if (boxing::plan(t.spec(), to, t.shape(), t.dtype()).max_read_bytes() > 0)
        fail_eager("an op", fmt::format("it redistributes an input {} {} from {} to {}", name(t.dtype()), t.shape(),
                                        *t.spec(), *to));
    }
    return shaped(t.shape(), t.dtype(), to, t.impl()->device);
  }
  Tensor relabel(const Tensor& t, const Dims& shape, const GlobalSpec* spec) override {
    return shaped(shape, t.dtype(), spec, t.impl()->device);
  }
  Tensor agree(const Tensor& t, const Dims& shape, const GlobalSpec* spec) override {
    contract::note_local(spec, shape, t.dtype());
    return relabel(t, shape, spec);
  }
  void write(const char*, const Tensor&, const Tensor&) override {}
  void gradient(TensorImpl& leaf, const Tensor& g) override { gradients_[&leaf] = g; }
  Tensor gradient_of(const TensorImpl& leaf) const override {
    auto it = gradients_.find(&leaf);
    return it == gradients_.end() ? Tensor() : it->second;
  }
  int64_t draw(bool) override { return 0; }
  int32_t mark() const override { return 0; }
  int32_t exchange_mark(int32_t) override { return 0; }
  void backward(bool) override {}
  Tensor seed(Tensor ones) override { return ones; }
  void detached(const Tensor&, const Tensor&) override {}
  bool alone() const override { return true; }
  Tensor enter(const void*, const Tensor& x) override { return x; }
  void leave(bool) override {}
  bool varies(const TensorImpl&) const override { return true; }

 private:
  // A contract without values has graphs, and what is asked outside of them.
  [[noreturn]] static void fail_eager(std::string_view op, std::string_view what) {
    fail_runtime("a contract is recorded without values, and {} that is not in a graph moves data: {}. Record the "
                 "program with values, call the op in the build() of an nn.Graph, or convert its inputs by "
                 "to_global().",
                 op, what);
  }

  std::map<const TensorImpl*, Tensor> gradients_;
};

VirtualRank::VirtualRank(int rank, int world_size, int ranks_per_host) {
  if (world_size < 1 || rank < 0 || rank >= world_size)
    fail_value("virtual rank {} of {}: a rank must be from 0 to the size of the world minus one.", rank, world_size);
  if (Context::current().tracer())
    fail_runtime("a virtual rank cannot begin inside build(). Begin it before calling the graph.");
  bool known;
  Machine machine = *machine_so_far(&known);
  machine.hosts = {};
  for (int r = 0; ranks_per_host > 0 && r < world_size; ++r) machine.hosts.host_of_rank.push_back(r / ranks_per_host);
  const int here = ranks_per_host > 0 ? ranks_per_host : world_size;
  context_ = std::make_unique<Context>(rank, world_size, rank % here, std::min(here, world_size));
  before_ = Context::exchange(context_.get());
  shapes_ = std::make_unique<Shapes>();
  context_->part<VirtualMode>().on = true;
  context_->set_tracer(shapes_.get());
  set_machine(machine);
}

VirtualRank::~VirtualRank() { Context::exchange(before_); }

}  // namespace holon::graph
