#include <algorithm>
#include <array>
#include <map>
#include <unordered_map>

#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/comm/background.h"
#include "holon/graph/program/instructions.h"
#include "holon/graph/program/pipeline.h"
#include "holon/graph/program/program.h"
#include "holon/kernels/cpu/copy.h"

namespace holon::graph {

namespace {

const Array kUndefined{};

bool per_micro_batch(Section s) { return s != Section::kOnceBefore && s != Section::kOnceAfter; }

class Lowering {
 public:
  Lowering(const Graph& g, const LoweringOptions& options)
      : g_(g), made_by_(producers(g)), rank_(Context::current().rank()), pipeline_(g, options.schedule, rank_), background_(options.background) {}

  std::unique_ptr<Program> run() {
    p_ = std::make_unique<Program>();
    micro_ = g_.micro_batches;
    sort_nodes();
    count_reads();
    find_buckets();
    bind_outside();
    for (auto& u : g_.updates) p_->updates.push_back({u.rule, {}, u.clip_grad_max_norm, u.clip_grad_norm_type});
    run_section(Section::kOnceBefore, 0, 0);
    auto& tasks = pipeline_.tasks();
    releases_.resize(tasks.size());
    for (task_ = 0; task_ < static_cast<int>(tasks.size()); ++task_) {
      const Task& t = tasks[static_cast<size_t>(task_)];
      if (first_task_of(t.micro_batch)) post_outside(t.micro_batch);
      run_section(section_of(t.phase), t.stage, t.micro_batch);
      put_out(t.micro_batch);
      for (auto& posted : releases_[static_cast<size_t>(task_)]) release(posted);
    }
    for (int m = 0; m < micro_; ++m) put_out(m, true);
    for (auto& posted : releases_at_end_) release(posted);
    run_section(Section::kOnceAfter, 0, 0);
    put_out(0, true);
    finish_outputs();
    place();
    return std::move(p_);
  }

 private:
  struct Instance {
    int32_t array = -1, buffer = -1;
  };
  // A hand-over whose memory is not free yet.
  struct Posted {
    HandOverState* state;
    NodeId node;
    int micro_batch;
    std::vector<int32_t> held;  // buffers
  };

