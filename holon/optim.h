// Optimizers, the clipping of gradients and learning-rate schedules.
#pragma once

#include "holon/optim/optimizer.h"
#include "holon/optim/relayout.h"
#include "holon/optim/schedule.h"
#include "holon/optim/update.h"
#include "holon/tensor.h"
