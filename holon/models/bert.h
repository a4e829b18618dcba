// BERT with its head for masked tokens: learned positions, attention in both directions, a norm behind each sum.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "holon/models/attention.h"
#include "holon/models/layers.h"
#include "holon/models/model.h"
#include "holon/nn/containers.h"
#include "holon/nn/dropout.h"

namespace holon::models {

// The names are those of config.json.
struct BertConfig {
  int64_t vocab_size = 30522, hidden_size = 768, num_hidden_layers = 12, num_attention_heads = 12,
          intermediate_size = 3072, max_position_embeddings = 512, type_vocab_size = 2;
  std::optional<int64_t> pad_token_id = 0;
  double layer_norm_eps = 1e-12, initializer_range = 0.02;
  double hidden_dropout_prob = 0.1, attention_probs_dropout_prob = 0.1;
  std::string hidden_act = "gelu";

  // Errors (ValueError): what Config says; sizes that do not fit each other; a decoder; a head that is not tied.
  static BertConfig from(const Config& config);
};

// Attention in both directions, without the product behind it.
class BertSelfAttention : public nn::Layer<BertSelfAttention> {
 public:
  BertSelfAttention(const BertConfig& config, const Layout& layout);
  Tensor forward(const Tensor& x, const Sequence& sequence) const;
  nn::Linear query, key, value;

 private:
  int64_t heads_;
  double dropout_;
};

// LayerNorm(dense(x) + residual).
class BertOutput : public nn::Layer<BertOutput> {
 public:
  BertOutput(int64_t inputs, const BertConfig& config, const Layout& layout);
  Tensor forward(const Tensor& x, const Tensor& residual) const;
  nn::Linear dense;
  nn::LayerNorm norm;
  nn::Dropout dropout;

 private:
  Layout layout_;
};

// Attention, the product behind it, and the norm of the sum.
class BertAttention : public nn::Layer<BertAttention> {
 public:
  BertAttention(const BertConfig& config, const Layout& layout);
  Tensor forward(const Tensor& x, const Sequence& sequence) const { return output(self(x, sequence), x); }
  BertSelfAttention self;
  BertOutput output;
};

// The first product of a layer's two, and its activation.
class BertIntermediate : public nn::Layer<BertIntermediate> {
 public:
  BertIntermediate(const BertConfig& config, const Layout& layout);
  Tensor forward(const Tensor& x) const { return act_(dense(x)); }
  nn::Linear dense;

 private:
  Activation act_;
};

// One layer.
class BertBlock : public nn::Layer<BertBlock> {
 public:
  BertBlock(const BertConfig& config, const Layout& layout);
  Tensor forward(const Tensor& x, const Sequence& sequence) const;
  BertAttention attention;
  BertIntermediate intermediate;
  BertOutput output;
};

// The sum of the embeddings of tokens, positions and types, normed.
class BertEmbeddings : public nn::Layer<BertEmbeddings> {
 public:
  BertEmbeddings(const BertConfig& config, const Layout& layout);
  // ids, types [batch, length]; positions [batch or 1, length]; types may be undefined: all 0.
  Tensor forward(const Tensor& ids, const Tensor& types, const Tensor& positions) const;
  nn::Embedding word_embeddings, position_embeddings, token_type_embeddings;
  nn::LayerNorm norm;
  nn::Dropout dropout;

 private:
  Layout layout_;
};

// Tokens to hidden states.
class BertEncoder : public nn::Layer<BertEncoder> {
 public:
  BertEncoder(const BertConfig& config, const std::vector<Layout>& layouts);
  // Hidden states [batch, length, hidden], on the last stage.
  Tensor forward(const Tensor& ids, const Inputs& inputs) const;
  BertEmbeddings embeddings;
  nn::ModuleList<BertBlock> blocks;

 private:
  std::vector<Layout> layouts_;
};

// What the head does before the product with the embedding.
class BertHeadTransform : public nn::Layer<BertHeadTransform> {
 public:
  BertHeadTransform(const BertConfig& config, const Layout& layout);
  Tensor forward(const Tensor& x) const { return norm(act_(dense(x))); }
  nn::Linear dense;
  nn::LayerNorm norm;

 private:
  Activation act_;
};

class Bert : public nn::Layer<Bert> {
 public:
  Bert(const BertConfig& config, const std::vector<Layout>& layouts);
  // Logits [batch, length, vocabulary] of ids [batch, length].
  Tensor forward(const Tensor& ids, const Inputs& inputs = {}) const;
  // As Model's. Of labels at the masked places, -100 elsewhere.
  Tensor loss(const Tensor& ids, const Tensor& labels, const Inputs& inputs = {}) const;
  const std::vector<Layout>& layouts() const { return layouts_; }
  std::vector<StagedModule> stages() const;
  CheckpointNames checkpoint_names() const;
  BertEncoder bert;
  BertHeadTransform transform;
  nn::Parameter bias;  // of the logits, whose weight is the embedding's

 private:
  std::vector<Layout> layouts_;
};

}  // namespace holon::models
