#include "holon/models/pretrained.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/checkpoint/core/world.h"
#include "holon/models/bert.h"
#include "holon/models/deepseek.h"
#include "holon/models/gpt2.h"
#include "holon/models/llama.h"
#include "holon/models/resnet.h"
#include "holon/models/t5.h"
#include "holon/models/vit.h"
#include "holon/nn/init.h"
#include "holon/nn/quantize.h"

namespace holon::models {

namespace {

// One for each class of transformers: the first of a model_type is the one where config.json names none.
struct Row {
  const char *model_type, *architecture;
  Model (*make)(const Config& config, const std::vector<Layout>& layouts);
};

template <class M, class C>
Model make(const Config& config, const std::vector<Layout>& layouts) {
  return Model(M(C::from(config), layouts), config);
}

constexpr Row kRows[] = {
    {"bert", "BertForMaskedLM", make<Bert, BertConfig>},
    {"deepseek_v3", "DeepseekV3ForCausalLM", make<Deepseek, DeepseekConfig>},
    {"gpt2", "GPT2LMHeadModel", make<Gpt2, Gpt2Config>},
    {"llama", "LlamaForCausalLM", make<Llama, LlamaConfig>},
    {"mistral", "MistralForCausalLM", make<Llama, LlamaConfig>},
    {"mixtral", "MixtralForCausalLM", make<Llama, LlamaConfig>},
    {"qwen2", "Qwen2ForCausalLM", make<Llama, LlamaConfig>},
    {"qwen2_moe", "Qwen2MoeForCausalLM", make<Llama, LlamaConfig>},
    {"qwen3", "Qwen3ForCausalLM", make<Llama, LlamaConfig>},
    {"qwen3_moe", "Qwen3MoeForCausalLM", make<Llama, LlamaConfig>},
    {"resnet", "ResNetForImageClassification", make<Resnet, ResnetConfig>},
    {"t5", "T5ForConditionalGeneration", make<T5, T5Config>},
    {"vit", "ViTForImageClassification", make<Vit, VitConfig>},
};

const Row& row_of(const Config& config) {
  const std::string type = config.text("model_type", "");
  std::vector<std::string> named;
  if (config.has("architectures")) named = config.texts("architectures");
  for (auto& row : kRows) {
    if (type != row.model_type) continue;
    if (named.empty()) return row;
    for (auto& name : named)
      if (name == row.architecture) return row;
  }
  fail_value("models: {} is of model_type '{}' and architectures [{}]; those that are known: {}. Write the model with "
             "holon.nn, or convert the checkpoint.",
             config.source(), type, fmt::format("{}", fmt::join(named, ", ")),
             fmt::format("{}", fmt::join(architectures(), ", ")));
}

}  // namespace

std::vector<std::string> architectures() {
  std::vector<std::string> out;
  for (auto& row : kRows) out.emplace_back(row.architecture);
  return out;
}

Model from_config(const Config& config, const Parallel& parallel, const ModelOptions& options) {
  const Row& row = row_of(config);
  Model model = row.make(config, Layout::over(parallel, options.dtype, options.device));
  if (options.quantize) model.quantize(*options.quantize);
  return model;
}

Model from_pretrained(const FilePath& folder, const Parallel& parallel, const ModelOptions& options) {
  Config config, generation;
  checkpoint::together("from_pretrained", [&] {
    config = Config::read(folder);
    generation = Config::read(folder, "generation_config.json", true);
  });
  const Row& row = row_of(config);
  Model model = [&] {
    nn::init::SkipGuard no_draws;  // each value is replaced
    return row.make(config, Layout::over(parallel, options.dtype, options.device));
  }();
  load_weights(model, folder, model.checkpoint_names());
  model.eval();
  model.set_generation_config(std::move(generation));
  if (options.quantize) model.quantize(*options.quantize);
  return model;
}

void Model::save_pretrained(const FilePath& folder) const {
  if (nn::is_quantized(*this))
    fail_runtime("save_pretrained: the model is quantised, and no checkpoint of transformers has its weights. Call it "
                 "before quantize(), or save state_dict().");
  if (lora() && !lora()->is_merged())
    fail_runtime("save_pretrained: the model has adapters, which its checkpoints have no place for. Call merge_lora() "
                 "before, or write them alone by save_adapter().");
  nn::StateDict weights = state_dict();
  if (lora()) {
    const nn::StateDict adapters = lora()->state_dict();
    std::erase_if(weights, [&](auto& entry) {
      return std::any_of(adapters.begin(), adapters.end(), [&](auto& a) { return a.first == entry.first; });
    });
  }
  save_weights(weights, folder, checkpoint_names());
  checkpoint::together("save_pretrained", [&] {
    if (Context::current().rank() != 0) return;
    Config config = config_;
    const std::string dtype(name(layouts().front().dtype));
    config.set("dtype", dtype);
    if (config.has("torch_dtype")) config.set("torch_dtype", dtype);  // as older versions name it
    config.write("save_pretrained", folder, "config.json");
    const auto path = std::filesystem::path(folder.string()) / "generation_config.json";
    if (generation_config().size() > 0)
      generation_config().write("save_pretrained", folder, "generation_config.json");
    else
      std::filesystem::remove(path);  // of a model that was there before
  });
}

}  // namespace holon::models
