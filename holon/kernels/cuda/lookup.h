// Reading and writing at places that index arrays name, on a device.
#pragma once

#include <span>

#include "holon/kernels/cuda/launch.h"
#include "holon/kernels/cuda/strides.h"
#include "holon/kernels/index.h"

namespace holon::kernels::cuda {

inline constexpr int64_t kElsewhere = INT64_MIN;

// What an index means: a step of so many elements along an axis, of which the array holds a part.
struct Lookup {
  const void* indices = nullptr;
  bool wide = true;     // int64, else int32
  bool joined = false;  // they are places in elements already, multiples of `step`, kElsewhere among them
  bool wrap = false;    // negative ones count from the end
  int64_t size = 0, offset = 0, held = 0, step = 0;
  int64_t behind = 1, count = 1;  // element i of what is read belongs to the index number i / behind % count
  int32_t axis = -1;              // for the error; -1: it does not name one
  FaultReport* faults = nullptr;
  const char* op = "";

  Lookup() = default;
  // The indices of an array, into `size` elements from `offset` on of which x holds as many as its axis has. Pre:
  // use_device_of().
  Lookup(const Array& indices, int64_t size, int64_t offset, int64_t held, int64_t step, int64_t behind);

  // The place in elements (before `shift` low bits are cut off it) that the index at `at` names; kElsewhere where that
  // is not held, or is not a place at all: then it is reported as wrong.
  __device__ __forceinline__ int64_t place(int64_t at, int64_t element, int shift = 0) const {
    const int64_t given = wide ? static_cast<const int64_t*>(indices)[at] : static_cast<const int32_t*>(indices)[at];
    if (joined) return given == kElsewhere ? given : given >> shift;
    const int64_t index = wrap && given < 0 ? given + size : given;
    if (index < 0 || index >= size) {
      report(faults, Fault::kIndex, op, given, element / behind % count, wrap ? -size : 0, size, axis);
      return kElsewhere;
    }
    const int64_t local = index - offset;
    return local < 0 || local >= held ? kElsewhere : local * step >> shift;
  }
};

// out = x at the lookup's places, zero where there is none: over out's elements, with the strides of x (0 along what
// the index decides) and of the index.
void take(const Array& x, const Dims& x_strides, const Lookup& lookup, const Dims& index_strides, Array& out);

// Writing: for each entry, a row of elements of `source` combined with those of x at the lookup's place.
struct Puts {
  Dims entries;                             // a shape, of the indices
  Dims entry_x, entry_source, entry_index;  // strides over it
  Dims columns;                             // the shape of the row of an entry
  Dims column_x, column_source;
  // What the places (with entry_x) are multiples of, and how far they reach below and above 0.
  int64_t unit = 1, low = 0, high = 0;
};
enum class PutOp { kSet, kAdd, kMultiply, kAddWide };  // kAddWide: the sum of 16-bit floats is rounded once
// The entries one after the other, as if by one thread: the results do not depend on the device's order. x and source
// have one dtype; for kAddWide, if not `onto`, x is what the entries add up to alone.
void put(PutOp op, const Array& x, const Array& source, const Lookup& lookup, const Puts& puts, bool onto = true);

}  // namespace holon::kernels::cuda
