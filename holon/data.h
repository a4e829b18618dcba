// Readers of data files, samplers, loaders and batches as global tensors.
#pragma once

#include "holon/data/batches.h"
#include "holon/data/corpus.h"
#include "holon/data/idx.h"
#include "holon/data/loader.h"
#include "holon/data/mnist.h"
#include "holon/data/place.h"
#include "holon/data/sampler.h"
#include "holon/data/synthetic_digits.h"
#include "holon/tensor.h"
