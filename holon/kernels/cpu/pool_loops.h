// float32 inner loops of pooling; three builds of one body (pool_loops_body.h).
#pragma once

#include <cstdint>

namespace holon::kernels {

// `count` windows of one shape, x_step apart, with adjacent channels. Steps in elements.
struct WindowRun {
  int64_t row_step, col_step;  // inside a window
  int rows, cols;
  int place, places_per_row;  // of the first element, in the whole window; only part of it may be inside the input
  int64_t channels, count;
  int64_t x_step, out_step, index_step;
};

// Rows of outputs of a 2 x 2 window with stride 2 on planes with adjacent columns.
struct PlaneRun {
  int64_t rows, cols;  // of outputs
  int64_t x_row, out_row, index_row;
};

struct PoolLoops {
  void (*max_channels)(const WindowRun&, const float* x, float* out, uint8_t* index);
  // Adds dy to dx where index says so; with `set`, stores dy or zero (each place is in one window).
  void (*max_channels_backward)(const WindowRun&, const float* dy, const uint8_t* index, float* dx, bool set);
  void (*sum_channels)(const WindowRun&, float scale, const float* x, float* out);
  void (*sum_channels_backward)(const WindowRun&, float scale, const float* dy, float* dx, bool set);
  void (*max_planes)(const PlaneRun&, const float* x, float* out, uint8_t* index);
  void (*max_planes_backward)(const PlaneRun&, const float* dy, const uint8_t* index, float* dx);
};

const PoolLoops& pool_loops();

namespace base {
PoolLoops pool_loops();
}
namespace avx2 {
PoolLoops pool_loops();
}
namespace avx512 {
PoolLoops pool_loops();
}

}  // namespace holon::kernels
