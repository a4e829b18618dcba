#include <holon/holon.h>
#include <iostream>
namespace data = holon::data;

int main() {
  auto x = holon::reshape(holon::arange(0, 20), {10, 2}), y = holon::arange(0, 10);
  auto samples = std::make_shared<data::TensorDataset>(std::vector{x, y});
  data::DataLoader batches(samples, {.batch_size = 4, .shuffle = true});
  for (auto batch = batches.next(); !batch.empty(); batch = batches.next())
    std::cout << batch[0].shape() << " " << batch[1].shape() << "\n";
}
