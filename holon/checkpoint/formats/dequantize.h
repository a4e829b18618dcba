// Quantised weights, read as numbers. Of what is requested only the bytes are read, and their scales.
//
//  - float8: each element by itself. Block-scaled, as DeepSeek-V3 has it (README_WEIGHTS.md of deepseek-ai/DeepSeek-V3:
//    "(128x128 weight block) * weight_scale_inv"): NAME [..., rows, columns] and NAME_scale_inv
//    [..., ceil(rows / 128), ceil(columns / 128)].
//  - MXFP4 (OCP Microscaling Formats 1.0), as gpt-oss has it (gpt_oss/torch/weights.py of openai/gpt-oss): NAME_blocks,
//    uint8 [..., groups, 16], two E2M1 numbers a byte, the lower 4 bits first, and NAME_scales, uint8 [..., groups],
//    E8M0, which is one scale for 32 numbers. Read as NAME [..., 32 * groups].
#pragma once

#include <memory>
#include <optional>

#include "holon/checkpoint/formats/source.h"

namespace holon::checkpoint {

// The source as it is read: with `to`, quantised weights are of this dtype, and their scales are not tensors any more.
// Without, all is as it is stored. Errors: `to` is not floating point, or a float8 (TypeError); RuntimeError, naming
// file and tensor: scales that do not fit.
std::unique_ptr<Source> dequantized(std::unique_ptr<Source> source, std::optional<DType> to);

}  // namespace holon::checkpoint
