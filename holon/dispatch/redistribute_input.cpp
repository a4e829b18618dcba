#include "holon/dispatch/redistribute_input.h"

#include "holon/base/fmt.h"
#include "holon/boxing/events.h"
#include "holon/boxing/executor.h"
#include "holon/contract/moves.h"
#include "holon/tensor/node.h"
#include "holon/tensor/tracer.h"

namespace holon {

std::string input_name(const OpDef& op, size_t input) {
  if (!op.schema.input_list)
    for (auto& a : op.schema.args)
      if (a.input == static_cast<int>(input)) return a.name;
  return fmt::format("{}", input);
}

Tensor redistribute_input(const char* op, const Tensor& t, const GlobalSpec* to, const InputOf& input, bool parameter) {
  Tracer* trace = tracer();
  // What a graph moves is known when its passes are done with it.
  const auto why = input.targets.empty() ? contract::Why::kAsked : contract::Why::kInput;
  const boxing::Plan plan = capturing_tracer()
      ? boxing::plan(t.spec(), to, t.shape(), t.dtype())
      : contract::plan_move({op, t.spec(), to, t.shape(), t.dtype(), why, input.name, input.targets});
  auto event = boxing::implicit_event(op, plan);
  event.parameter = parameter;
  boxing::record_implicit(event);
  Tensor moved = trace ? trace->redistribute(t, to, false)
                       : Tensor::global(boxing::execute(plan, t.array()), t.shape(), t.dtype(), to);
  moved.impl()->set_grad_fn_of(*t.impl());
  if (t.requires_grad() && t.is_leaf()) moved.impl()->alias_of = edge_of(t).leaf;
  return moved;
}

}  // namespace holon
