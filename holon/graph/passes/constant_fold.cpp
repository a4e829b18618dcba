#include "holon/graph/passes/pass.h"

namespace holon::graph {

void fold_constants(Graph&, const PassOptions&) {}

}  // namespace holon::graph
