// A model of any family: what from_pretrained() returns.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "holon/models/config.h"
#include "holon/models/inputs.h"
#include "holon/models/layout.h"
#include "holon/models/weights.h"
#include "holon/nn/lora.h"
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

// Of Model::add_lora().
struct LoraOptions : nn::LoraOptions {
  // Which modules get an adapter: names, each of which is the end of a module's path ("q_proj") here or in
  // transformers; or "all-linear", which is all products but those that give the logits.
  std::vector<std::string> target_modules{"all-linear"};
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
        generation_config_(std::make_shared<Config>()),
        changes_(std::make_shared<Changes>()) {}

  // Logits of tokens [batch, length] or pixels [batch, channels, height, width], on the last stage. x is global, or
  // local and alike on all ranks. Errors: what the model does not take (holon/models/inputs.h).
  Tensor operator()(const Tensor& x, const Inputs& inputs = {}) const { return family_->call(x, inputs); }
  // The mean loss over all labels of the whole batch that are not -100, as transformers has it: for a causal model the
  // labels are the tokens. On the last stage.
  Tensor loss(const Tensor& x, const Tensor& labels, const Inputs& inputs = {}) const {
    return family_->loss(x, labels, inputs);
  }
  // Writes config.json, generation_config.json if it is not empty, and the weights, for from_pretrained() here and in
  // transformers. Collective over the world. Errors: those of save(); the model is quantised, or has adapters that are
  // not merged (RuntimeError).
  void save_pretrained(const FilePath& folder) const;

  // Replaces the weights of the products of attention, of MLPs and of experts by small numbers with a scale for each
  // group, in place, with less memory (holon/nn/quantize.h). Embeddings, norms, biases and routers stay. The weights
  // are not learned then, and save_pretrained() is an error: state_dict() keeps these numbers, which load_state_dict()
  // reads into a model that is quantised alike. Errors: those of nn::quantize(). Collective over the world.
  void quantize(const QuantizeOptions& options = {});

  // Freezes the parameters and puts low-rank adapters next to products (holon/nn/lora.h), of a model that may be
  // quantised. The adapters are parameters as others, which alone require grad. Errors (ValueError), before anything is
  // changed: those of nn::Lora; a name that fits none of the modules, which lists those that there are; the model has
  // adapters.
  void add_lora(const LoraOptions& options = {});
  // The modules that can have adapters, by their paths.
  std::vector<std::string> lora_candidates() const;
  // Of nn::Lora: the adapters' products become a part of the weights, and again not. Errors also (RuntimeError): the
  // model has no adapters.
  void merge_lora();
  void unmerge_lora();
  // Takes the adapters out; weights that they are merged into keep them. What was frozen is learned again.
  void remove_lora();
  // nullptr without adapters.
  const nn::Lora* lora() const { return changes_->lora ? &*changes_->lora : nullptr; }
  // Writes adapter_config.json and adapter_model.safetensors, for load_adapter() here and for PEFT. base: what the
  // config names as the model's checkpoint. Errors (RuntimeError): no adapters; what cannot be written; an adapter of a
  // module that is a part of one in transformers. Collective over the world.
  void save_adapter(const FilePath& folder, const std::string& base = "") const;
  // Reads what save_adapter() or PEFT has written: adds adapters as they are there, or, if the model has the same ones,
  // replaces their values. Errors: files that are not of LoRA, or ask for what is not there (ValueError); tensors that
  // do not fit the model, all of which are listed (ValueError); what cannot be read (RuntimeError). Collective over the
  // world.
  void load_adapter(const FilePath& folder);

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
  // What has been made of the model since, which is one for all copies.
  struct Changes {
    int64_t group_size = 0;  // of quantised weights
    std::optional<nn::Lora> lora{};
  };
  std::shared_ptr<Changes> changes_;
};

}  // namespace holon::models
