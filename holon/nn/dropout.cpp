#include "holon/nn/dropout.h"

#include "holon/base/error.h"

namespace holon::nn {

Dropout::Dropout(double p) : p_(p) {
  if (!(p >= 0 && p <= 1)) fail_value("Dropout: p is {}; a probability lies from 0 to 1.", p);
}

}  // namespace holon::nn
