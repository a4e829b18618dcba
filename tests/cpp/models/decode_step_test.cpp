// Compiled steps of generate(): the tokens of steps that run op by op, on every layout.
#include "holon/models/decode_step.h"

#include <gtest/gtest.h>

#include "error_of.h"
#include "holon/graph/nn_graph.h"
#include "holon/models/decoder.h"
#include "holon/ops/shape.h"
#include "models/small_models.h"

namespace holon::models {
namespace {

using comm::run_ranks;
using Tokens = std::vector<int64_t>;

Tensor padded_prompts() { return tensor(Tokens{0, 0, 0, 7, 3, 1, 4, 9, 2, 6, 0, 5, 8, 2, 11}, {3, 5}); }
Tensor padded_mask() { return tensor(Tokens{0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 0, 1, 1, 1, 1}, {3, 5}); }

std::vector<Tokens> all_ways(const Model& model, const char* cache) {
  const Tensor ids = padded_prompts(), mask = padded_mask();
  auto made = [&](const Tensor& prompts, GenerateOptions o) {
    o.cache_implementation = cache;
    return to_vector<int64_t>(generate(model, prompts, o));
  };
  return {made(ids, {.max_new_tokens = 9}),
          made(ids, {.max_new_tokens = 9, .attention_mask = mask}),
          made(slice(ids, 0, 1, 2), {.max_new_tokens = 9}),
          made(ids, {.max_new_tokens = 9, .do_sample = true, .seed = 3, .attention_mask = mask}),
          made(ids, {.max_new_tokens = 6, .num_beams = 3, .eos_token_id = Tokens{4}}),
          made(ids, {.max_new_tokens = 6, .num_beams = 2, .attention_mask = mask})};
}

TEST(DecodeStep, EveryModelAndLayoutGivesTheTokensOfStepsOpByOp) {
  const std::vector<Parallel> layouts{{}, {.dp = 2}, {.tp = 2}, {.pp = 2}, {.tp = 4}, {.tp = 2, .pp = 2}};
  for (auto& kind : causal_models()) {
    std::vector<Tokens> wanted;
    run_ranks(1, [&](int) { wanted = all_ways(drawn(kind.second), "dynamic"); });
    for (auto& parallel : layouts)
      run_ranks(static_cast<int>(parallel.size()), [&](int rank) {
        const auto found = all_ways(drawn(kind.second, parallel), "static");
        for (size_t i = 0; i < wanted.size(); ++i)
          EXPECT_EQ(found[i], wanted[i]) << kind.first << " way " << i << " dp " << parallel.dp << " tp " << parallel.tp
                                         << " pp " << parallel.pp << " rank " << rank;
      });
  }
}

// Rows of more than a page, so that memory grows and steps are compiled again.
TEST(DecodeStep, MemoryThatGrows) {
  for (const Parallel& parallel : {Parallel{}, Parallel{.tp = 2}})
    run_ranks(static_cast<int>(parallel.size()), [&](int) {
      const Model model = drawn(changed(kLlama, {{"max_position_embeddings", 600}}), parallel);
      GenerateOptions o{.max_new_tokens = 300, .eos_token_id = Tokens{}};
      const Tokens wanted = to_vector<int64_t>(generate(model, tokens(2, 100, 23), o));
      o.cache_implementation = "static";
      EXPECT_EQ(to_vector<int64_t>(generate(model, tokens(2, 100, 23), o)), wanted);
    });
}

TEST(DecodeStep, QuantisedWeights) {
  for (const Parallel& parallel : {Parallel{}, Parallel{.tp = 2}, Parallel{.pp = 2}})
    run_ranks(static_cast<int>(parallel.size()), [&](int) {
      Model model = drawn(changed(kLlama, {{"intermediate_size", 32}}), parallel);
      model.quantize({.bits = 4, .group_size = 4});
      GenerateOptions o{.max_new_tokens = 9};
      const Tokens wanted = to_vector<int64_t>(generate(model, padded_prompts(), o));
      o.cache_implementation = "static";
      EXPECT_EQ(to_vector<int64_t>(generate(model, padded_prompts(), o)), wanted);
    });
}

// A token is written where it belongs: the memory of keys and values is not copied in a step.
TEST(DecodeStep, WritesIntoTheCache) {
  run_ranks(1, [](int) {
    NoGradGuard guard;
    const Model model = drawn(Config(kLlama));
    KvCache cache(20);
    model(tokens(2, 4, 23), {.cache = &cache});
    struct Step : nn::Graph {
      const Model& model;
      KvCache& cache;
      Step(const Model& m, KvCache& c) : model(m), cache(c) {}
      std::vector<Tensor> build(TensorList in) override {
        cache.set_step({{.placement = model.layouts()[0].placement, .place = in[1], .positions = in[2]}});
        const Tensor y = model(in[0], {.cache = &cache});
        cache.set_step({});
        return {y};
      }
    } step(model, cache);
    const Layout& layout = model.layouts()[0];
    auto on = [&](const Tensor& t) { return place(t, layout.placement, layout.whole); };
    const Tensor next = place(tensor(Tokens{5, 6}, {2, 1}), layout.placement, layout.rows);
    const Values found = to_vector<float>(step(next, on(tensor(Tokens{4}, {1})), on(tensor(Tokens{4}, {1, 1})))[0]);
    EXPECT_EQ(step.plan().find("copy"), std::string::npos) << step.plan();
    EXPECT_NE(step.plan().find("kv_put"), std::string::npos) << step.plan();
    EXPECT_LT(difference(found, to_vector<float>(model(next, {.cache = &cache}))), 1e-5);
  });
}

TEST(DecodeStep, OptionsThatAreWrong) {
  run_ranks(1, [](int) {
    const Model model = drawn(Config(kLlama));
    auto refuses = [&](const Model& m, GenerateOptions o, const char* text) {
      EXPECT_NE(value_error_of([&] { generate(m, tokens(1, 4, 23), o); }).find(text), std::string::npos) << text;
    };
    refuses(model, {.cache_implementation = "quantized"}, "must be 'dynamic' or 'static'");
    refuses(model, {.use_cache = false, .cache_implementation = "static"}, "use_cache is false");
    refuses(drawn(changed(kT5, {{"decoder_start_token_id", 3}})), {.cache_implementation = "static"},
            "of an encoder-decoder are not compiled");
  });
}

}  // namespace
}  // namespace holon::models
