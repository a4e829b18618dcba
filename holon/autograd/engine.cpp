#include "holon/autograd/engine.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <queue>
#include <type_traits>
#include <unordered_map>
#include <unordered_set>

#include "holon/autograd/buckets.h"
#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/trace.h"
#include "holon/boxing/events.h"
#include "holon/boxing/executor.h"
#include "holon/contract/moves.h"
#include "holon/dispatch/autocast.h"
#include "holon/dispatch/dispatch.h"
#include "holon/dispatch/gradient_forms.h"
#include "holon/dispatch/record.h"
#include "holon/dispatch/recorded_site.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/cast.h"
#include "holon/ops/create.h"
#include "holon/ops/shape.h"
#include "holon/ops/to_global.h"
#include "holon/tensor/node.h"
#include "holon/tensor/observer.h"
#include "holon/tensor/tracer.h"

namespace holon {

namespace autograd {

namespace {

// A gradient that is nobody else's memory may be kept and written to.
bool owned(const Tensor& g) {
  return !g.array().defined() ||
      (g.impl()->use_count() == 1 && g.array().storage->use_count() == 1 && g.array().is_dense());
}

class Run {
 public:
  Run(bool retain_graph, bool create_graph) : retain_(retain_graph || create_graph), create_(create_graph) {}

  // The gradients of these leaves or results are collected instead of accumulated.
  void capture(std::span<const Tensor> inputs) {
    capturing_ = true;
    for (size_t i = 0; i < inputs.size(); ++i) {
      Edge e = edge_of(inputs[i]);
      if (e.leaf)
        leaf_capture_[e.leaf.get()].push_back(i);
      else
        node_capture_[{e.node.get(), e.index}].push_back(i);
    }
    captured.resize(inputs.size());
  }

  void seed(const Tensor& root, Tensor gradient) {
    if (!root.requires_grad())
      fail_runtime(
          "backward: the tensor does not require grad and has no grad_fn. Mark a leaf by requires_grad=True before the "
          "forward pass.");
    if (!gradient.defined()) {
      if (root.numel() != 1)
        fail_runtime("backward: only a tensor of one element needs no gradient argument; this one has shape {}. Pass a "
                     "gradient of that shape, or reduce the tensor first, e.g. by sum().",
                     root.shape());
      OnesOptions o;
      o.dtype = root.dtype();
      if (root.is_global()) {
        o.placement = root.placement();
        // The derivative of a logical value by itself is one, also where the value is divided into addends.
        o.sbp = NdSbp::filled(root.nd_sbp().size(), sbp::broadcast());
      } else {
        o.device = root.device();
      }
      gradient = ones(root.shape(), o);
      if (tracer_) gradient = tracer_->seed(gradient);
    } else if (gradient.shape() != root.shape() || gradient.is_global() != root.is_global()) {
      fail_runtime("backward: the gradient has shape {} ({}), the tensor {} ({}). They must be the same.",
                   gradient.shape(), gradient.is_global() ? "global" : "local", root.shape(),
                   root.is_global() ? "global" : "local");
    }
    deliver(edge_of(root), std::move(gradient));
  }

  void walk() {
    while (!ready_.empty()) {
      Ref<Node> node = std::move(const_cast<Item&>(ready_.top()).node);
      ready_.pop();
      auto it = pending_.find(node.get());
      Pending pending = std::move(it->second);
      pending_.erase(it);
      TensorVec grads = sums(std::move(pending));
      visit_retained(*node, grads);
      for (uint32_t o = 0; o < grads.size(); ++o)
        if (auto c = node_capture_.find({node.get(), o}); c != node_capture_.end())
          for (size_t i : c->second) captured[i] = grads[o];
      if (tracer_) tracer_->exchange_mark(node->mark);
      if (leave_for_later(*node, grads)) continue;
      tracing::Span span(node->name(), "gradient");
      const contract::BackwardOf backward_of(node->name());
      TensorVec below = explained(
          [&] {
            const GradientForms forms(grads);
            return node->backward(grads);
          },
          [&] { return fmt::format("the gradient of {}", recorded_text(*node)); });
      if (Observer* o = observer()) [[unlikely]]
        o->backward(*node, grads, below);
      if (!retain_) node->free_saved();
      grads.clear();
      for (size_t i = 0; i < node->edges.size() && i < below.size(); ++i)
        if (below[i].defined() && node->edges[i].valid())
          explained([&] { deliver(node->edges[i], std::move(below[i])); },
                    [&] {
                      return fmt::format("adding up what comes back from input {} of {}", i, recorded_text(*node));
                    });
    }
  }

