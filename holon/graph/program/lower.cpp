#include <algorithm>
#include <array>
#include <unordered_map>

#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/graph/program/instructions.h"
#include "holon/graph/program/program.h"
#include "holon/graph/schedule/schedule.h"
#include "holon/kernels/cpu/copy.h"

namespace holon::graph {

namespace {

const Array kUndefined{};

bool per_micro_batch(Section s) { return s != Section::kOnceBefore && s != Section::kOnceAfter; }

class Lowering {
 public:
  Lowering(const Graph& g, const LoweringOptions& options)
      : g_(g), options_(options), made_by_(producers(g)), rank_(Context::current().rank()) {}

  std::unique_ptr<Program> run() {
    p_ = std::make_unique<Program>();
    micro_ = g_.micro_batches;
    sort_nodes();
    count_reads();
    bind_outside();
    for (auto& u : g_.updates) p_->updates.push_back({u.rule, {}, u.clip_grad_max_norm, u.clip_grad_norm_type});
    run_section(Section::kOnceBefore, -1, 0);
    for (const Task& t : tasks()) {
      run_section(t.phase == Phase::kForward        ? Section::kForward
                      : t.phase == Phase::kBackward ? Section::kBackward
                                                    : Section::kWeight,
                  t.stage, t.micro_batch);
      put_out(t.micro_batch);
    }
    for (int m = 0; m < micro_; ++m) put_out(m, true);
    run_section(Section::kOnceAfter, -1, 0);
    put_out(0, true);
    finish_outputs();
    place();
    return std::move(p_);
  }

 private:
  struct Instance {
    int32_t array = -1, buffer = -1;
  };

  // What the rank does, by section and stage.
  void sort_nodes() {
    per_micro_.assign(g_.values.size(), false);
    first_.assign(g_.values.size() + 1, 0);
    for (size_t v = 0; v < g_.values.size(); ++v) {
      NodeId by = made_by_[v];
      per_micro_[v] = micro_ > 1 &&
          (by >= 0 ? per_micro_batch(g_.nodes[static_cast<size_t>(by)].section)
                   : g_.values[v].kind == ValueKind::kInput);
      first_[v + 1] = first_[v] + (per_micro_[v] ? micro_ : 1);
    }
    instances_.resize(static_cast<size_t>(first_.back()));
    stages_ = std::max(1, g_.stages);
    for (auto& lists : lists_) lists.resize(static_cast<size_t>(stages_));
    for (size_t n = 0; n < g_.nodes.size(); ++n) {
      const Node& node = g_.nodes[n];
      if (!takes_part(node)) continue;
      const size_t stage = stages_ == 1 || !per_micro_batch(node.section)
          ? 0
          : static_cast<size_t>(std::clamp<int>(node.stage, 0, stages_ - 1));
      lists_[static_cast<size_t>(node.section)][stage].push_back(static_cast<NodeId>(n));
    }
  }

  bool member(ValueId v) const {
    auto* spec = g_.value(v).spec;
    return !spec || spec->placement.contains(rank_);
  }

  bool takes_part(const Node& n) const {
    for (ValueId v : n.out)
      if (member(v)) return true;
    for (ValueId v : n.in)
      if (v != kNoValue && member(v)) return true;
    return n.in.empty() && n.out.empty();
  }

  std::vector<Task> tasks() const {
    bool training = false;
    for (size_t s : {static_cast<size_t>(Section::kBackward), static_cast<size_t>(Section::kWeight)})
      for (auto& list : lists_[s]) training |= !list.empty();
    if (stages_ == 1) return sequential(1, micro_, training).tasks[0];
    fail(ErrorKind::kNotImplemented, "a graph of {} stages", stages_);
  }

  Instance& instance(ValueId v, int m) {
    return instances_[static_cast<size_t>(first_[static_cast<size_t>(v)] +
                                          (per_micro_[static_cast<size_t>(v)] ? m : 0))];
  }
  const Array* array(ValueId v, int m) {
    if (v == kNoValue) return &kUndefined;
    Instance& i = instance(v, m);
    return i.array < 0 ? &kUndefined : &p_->arrays[static_cast<size_t>(i.array)];
  }

