#include "holon/array/scalar.h"

#include "holon/base/error.h"

namespace holon {

void Scalar::beyond(uint64_t value) {
  fail_value("{} is beyond int64, which holds the integers of ops up to 2^63 - 1. Pass it as a double.", value);
}

void Scalar::does_not_fit(size_t bytes, bool is_signed) const {
  fail_value("{} does not fit into an {} of {} bits. Ask for a wider type.", str(),
             is_signed ? "integer" : "unsigned integer", bytes * 8);
}

}  // namespace holon
