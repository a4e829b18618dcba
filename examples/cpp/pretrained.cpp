// A model from a checkpoint of transformers, under two layouts: one of the two ranks' tensor parallel, one of their
// data parallel. The loss and a gradient are the same. Without a folder, a small checkpoint is made first.
//   holon-launch --nproc_per_node 2 ./pretrained [FOLDER]
#include <holon/holon.h>
#include <holon/models.h>

#include <cmath>
#include <cstdio>
#include <filesystem>

#include "check.h"
namespace flow = holon;
namespace models = holon::models;

namespace {

constexpr const char* kConfig = R"({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "vocab_size": 96,
  "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
  "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 128, "tie_word_embeddings": true})";

struct Result {
  double loss, gradient;
};

Result step(const std::string& folder, const models::Parallel& parallel) {
  auto model = models::from_pretrained(folder, parallel);
  // Every rank has the same tokens, and the model's layout says which of them each rank works on.
  auto ids = flow::remainder(flow::arange(4 * 16).reshape({4, 16}) * 7, 96);
  auto loss = model.loss(ids, ids);
  loss.backward();
  auto weight = model.get_parameter("model.layers.0.mlp.up_proj.weight");
  return {loss.item<double>(), flow::square(weight.grad()).sum().item<double>()};
}

}  // namespace

int main(int argc, char** argv) {
  std::string folder = argc > 1 ? argv[1] : (std::filesystem::temp_directory_path() / "holon_example_model").string();
  if (argc == 1) models::from_config(models::Config(kConfig), {.dp = flow::world_size()}).save_pretrained(folder);
  Result by_heads = step(folder, {.tp = flow::world_size()}), by_rows = step(folder, {.dp = flow::world_size()});
  flow::barrier();  // all have read what was made
  if (argc == 1 && flow::rank() == 0) std::filesystem::remove_all(folder);
  if (flow::rank() == 0)
    std::printf("loss %.6f and %.6f, squared gradient %.6e and %.6e\n", by_heads.loss, by_rows.loss, by_heads.gradient,
                by_rows.gradient);
  return expect(std::abs(by_heads.loss - by_rows.loss) < 1e-5 * by_rows.loss &&
                std::abs(by_heads.gradient - by_rows.gradient) < 1e-4 * by_rows.gradient);
}