  // How often one instance of each value is read here.
  void count_reads() {
    reads_.assign(g_.values.size(), 0);
    for (auto& n : g_.nodes) {
      if (!takes_part(n)) continue;
      const bool often = micro_ > 1 && per_micro_batch(n.section);
      for (ValueId v : n.in)
        if (v != kNoValue) reads_[static_cast<size_t>(v)] += often && !per_micro_[static_cast<size_t>(v)] ? micro_ : 1;
    }
    for (ValueId v : g_.outputs) ++reads_[static_cast<size_t>(v)];
  }

  int32_t now() const { return static_cast<int32_t>(p_->instructions.size()); }

  int32_t new_buffer(size_t bytes, Buffer::Kind kind = Buffer::Kind::kArena) {
    Buffer b;
    b.kind = kind;
    b.bytes = bytes;
    b.storage = make_ref<Storage>(nullptr, 0);
    b.life = {now(), now(), bytes};
    p_->buffers.push_back(std::move(b));
    return static_cast<int32_t>(p_->buffers.size()) - 1;
  }

  Array* keep(Array a) {
    p_->arrays.push_back(std::move(a));
    return &p_->arrays.back();
  }

  Array* set(ValueId v, int m, Array a, int32_t buffer) {
    Instance& i = instance(v, m);
    HOLON_CHECK(i.array < 0, "value {} is made twice", v);
    i.array = static_cast<int32_t>(p_->arrays.size());
    i.buffer = buffer;
    p_->buffers[static_cast<size_t>(buffer)].pending += reads_[static_cast<size_t>(v)];
    return keep(std::move(a));
  }

  // An array with memory of its own for the value.
  Array* fresh(ValueId v, int m, const Dims& shape, const Dims& strides) {
    const Value& value = g_.value(v);
    Array a = Array::placeholder(shape, strides, value.dtype, device_of(value));
    int32_t b = new_buffer(a.nbytes());
    a.storage = p_->buffers[static_cast<size_t>(b)].storage;
    return set(v, m, std::move(a), b);
  }

  static Device device_of(const Value& v) { return v.spec ? v.spec->placement.device() : v.device; }

  Dims local_shape(const Value& v) const {
    if (!v.spec) return v.shape;
    return slice_of(v.shape, v.spec->placement, v.spec->nd_sbp, v.spec->placement.index_of(rank_)).shape;
  }

  template <class T, class... Args>
  T& emit(const Node* n, int m, Args&&... args) {
    auto made = std::make_unique<T>(std::forward<Args>(args)...);
    made->node = n ? static_cast<int32_t>(n - g_.nodes.data()) : -1;
    made->micro_batch = static_cast<int16_t>(m);
    T& ref = *made;
    p_->instructions.push_back(std::move(made));
    return ref;
  }

  void read_done(ValueId v, int m) {
    if (v == kNoValue) return;
    Instance& i = instance(v, m);
    if (i.buffer < 0) return;
    Buffer& b = p_->buffers[static_cast<size_t>(i.buffer)];
    --b.pending;
    b.life.last = std::max(b.life.first, now() - 1);
  }

  void bind_outside() {
    for (size_t i = 0; i < g_.inputs.size(); ++i) {
      ValueId v = g_.inputs[i];
      if (!member(v)) continue;
      const Value& value = g_.value(v);
      const Dims shape = local_shape(value);
      for (int m = 0; m < (per_micro_[static_cast<size_t>(v)] ? micro_ : 1); ++m) {
        Array a = Array::placeholder(shape, contiguous_strides(shape), value.dtype, device_of(value));
        int32_t b = new_buffer(a.nbytes(), Buffer::Kind::kInput);
        Buffer& buffer = p_->buffers[static_cast<size_t>(b)];
        buffer.index = static_cast<int32_t>(i);
        buffer.at = value.shape.size() ? m * static_cast<int64_t>(a.nbytes()) : 0;
        a.storage = buffer.storage;
        set(v, m, std::move(a), b);
      }
    }
    for (size_t e = 0; e < g_.externals.size(); ++e) {
      const External& x = g_.externals[e];
      const Array& own = x.tensor.array();
      if (!own.defined()) continue;
      Array a = own;
      int32_t b = new_buffer(0, Buffer::Kind::kExternal);
      p_->buffers[static_cast<size_t>(b)].index = static_cast<int32_t>(e);
      a.storage = p_->buffers[static_cast<size_t>(b)].storage;
      a.offset = 0;
      set(x.value, 0, std::move(a), b);
    }
  }

