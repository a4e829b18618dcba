// A model of any family: what from_pretrained() returns.
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "holon/models/config.h"
#include "holon/models/inputs.h"
#include "holon/models/layout.h"
#include "holon/models/weights.h"
#include "holon/nn/module.h"

namespace holon::models {

// A part of a model, and the stage of the pipeline that it is on.
using StagedModule = std::pair<nn::Module, int>;

// Of a model that predicts each next token from those before it, and takes Inputs::cache.
struct CausalSizes {
  int64_t vocabulary = 0, positions = 0;   // positions: the longest row
  std::optional<int64_t> decoder_start{};  // of encoder-decoders: the token that their decoder's rows begin with
};
inline constexpr int64_t kNoLimit = int64_t{1} << 40;  // of positions

// Of Model::quantize().
struct QuantizeOptions {
  int bits = 4;                // 4 or 8, for each number of a weight
  int64_t group_size = 32;     // adjacent inputs of an output that have one scale, 2 bytes
  bool lm_head = false;        // the product that gives the logits, too, unless it is the embedding's table
  std::string format = "int";  // integers; or "mxfp4": floats of 4 bits, 32 of which have a scale of a byte
};

// What the module class of a family has besides forward(x, inputs). Causal ones have causal_sizes(), too.
template <class M>
concept ModelFamily = std::derived_from<M, nn::Module> && requires(const M& m, const Tensor& t, const Inputs& in) {
  { m(t, in) } -> std::same_as<Tensor>;
  { m.loss(t, t, in) } -> std::same_as<Tensor>;
  { m.layouts() } -> std::same_as<const std::vector<Layout>&>;
  { m.stages() } -> std::same_as<std::vector<StagedModule>>;
  { m.checkpoint_names() } -> std::same_as<CheckpointNames>;
};

// A handle, as all modules: copies are one model, and that of its own class (get_if) is the same, too.
class Model : public nn::Module {
 public:
  template <ModelFamily M>
  Model(const M& module, Config config)
      : nn::Module(module),
        family_(std::make_shared<Of<M>>(module)),
        config_(std::move(config)),
        generation_config_(std::make_shared<Config>()) {}

  // Logits of tokens [batch, length] or pixels [batch, channels, height, width], on the last stage. x is global, or
  // local and alike on all ranks. Errors: what the model does not take (holon/models/inputs.h).
  Tensor operator()(const Tensor& x, const Inputs& inputs = {}) const { return family_->call(x, inputs); }
  // The mean loss over all labels of the whole batch that are not -100, as transformers has it: for a causal model the
  // labels are the tokens. On the last stage.
  Tensor loss(const Tensor& x, const Tensor& labels, const Inputs& inputs = {}) const {
    return family_->loss(x, labels, inputs);
  }
  // Writes config.json, generation_config.json if it is not empty, and the weights, for from_pretrained() here and in
  // transformers. Collective over the world. Errors: those of save(); the model is quantised (RuntimeError).
  void save_pretrained(const FilePath& folder) const;

  // Replaces the weights of the products of attention, of MLPs and of experts by small numbers with a scale for each
  // group, in place, for inference with less memory (holon/nn/quantize.h). Embeddings, norms, biases and routers stay.
  // Backward is an error then, and so is save_pretrained(): state_dict() keeps these numbers, which load_state_dict()
  // reads into a model that is quantised alike. Errors: those of nn::quantize(). Collective over the world.
  void quantize(const QuantizeOptions& options = {});

  // None for a model that is not causal, such as BERT.
  std::optional<CausalSizes> causal_sizes() const { return family_->causal_sizes(); }
  // Of the stages, in order.
  const std::vector<Layout>& layouts() const { return family_->layouts(); }
  // The parts with their stages, for nn::Graph::set_stage().
  std::vector<StagedModule> stages() const { return family_->stages(); }
  CheckpointNames checkpoint_names() const { return family_->checkpoint_names(); }
  const Config& config() const { return config_; }
  // What the checkpoint's generation_config.json says, which save_pretrained() writes again; empty without one. It is
  // one for all copies of the model.
  const Config& generation_config() const { return *generation_config_; }
  void set_generation_config(Config config) { *generation_config_ = std::move(config); }
  // The model as the class of its family, such as Llama; nullptr if it is of another.
  template <ModelFamily M>
  const M* get_if() const {
    auto* of = dynamic_cast<const Of<M>*>(family_.get());
    return of ? &of->module : nullptr;
  }

 private:
  struct Family {
    virtual ~Family() = default;
    virtual Tensor call(const Tensor& x, const Inputs& inputs) const = 0;
    virtual Tensor loss(const Tensor& x, const Tensor& labels, const Inputs& inputs) const = 0;
    virtual std::optional<CausalSizes> causal_sizes() const = 0;
    virtual const std::vector<Layout>& layouts() const = 0;
    virtual std::vector<StagedModule> stages() const = 0;
    virtual CheckpointNames checkpoint_names() const = 0;
  };
  template <class M>
  struct Of final : Family {
    explicit Of(M m) : module(std::move(m)) {}
    Tensor call(const Tensor& x, const Inputs& inputs) const override { return module(x, inputs); }
    Tensor loss(const Tensor& x, const Tensor& labels, const Inputs& inputs) const override {
      return module.loss(x, labels, inputs);
    }
    std::optional<CausalSizes> causal_sizes() const override {
      if constexpr (requires { module.causal_sizes(); }) return module.causal_sizes();
      return {};
    }
    const std::vector<Layout>& layouts() const override { return module.layouts(); }
    std::vector<StagedModule> stages() const override { return module.stages(); }
    CheckpointNames checkpoint_names() const override { return module.checkpoint_names(); }
    M module;
  };
  std::shared_ptr<const Family> family_;
  Config config_;
  std::shared_ptr<Config> generation_config_;
};

}  // namespace holon::models
