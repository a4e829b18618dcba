#include "holon/boxing/async.h"

#include <algorithm>

#include "holon/boxing/rank_step.h"

namespace holon::boxing {

PendingArray redistribute_async(const GlobalSpec* from, const GlobalSpec* to, const Dims& shape, DType dtype,
                                const Array& in) {
  PendingArray result;
  if (from == to) {
    *result.out_ = in;
    return result;
  }
  Plan way = plan(from, to, shape, dtype);
  if (std::none_of(way.steps().begin(), way.steps().end(), [](const Step& s) { return s.communicates(); }) ||
      on_device(way)) {
    *result.out_ = execute(way, in);
    return result;
  }
  result.work_ = comm::run_in_background([way, in, out = result.out_] { *out = execute(way, in); });
  return result;
}

}  // namespace holon::boxing