  void run_section(Section section, int stage, int m) {
    auto& lists = lists_[static_cast<size_t>(section)];
    for (NodeId n : lists[static_cast<size_t>(stage < 0 || stages_ == 1 ? 0 : stage)]) {
      const Node& node = g_.nodes[static_cast<size_t>(n)];
      lower(node, m);
      for (ValueId v : node.in) read_done(v, m);
    }
  }

  void lower(const Node& n, int m) {
    switch (n.kind) {
      case NodeKind::kOp: return lower_op(n, m);
      case NodeKind::kBox: return lower_box(n, m);
      case NodeKind::kRelabel: return lower_relabel(n, m);
      case NodeKind::kAgree: return lower_agree(n, m);
      case NodeKind::kAccumulate: return lower_accumulate(n, m);
      case NodeKind::kAssign: return lower_assign(n, m);
      case NodeKind::kUpdate: return lower_update(n, m);
      case NodeKind::kFused: return lower_fused(n, m);
    }
  }

  void lower_op(const Node& n, int m) {
    SmallVec<const Array*, 4> in;
    SmallVec<Meta, 4> metas;
    SmallVec<const GlobalSpec*, 4> specs;
    for (ValueId v : n.in) {
      in.push_back(array(v, m));
      metas.push_back(v == kNoValue ? Meta{} : Meta{g_.value(v).shape, g_.value(v).dtype});
      specs.push_back(v == kNoValue ? nullptr : g_.value(v).spec);
    }
    const bool global = g_.value(n.out[0]).is_global();
    LocalCall call;
    if (global) {
      SmallVec<Meta, 3> out;
      SmallVec<const GlobalSpec*, 3> out_specs;
      for (ValueId v : n.out) {
        out.push_back({g_.value(v).shape, g_.value(v).dtype});
        out_specs.push_back(g_.value(v).spec);
      }
      call = local_call(metas, specs, out, out_specs, rank_);
      if (!call.member) return;
    } else {
      for (ValueId v : n.out) call.out_shape.push_back(g_.value(v).shape);
    }
    if (n.op->view) return lower_view(n, m, *in[0], call.out_shape[0]);
    SmallVec<Array*, 3> out;
    for (size_t o = 0; o < n.out.size(); ++o) {
      Dims strides = output_strides(*n.op, call.out_shape[o], in);
      Array* a = n.out.size() == 1 ? in_place_of_input(n, m, in, call.out_shape[o], strides) : nullptr;
      out.push_back(a ? a : fresh(n.out[o], m, call.out_shape[o], strides));
    }
    auto& i =
        emit<KernelInstruction>(&n, m, *n.op, n.attrs, std::move(in), std::move(out), global ? &call.part : nullptr);
    if (n.draw >= 0)
      i.draw(&p_->draws, global,
             n.draw + (per_micro_batch(n.section) ? m : 0) * (global ? g_.global_draws : g_.local_draws));
  }

  // The result over the first input, if nobody reads that any more.
  Array* in_place_of_input(const Node& n, int m, const SmallVec<const Array*, 4>& in, const Dims& shape,
                           const Dims& strides) {
    if (!n.op->elementwise || in.empty() || !in[0]->defined() || n.in[0] == kNoValue) return nullptr;
    if (in[0]->shape != shape || in[0]->strides != strides || in[0]->dtype != g_.value(n.out[0]).dtype) return nullptr;
    Instance first = instance(n.in[0], m);
    Buffer& b = p_->buffers[static_cast<size_t>(first.buffer)];
    if (b.kind != Buffer::Kind::kArena) return nullptr;
    int64_t reads = 0;
    for (size_t i = 0; i < n.in.size(); ++i) {
      if (n.in[i] == kNoValue || instance(n.in[i], m).buffer != first.buffer) continue;
      if (instance(n.in[i], m).array != first.array) return nullptr;
      ++reads;
    }
    if (b.pending != reads) return nullptr;
    return set(n.out[0], m, *in[0], first.buffer);
  }

