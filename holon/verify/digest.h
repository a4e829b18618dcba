// Whether two runs of a program train alike, bit by bit, as one number for each rank.
#pragma once

#include <cstdint>

#include "holon/base/hash.h"
#include "holon/tensor/observer.h"

namespace holon::verify {

// Observes this thread's rank from its making to its end: the gradients of leaves and the parameters that rules have
// updated, in their order. Of each it takes the bits of this rank's part.
class Digest final : public Observer {
 public:
  Digest();
  ~Digest() override;
  Digest(const Digest&) = delete;
  Digest& operator=(const Digest&) = delete;

  uint64_t value() const { return all_.value(); }

  void op(const char*, const OpKind&, std::span<const Tensor>, std::span<const Tensor>) override {}
  void wrote(const char*, std::span<const Tensor>, const Tensor&) override {}
  void made(const char*, const Tensor&) override {}
  void read(const Tensor&) override {}
  void backward_begins(std::span<const Tensor>) override {}
  void backward_ends() override {}
  void backward(const Node&, std::span<const Tensor>, std::span<const Tensor>) override {}
  void leaf_gradient(TensorImpl&, const Tensor& gradient) override { add(gradient); }
  void update(const char*, size_t, const Tensor&, const Tensor&) override {}
  void updated(const char*, size_t, const Tensor& parameter, std::span<const std::pair<const char*, Tensor>>) override {
    add(parameter);
  }
  void norm(const char*, std::span<const Tensor>, const Tensor&) override {}

 private:
  void add(const Tensor& t);

  Hasher all_;
  Observer* before_;
};

}  // namespace holon::verify
