#include "holon/data/batches.h"

#include <memory>

namespace holon::data {

Batches::Batches(std::vector<std::vector<Tensor>> list)
    : start_([all = std::make_shared<const std::vector<std::vector<Tensor>>>(std::move(list))] {
        return [all, i = size_t{0}](std::vector<Tensor>* batch) mutable {
          if (i == all->size()) return false;
          *batch = (*all)[i++];
          return true;
        };
      }) {}

Batches::Batches(DataLoader& loader)
    : start_([&loader] {
        return [&loader](std::vector<Tensor>* batch) {
          *batch = loader.next();
          return !batch->empty();
        };
      }) {}

}  // namespace holon::data