  void lower_view(const Node& n, int m, const Array& in, const Dims& shape) {
    Array out = in;
    ViewCall call(*n.op, n.attrs, in, shape);
    n.op->view(call, out);
    if (out.storage == in.storage) {
      set(n.out[0], m, std::move(out), instance(n.in[0], m).buffer);
      return;
    }
    // Strides did not allow a view: a copy in row-major order, seen in the new shape.
    HOLON_CHECK(out.is_contiguous() && out.numel() == in.numel(), "the view {} of {} is neither a window nor a copy",
                n.op->name(), in.shape);
    Array* made = fresh(n.out[0], m, out.shape, out.strides);
    Array as_given = *made;
    as_given.shape = in.shape;
    as_given.strides = contiguous_strides(in.shape);
    emit<CopyInstruction>(&n, m, array(n.in[0], m), keep(std::move(as_given)), n.op->name());
  }

  void lower_box(const Node& n, int m) {
    for (size_t k = 0; k < n.in.size(); ++k) {
      const Value &from = g_.value(n.in[k]), &to = g_.value(n.out[k]);
      const Array* in = array(n.in[k], m);
      auto prepared = boxing::Prepared::prepare(from.spec, to.spec, from.shape, from.dtype,
                                                !in->defined() || in->is_contiguous() ? boxing::Input::kContiguous
                                                                                      : boxing::Input::kAnyStrides);
      if (prepared.is_view() && prepared.has_in() && prepared.has_out() && !prepared.meets()) {
        set(n.out[k], m, prepared.view_of(*in), instance(n.in[k], m).buffer);
        continue;
      }
      if (!prepared.meets() && !prepared.has_out()) continue;
      const Array* out = prepared.has_out()
          ? fresh(n.out[k], m, prepared.out_shape(), contiguous_strides(prepared.out_shape()))
          : &kUndefined;
      std::vector<Array> scratch;
      for (size_t bytes : prepared.scratch_bytes()) {
        Array a = Array::placeholder({static_cast<int64_t>(bytes)}, {1}, uint8, device_of(to));
        a.storage = p_->buffers[static_cast<size_t>(new_buffer(bytes))].storage;
        scratch.push_back(std::move(a));
      }
      emit<BoxInstruction>(&n, m, std::move(prepared), in, out, std::move(scratch));
    }
  }

  void lower_relabel(const Node& n, int m) {
    const Value& to = g_.value(n.out[0]);
    if (!member(n.out[0])) return;
    const Array* in = array(n.in[0], m);
    if (in->defined()) {
      set(n.out[0], m, *in, instance(n.in[0], m).buffer);
      return;
    }
    fresh(n.out[0], m, to.shape,
          contiguous_strides(to.shape));  // a rank outside of the placement: a local tensor without elements
  }

  void lower_agree(const Node& n, int m) {
    if (!member(n.out[0])) return;
    Array* out = fresh(n.out[0], m, array(n.in[0], m)->shape, contiguous_strides(array(n.in[0], m)->shape));
    const Value& to = g_.value(n.out[0]);
    emit<AgreeInstruction>(&n, m, array(n.in[0], m), out, to.spec, to.shape);
  }

  void lower_accumulate(const Node& n, int m) {
    const Array* in = array(n.in[0], m);
    if (!in->defined()) return;
    if (m == 0) {
      Instance i = instance(n.in[0], m);
      Buffer& b = p_->buffers[static_cast<size_t>(i.buffer)];
      // The first micro-batch's gradient is the sum so far.
      if (b.kind == Buffer::Kind::kArena && b.pending == 1 && in->is_dense()) {
        set(n.out[0], m, *in, i.buffer);
        return;
      }
      Array* out = fresh(n.out[0], m, in->shape, in->is_dense() ? in->strides : contiguous_strides(in->shape));
      emit<CopyInstruction>(&n, m, in, out, "the sum over micro-batches");
      return;
    }
    static const OpDef& add = find_op("add");
    Array* sum = const_cast<Array*>(array(n.out[0], m));
    emit<KernelInstruction>(&n, m, add, add.schema.defaults, SmallVec<const Array*, 4>{sum, in},
                            SmallVec<Array*, 3>{sum}, nullptr);
  }

  void lower_assign(const Node& n, int m) {
    const External& x = g_.externals[static_cast<size_t>(n.target)];
    const Array *in = array(n.in[0], m), *to = array(x.value, 0);
    if (!to->defined() || !in->defined()) return;
    if (in->storage == to->storage && in->offset == to->offset && in->strides == to->strides) return;
    emit<CopyInstruction>(&n, m, in, const_cast<Array*>(to), x.name.empty() ? "a tensor from outside" : x.name.c_str());
  }

