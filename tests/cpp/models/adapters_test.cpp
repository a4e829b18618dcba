// Adapters of models: on every layout those of one rank; their files.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/folder.h"
#include "error_of.h"
#include "holon/checkpoint/checkpoint.h"
#include "holon/nn/init.h"
#include "holon/ops/create.h"
#include "models/small_models.h"

namespace holon::models {
namespace {

using checkpoint::Folder;
using comm::run_ranks;

bool contains(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

Config llama() { return changed(kLlama, {{"intermediate_size", 32}}); }

// A model with adapters whose B is not 0.
Model adapted(const Config& config, const Parallel& parallel, const LoraOptions& options, int bits = 0) {
  Model model = drawn(config, parallel);
  if (bits) model.quantize({.bits = bits, .group_size = 4});
  model.add_lora(options);
  for (auto& [name, t] : model.lora()->state_dict())
    if (name.ends_with("lora_B.weight")) nn::init::normal_(t, 0, 0.2);
  return model;
}

// Logits, loss and the adapters' gradients, in float64: how sums are rounded differs between machines.
Computed computed(Model model) {
  model.to(float64);
  Computed out;
  const Sample sample = sample_of(model.config());
  Tensor loss = model.loss(sample.x, sample.labels, sample.inputs);
  loss.backward();
  out.loss = loss.item().as_double();
  out.logits = to_vector<float>(model(sample.x, sample.inputs).detach().to(float32));
  for (auto& [name, p] : model.lora()->state_dict()) out.gradients[name] = to_vector<float>(p.grad().to(float32));
  for (auto& [name, p] : model.named_parameters())
    EXPECT_EQ(p.grad().defined(), name.find(".lora_") != name.npos) << name;
  return out;
}

Values logits_of(const Model& model) {
  NoGradGuard guard;
  const Sample sample = sample_of(model.config());
  return to_vector<float>(model(sample.x, sample.inputs));
}

TEST(Adapters, EveryLayoutGivesWhatOneRankDoes) {
  LoraOptions options;
  options.r = 3;
  for (int bits : {0, 8})
    for (auto& config : {llama(), Config(kGpt2)}) {
      std::vector<Parallel> layouts{{.dp = 2}, {.tp = 2}, {.pp = 2}, {.tp = 4}, {.dp = 2, .tp = 2}, {.tp = 2, .pp = 2}};
      if (config.text("model_type") == "llama") layouts.push_back({.cp = 2});
      Computed wanted;
      run_ranks(1, [&](int) { wanted = computed(adapted(config, {}, options, bits)); });
      EXPECT_EQ(wanted.gradients.size(), config.text("model_type") == "llama" ? 28U : 24U);
      for (auto& parallel : layouts)
        run_ranks(static_cast<int>(parallel.size()), [&](int) {
          SCOPED_TRACE(testing::Message() << parallel.dp << parallel.tp << parallel.pp << parallel.cp << bits);
          expect_same(computed(adapted(config, parallel, options, bits)), wanted, 2e-7);
        });
    }
}

TEST(Adapters, EveryFamilyIsMergedSavedAndRead) {
  for (const char* text : {kLlama, kGpt2, kBert, kT5, kVit, kMixtral, kDeepseek}) {
    SCOPED_TRACE(text);
    const Config config(text);
    Folder folder, merged;
    LoraOptions options;
    options.r = 2;
    options.alpha = 3;
    if (config.text("model_type") == "gpt2") options.target_modules = {"c_fc", "mlp.c_proj"};
    run_ranks(2, [&](int) {
      Model model = adapted(config, {.tp = 2}, options);
      const Values wanted = logits_of(model);
      EXPECT_GT(difference(logits_of(drawn(config, {.tp = 2})), wanted), 1e-3);
      EXPECT_TRUE(contains(error_of([&] { model.save_pretrained(merged.path); }), "Call merge_lora()"));
      model.save_adapter(folder.path, "base");
      model.merge_lora();
      EXPECT_LT(difference(logits_of(model), wanted), 1e-5);
      model.save_pretrained(merged.path);
      model.remove_lora();
      EXPECT_EQ(model.lora(), nullptr);
      EXPECT_LT(difference(logits_of(model), wanted), 1e-5);
      EXPECT_LT(difference(logits_of(from_pretrained(merged.path, {.tp = 2})), wanted), 1e-5);
    });
    run_ranks(1, [&](int) {
      Model whole = from_pretrained(merged.path), model = drawn(config);
      model.load_adapter(folder.path);
      EXPECT_LT(difference(logits_of(model), logits_of(whole)), 1e-5);
      EXPECT_EQ(model.lora()->options().alpha, 3);
      model.load_adapter(folder.path);  // again: the same adapters
    });
  }
}

TEST(Adapters, FilesHavePeftsNames) {
  Folder folder;
  run_ranks(2, [&](int) {
    LoraOptions options;
    options.r = 4;
    options.target_modules = {"q_proj", "v_proj"};
    adapted(llama(), {.pp = 2}, options).save_adapter(folder.path, "base");
  });
  const nn::StateDict tensors = load(folder.path / "adapter_model.safetensors").state_dict();
  std::map<std::string, Dims> shapes;
  for (auto& [name, t] : tensors) shapes[name] = t.shape();
  ASSERT_EQ(shapes.size(), 8U);
  EXPECT_EQ(shapes.at("base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"), (Dims{4, 16}));
  EXPECT_EQ(shapes.at("base_model.model.model.layers.1.self_attn.v_proj.lora_B.weight"), (Dims{8, 4}));
  const Config config = Config::read(folder.path, "adapter_config.json", false);
  EXPECT_EQ(config.text("peft_type"), "LORA");
  EXPECT_EQ(config.text("task_type"), "CAUSAL_LM");
  EXPECT_EQ(config.text("base_model_name_or_path"), "base");
  EXPECT_EQ(config.texts("target_modules"), (std::vector<std::string>{"q_proj", "v_proj"}));
  EXPECT_EQ(config.integer("r"), 4);
}

// "gate_proj" is also what experts have in transformers.
TEST(Adapters, FilesNameTheModulesThatAreAdapted) {
  Folder folder;
  run_ranks(1, [&](int) {
    LoraOptions options;
    options.target_modules = {"layers.0.self_attn.q_proj"};
    adapted(llama(), {}, options).save_adapter(folder.path);
  });
  EXPECT_EQ(Config::read(folder.path, "adapter_config.json", false).texts("target_modules"),
            (std::vector<std::string>{"model.layers.0.self_attn.q_proj"}));
  run_ranks(1, [&](int) {
    LoraOptions options;
    options.target_modules = {"gate_proj", "kv_b_proj"};
    adapted(Config(kDeepseek), {}, options).save_adapter(folder.path);
  });
  for (auto& name : Config::read(folder.path, "adapter_config.json", false).texts("target_modules"))
    EXPECT_TRUE(name.starts_with("model.layers.")) << name;
}

TEST(Adapters, TargetsByTheirNamesInTransformers) {
  run_ranks(1, [](int) {
    LoraOptions options;
    options.target_modules = {"SelfAttention.q", "wo"};
    Model model = adapted(Config(kT5), {}, options);
    EXPECT_GT(model.lora()->products().size(), 2U);
    options.target_modules = {"lm_head"};  // if it is asked for
    EXPECT_EQ(adapted(llama(), {}, options).lora()->products().size(), 1U);
    for (auto& path : drawn(Config(kDeepseek)).lora_candidates()) EXPECT_FALSE(path.ends_with(".gate")) << path;
  });
}

TEST(Adapters, GeneratedTokensAreThoseOfTheMergedModel) {
  run_ranks(2, [](int) {
    LoraOptions options;
    Model model = adapted(llama(), {.tp = 2}, options);
    const Tensor prompt = tokens(2, 4, 23);
    auto made = [&](bool compiled) {
      GenerateOptions o{.max_new_tokens = 8};
      if (compiled) o.cache_implementation = "static";
      return to_vector<int64_t>(generate(model, prompt, o));
    };
    const auto eager = made(false);
    EXPECT_EQ(made(true), eager);
    model.merge_lora();
    EXPECT_EQ(made(false), eager);
  });
}

TEST(Adapters, WhatIsWrongIsAnErrorOnAllRanks) {
  Folder folder;
  run_ranks(2, [&](int) {
    Model model = drawn(llama(), {.tp = 2});
    LoraOptions options;
    options.target_modules = {"q_proj", "qproj"};
    const std::string text = value_error_of([&] { model.add_lora(options); });
    EXPECT_TRUE(contains(text, "'qproj' is not the end of the path")) << text;
    EXPECT_TRUE(contains(text, "k_proj (2)")) << text;
    EXPECT_EQ(model.lora(), nullptr);
    EXPECT_TRUE(contains(error_of([&] { model.merge_lora(); }), "has no adapters"));
    EXPECT_TRUE(contains(error_of([&] { model.save_adapter(folder.path); }), "has no adapters"));
    EXPECT_TRUE(contains(error_of([&] { model.load_adapter(folder.path); }), "adapter_config.json"));
    model.add_lora();
    EXPECT_TRUE(contains(value_error_of([&] { model.add_lora(); }), "has adapters of rank 8 already"));
    model.save_adapter(folder.path);
    // Of other sizes; and of a model that has others already.
    Model wide = drawn(changed(kLlama, {{"intermediate_size", 24}}), {.tp = 2});
    const std::string sizes = error_of([&] { wide.load_adapter(folder.path); });
    EXPECT_TRUE(contains(sizes, "mlp.up_proj.lora_B.weight is [32, 8], not [24, 8]")) << sizes;
    EXPECT_EQ(wide.lora(), nullptr);
    LoraOptions four;
    four.r = 4;
    Model other = adapted(llama(), {.tp = 2}, four);
    EXPECT_TRUE(contains(error_of([&] { other.load_adapter(folder.path); }), "other adapters, of rank 4"));
    // As many modules of the same sizes, but others.
    LoraOptions first;
    first.target_modules = {"layers.0.mlp.up_proj"};
    Model one = adapted(llama(), {.tp = 2}, first);
    one.save_adapter(folder.path / "one");
    first.target_modules = {"layers.1.mlp.up_proj"};
    Model two = adapted(llama(), {.tp = 2}, first);
    EXPECT_TRUE(contains(error_of([&] { two.load_adapter(folder.path / "one"); }), "other adapters, of rank 8"));
    Model gpt2 = drawn(Config(kGpt2), {.tp = 2});
    EXPECT_TRUE(contains(error_of([&] { gpt2.load_adapter(folder.path); }), "not of a module that can have"));
    gpt2.add_lora();
    EXPECT_TRUE(contains(error_of([&] { gpt2.save_adapter(folder.path); }), "is a part of a module in transformers"));
  });
  run_ranks(1, [&](int) {
    Model model = drawn(llama());
    for (auto& [key, value] : std::vector<std::pair<const char*, checkpoint::Value>>{
             {"use_dora", true},
             {"bias", "all"},
             {"peft_type", "IA3"},
             {"modules_to_save", checkpoint::Value::List{"lm_head"}}}) {
      Config config = Config::read(folder.path, "adapter_config.json", false);
      const std::string kept = config.json();
      config.set(key, value);
      config.write("test", folder.path, "adapter_config.json");
      EXPECT_TRUE(contains(error_of([&] { model.load_adapter(folder.path); }), key)) << key;
      Config(kept).write("test", folder.path, "adapter_config.json");
    }
    EXPECT_EQ(model.lora(), nullptr);
  });
}

}  // namespace
}  // namespace holon::models
