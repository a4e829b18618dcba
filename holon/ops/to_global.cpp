// Between local and global, and from one placement and sbp to another. All three are collective over the ranks of the
// world. Gradients: to_global's goes back to the source's placement and sbp; that of a local source is each rank's own
// part (where it was broadcast, the first rank's value was taken, so the first rank gets the gradient and the others
// zeros). to_local's from a broadcast tensor is the sum of what the ranks give.
#include "holon/ops/to_global.h"

#include "holon/base/context.h"
#include "holon/base/fmt.h"
#include "holon/base/hash.h"
#include "holon/base/index.h"
#include "holon/boxing/agree.h"
#include "holon/boxing/executor.h"
#include "holon/contract/moves.h"
#include "holon/dispatch/dispatch.h"
#include "holon/dispatch/record.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/device.h"
#include "holon/ops/cast.h"
#include "holon/ops/create.h"
#include "holon/ops/part_metas.h"
#include "holon/ops/shape.h"
#include "holon/registry/op_def.h"
#include "holon/tensor/node.h"
#include "holon/tensor/observer.h"
#include "holon/tensor/tracer.h"

namespace holon::ops {
namespace {

int this_rank() { return Context::current().rank(); }

// A gradient never has to be a partial sum where its value was one: whoever needs it reads it whole.
NdSbp without_partial(const NdSbp& sbp) {
  std::vector<Sbp> list(sbp.begin(), sbp.end());
  for (auto& s : list)
    if (s.is_partial()) s = sbp::broadcast();
  return NdSbp(list);
}

Tensor redistributed(const Tensor& x, const GlobalSpec* to) {
  if (x.spec() == to) return x;
  if (Tracer* trace = tracer()) return trace->redistribute(x, to, true);
  const boxing::Plan plan = contract::plan_move({"to_global", x.spec(), to, x.shape(), x.dtype()});
  return Tensor::global(boxing::execute(plan, x.array()), x.shape(), x.dtype(), to);
}

class Function : public Node {
 public:
  explicit Function(const char* name) : name_(name) {}
  const char* name() const override { return name_; }
  void free_saved() override {}

 private:
  const char* name_;
};

class GlobalToGlobal final : public Function {
 public:
  GlobalToGlobal(const GlobalSpec* back) : Function("to_global"), back_(back) {}
  TensorVec backward(std::span<const Tensor> grads) override {
    return {to_global(grads[0], back_->placement, back_->nd_sbp)};
  }

 private:
  const GlobalSpec* back_;
};

class LocalToGlobal final : public Function {
 public:
  LocalToGlobal(const GlobalSpec* spec, const Tensor& x)
      : Function("to_global"), spec_(spec), shape_(x.shape()), dtype_(x.dtype()), device_(x.device()) {}
  TensorVec backward(std::span<const Tensor> grads) override {
    Tensor g = to_local(to_global(grads[0], spec_->placement, without_partial(spec_->nd_sbp)));
    int index = spec_->placement.index_of(this_rank());
    if (index < 0) return {zeros(shape_, {.dtype = dtype_, .device = device_})};
    Dims at = spec_->placement.coordinate(index);
    for (int a = 0; a < at.size(); ++a)
      if (spec_->nd_sbp[a].is_broadcast() && at[a] != 0) return {zeros_like(g)};
    return {g};
  }

 private:
  const GlobalSpec* spec_;
  Dims shape_;
  DType dtype_;
  Device device_;
};

class GlobalToLocal final : public Function {
 public:
  explicit GlobalToLocal(const Tensor& x) : Function("to_local"), spec_(x.spec()), shape_(x.shape()) {}
  TensorVec backward(std::span<const Tensor> grads) override {
    std::vector<Sbp> list(spec_->nd_sbp.begin(), spec_->nd_sbp.end());
    for (auto& s : list)
      if (!s.is_split()) s = s.is_broadcast() ? sbp::partial_sum() : sbp::broadcast();
    auto* spec = intern_spec(spec_->placement, NdSbp(list));
    if (Tracer* trace = tracer()) return {trace->relabel(grads[0], shape_, spec)};
    Array part = spec_->placement.contains(this_rank()) ? grads[0].array() : Array();
    return {Tensor::global(part, shape_, grads[0].dtype(), spec)};
  }

