// Rows of experts: weighted sums of rows that lists of indices name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "holon/array/array.h"

namespace holon::kernels {

// out[i, :] = the sum over j from starts[i] to starts[i + 1] of weights[rows[j]] * x[rows[j], :], in the order of j;
// without terms 0. Each sum is rounded once. x [m, width] and out [n, width] of one floating point dtype, with rows in
// one piece; starts [n + 1] and rows int64, weights [m] of x's dtype or undefined (1): all contiguous. Pre: starts
// begin at 0 and do not fall; rows are x's.
void sum_rows(const Array& x, const Array& starts, const Array& rows, const Array& weights, Array& out);

// Of rows with out's dtype and width, wherever they are in the host's memory. Pre: out [n, width] is contiguous, and
// there, too. out[i, :] = the row at rows[i].
void copy_rows_from(std::span<const std::byte* const> rows, Array& out);
// out[i, :] = the sum of those at rows[starts[i]], ..., rows[starts[i + 1] - 1], as sum_rows() has it, without weights.
void sum_rows_from(std::span<const int64_t> starts, std::span<const std::byte* const> rows, Array& out);

}  // namespace holon::kernels