  void lower_update(const Node& n, int m) {
    const Update& u = g_.updates[static_cast<size_t>(n.target)];
    UpdateGroup& group = p_->updates[static_cast<size_t>(n.target)];
    size_t next_out = 0;
    for (size_t i = 0; i < n.in.size(); ++i) {
      const Value& v = g_.value(n.in[i]);
      const External& x = g_.externals[static_cast<size_t>(u.externals[i])];
      const Array* grad = array(n.in[i], m);
      optim::Slot slot;
      slot.grad = v.spec ? Tensor::global(*grad, v.shape, v.dtype, v.spec) : Tensor::local(*grad);
      slot.param = x.tensor;
      if (u.shards[i]) {
        const ValueId out = n.out[next_out++];
        Array part;
        if (member(out)) {
          const Array& whole = *array(x.value, 0);
          part = window(whole, v.shape, x.tensor.spec(), u.shards[i]);
          set(out, m, part, instance(x.value, 0).buffer);
        }
        slot.param = Tensor::global(part, v.shape, v.dtype, u.shards[i]);
      }
      group.slots.push_back(std::move(slot));
    }
    emit<UpdateInstruction>(&n, m, group);
  }

  // This rank's part under `to` in its part under `from`, which holds it.
  Array window(const Array& a, const Dims& shape, const GlobalSpec* from, const GlobalSpec* to) const {
    Slice have = slice_of(shape, from->placement, from->nd_sbp, from->placement.index_of(rank_));
    Slice want = slice_of(shape, to->placement, to->nd_sbp, to->placement.index_of(rank_));
    int64_t at = 0;
    for (int d = 0; d < shape.size(); ++d) at += (want.offset[d] - have.offset[d]) * a.strides[d];
    return a.view(want.shape, a.strides, at);
  }

  void lower_fused(const Node& n, int m) {
    const FusedBody& body = g_.bodies[static_cast<size_t>(n.target)];
    (void)body;
    (void)m;
    fail(ErrorKind::kNotImplemented, "fused nodes");
  }

  // Outputs that are there for the micro-batch. last: what is not there does not come.
  void put_out(int m, bool last = false) {
    if (out_done_.empty()) {
      out_done_.assign(g_.outputs.size() * static_cast<size_t>(micro_), false);
      p_->outputs.resize(g_.outputs.size());
      for (size_t o = 0; o < g_.outputs.size(); ++o) describe_output(o);
    }
    for (size_t o = 0; o < g_.outputs.size(); ++o) {
      ValueId v = g_.outputs[o];
      OutputPart& part = p_->outputs[o];
      if (part.external >= 0 || part.buffer == -1 || !per_micro_[static_cast<size_t>(v)]) continue;
      const size_t slot = o * static_cast<size_t>(micro_) + static_cast<size_t>(m);
      if (out_done_[slot]) continue;
      const Array* from = array(v, m);
      if (!from->defined()) {
        HOLON_CHECK(!last, "output {} is not computed for micro-batch {}", o, m);
        continue;
      }
      out_done_[slot] = true;
      Array to = part.array;
      const bool joined = joins(o);
      if (joined) {
        to.shape[0] = from->shape[0];
        to.offset += m * from->shape[0] * to.strides[0];
      } else {
        to.offset += m * to.strides[0];
        to.shape.erase(0);
        to.strides.erase(0);
      }
      emit<CopyInstruction>(nullptr, m, from, keep(std::move(to)), "an output");
      read_done(v, m);
    }
  }

  // Whether the micro-batches' values of an output are rows of one tensor.
  bool joins(size_t o) const {
    const Value& v = g_.value(g_.outputs[o]);
    if (v.shape.size() == 0) return false;
    for (ValueId i : g_.inputs)
      if (g_.value(i).shape.size() > 0 && g_.value(i).shape[0] == v.shape[0]) return true;
    return false;
  }