  // Sums gradients between the ranks in the background. To be called before seed().
  void overlap() { buckets_.emplace(); }
  // Hooks of leaves, on the sums over all their uses. In the order in which their gradients began: the same on every
  // rank.
  void run_leaf_hooks() {
    for (Hooked& h : hooked_) {
      if (tracer_) tracer_->exchange_mark(h.mark);
      store(*h.leaf, run_hooks(h.leaf->meta.get(), std::move(h.sum)));
    }
  }
  // Returns when all leaves have their gradients.
  void finish() {
    if (buckets_) buckets_->finish([this](TensorImpl& leaf, Tensor g) { add_up(leaf, std::move(g)); });
  }

  std::vector<Tensor> captured;

 private:
  // What the boxing policy refuses in f() is converted on a line of the forward pass, which what() names.
  template <class F, class What>
  static std::invoke_result_t<F> explained(F f, What what) {
    try {
      return f();
    } catch (const boxing::RefusedBoxing& e) {
      if (e.in_backward) throw;  // of a walk in this one
      throw boxing::RefusedBoxing(
          fmt::format("{} This is in backward, {}. There, x.to_global(grad_sbp=...) converts the gradient.", e.what(),
                      what()),
          true);
    }
  }

  struct Item {
    Ref<Node> node;
    bool operator<(const Item& o) const { return node->sequence < o.node->sequence; }
  };

  // A gradient that is not added up yet: that of a stretch, or one that came after some.
  struct Later {
    uint32_t output;
    Tensor gradient;
    Ref<Node> node;  // of a stretch
    Stretch at;
  };
  struct Pending {
    TensorVec sums;  // by output
    std::vector<Later> later;
  };

  void add_to(Tensor& sum, Tensor more) {
    if (!sum.defined()) {
      sum = std::move(more);
    } else if (!create_ && !tracer_ && sum.is_local() && owned(sum) && sum.dtype() == more.dtype() &&
               sum.array().is_contiguous()) {
      add_(sum, more);
    } else {
      sum = add(sum, more);
    }
  }

  void deliver(const Edge& edge, Tensor g) {
    if (edge.leaf) return accumulate(*edge.leaf, std::move(g));
    Pending& pending = pending_of(edge.node);
    g = in_dtype(std::move(g), edge.node->output_dtypes[edge.index]);
    // What came after a stretch is added after it.
    const bool in_turn = std::none_of(pending.later.begin(), pending.later.end(),
                                      [&](const Later& l) { return l.output == edge.index; });
    if (in_turn)
      add_to(pending.sums[edge.index], std::move(g));
    else
      pending.later.push_back({edge.index, std::move(g), {}, {}});
  }

  Pending& pending_of(const Ref<Node>& node) {
    auto [it, fresh] = pending_.try_emplace(node.get());
    if (fresh) {
      it->second.sums.resize(node->output_dtypes.size());
      ready_.push({node});
    }
    return it->second;
  }

  // The gradient of a stretch waits for those of its neighbours. A graph joins them itself (graph/passes/join_slices).
  bool leave_for_later(Node& node, TensorVec& grads) {
    if (create_ || tracer_ || observer() || node.edges.size() != 1 || !node.edges[0].node || !grads[0].defined())
      return false;
    const std::optional<Stretch> at = node.stretch();
    if (!at) return false;
    pending_of(node.edges[0].node).later.push_back({node.edges[0].index, std::move(grads[0]), Ref<Node>(&node), *at});
    return true;
  }

  TensorVec sums(Pending pending) {
    for (uint32_t output = 0; output < pending.sums.size() && !pending.later.empty(); ++output) {
      Tensor& sum = pending.sums[output];
      std::vector<Later> parts;
      for (Later& l : pending.later)
        if (l.output == output) parts.push_back(std::move(l));
      if (parts.empty()) continue;
      if (!sum.defined() && make_whole(parts)) {
        TensorVec grads;
        for (Later& l : parts)
          grads.push_back(l.at.without_axis ? unsqueeze(l.gradient, l.at.axis) : std::move(l.gradient));
        sum = cat(grads, parts[0].at.axis);
        continue;
      }
      for (Later& l : parts) {
        if (l.node) l.gradient = l.node->backward({&l.gradient, 1})[0];
        add_to(sum, std::move(l.gradient));
      }
    }
    return std::move(pending.sums);
  }

