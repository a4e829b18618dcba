// One layer, computed again with plain loops.
#include "holon/models/llama.h"

#include <gtest/gtest.h>

#include "holon/comm/run_ranks.h"
#include "holon/dispatch/random_state.h"
#include "holon/ops/shape.h"
#include "models/small_models.h"

namespace holon::models {
namespace {

using comm::run_ranks;

using Row = std::vector<double>;
using Rows = std::vector<Row>;

constexpr const char* kOneLayer = R"({"model_type": "llama", "vocab_size": 11, "hidden_size": 8,
  "intermediate_size": 6, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
  "max_position_embeddings": 16, "rms_norm_eps": 1e-5, "initializer_range": 0.4, "rope_theta": 50.0})";
constexpr size_t kLength = 5, kWidth = 8, kHeads = 2, kHead = 4;

// The model's tensors as rows of numbers.
struct Weights {
  const Model& model;
  Rows of(const std::string& name) const {
    const Tensor t = model.get_parameter(name + ".weight");
    const auto flat = to_vector<double>(t.detach().to(float64));
    const size_t n = static_cast<size_t>(t.size(-1));
    Rows rows;
    for (size_t i = 0; i < flat.size(); i += n)
      rows.emplace_back(flat.begin() + static_cast<int64_t>(i), flat.begin() + static_cast<int64_t>(i + n));
    return rows;
  }
};

Row product(const Rows& weight, const Row& x) {
  Row y;
  for (auto& w : weight) {
    double sum = 0;
    for (size_t i = 0; i < x.size(); ++i) sum += w[i] * x[i];
    y.push_back(sum);
  }
  return y;
}

Row normed(const Row& x, const Row& weight) {
  double squares = 0;
  for (double v : x) squares += v * v;
  Row y;
  for (size_t i = 0; i < x.size(); ++i)
    y.push_back(x[i] / std::sqrt(squares / static_cast<double>(x.size()) + 1e-5) * weight[i]);
  return y;
}

// One head's part of a row, turned by its position.
Row turned(const Row& x, size_t head, size_t position) {
  Row y(kHead);
  for (size_t i = 0; i < kHead / 2; ++i) {
    const double angle = static_cast<double>(position) * std::pow(50.0, -2.0 * static_cast<double>(i) / kHead);
    const double a = x[head * kHead + i], b = x[head * kHead + i + kHead / 2];
    y[i] = a * std::cos(angle) - b * std::sin(angle);
    y[i + kHead / 2] = b * std::cos(angle) + a * std::sin(angle);
  }
  return y;
}

Rows logits_by_loops(const Weights& w, const std::vector<int64_t>& ids) {
  const std::string layer = "model.layers.0.";
  const Rows q = w.of(layer + "self_attn.q_proj"), k = w.of(layer + "self_attn.k_proj"),
             v = w.of(layer + "self_attn.v_proj"), o = w.of(layer + "self_attn.o_proj");
  Rows x, keys, values, queries, out;
  for (int64_t id : ids) x.push_back(w.of("model.embed_tokens")[static_cast<size_t>(id)]);
  for (size_t t = 0; t < kLength; ++t) {
    const Row h = normed(x[t], w.of(layer + "input_layernorm")[0]);
    queries.push_back(product(q, h));
    keys.push_back(turned(product(k, h), 0, t));
    values.push_back(product(v, h));
  }
  for (size_t t = 0; t < kLength; ++t) {
    Row mixed;
    for (size_t head = 0; head < kHeads; ++head) {
      const Row query = turned(queries[t], head, t);
      Row scores;
      double sum = 0;
      for (size_t s = 0; s <= t; ++s) {
        double score = 0;
        for (size_t i = 0; i < kHead; ++i) score += query[i] * keys[s][i];
        scores.push_back(std::exp(score / std::sqrt(static_cast<double>(kHead))));
        sum += scores.back();
      }
      for (size_t i = 0; i < kHead; ++i) {
        double mean = 0;
        for (size_t s = 0; s <= t; ++s) mean += scores[s] / sum * values[s][i];
        mixed.push_back(mean);
      }
    }
    Row y = product(o, mixed);
    for (size_t i = 0; i < kWidth; ++i) y[i] += x[t][i];
    const Row h = normed(y, w.of(layer + "post_attention_layernorm")[0]);
    const Row gate = product(w.of(layer + "mlp.gate_proj"), h), up = product(w.of(layer + "mlp.up_proj"), h);
    Row hidden;
    for (size_t i = 0; i < gate.size(); ++i) hidden.push_back(gate[i] / (1 + std::exp(-gate[i])) * up[i]);
    const Row down = product(w.of(layer + "mlp.down_proj"), hidden);
    for (size_t i = 0; i < kWidth; ++i) y[i] += down[i];
    out.push_back(product(w.of("lm_head"), normed(y, w.of("model.norm")[0])));
  }
  return out;
}

