// What ranks tell each other of the local parts that they make a global tensor of.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "holon/base/context.h"
#include "holon/base/index.h"
#include "holon/tensor/tensor.h"

namespace holon::ops {

struct PartMeta {
  int64_t dtype = -1, ndim = 0;
  int64_t sizes[kMaxAxes] = {};

  static PartMeta of(const Tensor& x);
  Dims shape() const { return Dims(std::span<const int64_t>(sizes, to_size(ndim))); }
  std::string str() const;  // "float32 [4, 5]"
  uint64_t hash(uint64_t seed = 0) const;
  bool operator==(const PartMeta&) const = default;
};

// False where there is nobody to ask: a world of one rank, or a capture that this rank makes alone.
bool has_peers();

// What each rank of the world tells, in the order of ranks. Collective over the world, with has_peers(). T: plain
// values.
void exchange_bytes(const char* op, const PartMeta& shown, uint64_t fingerprint, const void* mine, size_t bytes,
                    void* all);
template <class T>
std::vector<T> exchange(const char* op, const PartMeta& shown, uint64_t fingerprint, const T& mine) {
  std::vector<T> all(to_size(Context::current().world_size()));
  exchange_bytes(op, shown, fingerprint, &mine, sizeof(T), all.data());
  return all;
}

// Ranks that must agree on a row of signatures need not ask each other about one that is the last one again, or that
// followed the last one the time before: either is the same on all ranks, as they agreed on it. So a rank whose
// signature is foreseen knows that all others have it, or are asking about theirs, which its own next exchange finds
// out.
class Foreseen {
 public:
  bool is(uint64_t signature) const;
  // Pre: all ranks have this signature.
  void agreed(uint64_t signature);

 private:
  static constexpr size_t kMost = 256;
  std::map<uint64_t, uint64_t> next_;
  uint64_t last_ = 0;
};

// Makes sure that every rank of the world gives a part like x for this spec. Collective over the world. Errors: one
// does not.
void agree_on_part(const Tensor& x, const GlobalSpec* spec);

// With HOLON_CHECK=1, makes sure that the ranks of the placement hold the same values, as where each takes its part of
// a value that all have. Then collective over the placement. Errors: another dtype, shape or value.
void check_alike(const char* call, const Tensor& value, const Placement& placement);

}  // namespace holon::ops
