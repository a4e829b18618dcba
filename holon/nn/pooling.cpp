#include "holon/nn/pooling.h"

#include "holon/nn/weights.h"

namespace holon::nn {

MaxPool2d::MaxPool2d(const Dims& kernel, const PoolOptions& o)
    : kernel_(sizes_of(kernel, 2, "MaxPool2d", "kernel")),
      stride_(o.stride.empty() ? kernel_ : sizes_of(o.stride, 2, "MaxPool2d", "stride")),
      padding_(sizes_of(o.padding, 2, "MaxPool2d", "padding")),
      ceil_mode_(o.ceil_mode) {}

}  // namespace holon::nn
