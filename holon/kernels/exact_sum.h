// Sums of squares that are exact, so that neither their order nor who adds up which part changes a bit: integers of
// many digits, which add up digit by digit.
#pragma once

#include <cstddef>
#include <span>

#include "holon/array/array.h"

namespace holon::kernels {

// A sum is so many numbers: digits of 32 bits, then inf or NaN where an element was not finite, else 0. Sums of up to
// 2^20 of them, number by number, are exact as well.
inline constexpr size_t kExactNumbers = 21;

// sum = the squares of the elements of a, float32 of any strides on the host.
void exact_squares(const Array& a, std::span<double> sum);
// The sum as one number, rounded the same way whatever its digits were added from.
double exact_value(std::span<const double> sum);

}  // namespace holon::kernels
