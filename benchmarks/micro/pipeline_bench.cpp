// The bubble of pipelines: what share of a step ranks are idle, against what the schedule predicts. Four thread ranks
// whose kernels sleep a fixed time, so that ranks do not compete for cores. One JSON object a line; ratio: formula /
// measured.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <numeric>
#include <thread>

#include "holon/base/fmt.h"
#include "holon/comm/core/communicator.h"
#include "holon/comm/run_ranks.h"
#include "holon/dispatch/dispatch.h"
#include "holon/graph/capture/capture.h"
#include "holon/graph/schedule/simulate.h"
#include "holon/graph/step.h"
#include "holon/kernels/copy.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/random.h"
#include "holon/ops/reduce.h"
#include "holon/ops/unary.h"
#include "holon/optim/update.h"
#include "holon/tensor.h"

namespace {

using namespace holon;
using Clock = std::chrono::steady_clock;

std::atomic<int64_t> slept_ns{0};

void sleep_as_work(double ms) {
  auto start = Clock::now();
  std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(ms));
  slept_ns += std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count();
}

void as_first(Infer& c) { c.out(c.shape(0), c.dtype_of(0)); }
void work(KernelCall& c) {
  kernels::copy(c.in(0), c.out());
  sleep_as_work(c.f("ms"_attr));
}

HOLON_OP(bench_work, "bench_work(Tensor x, Tensor w, *, float ms=1.0) -> Tensor")
    .doc("x, after some time.")
    .infer(as_first)
    .only_whole("it represents work")
    .kernel(work)
    .saves({0, 1})
    .grad([](Grad& g) {
      if (g.needs(0)) g.dx(0, call("bench_work_input_grad", {g.dy(), g.x(1)}, {{"ms", g.f("ms"_attr)}})[0]);
      if (g.needs(1)) g.dx(1, call("bench_work_weight_grad", {g.x(1), g.dy()}, {{"ms", g.f("ms"_attr)}})[0]);
    });
HOLON_OP(bench_work_input_grad, "bench_work_input_grad(Tensor dy, Tensor w, *, float ms=1.0) -> Tensor")
    .doc("dy, after some time.")
    .infer(as_first)
    .only_whole("it represents work")
    .kernel(work);
HOLON_OP(bench_work_weight_grad, "bench_work_weight_grad(Tensor w, Tensor dy, *, float ms=1.0) -> Tensor")
    .doc("w, after some time.")
    .infer(as_first)
    .only_whole("it represents work")
    .kernel(work);

constexpr int kRanks = 4;

struct Case {
  const char* schedule;
  int chunks, micro_batches;
  bool v = false;  // the second chunks in the opposite order of the ranks
  int rank(int stage) const { return v && stage >= kRanks ? 2 * kRanks - 1 - stage : stage % kRanks; }
};

std::unique_ptr<graph::Step> pipeline(const Case& c, double ms) {
  const int stages = kRanks * c.chunks;
  auto spec_of = [&](int s) { return intern_spec(Placement("cpu", {c.rank(s)}), sbp::broadcast()); };
  std::vector<Tensor> weights;
  for (int s = 0; s < stages; ++s) {
    RandnOptions o;
    o.placement = spec_of(s)->placement;
    o.sbp = spec_of(s)->nd_sbp;
    weights.push_back(randn({4}, o).detach());
    weights.back().set_requires_grad();
  }
  graph::Capture capture;
  capture.set_micro_batches(c.micro_batches);
  Tensor h = capture.input({2, 4}, float32, spec_of(0), {});
  h = add(h, weights[0]);  // so that the first stage has an input's gradient to compute, as the others
  for (int s = 0; s < stages; ++s) {
    capture.push_scope(fmt::format("stage{}", s), s);
    h = call("bench_work", {h.to_global(spec_of(s)->placement, spec_of(s)->nd_sbp), weights[static_cast<size_t>(s)]},
             {{"ms", ms / c.chunks}})[0];
    capture.pop_scope();
  }
  Tensor loss = mean(square(h));  // whose gradient depends on the micro-batch
  loss.backward();
  capture.add_update(optim::rule_of(optim::SgdOptions{.lr = 0.1}), weights);
  graph::CompileOptions options;
  options.schedule = c.schedule;
  return std::make_unique<graph::Step>(capture.finish({&loss, 1}), options);
}

// The idle share of a step on all ranks: the median of several.
double measured(const Case& c, double ms) {
  constexpr int kSteps = 5;
  std::vector<double> bubbles;
  std::mutex mutex;
  std::vector<Clock::time_point> ends(kRanks);
  Clock::time_point start;
  comm::run_ranks(kRanks, [&](int rank) {
    auto step = pipeline(c, ms);
    RandnOptions o;
    o.placement = Placement("cpu", {0});
    o.sbp = sbp::broadcast();
    std::vector<Tensor> in{randn({2 * c.micro_batches, 4}, o)};
    std::vector<int> all(kRanks);
    std::iota(all.begin(), all.end(), 0);
    auto& group = comm::communicator(all);
    for (int i = 0; i <= kSteps; ++i) {
      group.barrier();
      if (rank == 0) slept_ns = 0, start = Clock::now();
      group.barrier();
      step->run(in);
      ends[static_cast<size_t>(rank)] = Clock::now();
      group.barrier();
      if (rank != 0 || i == 0) continue;
      const auto whole =
          std::chrono::duration<double, std::nano>(*std::max_element(ends.begin(), ends.end()) - start).count();
      bubbles.push_back(1 - static_cast<double>(slept_ns) / (kRanks * whole));
    }
  });
  std::sort(bubbles.begin(), bubbles.end());
  return bubbles[bubbles.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  const double ms = argc > 1 ? std::atof(argv[1]) : 8;  // of a forward on a rank; a backward takes twice as long
  for (const Case& c :
       {Case{"gpipe", 1, 4}, Case{"gpipe", 1, 8}, Case{"1f1b", 1, 4}, Case{"1f1b", 1, 8}, Case{"1f1b", 1, 16},
        Case{"interleaved", 2, 8}, Case{"interleaved", 2, 16}, Case{"zero_bubble", 1, 4}, Case{"zero_bubble", 1, 8},
        Case{"zero_bubble", 1, 16}, Case{"zero_bubble_v", 2, 8, true}, Case{"zero_bubble_v", 2, 16, true},
        Case{"dualpipe_v", 2, 8, true}, Case{"dualpipe_v", 2, 16, true}}) {
    const double want = graph::bubble_formula(c.schedule, kRanks, c.micro_batches, c.chunks), got = measured(c, ms);
    std::printf("{\"name\": \"pipeline: bubble of %s, %d ranks, %d micro-batches%s\", \"value\": %.4f, \"unit\": \"of "
                "the time\", \"against\": \"formula %.4f\", \"ratio\": %.3f}\n",
                c.schedule, kRanks, c.micro_batches, c.chunks > 1 ? ", 2 chunks a rank" : "", got, want, want / got);
    std::fflush(stdout);
  }
}
