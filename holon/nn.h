// Modules, layers and initialisers.
#pragma once

#include "holon/nn/init.h"
#include "holon/nn/layers.h"
#include "holon/nn/module.h"
#include "holon/tensor.h"
