// Random permutations and draws by weight.
#include <cmath>

#include "holon/kernels/copy.h"
#include "holon/kernels/cuda/launch.h"
#include "holon/kernels/index.h"
#include "holon/kernels/random.h"
#include "holon/kernels/variants.h"

namespace holon::kernels::cuda {
namespace {

constexpr int kThreads = 128;

// In the order of random keys: the ranks of 64 bits less one, so that they are signed (two keys of 2^64 fall together).
void randperm(const RandomPart& part, Array& out) {
  const int64_t n = part.logical_shape[0];
  if (out.numel() == 0) return;
  Array keys = Array::empty({n}, DType::kInt64, out.device), order = Array::empty({n}, DType::kInt64, out.device);
  randint(RandomPart::whole(part.seed, part.counter, {n}), INT64_MIN, INT64_MAX, keys);
  sort(keys, false, nullptr, order);
  kernels::copy(order.view(out.shape, order.strides, part.offset[0]), out);
}

struct Rows {
  const double* weights;
  const double* numbers;  // [0, 1): one for each draw, or for each class
  int64_t rows, classes, draws, first_row;
  FaultReport* faults;
  const char* op;
};

__device__ bool is_weight(double p) { return p >= 0 && p <= 1.7976931348623157e308; }

// A warp for each row. Sums are taken one class after the other, so that they are rounded as on the CPU.
__global__ void __launch_bounds__(kThreads) draw_with_replacement(Rows r, double* sums, int64_t* out) {
  const int lane = threadIdx.x % kWarp;
  for (int64_t row = (blockIdx.x * int64_t{kThreads} + threadIdx.x) / kWarp; row < r.rows;
       row += int64_t{kThreads} / kWarp * gridDim.x) {
    double total = 0;
    int64_t last = -1;
    for (int64_t base = 0; base < r.classes; base += kWarp) {
      const int64_t k = base + lane;
      double p = k < r.classes ? r.weights[row * r.classes + k] : 0;
      if (!is_weight(p)) {
        report(r.faults, Fault::kWeight, r.op, __double_as_longlong(p), r.first_row + row, 0, k);
        p = 0;
      }
      double mine = 0;
      for (int j = 0; j < kWarp; ++j) {
        total += __shfl_sync(kAllLanes, p, j);
        if (j == lane) mine = total;
      }
      if (k < r.classes) sums[row * r.classes + k] = mine;
      const unsigned positive = __ballot_sync(kAllLanes, p > 0);
      if (positive != 0) last = base + (kWarp - 1) - __clz(static_cast<int>(positive));
    }
    if (last < 0 && lane == 0) report(r.faults, Fault::kFewWeights, r.op, 0, r.first_row + row, 0, 1);
    __syncwarp();
    for (int64_t i = lane; i < r.draws; i += kWarp) {
      const double at = r.numbers[row * r.draws + i] * total;
      int64_t low = 0, high = r.classes;  // the first sum above `at`
      while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (sums[row * r.classes + middle] <= at)
          low = middle + 1;
        else
          high = middle;
      }
      out[row * r.draws + i] = low < last ? low : last < 0 ? 0 : last;
    }
    __syncwarp();
  }
}

// When each class arrives first, of events at the rates of the weights.
__global__ void __launch_bounds__(kThreads) arrivals(Rows r, double* times) {
  const int lane = threadIdx.x % kWarp;
  for (int64_t row = (blockIdx.x * int64_t{kThreads} + threadIdx.x) / kWarp; row < r.rows;
       row += int64_t{kThreads} / kWarp * gridDim.x) {
    int64_t positive = 0;
    for (int64_t base = 0; base < r.classes; base += kWarp) {
      const int64_t k = base + lane;
      double p = 0;
      if (k < r.classes) {
        p = r.weights[row * r.classes + k];
        if (!is_weight(p)) {
          report(r.faults, Fault::kWeight, r.op, __double_as_longlong(p), r.first_row + row, 0, k);
          p = 0;
        }
        times[row * r.classes + k] = p > 0 ? -log1p(-r.numbers[row * r.classes + k]) / p : __builtin_inf();
      }
      positive += __popc(__ballot_sync(kAllLanes, p > 0));
    }
    if (positive < r.draws && lane == 0)
      report(r.faults, Fault::kFewWeights, r.op, positive, r.first_row + row, 0, r.draws);
  }
}

void multinomial(uint64_t seed, uint64_t counter, const Array& weights, int64_t first_row, int64_t rows,
                 bool replacement, Array& out) {
  const int64_t n = out.ndim() == 2 ? out.shape[0] : 1, classes = weights.shape.back(), draws = out.shape.back();
  if (n == 0) return;
  Array w = Array::empty({n, classes}, DType::kFloat64, out.device),
        drawn = Array::empty({n, draws}, DType::kInt64, out.device);
  kernels::copy(weights.ndim() == 2 ? weights : weights.view({1, classes}, {0, weights.strides[0]}), w);
  const int64_t numbers = replacement ? draws : classes;
  Array u = Array::empty({n, numbers}, DType::kFloat64, out.device),
        scratch = Array::empty({n, classes}, DType::kFloat64, out.device);
  uniform({seed, counter, {rows, numbers}, {first_row, 0}}, 0, 1, u);
  use_device_of(out);
  const Rows r{w.data<double>(), u.data<double>(), n, classes, draws, first_row, fault_report(), current_op()};
  const unsigned blocks = blocks_for(n, kThreads / kWarp);
  if (replacement) {
    launch(draw_with_replacement, blocks, kThreads, 0, r, scratch.data<double>(), drawn.data<int64_t>());
  } else {
    launch(arrivals, blocks, kThreads, 0, r, scratch.data<double>());
    Array first = Array::empty({n, draws}, DType::kFloat64, out.device);
    topk(scratch, draws, false, first, drawn);
  }
  kernels::copy(out.ndim() == 2 ? drawn : drawn.view({draws}, {1}), out);
}

HOLON_DEVICE_KERNEL(randperm, randperm);
HOLON_DEVICE_KERNEL(multinomial, multinomial);

}  // namespace
}  // namespace holon::kernels::cuda
