// All layers. Those with parameters take placement and sbp for them in their options; without a placement they are
// local. Values at the start are PyTorch's, and the same under every layout. Layers are modules: cheap handles that
// share their parameters.
#pragma once

#include "holon/nn/activation.h"
#include "holon/nn/attention.h"
#include "holon/nn/containers.h"
#include "holon/nn/conv.h"
#include "holon/nn/dropout.h"
#include "holon/nn/linear.h"
#include "holon/nn/loss.h"
#include "holon/nn/norm.h"
#include "holon/nn/packed.h"
#include "holon/nn/pooling.h"
#include "holon/nn/rnn.h"
#include "holon/nn/sparse.h"
#include "holon/nn/vision.h"
