// Models from checkpoints of transformers, and back.
//
//   auto model = models::from_pretrained("Qwen3-0.6B", {.dp = 2, .tp = 2});   // on four ranks
//   Tensor loss = model.loss(ids, ids);
//   loss.backward();
//   model.save_pretrained("tuned");
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "holon/models/model.h"

namespace holon::models {

struct ModelOptions {
  DType dtype = float32;  // of the parameters, whatever that of the files is
  std::string device = "cpu";
  std::optional<QuantizeOptions> quantize{};  // Model::quantize() once the weights are read
};

// The model of a folder with config.json and safetensors files (or PyTorch's), in evaluation mode. Each rank reads its
// own parts. Errors, on all ranks: sizes that are not those of the world or do not divide the model (ValueError); a
// type that is not known, which lists those that are (ValueError); files that do not fit the configuration, all of
// whose tensors are listed (ValueError); what cannot be read (RuntimeError). Collective over the world.
Model from_pretrained(const FilePath& folder, const Parallel& parallel = {}, const ModelOptions& options = {});
// A model of that configuration with drawn parameters, in training mode.
Model from_config(const Config& config, const Parallel& parallel = {}, const ModelOptions& options = {});
// The names of the classes in transformers whose checkpoints from_pretrained() reads.
std::vector<std::string> architectures();

}  // namespace holon::models
