// Digits in the manner of MNIST, drawn: for machines without the real ones, and for tests.
#pragma once

#include <cstdint>
#include <utility>

#include "holon/base/file_path.h"
#include "holon/tensor/tensor.h"

namespace holon::data {

// n digits, uint8 [n, 28, 28], and which they are, uint8 [n]. Each is a glyph of strokes in one of several styles, with
// moved points, under a random affine map, of varying width and pressure, blurred and with noise; its ink's centre is
// near the middle. Sample i depends on seed, stream and i alone. Errors (ValueError): a negative n.
std::pair<Tensor, Tensor> draw_digits(int64_t n, uint64_t seed, uint64_t stream = 0);

struct SyntheticMnistOptions {
  int64_t train = 60000, test = 10000;
  uint64_t seed = 0;
  bool force = false;  // write over MNIST's files that are there
};

// Writes the four files that load_mnist() reads, compressed by gzip; the same bytes for the same options. Makes the
// folder. Errors: (ValueError) a part of no samples; (RuntimeError) it cannot be written; one of the files is there
// already, plain or compressed: they may be the real ones.
void write_synthetic_mnist(const FilePath& folder, const SyntheticMnistOptions& options = {});

}  // namespace holon::data
