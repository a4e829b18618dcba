#include "holon/graph/passes/pass.h"

namespace holon::graph {

void choose_sbps(Graph&, const PassOptions&) {}

}  // namespace holon::graph
