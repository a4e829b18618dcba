// What is promised of results' bits, for this rank's thread (docs/guides/numerics.md).
#pragma once

namespace holon {

struct Deterministic {
  // float32 training on CPUs has the same bits on every layout: sums are taken in the order of a tree that the global
  // index of their terms determines. Without it, results have the same bits in every run on the same layout.
  bool layout_free = false;
};

// Sets it from now on. All ranks set it alike: else their next collective raises an error.
void deterministic(const Deterministic& options);

// Sets it for a scope.
class DeterministicGuard {
 public:
  explicit DeterministicGuard(const Deterministic& options);
  ~DeterministicGuard();
  DeterministicGuard(const DeterministicGuard&) = delete;
  DeterministicGuard& operator=(const DeterministicGuard&) = delete;

 private:
  bool before_;
};

}  // namespace holon