  void describe_output(size_t o) {
    const ValueId v = g_.outputs[o];
    const Value& value = g_.value(v);
    OutputPart& part = p_->outputs[o];
    part.shape = value.shape;
    part.dtype = value.dtype;
    part.spec = value.spec;
    if (value.kind == ValueKind::kExternal) {
      part.external = value.index;
      return;
    }
    if (!per_micro_[static_cast<size_t>(v)]) return;
    if (joins(o))
      part.shape[0] *= micro_;
    else
      part.shape = with_leading(micro_, value.shape);
    if (value.spec && !joins(o)) part.spec = shifted(value.spec);
    if (!member(v)) return;
    Dims local = local_shape(value);
    if (joins(o))
      local[0] *= micro_;
    else
      local = with_leading(micro_, local);
    part.array = Array::placeholder(local, contiguous_strides(local), value.dtype, device_of(value));
    part.buffer = new_buffer(part.array.nbytes(), Buffer::Kind::kOutput);
    p_->buffers[static_cast<size_t>(part.buffer)].index = static_cast<int32_t>(o);
    part.array.storage = p_->buffers[static_cast<size_t>(part.buffer)].storage;
  }

  static Dims with_leading(int64_t n, const Dims& shape) {
    Dims d{n};
    for (int64_t s : shape) d.push_back(s);
    return d;
  }

  // The same layout behind a new first axis.
  static const GlobalSpec* shifted(const GlobalSpec* spec) {
    std::vector<Sbp> list(spec->nd_sbp.begin(), spec->nd_sbp.end());
    for (auto& s : list)
      if (s.is_split()) s = sbp::split(s.axis + 1);
    return intern_spec(spec->placement, NdSbp(list));
  }

  // Outputs of one instance lie in memory that the step allocates for them: the value's own where it fills its buffer.
  void finish_outputs() {
    for (size_t o = 0; o < g_.outputs.size(); ++o) {
      const ValueId v = g_.outputs[o];
      OutputPart& part = p_->outputs[o];
      if (part.external >= 0 || per_micro_[static_cast<size_t>(v)] || !member(v)) continue;
      const Array* from = array(v, 0);
      HOLON_CHECK(from->defined(), "output {} is not computed", o);
      Buffer& b = p_->buffers[static_cast<size_t>(instance(v, 0).buffer)];
      if (b.kind == Buffer::Kind::kArena && from->is_dense() && from->nbytes() == b.bytes) {
        b.kind = Buffer::Kind::kOutput;
        b.index = static_cast<int32_t>(o);
        part.array = *from;
        part.buffer = instance(v, 0).buffer;
        continue;
      }
      part.array = Array::placeholder(from->shape, contiguous_strides(from->shape), from->dtype, from->device);
      part.buffer = new_buffer(part.array.nbytes(), Buffer::Kind::kOutput);
      p_->buffers[static_cast<size_t>(part.buffer)].index = static_cast<int32_t>(o);
      part.array.storage = p_->buffers[static_cast<size_t>(part.buffer)].storage;
      emit<CopyInstruction>(nullptr, 0, from, keep(part.array), "an output");
      read_done(v, 0);
    }
  }

  void place() {
    std::vector<Lifetime> lives;
    std::vector<size_t> which;
    for (size_t b = 0; b < p_->buffers.size(); ++b)
      if (p_->buffers[b].kind == Buffer::Kind::kArena) {
        lives.push_back(p_->buffers[b].life);
        which.push_back(b);
      }
    p_->memory = plan_memory(lives);
    p_->arena = allocate_storage(std::max<size_t>(p_->memory.bytes, 1));
    for (size_t i = 0; i < which.size(); ++i)
      p_->buffers[which[i]].storage->rebind(p_->arena->data() + p_->memory.offsets[i], lives[i].bytes);
  }

  const Graph& g_;
  const LoweringOptions& options_;
  std::vector<NodeId> made_by_;
  const int rank_;
  int micro_ = 1, stages_ = 1;
  std::unique_ptr<Program> p_;
  std::array<std::vector<std::vector<NodeId>>, 5> lists_;
  std::vector<bool> per_micro_;
  std::vector<int64_t> first_;  // of each value's instances
  std::vector<Instance> instances_;
  std::vector<int64_t> reads_;
  std::vector<bool> out_done_;
};

}  // namespace

std::unique_ptr<Program> lower(const Graph& g, const LoweringOptions& options) { return Lowering(g, options).run(); }

}  // namespace holon::graph
