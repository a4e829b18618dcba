#include "holon/global/spec.h"

#include <memory>
#include <mutex>
#include <unordered_map>

#include "holon/base/error.h"
#include "holon/base/fork.h"
#include "holon/base/hash.h"

namespace holon {

namespace {

size_t hash(const Placement& p, const NdSbp& s) { return hash_words(p.id(), s.id()); }

struct Hash {
  size_t operator()(const GlobalSpec& s) const { return hash(s.placement, s.nd_sbp); }
};
struct Equal {
  bool operator()(const GlobalSpec& a, const GlobalSpec& b) const {
    return a.placement == b.placement && a.nd_sbp == b.nd_sbp;
  }
};

const GlobalSpec* intern_shared(const Placement& placement, const NdSbp& nd_sbp) {
  // Both are never destroyed: pointers may outlive main().
  static auto* mutex = new ProcessMutex;
  static auto* table = new std::unordered_map<GlobalSpec, std::unique_ptr<GlobalSpec>, Hash, Equal>;
  std::lock_guard lock(*mutex);
  auto& slot = (*table)[GlobalSpec{placement, nd_sbp}];
  if (!slot) slot = std::make_unique<GlobalSpec>(GlobalSpec{placement, nd_sbp});
  return slot.get();
}

}  // namespace

const GlobalSpec* intern_spec(const Placement& placement, const NdSbp& nd_sbp) {
  HOLON_CHECK(placement && nd_sbp, "a spec needs a placement and an nd_sbp");
  // A small cache in front of the lock; specs are immutable and shared, so it may outlast a change of rank.
  constexpr size_t kSlots = 64;
  thread_local const GlobalSpec* recent[kSlots] = {};
  const GlobalSpec*& slot = recent[(hash(placement, nd_sbp) >> 20) % kSlots];
  if (!slot || slot->placement != placement || slot->nd_sbp != nd_sbp) slot = intern_shared(placement, nd_sbp);
  return slot;
}

}  // namespace holon
