// Models with quantised weights: their values are those of the weights that the integers stand for, on every layout.
#include "holon/nn/quantize.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "error_of.h"
#include "holon/internal_ops/quantized.h"
#include "holon/nn/linear.h"
#include "holon/ops/arithmetic.h"
#include "models/small_models.h"

namespace holon::models {
namespace {

using comm::run_ranks;

const QuantizeOptions kFour{.bits = 4, .group_size = 4}, kEight{.bits = 8, .group_size = 4};
const QuantizeOptions kFloats{.format = "mxfp4"};

// Sizes whose groups of 4 are shared evenly by 2 and by 4 ranks.
Config llama() { return changed(kLlama, {{"intermediate_size", 32}}); }
Config gpt2() { return changed(kGpt2, {{"n_positions", 32}}); }

Values logits_of(const Model& model) {
  NoGradGuard guard;
  return to_vector<float>(model(tokens(3, 9, 23)));
}

// Widths whose groups of 32 are shared by 2 ranks.
Config wide() { return changed(kLlama, {{"hidden_size", 64}, {"intermediate_size", 128}}); }

// The model with the numbers that its quantised weights stand for.
Model rounded(const Config& config, const QuantizeOptions& o) {
  Model model = drawn(config);
  NoGradGuard guard;
  for (auto& [name, p] : model.named_parameters()) {
    const bool table = name.find("embed_tokens") != name.npos || name.find("transformer.w") != name.npos;
    if (name.ends_with("mlp.gate.weight") || name.ends_with("shared_expert_gate.weight")) continue;
    if (p.ndim() < 2 || table || (name == "lm_head.weight" && !o.lm_head)) continue;
    const bool turned = config.text("model_type") == "gpt2" && name != "lm_head.weight";
    const Tensor w = turned ? p.detach().transpose(0, 1) : p.detach();
    const char* format = o.format == "mxfp4" ? "mxfp4" : o.bits == 4 ? "int4" : "int8";
    Dims groups_of = w.shape();
    groups_of.back() /= o.group_size;
    groups_of.push_back(o.group_size);
    const Tensor groups = quantize_groups(w.reshape(groups_of), format);
    const Tensor back = dequantize_groups(groups, format, float32).reshape(w.shape());
    model.replace_parameter(name, turned ? back.transpose(0, 1) : back);
  }
  return model;
}

TEST(QuantizedModel, ComputesWithTheNumbersThatItsIntegersStandFor) {
  run_ranks(1, [](int) {
    for (auto& config : {llama(), gpt2()})
      for (QuantizeOptions o : {kFour, kEight}) {
        for (bool head : {false, true}) {
          o.lm_head = head;
          Model model = drawn(config);
          const Values before = logits_of(model);
          model.quantize(o);
          const Values wanted = logits_of(rounded(config, o)), found = logits_of(model);
          EXPECT_LT(difference(found, wanted), 1e-5);
          const double apart = difference(found, before);
          EXPECT_GT(apart, 1e-4);
          EXPECT_LT(apart, o.bits == 4 ? 0.5 : 0.05);
          std::set<std::string> integers;
          for (auto& [name, t] : model.state_dict())
            if (t.dtype() == uint8) integers.insert(name);
          EXPECT_EQ(integers.contains("lm_head.weight"), head && model.config().text("model_type") == "llama");
          EXPECT_TRUE(integers.contains("model.layers.1.mlp.down_proj.weight") ||
                      integers.contains("transformer.h.1.mlp.c_proj.weight"));
          EXPECT_FALSE(integers.contains("model.embed_tokens.weight"));
        }
      }
  });
}

TEST(QuantizedModel, EveryLayoutGivesTheLogitsAndTokensOfOneRank) {
  const std::vector<Parallel> layouts{{.dp = 2}, {.tp = 2},          {.pp = 2},         {.dp = 3},
                                      {.tp = 4}, {.dp = 2, .tp = 2}, {.tp = 2, .pp = 2}};
  for (auto& config : {llama(), gpt2()})
    for (auto& o : {kFour, kEight}) {
      Values wanted;
      std::vector<int64_t> wanted_tokens;
      auto run = [&](const Parallel& parallel) {
        Model model = drawn(config, parallel);
        model.quantize(o);
        return std::pair(logits_of(model),
                         to_vector<int64_t>(generate(model, tokens(3, 4, 23), {.max_new_tokens = 8})));
      };
      run_ranks(1, [&](int) { std::tie(wanted, wanted_tokens) = run({}); });
      for (auto& parallel : layouts)
        run_ranks(static_cast<int>(parallel.size()), [&](int) {
          const auto [logits, made] = run(parallel);
          EXPECT_LT(difference(logits, wanted), 1e-5) << parallel.dp << parallel.tp << parallel.pp;
          EXPECT_EQ(made, wanted_tokens) << parallel.dp << parallel.tp << parallel.pp;
        });
    }
}

// 5 groups for 2 and 3 ranks: none is cut.
TEST(QuantizedModel, GroupsThatRanksShareUnevenly) {
  const Config config(kLlama);
  Values wanted;
  run_ranks(1, [&](int) {
    Model model = drawn(config);
    model.quantize(kFour);
    wanted = logits_of(model);
  });
  for (int64_t tp : {2, 4})
    run_ranks(static_cast<int>(tp), [&](int) {
      Model model = drawn(config, {.tp = tp});
      model.quantize(kFour);
      EXPECT_LT(difference(logits_of(model), wanted), 1e-5) << tp;
    });
}

TEST(QuantizedModel, Mxfp4) {
  Values wanted;
  run_ranks(1, [&](int) {
    Model model = drawn(wide());
    const Values before = logits_of(model);
    model.quantize(kFloats);
    wanted = logits_of(model);
    EXPECT_LT(difference(wanted, logits_of(rounded(wide(), kFloats))), 1e-5);
    EXPECT_GT(difference(wanted, before), 1e-3);
    // 32 numbers in 17 bytes.
    EXPECT_EQ(model.get_parameter("model.layers.0.mlp.down_proj.weight").shape(), (Dims{64, 4, 17}));
  });
  run_ranks(4, [&](int) {
    Model model = drawn(wide(), {.dp = 2, .tp = 2});
    model.quantize(kFloats);
    EXPECT_LT(difference(logits_of(model), wanted), 1e-5);
  });
}

// Sizes whose groups of 4 are shared by 2 ranks.
std::vector<Config> sparse() {
  return {changed(kMixtral, {{"intermediate_size", 24}}), changed(kQwen3Moe, {{"moe_intermediate_size", 24}}),
          changed(kDeepseek, {{"moe_intermediate_size", 24}, {"q_lora_rank", 8}, {"kv_lora_rank", 12}})};
}

TEST(QuantizedModel, Experts) {
  for (auto& config : sparse())
    for (auto& o : {kFour, kEight}) {
      Values wanted;
      std::vector<int64_t> wanted_tokens;
      auto run = [&](const Parallel& parallel) {
        Model model = drawn(config, parallel);
        model.quantize(o);
        return std::pair(logits_of(model),
                         to_vector<int64_t>(generate(model, tokens(3, 4, 23), {.max_new_tokens = 6})));
      };
      run_ranks(1, [&](int) {
        std::tie(wanted, wanted_tokens) = run({});
        EXPECT_LT(difference(wanted, logits_of(rounded(config, o))), 1e-5);
        Model model = drawn(config);
        const Values before = logits_of(model);
        EXPECT_GT(difference(wanted, before), 1e-5);
        model.quantize(o);
        int64_t found = 0;
        for (auto& [name, t] : model.state_dict()) found += t.ndim() == 4 && t.dtype() == uint8;
        EXPECT_GE(found, 3);
      });
      for (const Parallel& parallel : std::vector<Parallel>{{.ep = 2}, {.tp = 2}, {.dp = 2}, {.tp = 2, .ep = 2}})
        run_ranks(static_cast<int>(parallel.size()), [&](int) {
          const auto [logits, made] = run(parallel);
          EXPECT_LT(difference(logits, wanted), 1e-5) << parallel.tp << parallel.ep;
          EXPECT_EQ(made, wanted_tokens) << parallel.tp << parallel.ep;
        });
    }
}

TEST(QuantizedModel, GroupsOfExpertsThatRanksWouldCutAreAnError) {
  run_ranks(2, [](int) {
    Model model = drawn(changed(kMixtral, {{"intermediate_size", 20}}), {.tp = 2});
    EXPECT_NE(value_error_of([&] { model.quantize(kFour); }).find("are 5 groups, which tp 2 does not divide"),
              std::string::npos);
    EXPECT_FALSE(nn::is_quantized(model));
  });
}

TEST(QuantizedModel, EveryFamilyHasItsProductsQuantised) {
  run_ranks(1, [](int) {
    for (const char* text : {kLlama, kGpt2, kBert, kT5, kVit, kMixtral}) {
      Model model = drawn(Config(text));
      const Sample sample = sample_of(model.config());
      auto logits = [&] {
        NoGradGuard guard;
        return to_vector<float>(model(sample.x, sample.inputs));
      };
      const Values before = logits();
      model.quantize({.bits = 8, .group_size = 4});
      EXPECT_TRUE(nn::is_quantized(model)) << text;
      const double apart = difference(logits(), before);
      EXPECT_GT(apart, 0) << text;
      EXPECT_LT(apart, 0.05) << text;
      for (auto& [name, t] : model.state_dict()) {
        const bool decides = name.ends_with("mlp.gate.weight") || name.ends_with("classifier.weight");
        EXPECT_TRUE(!decides || is_floating(t.dtype())) << name;
      }
    }
  });
}

TEST(QuantizedModel, ItsStateIsSavedAndLoaded) {
  run_ranks(2, [](int) {
    Model model = drawn(llama(), {.tp = 2});
    model.quantize(kFour);
    manual_seed(9);
    Model other = from_config(llama(), {.tp = 2}, {.quantize = kFour});
    other.eval();
    const Values wanted = logits_of(model);
    EXPECT_GT(difference(logits_of(other), wanted), 0.1);
    other.load_state_dict(model.state_dict());
    EXPECT_EQ(difference(logits_of(other), wanted), 0);
    Model plain = drawn(llama(), {.tp = 2});
    EXPECT_NE(value_error_of([&] { plain.load_state_dict(model.state_dict()); }).find("q_proj.weight"),
              std::string::npos);
  });
}

TEST(QuantizedModel, WhatIsWrongIsAnErrorBeforeAnythingChanges) {
  run_ranks(1, [](int) {
    Model model = drawn(Config(kLlama));
    auto refuses = [&](const QuantizeOptions& o, const char* text) {
      EXPECT_NE(value_error_of([&] { model.quantize(o); }).find(text), std::string::npos) << text;
      EXPECT_FALSE(nn::is_quantized(model));
    };
    refuses({.bits = 3}, "bits is 3; it must be 4 or 8");
    refuses({.group_size = 0}, "group_size is 0");
    refuses({.group_size = 5}, "even for 4 bits");
    refuses({.format = "fp4"}, "the format is 'fp4'; it must be int or mxfp4");
    refuses({.group_size = 16, .format = "mxfp4"}, "it has 4 bits and groups of 32");
    refuses({.group_size = 16}, "the group_size 16 does not divide the 20 inputs of 'model.layers.0.mlp.down_proj'");
    model.quantize(kFour);
    EXPECT_NE(value_error_of([&] { model.quantize(kFour); }).find("is quantised already"), std::string::npos);
    EXPECT_NE(error_of([&] { model.save_pretrained("/tmp/never"); }).find("the model is quantised"), std::string::npos);
  });
}

TEST(QuantizedModel, GradientsGoThroughItsWeights) {
  Computed wanted;
  auto run = [](const Model& model) {
    Computed out;
    const Tensor ids = tokens(3, 9, 23);
    model.loss(ids, ids).backward();
    for (auto& [name, p] : model.named_parameters())
      if (is_floating(p.dtype()) && p.requires_grad()) out.gradients[name] = to_vector<float>(p.grad());
    return out.gradients;
  };
  run_ranks(1, [&](int) { wanted.gradients = run(rounded(llama(), kEight)); });
  for (int64_t tp : {1, 2})
    run_ranks(static_cast<int>(tp), [&](int) {
      Model model = drawn(llama(), {.tp = tp});
      model.quantize(kEight);
      const auto found = run(model);
      EXPECT_EQ(found.size(), 7U);  // embeddings, the head, norms
      for (auto& [name, g] : found) EXPECT_LT(difference(g, wanted.gradients.at(name)), 1e-5) << name << tp;
    });
}

TEST(QuantizedModel, WeightsThatAreNotFiniteAreAnErrorOnAllRanks) {
  run_ranks(2, [](int rank) {
    Model model = drawn(llama(), {.pp = 2});
    NoGradGuard guard;
    Tensor w = model.get_parameter("model.layers.1.mlp.up_proj.weight");
    if (w.array().defined()) *w.array().data<float>() = std::numeric_limits<float>::infinity();
    EXPECT_NE(error_of([&] { model.quantize(kFour); }).find("infinite or NaN"), std::string::npos) << rank;
  });
}

TEST(QuantizedModel, ALinearOfOtherInputsIsAnError) {
  struct Net : nn::Layer<Net> {
    nn::Linear up{32, 4};
    Net() { register_module("up", up); }
    Tensor forward(const Tensor& x) const { return up(x); }
  } net;
  net.eval();
  nn::quantize(net, nn::linear_modules(net));
  NoGradGuard guard;
  EXPECT_EQ(net(tensor(Values(32, 1.0F), {1, 32})).shape(), (Dims{1, 4}));
  // As many bytes as groups of half the size with twice the bits.
  EXPECT_NE(value_error_of([&] {
              net(tensor(Values(16, 1.0F), {1, 16}));
            }).find("its last size must be 32"),
            std::string::npos);
  EXPECT_NE(value_error_of([&] { nn::quantize(net, {{"down"}}); }).find("no submodule 'down'"), std::string::npos);
}

}  // namespace
}  // namespace holon::models
