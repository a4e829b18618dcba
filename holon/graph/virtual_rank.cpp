#include "holon/graph/virtual_rank.h"

#include <algorithm>

#include "holon/base/error.h"
#include "holon/comm/core/world.h"
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
  void op(const OpDef&, const Attrs&, std::span<const Tensor>, std::span<Tensor> outputs) override {
    for (auto& t : outputs) t.impl()->array = shaped(t.shape(), t.dtype(), t.spec(), t.impl()->device).array();
  }
  Tensor redistribute(const Tensor& t, const GlobalSpec* to, bool asked) override {
    if (asked) contract::plan_move({"to_global", t.spec(), to, t.shape(), t.dtype()});  // an op has done so itself
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
  void gradient(TensorImpl&, const Tensor&) override {}  // of graphs, as some of the following
  Tensor gradient_of(const TensorImpl&) const override { return {}; }
  int64_t draw(bool) override { return 0; }
  int32_t mark() const override { return 0; }
  int32_t exchange_mark(int32_t) override { return 0; }
  void backward(bool) override {}
  Tensor seed(Tensor ones) override { return ones; }
  void detached(const Tensor&, const Tensor&) override {}
  bool alone() const override { return true; }
  bool eager() const override { return true; }
  Tensor enter(const void*, const Tensor& x) override { return x; }
  void leave(bool) override {}
  bool varies(const TensorImpl&) const override { return true; }
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
  comm::refuse_world(
      "this rank is one of a world that is not there, and has no other ranks to communicate with. Leave out what does "
      "so, or run the program on real ranks.");
}

VirtualRank::~VirtualRank() { Context::exchange(before_); }

}  // namespace holon::graph
