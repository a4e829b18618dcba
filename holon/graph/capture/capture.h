// Takes down what a rank's program does between the making of a Capture and finish(): ops, boxing, gradients of
// backward(), in-place writes. Tensors made meanwhile are symbolic; those from before become externals on first use.
//
//   Capture capture;
//   Tensor x = capture.input({32, 784}, float32, spec, {});
//   Tensor loss = model.forward(x);       // nothing runs
//   loss.backward();
//   capture.add_update(...);
//   Graph g = capture.finish({loss});
//
// Every rank captures the same graph, whether or not it has a part of the tensors.
#pragma once

#include <functional>
#include <unordered_map>
#include <unordered_set>

#include "holon/base/index.h"
#include "holon/graph/capture/micro_batches.h"
#include "holon/graph/ir/graph.h"
#include "holon/tensor/tracer.h"

namespace holon::graph {

class Capture final : public Tracer, public optim::ClipRecorder {
 public:
  // Errors: this rank is capturing already.
  Capture();
  ~Capture() override;
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  // With n micro-batches, backward()'s own seed is divided by n, so that gradients summed over them are those of a mean
  // loss.
  void set_micro_batches(int n) { graph_.micro_batches = n; }
  // The same, for micro-batches of this variant: the seed is multiplied by its share of the rows. `all` outlives this.
  void set_micro_batches(const MicroBatches& all, int variant);

  Tensor input(const Dims& shape, DType dtype, const GlobalSpec* spec, Device device);
  // An input of which `example` is all micro-batches: its first axis is divided by their number, or has its variant's
  // rows; one without axes is the same in each. Errors: each rank's rows do not divide.
  Tensor input_like(const Tensor& example);

  // For messages, pictures and stages: what t is called. parameter: backward may give it a gradient.
  void name_external(const Tensor& t, const std::string& path, bool parameter);

  // What follows belongs to the module of this path, and to this stage; -1: that of the scope around it.
  void push_scope(const std::string& path, int stage = -1);
  void pop_scope();
  // Asked once for each op: the user's line.
  void set_site_hook(std::function<std::string()> hook) { site_hook_ = std::move(hook); }

  // backward()'s own seed is multiplied by what `scale` returns for it: a tensor from outside without axes, whose value
  // may be another one in each step. Step::set_loss_scale() says by what gradients are divided.
  void set_loss_scale(std::function<Tensor(const Tensor& seed)> scale) {
    loss_scale_ = std::move(scale);
    graph_.scaled = true;
  }

  // Called around modules' calls (Tracer::enter, leave), and to push and pop their scopes.
  void set_module_hooks(std::function<Tensor(const void*, const Tensor&)> enter,
                        std::function<void(bool failed)> leave) {
    enter_hook_ = std::move(enter);
    leave_hook_ = std::move(leave);
  }

  // A group of an optimizer: updated at the end of the step. Parameters without a gradient are left out. A
  // clip_grad_max_norm that is not negative clips first: groups of one optimizer with the same limit and type together,
  // unless build() has clipped just these. Errors: a parameter that another update has.
  void add_update(const optim::Rule& rule, std::span<const Tensor> params, double clip_grad_max_norm = -1,
                  double clip_grad_norm_type = 2, int optimizer = 0);

  // Ends the capture. Errors: no parameter of an update has a gradient.
  Graph finish(std::span<const Tensor> outputs);

  // Whether a capture of this rank is open.
  static Capture* current();