 private:
  const GlobalSpec* spec_;
  Dims shape_;
};

std::string sizes_text(std::span<const PartMeta> parts) {
  std::string s;
  for (size_t i = 0; i < parts.size(); ++i) s += fmt::format("{}rank {} {}", i ? ", " : "", i, parts[i].shape());
  return s;
}

// What every rank of the world holds. Collective over the world.
std::vector<PartMeta> exchange_metas(const Tensor& x, const GlobalSpec* spec) {
  const PartMeta mine = PartMeta::of(x);
  if (!has_peers()) return std::vector<PartMeta>(to_size(Context::current().world_size()), mine);
  return exchange("to_global", mine, hash_text(spec->str()), mine);
}

// The logical shape of which the parts are the slices. Errors: dtypes, numbers of axes or sizes that do not fit
// together.
Dims logical_shape(const std::vector<PartMeta>& parts, const GlobalSpec* spec) {
  const Placement& p = spec->placement;
  int first = p.ranks()[0];
  const PartMeta& lead = at_index(parts, first);
  for (int r : p.ranks()) {
    const PartMeta& part = at_index(parts, r);
    if (part.dtype != lead.dtype)
      fail_runtime("to_global: the ranks disagree on dtype: rank {} {}, rank {} {}. Convert first, e.g. x.to(float32).",
                   first, name(static_cast<DType>(lead.dtype)), r, name(static_cast<DType>(part.dtype)));
    if (part.ndim != lead.ndim)
      fail_runtime("to_global: the ranks disagree on the number of axes: rank {} {}, rank {} {}. Reshape first.", first,
                   lead.shape(), r, part.shape());
  }
  Dims shape = lead.shape();
  check_nd_sbp(shape, p, spec->nd_sbp, "to_global");
  for (int d = 0; d < shape.size(); ++d) {
    int64_t total = 0;
    for (int i = 0; i < p.size(); ++i) {
      Dims at = p.coordinate(i);
      bool counts = true;  // along the axes that do not split d, the first rank represents all
      for (int a = 0; a < at.size(); ++a) counts &= spec->nd_sbp[a].is_split(d) || at[a] == 0;
      if (counts) total += at_index(parts, at_index(p.ranks(), i)).sizes[d];
    }
    shape[d] = total;
  }
  for (int i = 0; i < p.size(); ++i) {
    int r = at_index(p.ranks(), i);
    Dims wanted = region_of(shape, p, spec->nd_sbp, i).shape;
    if (at_index(parts, r).shape() != wanted)
      fail_runtime("to_global: the local parts do not form one tensor under {}: rank {} has {} and should have {} of "
                   "{}. Parts: {}. If a size is not divisible by the ranks, the first ones hold one more.",
                   spec->nd_sbp, r, at_index(parts, r).shape(), wanted, shape, sizes_text(parts));
  }
  return shape;
}

Tensor from_local(const Tensor& given, const GlobalSpec* spec, bool check_meta) {
  bool member = spec->placement.contains(this_rank());
  const Device device = spec->placement.device();
  const bool moves = member && given.device() != device && (!given.device().is_host() || !device.is_host());
  const Tensor x = moves ? to_device(given, device) : given;
  Dims shape = x.shape();
  DType dtype = x.dtype();
  Array part = x.array();
  if (check_meta) {
    auto parts = exchange_metas(x, spec);
    shape = logical_shape(parts, spec);
    dtype = static_cast<DType>(at_index(parts, spec->placement.ranks()[0]).dtype);
  } else {
    agree_on_part(x, spec);
    check_nd_sbp(shape, spec->placement, spec->nd_sbp, "to_global");
    for (int a = 0; a < spec->nd_sbp.size(); ++a)
      if (spec->nd_sbp[a].is_split()) shape[spec->nd_sbp[a].axis] *= spec->placement.hierarchy()[a];
  }
  Tensor out;
  if (Tracer* trace = tracer()) {
    out = trace->agree(x, shape, spec);
  } else {
    contract::note_local(spec, shape, dtype);
    if (member) part = boxing::agree_on_value(part, spec, shape);
    out = Tensor::global(member ? part : Array(), shape, dtype, spec);
  }
  if (x.requires_grad() && grad_enabled()) record_node(make_ref<LocalToGlobal>(spec, x), {&x, 1}, {&out, 1});
  return out;
}

}  // namespace

HOLON_OP(
    to_global,
    "to_global(Tensor x, placement? placement=None, sbp? sbp=None, *, sbp? grad_sbp=None, bool keep_grad_sbp=False, "
    "bool check_meta=True, bool copy=False) -> Tensor")
    .doc(
        "A local tensor as this rank's part of a global one whose shape follows from the parts, or a global tensor "
        "redistributed to another placement and sbp (an omitted one is kept). Collective: every rank of the world "
        "calls it; ranks outside the placement pass a local tensor that is ignored. grad_sbp: the sbp of the "
        "gradient, instead of the source's; with keep_grad_sbp the gradient of a global tensor stays as backward makes "
        "it, as where an op redistributes its input by itself. check_meta=False promises that all ranks pass parts of "
        "the same shape and "
        "dtype, so that ranks communicate only when these differ from the previous call.",
        "to_global(ones(2), placement('cpu', [0]), sbp.broadcast)")
    .body([](BodyCall& c) {
      const Tensor& x = c.in(0);
      const int at = c.op().placement_attr, sbp_at = c.op().sbp_attr;
      bool has_placement = c.attrs().has(at), has_sbp = c.attrs().has(sbp_at);
      if (x.is_local()) {
        if (!has_placement || !has_sbp)
          fail_layout("to_global: a local tensor needs both placement and sbp; {} is missing. Example: "
                      "x.to_global(placement=placement(\"cpu\", "
                      "[0, 1]), sbp=sbp.split(0)).",
                      has_placement ? "sbp"
                          : has_sbp ? "placement"
                                    : "each of them");
        Placement p = c.attrs().as_placement(at);
        NdSbp s = c.attrs().as_nd_sbp(sbp_at);
        check_nd_sbp(x.shape(), p, s, "to_global");
        c.out.push_back(from_local(x, intern_spec(p, s), c.b("check_meta"_attr)));
        return;
      }
      Placement p = has_placement ? c.attrs().as_placement(at) : x.placement();
      NdSbp s = has_sbp ? c.attrs().as_nd_sbp(sbp_at) : x.nd_sbp();
      const bool has_grad_sbp = c.has("grad_sbp"_attr), keep = c.b("keep_grad_sbp"_attr);
      if (has_grad_sbp && keep)
        fail_layout("to_global: grad_sbp and keep_grad_sbp were both given. Leave one of them out.");
      if (s == x.nd_sbp() && p == x.placement() && !has_grad_sbp) {
        c.out.push_back(c.b("copy"_attr) ? clone(x) : x);
        return;
      }
      check_nd_sbp(x.shape(), p, s, "to_global");
      Tensor out = redistributed(x, intern_spec(p, s));
      if (keep && p == x.placement()) {
        out.impl()->set_grad_fn_of(*x.impl());
        if (x.requires_grad() && x.is_leaf()) out.impl()->alias_of = edge_of(x).leaf;
      } else if (x.requires_grad() && grad_enabled()) {
        if (out.is_same(x)) out = x.detach();
        NdSbp back = has_grad_sbp ? c.attrs().as_nd_sbp(c.op().attr("grad_sbp"_attr)) : without_partial(x.nd_sbp());
        check_nd_sbp(x.shape(), x.placement(), back, "to_global(grad_sbp)");
        record_node(make_ref<GlobalToGlobal>(intern_spec(x.placement(), back)), {&x, 1}, {&out, 1});
      }
      c.out.push_back(out);
    });

HOLON_OP(to_local, "to_local(Tensor x, *, bool copy=False) -> Tensor")
    .doc("This rank's part of a global tensor, sharing memory unless copy; a tensor of shape [0] on ranks outside the "
         "placement.",
         "to_local(ones(2, placement=placement('cpu', [0]), sbp=sbp.broadcast))")
    .body([](BodyCall& c) {
      const Tensor& x = c.in(0);
      if (x.is_local())
        fail_runtime("Expected global tensor for to_local but got local tensor! Use the tensor as it is.");
      Tensor out;
      if (Tracer* trace = tracer()) {
        const int index = x.placement().index_of(this_rank());
        out = trace->relabel(x, index < 0 ? Dims{0} : region_of(x.shape(), x.placement(), x.nd_sbp(), index).shape,
                             nullptr);
      } else {
        Array part = x.array();
        if (!part.defined()) part = Array::empty({0}, x.dtype());
        out = Tensor::local(part);
      }
      if (x.requires_grad() && grad_enabled()) record_node(make_ref<GlobalToLocal>(x), {&x, 1}, {&out, 1});
      c.out.push_back(c.b("copy"_attr) ? clone(out) : out);
    });

}  // namespace holon::ops

