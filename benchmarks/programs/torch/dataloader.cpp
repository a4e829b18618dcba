#include <torch/torch.h>
#include <iostream>
namespace data = torch::data;

struct Samples : data::Dataset<Samples> {
  torch::Tensor x = torch::arange(0, 20).reshape({10, 2}), y = torch::arange(0, 10);
  data::Example<> get(size_t i) override { return {x[i], y[i]}; }
  torch::optional<size_t> size() const override { return 10; }
};

int main() {
  auto samples = Samples().map(data::transforms::Stack<>());
  auto batches = data::make_data_loader<data::samplers::RandomSampler>(std::move(samples), 4);
  for (auto& batch : *batches) std::cout << batch.data.sizes() << " " << batch.target.sizes() << "\n";
}
