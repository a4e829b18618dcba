// The source text of a chain's kernel. Texts depend on the steps and on which strides are 0 or 1, not on sizes and
// numbers, so that alike chains share one.
#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "holon/kernels/chain.h"

namespace holon::kernels::cuda {

inline constexpr const char* kChainKernelName = "holon_chain";
inline constexpr int kChainThreads = 256;

// How a kernel goes through a chain's arrays: inputs, then outputs.
struct ChainVariant {
  enum class Stride : uint8_t { kZero, kOne, kAny };
  int width = 1;                             // neighbours along the last axis that a thread takes together: a pack
  int at_once = 1;                           // packs that it has under way
  bool small = true;                         // places are numbers of 32 bits
  std::vector<SmallVec<Stride, 8>> strides;  // [axis][array]

  // aligned: the arrays begin at multiples of pack_bytes(). Without packs its width is 1.
  ChainVariant(const Chain& chain, std::span<const ChainAxis> axes, bool aligned);
  bool flat() const { return strides.size() == 1; }
  bool repeated(size_t array) const;  // one element for all
};
// Of elements of a size.
inline size_t pack_bytes(int width, size_t element) {
  return std::min<size_t>(16, static_cast<size_t>(width) * element);
}

// An argument of the kernel, in the order of the source: 8 bytes each, except a divider's 16.
struct ChainArgument {
  enum class Kind : uint8_t { kData, kFaults, kName, kNumber, kCount, kPacks, kDivider, kStride };
  Kind kind;
  int a = 0, b = 0;  // array; step; step, number; axis; axis, array
};
std::vector<ChainArgument> chain_arguments(const Chain& chain, const ChainVariant& variant);

std::string chain_source(const Chain& chain, const ChainVariant& variant);

}  // namespace holon::kernels::cuda