TEST(Llama, OneLayerByLoops) {
  run_ranks(1, [](int) {
    manual_seed(5);
    const Model model = from_config(Config(kOneLayer));
    const std::vector<int64_t> ids{3, 9, 0, 3, 7};
    const auto found = to_vector<float>(model(tensor(ids, {1, kLength})).detach());
    const Rows wanted = logits_by_loops({model}, ids);
    for (size_t t = 0; t < kLength; ++t)
      for (size_t i = 0; i < 11; ++i) EXPECT_NEAR(found[t * 11 + i], wanted[t][i], 1e-5) << t << " " << i;
    // The loss is that of the next tokens.
    double loss = 0;
    for (size_t t = 0; t + 1 < kLength; ++t) {
      double sum = 0;
      for (double z : wanted[t]) sum += std::exp(z);
      loss += (std::log(sum) - wanted[t][static_cast<size_t>(ids[t + 1])]) / (kLength - 1);
    }
    EXPECT_NEAR(model.loss(tensor(ids, {1, kLength}), tensor(ids, {1, kLength})).item().as_double(), loss, 1e-5);
  });
}

TEST(Llama, DocumentsInOneRowAreAsTheyAreAlone) {
  run_ranks(1, [](int) {
    manual_seed(6);
    const Model model = from_config(Config(kLlama));
    const Tensor row = tokens(1, 9, 23);
    const Tensor positions = tensor(std::vector<int64_t>{0, 1, 2, 3, 0, 1, 2, 3, 4}, {1, 9});
    const Tensor documents = tensor(std::vector<int64_t>{0, 0, 0, 0, 1, 1, 1, 1, 1}, {1, 9});
    const auto first = to_vector<float>(model(slice(row, 1, 0, 4)).detach()),
               second = to_vector<float>(model(slice(row, 1, 4, 9)).detach());
    Values apart(first);
    apart.insert(apart.end(), second.begin(), second.end());
    EXPECT_LT(difference(to_vector<float>(model(row, {.position_ids = positions}).detach()), apart), 1e-5);
    // Rotary embeddings depend on distances only: positions may go on.
    EXPECT_LT(difference(to_vector<float>(model(row, {.document_ids = documents}).detach()), apart), 1e-4);
    EXPECT_GT(difference(to_vector<float>(model(row).detach()), apart), 1e-2);
  });
}

TEST(Llama, PaddingIsNotSeen) {
  run_ranks(2, [](int rank) {
    manual_seed(7);
    const Model model = from_config(Config(kLlama), {.dp = 2});
    const Tensor row = tokens(2, 6, 23),
                 mask = tensor(std::vector<int64_t>{1, 1, 1, 1, 1, 1, 0, 0, 1, 1, 1, 1}, {2, 6});
    std::vector<int64_t> other = to_vector<int64_t>(row);
    other[6] = 20, other[7] = 21;
    const auto a = to_vector<float>(model(row, {.attention_mask = mask}).detach()),
               b = to_vector<float>(model(tensor(other, {2, 6}), {.attention_mask = mask}).detach());
    for (size_t i = 8 * 23; i < 12 * 23; ++i) EXPECT_EQ(a[i], b[i]) << rank;
  });
}

}  // namespace
}  // namespace holon::models