  void op(const OpDef& op, const Attrs& attrs, std::span<const Tensor> inputs, std::span<Tensor> outputs) override;
  Tensor redistribute(const Tensor& t, const GlobalSpec* to, bool asked) override;
  Tensor relabel(const Tensor& t, const Dims& shape, const GlobalSpec* spec) override;
  Tensor agree(const Tensor& t, const Dims& shape, const GlobalSpec* spec) override;
  void write(const char* op, const Tensor& self, const Tensor& value) override;
  void gradient(TensorImpl& leaf, const Tensor& g) override;
  Tensor gradient_of(const TensorImpl& leaf) const override;
  int64_t draw(bool global) override;
  int32_t mark() const override { return place_; }
  int32_t exchange_mark(int32_t mark) override { return std::exchange(place_, mark < 0 ? place_ : mark); }
  void backward(bool begins) override {
    backward_ = begins;
    unscaled_ |= !begins && loss_scale_ && !seeded_;
    seeded_ = false;
  }
  Tensor seed(Tensor ones) override;
  void detached(const Tensor& t, const Tensor& copy) override;
  // Clips the sums over the micro-batches, after the last of them, whatever build() does later. Errors: no gradient is
  // there yet.
  Tensor clip_gradients(const optim::Clip& clip, std::span<const Tensor> params) override;
  bool varies(const TensorImpl& t) const override;
  bool alone() const override { return before_ != nullptr; }
  Tensor enter(const void* module, const Tensor& x) override { return enter_hook_ ? enter_hook_(module, x) : x; }
  void leave(bool failed) override {
    if (leave_hook_) leave_hook_(failed);
  }

 private:
  struct Place {
    int32_t scope = 0, site = 0;
    int16_t stage = -1;
    bool operator==(const Place&) const = default;
  };
  struct PendingUpdate {
    optim::Rule rule;
    std::vector<Tensor> params;
    double clip_grad_max_norm, clip_grad_norm_type;
    int optimizer;
  };

  struct PendingClip {
    optim::Clip how;
    std::vector<Tensor> params;  // that have a gradient
  };

  Tensor add_clip(const optim::Clip& how, std::span<const Tensor> params);
  void clip_groups();
  void add_updates();
  void find_clipped();
  // A gradient in what build() sees: none is there to read or add to once it is clipped.
  void check_unclipped(const TensorImpl& leaf, const char* what) const;
  Node& append(NodeKind kind, SmallVec<ValueId, 4> in);
  void add_output(Node& n, ValueId v);
  bool is_late(ValueId v) const { return v != kNoValue && to_size(v) < late_.size() && at_index(late_, v); }
  bool is_once(ValueId v) const { return v != kNoValue && to_size(v) < once_.size() && at_index(once_, v); }
  ValueId value_of(const Tensor& t);
  int32_t external_of(const Tensor& t);
  void make_symbol(const Tensor& t, ValueId v) const;
  Tensor symbol(const Dims& shape, DType dtype, const GlobalSpec* spec, Device device, ValueId* v);
  void refresh_site();
  void end();

  Graph graph_;
  const std::vector<int64_t>* rows_ = nullptr;  // of a micro-batch of each input; nullptr: equal ones
  double share_ = 0;                            // of the rows; 0: an equal one
  const uint32_t id_;
  Tracer* before_;  // a virtual rank's
  bool open_ = true, backward_ = false;
  bool seeded_ = false, unscaled_ = false;  // this backward() has its own seed; one had another
  std::function<Tensor(const Tensor&)> loss_scale_;
  int32_t place_ = 0;
  std::vector<Place> places_{Place{}};
  std::vector<Place> scopes_{Place{}};  // open ones
  std::unordered_map<std::string, int32_t> scope_ids_, site_ids_;
  std::unordered_map<const TensorImpl*, int32_t> externals_;
  std::vector<bool> late_;        // values that depend on gradients
  std::vector<bool> once_;        // values that depend on norms: there once per step
  std::vector<ValueId> current_;  // of each external: what an in-place write made of it
  std::vector<std::pair<Ref<TensorImpl>, Tensor>> gradients_;
  std::unordered_map<const TensorImpl*, size_t> gradient_of_;
  std::vector<Ref<TensorImpl>> kept_;  // detached handles: their addresses must stay theirs
  std::vector<PendingUpdate> updates_;
  std::vector<PendingClip> clips_;
  std::unordered_set<const TensorImpl*> clipped_;
  std::function<std::string()> site_hook_;
  std::function<Tensor(const void*, const Tensor&)> enter_hook_;
  std::function<void(bool)> leave_hook_;
};

}  // namespace holon::graph
