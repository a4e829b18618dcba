// Numbers of sample calls: as arrays, as parts of global tensors, and compared.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "holon/array/array.h"
#include "holon/global/spec.h"

namespace holon::conformance {

// The elements in row-major order; of an array on any device.
std::vector<double> values_of(const Array& a);
Array array_of(const std::vector<double>& values, const Dims& shape, DType dtype);

// A row-major copy there.
Array on_device(const Array& a, Device device);

// The part of a tensor that a rank holds, on the placement's device. Addends of partial sums are uneven and add up to
// the value exactly.
Array part_of(const std::vector<double>& values, const Dims& shape, DType dtype, const Placement& placement,
              const NdSbp& sbp, int index);

// A reproducible number for anything.
uint64_t mix(uint64_t a, uint64_t b = 0, uint64_t c = 0);

// Empty if the values agree to rtol; otherwise what differs first. Integers must be equal.
std::string differs(const std::vector<double>& got, const std::vector<double>& want, double rtol);
// Relative: 0 for integers, 1e-12 for float64, 1e-5 for float32, 1e-2 for shorter ones.
// 0 for float32 where Context::layout_free() is set.
double tolerance(DType dtype);

}  // namespace holon::conformance