  // What the rank does, by section and stage.
  void sort_nodes() {
    per_micro_.assign(g_.values.size(), false);
    first_.assign(g_.values.size() + 1, 0);
    for (size_t v = 0; v < g_.values.size(); ++v) {
      NodeId by = made_by_[v];
      const Node* maker = by < 0 ? nullptr : &g_.nodes[static_cast<size_t>(by)];
      per_micro_[v] = micro_ > 1 &&
          (maker ? per_micro_batch(maker->section) && maker->kind != NodeKind::kAccumulate
                 : g_.values[v].kind == ValueKind::kInput);
      first_[v + 1] = first_[v] + (per_micro_[v] ? micro_ : 1);
    }
    instances_.resize(static_cast<size_t>(first_.back()));
    stages_ = std::max(1, g_.stages);
    for (auto& lists : lists_) lists.resize(static_cast<size_t>(stages_));
    for (size_t n = 0; n < g_.nodes.size(); ++n) {
      const Node& node = g_.nodes[n];
      if (!takes_part(node)) continue;
      if (stages_ > 1 && pipeline_.crosses(static_cast<NodeId>(n))) {
        crossings_from_[node.in[0]].push_back(static_cast<NodeId>(n));
        crossing_to_[node.out[0]] = static_cast<NodeId>(n);
        continue;
      }
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
    if (auto it = place_in_bucket_.find(v); it != place_in_bucket_.end() && strides == contiguous_strides(shape)) {
      auto [node, k] = it->second;
      Bucket& b = bucket(*node, m);
      return set(v, m, part_of(b.buffer, shape, b.batch.in_at()[k], value.dtype, device_of(value)), b.buffer);
    }
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

  bool first_task_of(int m) const {
    auto& tasks = pipeline_.tasks();
    for (int t = 0; t < task_; ++t)
      if (tasks[static_cast<size_t>(t)].micro_batch == m) return false;
    return true;
  }

  // What stages need of inputs and parameters that other ranks hold.
  void post_outside(int m) {
    for (auto& [v, list] : crossings_from_) {
      NodeId by = made_by_[static_cast<size_t>(v)];
      if (by >= 0 && per_micro_batch(g_.nodes[static_cast<size_t>(by)].section)) continue;
      for (NodeId n : list) post(n, m);
    }
  }

  // The object through which a box hands over one micro-batch. Objects of all nodes and micro-batches differ in their
  // channel.
  HandOverState& hand_over(NodeId n, int m, const Array* in) {
    auto [it, fresh] = hand_overs_.try_emplace({n, m}, nullptr);
    if (!fresh) return *it->second;
    const Node& node = g_.nodes[static_cast<size_t>(n)];
    const Value &from = g_.value(node.in[0]), &to = g_.value(node.out[0]);
    const bool strided = in && in->defined() && !in->is_contiguous();
    p_->hand_overs.push_back(std::make_unique<HandOverState>(
        HandOverState{boxing::HandOver::prepare(from.spec, to.spec, from.shape, from.dtype, n * micro_ + m,
                                                strided ? boxing::Input::kAnyStrides : boxing::Input::kContiguous)}));
    it->second = p_->hand_overs.back().get();
    return *it->second;
  }

  std::vector<Array> scratch_of(std::span<const size_t> sizes, std::vector<int32_t>* held = nullptr) {
    std::vector<Array> scratch;
    for (size_t bytes : sizes) {
      Array a = Array::placeholder({static_cast<int64_t>(bytes)}, {1}, uint8);
      int32_t b = new_buffer(bytes);
      if (held) held->push_back(b);
      a.storage = p_->buffers[static_cast<size_t>(b)].storage;
      scratch.push_back(std::move(a));
    }
    return scratch;
  }

  void post(NodeId n, int m) {
    const Node& node = g_.nodes[static_cast<size_t>(n)];
    if (!member(node.in[0])) return;
    const Array* in = array(node.in[0], m);
    HandOverState& h = hand_over(n, m, in);
    Posted posted{&h, n, m, {instance(node.in[0], m).buffer}};
    auto scratch = scratch_of(h.hand_over.post_scratch_bytes(), &posted.held);
    for (int32_t b : posted.held) ++p_->buffers[static_cast<size_t>(b)].pending;
    emit<PostInstruction>(&node, m, h, in, std::move(scratch));
    read_done(node.in[0], m);
    const int after = pipeline_.taken_by(n, m, task_);
    (after < 0 ? releases_at_end_ : releases_[static_cast<size_t>(after)]).push_back(std::move(posted));
  }

  void take(NodeId n, int m) {
    const Node& node = g_.nodes[static_cast<size_t>(n)];
    HandOverState& h = hand_over(n, m, nullptr);
    Array* out = fresh(node.out[0], m, h.hand_over.out_shape(), contiguous_strides(h.hand_over.out_shape()));
    emit<TakeInstruction>(&node, m, h, out, scratch_of(h.hand_over.take_scratch_bytes()));
    made(node.out[0], m);
  }

  void release(const Posted& posted) {
    emit<ReleaseInstruction>(&g_.nodes[static_cast<size_t>(posted.node)], posted.micro_batch, *posted.state);
    for (int32_t b : posted.held) {
      Buffer& buffer = p_->buffers[static_cast<size_t>(b)];
      --buffer.pending;
      buffer.life.last = std::max(buffer.life.first, now() - 1);
    }
  }

  // Gradients that one meeting sums lie side by side from the start.
  void find_buckets() {
    for (auto& n : g_.nodes)
      if (n.kind == NodeKind::kBox && n.in.size() > 1 && takes_part(n))
        for (size_t k = 0; k < n.in.size(); ++k) place_in_bucket_[n.in[k]] = {&n, k};
  }

  struct Bucket {
    boxing::PreparedBatch batch;
    int32_t buffer = -1;
  };

  Bucket& bucket(const Node& n, int m) {
    auto [it, fresh] = buckets_.try_emplace({&n, m}, nullptr);
    if (fresh) {
      std::vector<Dims> shapes;
      for (ValueId v : n.in) shapes.push_back(g_.value(v).shape);
      it->second = std::make_unique<Bucket>(Bucket{boxing::PreparedBatch::prepare(
          g_.value(n.in[0]).spec, g_.value(n.out[0]).spec, shapes, g_.value(n.in[0]).dtype)});
    }
    Bucket& b = *it->second;
    if (b.buffer < 0 && b.batch.has_in())
      b.buffer = new_buffer(static_cast<size_t>(b.batch.in_elements()) * size_bytes(g_.value(n.in[0]).dtype));
    return b;
  }

  // A window on the memory of a bucket.
  Array part_of(int32_t buffer, const Dims& shape, int64_t at, DType dtype, Device device) {
    Array a = Array::placeholder(shape, contiguous_strides(shape), dtype, device);
    a.storage = p_->buffers[static_cast<size_t>(buffer)].storage;
    a.offset = at;
    return a;
  }

  void lower_batch(const Node& n, int m) {
    Bucket& b = bucket(n, m);
    const Value &from = g_.value(n.in[0]), &to = g_.value(n.out[0]);
    if (!b.batch.meets() && !b.batch.has_out()) return;
    Array* whole = nullptr;
    if (b.batch.has_in()) {
      whole = keep(part_of(b.buffer, {b.batch.in_elements()}, 0, from.dtype, device_of(from)));
      for (size_t k = 0; k < n.in.size(); ++k) {
        const Array* a = array(n.in[k], m);
        if (instance(n.in[k], m).buffer == b.buffer) continue;
        emit<CopyInstruction>(
            &n, m, a, keep(part_of(b.buffer, b.batch.in_shape(k), b.batch.in_at()[k], from.dtype, device_of(from))),
            "its place in a bucket");
      }
    }
    const Array* target = &kUndefined;
    if (b.batch.has_out()) {
      int32_t buffer = b.batch.in_place() && b.batch.has_in()
          ? b.buffer
          : new_buffer(static_cast<size_t>(b.batch.out_elements()) * size_bytes(to.dtype));
      target = keep(part_of(buffer, {b.batch.out_elements()}, 0, to.dtype, device_of(to)));
      for (size_t k = 0; k < n.out.size(); ++k)
        set(n.out[k], m, part_of(buffer, b.batch.out_shape(k), b.batch.out_at()[k], to.dtype, device_of(to)), buffer);
      p_->buffers[static_cast<size_t>(b.buffer < 0 ? buffer : b.buffer)].life.last = now();
    }
    if (!background_) {
      emit<BatchInstruction>(&n, m, b.batch, whole ? whole : &kUndefined, target);
      return;
    }
    auto& sum = emit<SumInBackground>(&n, m, b.batch, whole ? whole : &kUndefined, target);
    for (ValueId v : n.out) summing_[v] = &sum;
    if (whole) summed_from_[&sum] = b.buffer;
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
    for (NodeId n : lists[static_cast<size_t>(stages_ == 1 || !per_micro_batch(section) ? 0 : stage)]) {
      const Node& node = g_.nodes[static_cast<size_t>(n)];
      for (ValueId v : node.in) {
        need(v, m);
        HOLON_CHECK(v == kNoValue || !member(v) || array(v, m)->defined(), "{} reads value {} before it is made",
                    graph::str(g_, node), v);
      }
      lower(node, m);
      for (ValueId v : node.in) read_done(v, m);
      for (ValueId v : node.out) made(v, m);
    }
  }

  // Before v is read: what is on its way is waited for.
  void need(ValueId v, int m) {
    if (v == kNoValue) return;
    if (auto it = crossing_to_.find(v); it != crossing_to_.end() && instance(v, m).array < 0 && member(v))
      take(it->second, m);
    if (auto it = summing_.find(v); it != summing_.end()) {
      emit<WaitInstruction>(nullptr, m, *it->second);
      const SumInBackground* waited = it->second;
      // What it reads stays until then.
      if (auto from = summed_from_.find(waited); from != summed_from_.end())
        p_->buffers[static_cast<size_t>(from->second)].life.last = now() - 1;
      std::erase_if(summing_, [&](auto& entry) { return entry.second == waited; });
    }
  }

  // After v was made: stages that wait for it get it.
  void made(ValueId v, int m) {
    auto it = crossings_from_.find(v);
    if (it == crossings_from_.end()) return;
    for (NodeId n : it->second) post(n, m);
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
      Array* a = n.out.size() == 1 ? in_place_of_input(n, m, call.out_shape[o], strides) : nullptr;
      out.push_back(a ? a : fresh(n.out[o], m, call.out_shape[o], strides));
    }
    auto& i =
        emit<KernelInstruction>(&n, m, *n.op, n.attrs, std::move(in), std::move(out), global ? &call.part : nullptr);
    if (n.draw >= 0)
      i.draw(&p_->draws, global,
             n.draw + (per_micro_batch(n.section) ? m : 0) * (global ? g_.global_draws : g_.local_draws));
  }

  // The result over the first input, if nobody reads that any more.
  Array* in_place_of_input(const Node& n, int m, const Dims& shape, const Dims& strides) {
    return n.op->elementwise && !n.in.empty() ? over_input(n, m, 0, 0, shape, strides) : nullptr;
  }

  // Output o in the memory of input i, where that is read for the last time. Pre: the kernel may do that.
  Array* over_input(const Node& n, int m, size_t i, size_t o, const Dims& shape, const Dims& strides) {
    if (n.in[i] == kNoValue || place_in_bucket_.contains(n.out[o])) return nullptr;
    const Array* in = array(n.in[i], m);
    if (!in->defined() || in->shape != shape || in->strides != strides || in->dtype != g_.value(n.out[o]).dtype)
      return nullptr;
    const Instance own = instance(n.in[i], m);
    Buffer& b = p_->buffers[static_cast<size_t>(own.buffer)];
    if (b.kind != Buffer::Kind::kArena) return nullptr;
    int64_t reads = 0;
    for (ValueId v : n.in) {
      if (v == kNoValue || instance(v, m).buffer != own.buffer) continue;
      if (instance(v, m).array != own.array) return nullptr;
      ++reads;
    }
    if (b.pending != reads) return nullptr;
    return set(n.out[o], m, *in, own.buffer);
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
    if (n.in.size() > 1) return lower_batch(n, m);
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
      auto scratch = scratch_of(prepared.scratch_bytes());
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
      if (b.kind == Buffer::Kind::kArena && b.pending == 1 && in->is_dense() && !place_in_bucket_.contains(n.out[0])) {
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
    if (!member(n.out[0])) return;
    SmallVec<const Array*, 4> in;
    std::vector<FusedChain::Operand> in_like, out_like;
    for (ValueId v : n.in) {
      const Array* a = array(v, m);
      in.push_back(a);
      in_like.push_back({a->shape, a->strides, a->dtype});
    }
    const Dims shape = local_shape(g_.value(n.out[0]));
    Dims strides = contiguous_strides(shape);
    for (auto* a : in)
      if (a->shape == shape) {
        if (a->is_dense()) strides = a->strides;
        break;
      }
    for (ValueId v : n.out) out_like.push_back({shape, strides, g_.value(v).dtype});
    FusedChain chain(g_.bodies[static_cast<size_t>(n.target)], in_like, out_like);
    SmallVec<Array*, 3> out;
    for (size_t o = 0; o < n.out.size(); ++o) {
      Array* over = nullptr;
      for (size_t i = 0; i < n.in.size() && !over; ++i)
        if (chain.may_overwrite(i, o)) over = over_input(n, m, i, o, shape, strides);
      out.push_back(over ? over : fresh(n.out[o], m, shape, strides));
    }
    emit<FusedInstruction>(&n, m, std::move(chain), std::move(in), std::move(out));
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
      if (last) need(v, m);
      const Array* from = array(v, m);
      if (!from->defined()) {
        if (last && !g_.value(v).spec)
          fail_value("output {} of the graph is a local tensor of one of its {} stages: the other stages' ranks do not "
                     "have it. Make it global by "
                     "to_global(placement, sbp) in build().",
                     o, stages_);
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
      need(v, 0);
      const Array* from = array(v, 0);
      if (!from->defined() && !g_.value(v).spec)
        fail_value("output {} of the graph is a local tensor of one of its {} stages: the other stages' ranks do not "
                   "have it. Make it global by "
                   "to_global(placement, sbp) in build().",
                   o, stages_);
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
    for (size_t b = 0; b < p_->buffers.size(); ++b)
      if (p_->buffers[b].kind == Buffer::Kind::kArena) {
        lives.push_back(p_->buffers[b].life);
      }
    p_->memory = plan_memory(lives);
  }

  const Graph& g_;
  std::vector<NodeId> made_by_;
  const int rank_;
  Pipeline pipeline_;
  int micro_ = 1, stages_ = 1, task_ = 0;
  const bool background_;
  std::unique_ptr<Program> p_;
  std::array<std::vector<std::vector<NodeId>>, 5> lists_;
  std::vector<bool> per_micro_;
  std::vector<int64_t> first_;  // of each value's instances
  std::vector<Instance> instances_;
  std::vector<int64_t> reads_;
  std::vector<bool> out_done_;
  std::map<ValueId, std::vector<NodeId>> crossings_from_;
  std::unordered_map<ValueId, NodeId> crossing_to_;
  std::map<std::pair<NodeId, int>, HandOverState*> hand_overs_;
  std::vector<std::vector<Posted>> releases_;  // after each task
  std::vector<Posted> releases_at_end_;
  std::unordered_map<ValueId, std::pair<const Node*, size_t>> place_in_bucket_;
  std::map<std::pair<const Node*, int>, std::unique_ptr<Bucket>> buckets_;
  std::unordered_map<ValueId, const SumInBackground*> summing_;
  std::unordered_map<const SumInBackground*, int32_t> summed_from_;  // buffers
};

}  // namespace

void Program::allocate() {
  arena = allocate_storage(std::max<size_t>(memory.bytes, 1));
  size_t next = 0;
  for (Buffer& b : buffers)
    if (b.kind == Buffer::Kind::kArena) b.storage->rebind(arena->data() + memory.offsets[next++], b.bytes);
}

std::unique_ptr<Program> lower(const Graph& g, const LoweringOptions& options) { return Lowering(g, options).run(); }

}  // namespace holon::graph
