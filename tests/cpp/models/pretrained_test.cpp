#include "holon/models/pretrained.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "checkpoint/folder.h"
#include "error_of.h"
#include "holon/checkpoint/checkpoint.h"
#include "holon/comm/run_ranks.h"
#include "holon/ops/create.h"
#include "models/small_models.h"

namespace holon::models {
namespace {

using comm::run_ranks;

namespace fs = std::filesystem;
using checkpoint::Folder;

bool contains(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

TEST(Pretrained, DtypeIsAskedFor) {
  Folder folder;
  save_one(folder.path, kLlama);
  run_ranks(1, [&](int) {
    const Model model = from_pretrained(folder.path, {}, {.dtype = bfloat16});
    for (auto& p : model.parameters()) EXPECT_EQ(p.dtype(), bfloat16);
    EXPECT_FALSE(model.is_training());
    EXPECT_EQ(model(tokens(1, 2, 23)).dtype(), bfloat16);
  });
}

TEST(Pretrained, AllTensorsThatDoNotFitAreListed) {
  Folder folder;
  save_one(folder.path, kLlama);
  nn::StateDict state = load(folder.path).state_dict();
  std::erase_if(state,
                [](auto& e) { return e.first == "lm_head.weight" || e.first == "model.layers.1.mlp.up_proj.weight"; });
  for (auto& [name, t] : state)
    if (name == "model.norm.weight") t = zeros({3});
  state.emplace_back("model.layers.2.mlp.up_proj.weight", zeros({2}));
  state.emplace_back("model.layers.0.self_attn.rotary_emb.inv_freq", zeros({2}));  // of older files: not read
  save(state, folder.path, {.format = Format::kHuggingFace});
  run_ranks(2, [&](int) {
    const std::string text = value_error_of([&] { from_pretrained(folder.path, {.tp = 2}); });
    EXPECT_TRUE(contains(text, "missing (2): lm_head.weight [23, 16], model.layers.1.mlp.up_proj.weight [20, 16]"))
        << text;
    EXPECT_TRUE(contains(text, "not expected (1): model.layers.2.mlp.up_proj.weight")) << text;
    EXPECT_TRUE(contains(text, "of another shape (1): model.norm.weight is [3], not [16]")) << text;
  });
}

TEST(Pretrained, NamesWithoutTheHeadsPrefixAreRead) {
  Folder folder;
  const Computed one = save_one(folder.path, kGpt2);
  nn::StateDict state = load(folder.path).state_dict();
  for (auto& [name, t] : state) name = name.substr(std::string("transformer.").size());
  state.emplace_back("h.0.attn.bias", zeros({1, 1, 4, 4}));  // the mask that older files have
  save(state, folder.path, {.format = Format::kHuggingFace});
  run_ranks(1, [&](int) { expect_same(compute(from_pretrained(folder.path)), one); });
}

TEST(Pretrained, WhatIsNotKnownIsAnError) {
  run_ranks(1, [](int) {
    const std::string text = value_error_of([] { from_config(Config(R"({"model_type": "mamba"})")); });
    EXPECT_TRUE(contains(text, "model_type 'mamba'") && contains(text, "LlamaForCausalLM")) << text;
    EXPECT_TRUE(contains(
        value_error_of([] { from_config(Config(R"({"model_type": "llama", "architectures": ["LlamaForTokens"]})")); }),
        "[LlamaForTokens]"));
    Folder empty;
    EXPECT_TRUE(contains(error_of([&] { from_pretrained(empty.path); }), "config.json cannot be read"));
  });
}

TEST(Pretrained, LayoutsThatDoNotDivideAreErrors) {
  run_ranks(3, [](int) {
    EXPECT_TRUE(contains(value_error_of([] { from_config(Config(kLlama), {.tp = 3}); }),
                         "tp 3 does not divide the 4 attention heads"));
    EXPECT_TRUE(contains(value_error_of([] { from_config(Config(kLlama), {.pp = 3}); }), "2 layers are fewer"));
    EXPECT_TRUE(contains(value_error_of([] { from_config(Config(kLlama), {.tp = 2}); }), "3 are running"));
  });
}

TEST(Pretrained, InputsAreCheckedOnAllRanks) {
  run_ranks(2, [](int) {
    const Model model = from_config(Config(kGpt2), {.dp = 2});
    const Tensor ids = tokens(2, 6, 23);
    EXPECT_TRUE(contains(error_of([&] { model(tokens(2, 6, 40)); }, ErrorKind::kIndex), "not in [0, 23)"));
    EXPECT_TRUE(contains(value_error_of([&] { model(tokens(2, 13, 23)); }), "longer than the 12 positions"));
    EXPECT_TRUE(contains(error_of([&] { model(ids.to(float32)); }, ErrorKind::kType), "must be int64"));
    EXPECT_TRUE(contains(value_error_of([&] { model(ids, {.token_type_ids = ids}); }), "takes no token_type_ids"));
    EXPECT_TRUE(
        contains(value_error_of([&] { model(ids, {.attention_mask = tokens(2, 5, 2)}); }), "attention_mask has"));
    EXPECT_TRUE(contains(value_error_of([&] { model.loss(ids, tokens(2, 5, 23)); }), "labels have shape [2, 5]"));
    EXPECT_TRUE(
        contains(error_of([&] { model.loss(ids, tokens(2, 6, 30)); }, ErrorKind::kIndex), "neither in [0, 23)"));
    EXPECT_TRUE(contains(error_of([&] { model(ids, {.position_ids = tokens(2, 6, 23)}); }, ErrorKind::kIndex),
                         "position_ids hold"));
  });
}

TEST(Pretrained, AModelIsTheModuleOfItsFamily) {
  run_ranks(1, [](int) {
    const Model model = from_config(Config(kLlama)), same = model;
    const Llama* llama = model.get_if<Llama>();
    ASSERT_NE(llama, nullptr);
    EXPECT_EQ(model.get_if<Gpt2>(), nullptr);
    EXPECT_EQ(model.identity(), llama->identity());
    EXPECT_TRUE(
        same.get_parameter("model.layers.0.mlp.up_proj.weight").is_same(llama->model.layers[0].mlp->up_proj.weight));
  });
}

}  // namespace
}  // namespace holon::models
