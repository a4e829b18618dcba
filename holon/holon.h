// All of Holon for C++ programs. A source that needs less compiles faster with the headers below alone.
#pragma once

#if __cplusplus < 202002L
#error "Holon's headers are C++20: compile with -std=c++20 (CMake: target_link_libraries(... Holon::holon) does)"
#endif

#include "holon/autograd/engine.h"
#include "holon/autograd/function.h"
#include "holon/base/error.h"
#include "holon/checkpoint.h"
#include "holon/data.h"
#include "holon/dispatch/autocast.h"
#include "holon/dispatch/call.h"
#include "holon/dispatch/deterministic.h"
#include "holon/dispatch/random_state.h"
#include "holon/distributed.h"
#include "holon/exports/python.h"
#include "holon/graph.h"
#include "holon/nn.h"
#include "holon/ops.h"
#include "holon/optim.h"
#include "holon/registry/library.h"
#include "holon/tensor.h"
