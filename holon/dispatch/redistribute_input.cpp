#include "holon/dispatch/redistribute_input.h"

#include "holon/boxing/events.h"
#include "holon/boxing/executor.h"
#include "holon/tensor/node.h"
#include "holon/tensor/tracer.h"

namespace holon {

Tensor redistribute_input(const char* op, const Tensor& t, const GlobalSpec* to, bool parameter) {
  auto event = boxing::implicit_event(op, t.spec(), to, t.shape(), t.dtype());
  event.parameter = parameter;
  boxing::record_implicit(event);
  Tracer* trace = tracer();
  Tensor moved = trace
      ? trace->redistribute(t, to, false)
      : Tensor::global(boxing::redistribute(t.spec(), to, t.shape(), t.dtype(), t.array()), t.shape(), t.dtype(), to);
  moved.impl()->set_grad_fn_of(*t.impl());
  if (t.requires_grad() && t.is_leaf()) moved.impl()->alias_of = edge_of(t).leaf;
  return moved;
}

}  // namespace holon