  // Whether these are the stretches of one axis, each once, and can be joined where they are; sorts them then.
  static bool make_whole(std::vector<Later>& parts) {
    const Later& first = parts[0];
    for (const Later& l : parts) {
      const Tensor& g = l.gradient;
      if (!l.node || l.at.axis != first.at.axis || l.at.without_axis != first.at.without_axis ||
          g.dtype() != first.gradient.dtype() || g.spec() != first.gradient.spec() ||
          (g.is_local() && g.device() != first.gradient.device()))
        return false;
      for (int a = 0; g.is_global() && a < g.nd_sbp().size(); ++a)
        if (g.nd_sbp()[a].is_split(l.at.axis) && !l.at.without_axis) return false;
    }
    std::vector<const Stretch*> order;
    for (const Later& l : parts) order.push_back(&l.at);
    std::sort(order.begin(), order.end(), [](auto* a, auto* b) { return a->begin < b->begin; });
    int64_t end = 0;
    for (const Stretch* s : order) {
      if (s->begin != end) return false;
      end = s->end;
    }
    if (end != first.at.size) return false;
    std::sort(parts.begin(), parts.end(), [](const Later& a, const Later& b) { return a.at.begin < b.at.begin; });
    return true;
  }

  // Ops with inputs of several dtypes may give all their gradients in one of them.
  static Tensor in_dtype(Tensor g, DType dtype) { return g.dtype() == dtype ? std::move(g) : cast(g, dtype); }

  static Tensor run_hooks(const AutogradMeta* meta, Tensor g) {
    if (!meta) return g;
    for (auto& hook : meta->hooks)
      if (Tensor replaced = (*hook)(g); replaced.defined()) g = in_dtype(std::move(replaced), g.dtype());
    return g;
  }

  void visit_retained(Node& node, TensorVec& grads) {
    for (auto& [output, meta] : node.retained) {
      Tensor& g = grads[output];
      if (!g.defined()) continue;
      g = run_hooks(meta.get(), g);
      if (!meta->retain_grad || capturing_) continue;
      Tensor& kept = meta->grad;
      kept = kept.defined() ? add(kept, g) : g;
    }
  }

  // Brings a gradient to the leaf's dtype, placement and sbp, and adds it up.
  void accumulate(TensorImpl& leaf, Tensor g) {
    if (capturing_ && !leaf_capture_.count(&leaf)) return;
    g = in_dtype(std::move(g), leaf.dtype);
    if (buckets_ && buckets_->take(leaf, g)) return;
    if (leaf.spec && g.spec() != leaf.spec) {
      const contract::BackwardOf backward_of("leaf");
      g = to_global(g, leaf.spec->placement, leaf.spec->nd_sbp);
    }
    if (!leaf.meta || leaf.meta->hooks.empty()) return store(leaf, std::move(g));
    // A hook sees the sum over all uses, which only the walk's end completes.
    auto [at, fresh] = hooked_at_.try_emplace(&leaf, hooked_.size());
    if (fresh) hooked_.push_back({Ref<TensorImpl>(&leaf), {}});
    Hooked& h = hooked_[at->second];
    add_to(h.sum, std::move(g));
    if (tracer_) h.mark = tracer_->mark();
  }

  void store(TensorImpl& leaf, Tensor g) {
    if (capturing_) {
      for (size_t i : leaf_capture_[&leaf]) captured[i] = captured[i].defined() ? add(captured[i], g) : g;
      return;
    }
    if (buckets_ && buckets_->holds(leaf)) return buckets_->put(leaf, g);
    add_up(leaf, std::move(g));
  }

  void add_up(TensorImpl& leaf, Tensor g) {
    if (tracer_) return tracer_->gradient(leaf, g);
    if (!leaf.meta) leaf.meta = make_ref<AutogradMeta>();
    Tensor& sum = leaf.meta->grad;
    if (sum.defined()) {
      if (create_)
        sum = add(sum, g);
      else
        add_(sum, g);
    } else if (create_) {
      sum = g;
    } else {
      bool keep = owned(g) && g.array().defined() && g.array().is_contiguous();
      sum = keep || !g.array().defined() ? g.detach() : clone(g).detach();
    }
    if (Observer* o = observer()) [[unlikely]]
      o->leaf_gradient(leaf, sum);
  }

  bool retain_, create_, capturing_ = false;
  struct Hooked {
    Ref<TensorImpl> leaf;
    Tensor sum;
    int32_t mark = -1;
  };

  Tracer* tracer_ = capturing_tracer();
  std::vector<Hooked> hooked_;
  std::unordered_map<TensorImpl*, size_t> hooked_at_;
  std::optional<GradientBuckets> buckets_;
  std::priority_queue<Item> ready_;
  std::unordered_map<Node*, Pending> pending_;
  std::unordered_map<TensorImpl*, std::vector<size_t>> leaf_capture_;
  std::map<std::pair<Node*, uint32_t>, std::vector<size_t>> node_capture_;
};

// Tells the capture, if there is one, which ops are backward's.
class TracedBackward {
 public:
  TracedBackward() : tracer_(tracer()) {
    if (!tracer_) return;
    tracer_->backward(true);
    mark_ = tracer_->mark();
  }
  ~TracedBackward() {
    if (!tracer_) return;
    tracer_->exchange_mark(mark_);
    tracer_->backward(false);
  }
  TracedBackward(const TracedBackward&) = delete;
  TracedBackward& operator=(const TracedBackward&) = delete;

