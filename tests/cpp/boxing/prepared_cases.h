// Prepared boxings against boxing::execute(), by ranks that are threads or processes.
#pragma once

#include <string>
#include <vector>

#include "holon/array/array.h"
#include "holon/boxing/prepared.h"

namespace holon::testing_boxing {

// This rank's part of a tensor with arbitrary values, undefined outside the placement. strided: not row-major.
Array some_part(const GlobalSpec* spec, const Dims& shape, DType dtype, bool strided = false);
// An array full of bytes that nobody wants; undefined where `has` is false.
Array garbage(bool has, const Dims& shape, DType dtype);
std::vector<Array> scratch_of(std::span<const size_t> bytes);
// Whether the elements have the same bits.
bool same_bits(const Array& a, const Array& b);

// Specs of a world of four ranks: rows of one to four of them in several orders, and grids of 2 x 2.
std::vector<const GlobalSpec*> specs_of_rows();
std::vector<const GlobalSpec*> specs_of_grids();

// What is wrong with this rank's result, its stats, or what the preparation said of it; "" for nothing. Collective.
std::string prepared_is_wrong(const GlobalSpec* from, const GlobalSpec* to, const Dims& shape, DType dtype,
                              bool strided);
// A batch of tensors against each one alone. Collective.
std::string batch_is_wrong(const GlobalSpec* from, const GlobalSpec* to, const std::vector<Dims>& shapes, DType dtype);

// Every pair, of rows and of grids: throws what is wrong. For a world of four.
void check_prepared();

}  // namespace holon::testing_boxing
