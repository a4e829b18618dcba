// What the kernels that run by oneDNN share: its engine, a stream for each thread, and its names for ours.
#pragma once

#include <cstdint>
#include <oneapi/dnnl/dnnl.hpp>
#include <unordered_map>

#include "holon/array/dtype.h"

namespace holon::kernels::onednn {

using Arguments = std::unordered_map<int, dnnl::memory>;

// Never destroyed: threads may still run when the process ends.
const dnnl::engine& engine();

// float32, and bfloat16 where the CPU has instructions for it. Other dtypes are computed otherwise.
bool computes(DType dtype);

// Errors: a dtype that is neither float32 nor bfloat16.
dnnl::memory::data_type type_of(DType dtype);

// n axes of sizes and strides, in elements.
dnnl::memory::desc strided(const int64_t* sizes, const int64_t* strides, int n, dnnl::memory::data_type type);

dnnl::memory at(const dnnl::memory::desc& desc, const void* data);

// Runs it to its end on this thread's stream.
void run(const dnnl::primitive& primitive, const Arguments& arguments);

}  // namespace holon::kernels::onednn
