// Saving and loading nested values with tensors.
#pragma once

#include "holon/checkpoint/checkpoint.h"
#include "holon/checkpoint/checkpointer.h"
#include "holon/checkpoint/core/key_map.h"
#include "holon/checkpoint/transfer.h"
#include "holon/checkpoint/verify.h"
#include "holon/tensor.h"
