// Boxing while this rank computes on.
#pragma once

#include <memory>

#include "holon/boxing/executor.h"
#include "holon/comm/core/background.h"

namespace holon::boxing {

// An array on its way. Cheap to copy; belongs to the rank that requested it.
class PendingArray {
 public:
  bool done() const { return work_.done(); }
  // This rank's part under the target, as redistribute() returns it. Errors: those of redistribute().
  Array wait() {
    work_.wait();
    return *out_;
  }

 private:
  friend PendingArray redistribute_async(const GlobalSpec* from, const GlobalSpec* to, const Dims& shape, DType dtype,
                                         const Array& in);
  comm::Work work_;
  std::shared_ptr<Array> out_ = std::make_shared<Array>();
};

// redistribute() in the background (comm/core/background.h has what that means); at once where no rank reads from
// another, and on devices, whose communication is asynchronous by itself. Collective. Pre: nobody writes to `in` until
// it is done.
PendingArray redistribute_async(const GlobalSpec* from, const GlobalSpec* to, const Dims& shape, DType dtype,
                                const Array& in);

}  // namespace holon::boxing
