// Copies of parameters in other layouts, which boxing inside a graph makes.
#pragma once

#include <vector>

#include "holon/graph/ir/graph.h"

namespace holon::graph {

// By value: whether it is a parameter (frozen ones too), or made of one alone as a window, in another dtype or layout.
std::vector<bool> parameter_values(const Graph& g);

// Whether a step from one layout to another has some rank read of another.
bool reads_peers(const Value& v, const GlobalSpec* from, const GlobalSpec* to);

// Whether the node gathers a split parameter without a request of the user.
bool is_parameter_copy(const Graph& g, const Node& n, const std::vector<bool>& of_parameter);

// Of boxings: parameters that are moved, and seconds.
struct BoxingCost {
  int64_t parameters = 0;
  double s = 0;
  BoxingCost& operator+=(const BoxingCost& o) {
    parameters += o.parameters;
    s += o.s;
    return *this;
  }
  BoxingCost operator+(const BoxingCost& o) const { return BoxingCost(*this) += o; }
  BoxingCost operator-(const BoxingCost& o) const { return {parameters - o.parameters, s - o.s}; }
  bool operator<(const BoxingCost& o) const { return parameters != o.parameters ? parameters < o.parameters : s < o.s; }
};

}  // namespace holon::graph
