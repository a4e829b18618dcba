// Rounding, on purpose: how far the values of a program may be apart under two layouts that add in different orders is
// found by running it with every result rounded otherwise, as in stochastic arithmetic (Vignes, "A stochastic
// arithmetic for reliable scientific computation", 1993).
#pragma once

#include <cstdint>

#include "holon/array/array.h"

namespace holon::verify {

// Changes each element up or down, by what a sum of `terms` numbers of the array's dtype errs by: eps (|x| + rms / 2)
// of one number, times the square root of terms / 2 of a sum. eps is the dtype's distance from 1 to the next number,
// and rms the root of the mean square of the array: a sum's terms may be larger than it. Sums of two-byte numbers are
// made in float32, and err by one rounding. What has few digits is left, as it is exact: 0, 1, 0.5, numbers of masks,
// classes and counts; in two bytes only 0 and powers of two. No effect on integers, nor on arrays that are not the
// host's.
void perturb(Array& a, uint64_t seed, double terms);

// The distance from 1 to the next number; 0 of integers.
double epsilon_of(DType dtype);

}  // namespace holon::verify
