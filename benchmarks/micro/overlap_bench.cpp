// Data-parallel training of a stack of layers by two processes: forward and backward with gradients summed in the
// background (HOLON_OVERLAP=1) against one after the other (0), in turns in one run. One JSON object per line; ratio is
// above 1 where the background helps, which takes cores that the ranks' own threads do not use. By itself Holon takes
// what HOLON_OVERLAP's description says; the last line is what that is here.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "benchmarks/micro/rank_processes.h"
#include "holon/base/context.h"
#include "holon/comm/core/background.h"
#include "holon/comm/core/communicator.h"
#include "holon/ops/activation.h"
#include "holon/ops/matmul.h"
#include "holon/ops/random.h"
#include "holon/tensor.h"

namespace {

using namespace holon;

double now_ms() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double quartile(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 4];
}

void measure(int64_t batch, int64_t width, int layers) {
  Placement p = Placement::all("cpu");
  Tensor x = randn({batch, width}, {.placement = p, .sbp = sbp::split(0)});
  std::vector<Tensor> weights;
  for (int i = 0; i < layers; ++i)
    weights.push_back(randn({width, width}, {.placement = p, .sbp = sbp::broadcast()}).set_requires_grad());
  auto step = [&](const char* overlap) {
    setenv("HOLON_OVERLAP", overlap, 1);
    for (auto& w : weights) w.set_grad({});
    Tensor y = x;
    for (auto& w : weights) y = relu(matmul(y, w) * 0.01);
    Tensor loss = y.sum();
    comm::communicator(p.ranks()).barrier();
    double start = now_ms();
    loss.backward();
    comm::communicator(p.ranks()).barrier();
    return now_ms() - start;
  };
  std::vector<double> off, on;
  for (int i = 0; i < 2; ++i) step("0"), step("1");
  for (int i = 0; i < 15; ++i) off.push_back(step("0")), on.push_back(step("1"));
  unsetenv("HOLON_OVERLAP");
  if (Context::current().rank() != 0) return;
  std::printf("{\"name\": \"overlap: backward, batch %d, %d weights of %d x %d\", \"value\": %.3f, \"unit\": \"ms\", "
              "\"against\": "
              "\"sums one after the other, %.3f ms\", \"ratio\": %.3f}\n",
              static_cast<int>(batch), layers, static_cast<int>(width), static_cast<int>(width), quartile(on),
              quartile(off), quartile(off) / quartile(on));
  std::fflush(stdout);
}

int rank_main() {
  measure(128, 1024, 8);
  measure(512, 1024, 8);
  measure(256, 512, 16);
  measure(64, 256, 16);
  if (Context::current().rank() == 0)
    std::printf(
        "{\"name\": \"overlap: taken here\", \"value\": %d, \"unit\": \"\", \"against\": null, \"ratio\": null}\n",
        comm::background_pays());
  return 0;
}

}  // namespace

int main(int, char** argv) {
  if (std::getenv("RANK")) return rank_main();
  return bench::run_rank_processes(2, argv) ? 1 : 0;
}