 private:
  Tracer* tracer_;
  int32_t mark_ = -1;
};

// Tells who looks on where a walk begins and ends.
class ObservedBackward {
 public:
  explicit ObservedBackward(std::span<const Tensor> roots) : observer_(observer()) {
    if (observer_) observer_->backward_begins(roots);
  }
  ~ObservedBackward() {
    if (observer_) observer_->backward_ends();
  }
  ObservedBackward(const ObservedBackward&) = delete;
  ObservedBackward& operator=(const ObservedBackward&) = delete;

 private:
  Observer* observer_;
};

// What depends on its inputs, but not by any derivative: a gradient that is the same everywhere.
class ConstantNode final : public Node {
 public:
  const char* name() const override { return "constant"; }
  TensorVec backward(std::span<const Tensor>) override { return TensorVec(edges.size()); }
  void free_saved() override {}
};

Tensor constant_in(const Tensor& gradient, std::span<const Tensor> inputs) {
  std::array<Tensor, 1> result{gradient.detach()};
  record_node(make_ref<ConstantNode>(), inputs, result);
  return result[0];
}

// Whether the tape leads from one of the roots to a tensor.
bool depends_on(std::span<const Tensor> roots, const Tensor& input) {
  const Edge wanted = edge_of(input);
  std::vector<const Node*> open;
  std::unordered_set<const Node*> seen;
  bool found = false;
  auto visit = [&](const Edge& e) {
    if (wanted.leaf)
      found |= e.leaf == wanted.leaf;
    else
      found |= e.node == wanted.node && e.index == wanted.index;
    if (e.node && seen.insert(e.node.get()).second) open.push_back(e.node.get());
  };
  for (auto& root : roots) visit(edge_of(root));
  while (!open.empty() && !found) {
    const Node* node = open.back();
    open.pop_back();
    for (auto& e : node->edges) visit(e);
  }
  return found;
}

void start(Run& run, std::span<const Tensor> roots, std::span<const Tensor> gradients) {
  for (size_t i = 0; i < roots.size(); ++i) run.seed(roots[i], i < gradients.size() ? gradients[i] : Tensor());
}

}  // namespace

void backward(TensorList roots, TensorList gradients, bool retain_graph, bool create_graph) {
  NoGradGuard mode(create_graph);
  AutocastPause plain;
  tracing::Span span("backward", "autograd");
  Run run(retain_graph, create_graph);
  // Addends of one parameter would be added up over the ranks in another order.
  if (!create_graph && !tracer() && !Context::current().layout_free()) run.overlap();
  TracedBackward traced;
  ObservedBackward observed(roots);
  start(run, roots, gradients);
  run.walk();
  run.run_leaf_hooks();
  run.finish();
}

std::vector<Tensor> grad(TensorList roots, TensorList inputs, TensorList gradients, bool retain_graph,
                         bool create_graph, bool allow_unused) {
  for (auto& x : inputs)
    if (!x.defined() || !x.requires_grad())
      fail_runtime("grad: one of the inputs does not require grad. Set requires_grad on it before the forward pass.");
  NoGradGuard mode(create_graph);
  AutocastPause plain;
  tracing::Span span("grad", "autograd");
  Run run(retain_graph, create_graph);
  run.capture(inputs);
  TracedBackward traced;
  ObservedBackward observed(roots);
  start(run, roots, gradients);
  run.walk();
  run.run_leaf_hooks();
  for (size_t i = 0; i < inputs.size(); ++i) {
    Tensor& g = run.captured[i];
    if (!g.defined() && depends_on(roots, inputs[i])) g = zeros_like(inputs[i].detach());
    if (!g.defined() && !allow_unused)
      fail_runtime(
          "grad: input {} of shape {} was not used to compute the outputs. Pass allow_unused=True to get None for it.",
          i, inputs[i].shape());
    // The derivative of a linear or piecewise linear function has one as well: zero.
    if (create_graph && g.defined() && !g.requires_grad()) g = constant_in(g, inputs);
  }
  return std::move(run.captured);
}

}  // namespace autograd

void Tensor::backward(const Tensor& gradient, bool retain_graph, bool create_graph) const {
  autograd::backward(std::span(this, 1), std::span(&gradient, 1), retain_graph, create_graph);
}

}  // namespace holon