namespace holon {

Tensor Tensor::to_global(const Placement& placement, const NdSbp& sbp) const {
  return holon::to_global(*this, placement, sbp);
}
Tensor Tensor::to_local() const { return holon::to_local(*this); }

Tensor Tensor::full() const {
  require_constant("full");
  Observer* const watching = observer();
  if (watching && is_global()) [[unlikely]]
    watching->read(*this);
  ObserverPause untold;
  TracerPause untraced;
  NoGradGuard no_grad;
  Tensor x = detach();
  if (is_global()) {
    bool everywhere = nd_sbp().is_broadcast() && placement().size() == Context::current().world_size();
    if (!everywhere) {
      Placement all = Placement::all(name(placement().device_type()));
      x = ops::redistributed(x, intern_spec(all, sbp::broadcast()));
    }
    x = Tensor::local(x.array());
  }
  return holon::contiguous(x);
}

Scalar Tensor::item() const {
  if (numel() != 1)
    fail_value(
        "item: the tensor has shape {}; only a tensor of one element is a number. Reduce it first, e.g. by sum().",
        shape());
  require_constant("item");
  TracerPause untraced;
  Tensor x = full();
  Array one = kernels::detail::host_copy(x.array());
  if (is_float8(one.dtype)) one = kernels::converted(one, float32);
  return visit_dtype(one.dtype, [&](auto tag) -> Scalar {
    using T = typename decltype(tag)::type;
    T v = *one.data<T>();
    if constexpr (std::is_same_v<T, bool>)
      return Scalar(v);
    else if constexpr (std::is_integral_v<T>)
      return Scalar(static_cast<int64_t>(v));
    else
      return Scalar(static_cast<double>(v));
  });
}

}  // namespace holon
