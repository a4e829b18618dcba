#include "holon/nn/dropout.h"

#include "holon/base/error.h"

namespace holon::nn {

double checked_probability(double p, const char* layer) {
  if (!(p >= 0 && p <= 1)) fail_value("{}: p is {}; a probability must be from 0 to 1.", layer, p);
  return p;
}

}  // namespace holon::nn
