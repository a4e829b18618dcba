#include "holon/ops/part_metas.h"

#include <algorithm>
#include <unordered_map>

#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/hash.h"
#include "holon/base/index.h"
#include "holon/base/settings.h"
#include "holon/comm/core/communicator.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/on_device.h"
#include "holon/tensor/tracer.h"

namespace holon::ops {

namespace {

// What this rank's tensors without their own exchange looked like, by layout.
struct AgreedParts {
  std::unordered_map<const GlobalSpec*, Foreseen> by_spec;
};

}  // namespace

PartMeta PartMeta::of(const Tensor& x) {
  PartMeta m;
  m.dtype = static_cast<int64_t>(x.dtype());
  m.ndim = x.ndim();
  std::copy(x.shape().begin(), x.shape().end(), m.sizes);
  return m;
}

std::string PartMeta::str() const { return fmt::format("{} {}", name(static_cast<DType>(dtype)), shape()); }

uint64_t PartMeta::hash(uint64_t seed) const {
  Hasher h;
  h.add(seed).add(dtype).add(ndim);
  for (int64_t n : shape()) h.add(n);
  return h.value();
}

bool has_peers() {
  Tracer* trace = tracer();
  return Context::current().world_size() > 1 && !(trace && trace->alone());
}

void exchange_bytes(const char* op, const PartMeta& shown, uint64_t fingerprint, const void* mine, size_t bytes,
                    void* all) {
  std::vector<int> ranks(to_size(Context::current().world_size()));
  for (size_t r = 0; r < ranks.size(); ++r) ranks[r] = static_cast<int>(r);
  const auto dtype = shown.dtype < 0 ? DType::kUInt8 : static_cast<DType>(shown.dtype);
  // Parts of another dtype are what the exchange is to find: the message says so itself.
  comm::communicator(ranks).all_gather_bytes({op, dtype, shown.shape(), fingerprint}, mine, bytes, all);
}

bool Foreseen::is(uint64_t signature) const {
  auto next = next_.find(last_);
  return signature == (next != next_.end() ? next->second : last_);
}

void Foreseen::agreed(uint64_t signature) {
  if (next_.size() >= kMost) next_.clear();
  next_[last_] = signature;
  last_ = signature;
}

void agree_on_part(const Tensor& x, const GlobalSpec* spec) {
  if (!has_peers()) return;
  const PartMeta mine = PartMeta::of(x);
  Foreseen& foreseen = Context::current().part<AgreedParts>().by_spec[spec];
  if (!foreseen.is(mine.hash())) {
    PartMeta shown = mine;
    shown.dtype = -1;  // what differs is told below
    const auto all = exchange("to_global(check_meta=False)", shown, hash_text(spec->str()), mine);
    for (size_t r = 1; r < all.size(); ++r)
      if (all[r] != all[0])
        fail_runtime("to_global(check_meta=False): the ranks disagree on their parts: rank 0 passes {}, rank {} {}. "
                     "With check_meta=False all ranks, including those outside the placement, must pass parts of the "
                     "same shape and dtype. Leave out check_meta if parts differ.",
                     all[0].str(), r, all[r].str());
  }
  foreseen.agreed(mine.hash());
}

void check_alike(const char* call, const Tensor& value, const Placement& placement) {
  if (!settings::flag("HOLON_CHECK") || placement.size() == 1 || tracer()) return;
  if (!placement.contains(Context::current().rank())) return;
  struct Word {
    PartMeta meta;
    uint64_t hash;
  };
  const Array host = kernels::contiguous(kernels::on_device(value.array(), {}));
  const Word mine{PartMeta::of(value), hash_bytes(host.bytes(), host.nbytes())};
  std::vector<Word> all(to_size(placement.size()));
  comm::communicator(placement.ranks()).all_gather_bytes({call}, &mine, sizeof mine, all.data());
  for (size_t i = 1; i < all.size(); ++i) {
    const int first = placement.ranks()[0], other = placement.ranks()[i];
    if (all[i].meta != all[0].meta)
      fail_runtime("{}: the ranks passed different data: rank {} {}, rank {} {}. Every rank must pass the same; to "
                   "build a tensor from parts, create local tensors and call to_global.",
                   call, first, all[0].meta.str(), other, all[i].meta.str());
    if (all[i].hash != all[0].hash)
      fail_runtime("{}: the values on rank {} differ from those on rank {} ({}). Every rank must pass the same; to "
                   "build a tensor from parts, create local tensors and call to_global.",
                   call, other, first, all[0].meta.str());
  }
}

}  // namespace holon::ops
