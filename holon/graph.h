// nn::Graph: a step of training or inference, captured and compiled.
#pragma once

#include "holon/graph/nn_graph.h"
#include "holon/tensor.h"
