// A model and its training loop in C++, for train.py next to it: a classifier of points on spirals.
#include <holon/holon.h>

using namespace holon;

struct Block : nn::Layer<Block> {
  nn::Linear up, down;
  nn::LayerNorm norm;
  explicit Block(int64_t width)
      : up(register_module("up", nn::Linear(width, 2 * width))),
        down(register_module("down", nn::Linear(2 * width, width))),
        norm(register_module("norm", nn::LayerNorm({width}))) {}
  Tensor forward(const Tensor& x) const { return x + down(gelu(up(norm(x)))); }
};

struct Classifier : nn::Layer<Classifier> {
  nn::Linear in, out;
  nn::ModuleList<Block> blocks;
  Classifier(int64_t inputs, int64_t width, int64_t classes, int64_t n_blocks)
      : in(register_module("in", nn::Linear(inputs, width))), out(register_module("out", nn::Linear(width, classes))) {
    for (int64_t i = 0; i < n_blocks; ++i) blocks.push_back(Block(width));
    register_module("blocks", blocks);
  }
  Tensor forward(const Tensor& x) const {
    Tensor y = in(x);
    for (auto& block : blocks) y = block(y);
    return out(y);
  }
};

HOLON_PYTHON_MODULE(Classifier, int64_t, int64_t, int64_t, int64_t)
    .arguments({"inputs", {"width", 32}, {"classes", 3}, {"blocks", 2}})
    .forward_arguments({"x"})
    .doc("A residual network over points.");

// One pass over the batches for each epoch; returns the mean loss of each. The optimizer lives as long as the call.
std::vector<double> train(Classifier& model, const data::Batches& batches, int64_t epochs, double lr) {
  optim::AdamW adam(model.parameters(), {.lr = lr});
  std::vector<double> losses;
  model.train();
  for (int64_t epoch = 0; epoch < epochs; ++epoch) {
    double sum = 0;
    int64_t n = 0;
    for (const auto& batch : batches) {
      adam.zero_grad();
      Tensor loss = cross_entropy(model(batch[0]), batch[1]);
      loss.backward();
      adam.step();
      sum += loss.item().as_double();
      ++n;
    }
    losses.push_back(sum / static_cast<double>(n));
  }
  return losses;
}

HOLON_PYTHON_FUNCTION(train)
    .arguments({"model", "batches", {"epochs", 10}, {"lr", 0.01}})
    .doc("Trains the model, and returns the mean loss of each epoch.");
