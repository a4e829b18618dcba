// Expert parallelism between two processes that have a core each. The exchange of rows (holon/ops/expert_exchange.h)
// against an all_to_all of as many bytes in equal parts, which nobody has to sort or to count; and a step of a layer of
// experts, forward and backward, whose rows are exchanged, against one whose rows are gathered and whose results are
// added up. One JSON object per line; value is the fastest of many turns, as other programs only add to it; ratio is
// the other's time over ours.
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "benchmarks/micro/rank_processes.h"
#include "holon/array/array.h"
#include "holon/base/context.h"
#include "holon/comm/core/communicator.h"
#include "holon/dispatch/local_call.h"
#include "holon/dispatch/random_state.h"
#include "holon/internal_ops/experts.h"
#include "holon/ops/create.h"
#include "holon/ops/expert_exchange.h"
#include "holon/ops/random.h"
#include "holon/ops/sort.h"
#include "holon/tensor.h"

namespace {

using namespace holon;

constexpr int kRanks = 2, kTurns = 101;

double now_us() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double fastest(const std::vector<double>& v) { return *std::min_element(v.begin(), v.end()); }

comm::Communicator& both() {
  static const int ranks[] = {0, 1};
  return comm::communicator(ranks);
}

void measure(const std::string& name, const std::string& against, const std::function<void()>& ours,
             const std::function<void()>& other) {
  std::vector<double> mine, theirs;
  for (int i = 0; i < 3; ++i) ours(), other();
  for (int r = 0; r < kTurns; ++r)
    for (auto* what : {&other, &ours}) {
      both().barrier();
      const double start = now_us();
      (*what)();
      both().barrier();
      (what == &ours ? mine : theirs).push_back(now_us() - start);
    }
  if (Context::current().rank() != 0) return;
  std::printf("{\"name\": \"%s\", \"value\": %.1f, \"unit\": \"us\", \"against\": \"%s\", \"ratio\": %.3f}\n",
              name.c_str(), fastest(mine), against.c_str(), fastest(theirs) / fastest(mine));
  std::fflush(stdout);
}

struct Sizes {
  int64_t tokens, width, hidden, experts, k;  // of all ranks
  std::string text() const {
    return std::to_string(tokens) + " tokens of " + std::to_string(width) + ", " + std::to_string(k) + " of " +
        std::to_string(experts) + " experts";
  }
};

// A layer's operands: rows and experts split, both along the ranks.
struct Layer {
  Tensor x, experts, weights, gate, up, down;
  explicit Layer(const Sizes& s) {
    const Placement all = Placement::all("cpu");
    auto drawn = [&](const Dims& shape) { return randn(shape, {.placement = all, .sbp = sbp::split(0)}); };
    x = drawn({s.tokens, s.width});
    auto [values, chosen] = topk(drawn({s.tokens, s.experts}), s.k);
    weights = values;
    experts = chosen;
    gate = drawn({s.experts, s.hidden, s.width});
    up = drawn({s.experts, s.hidden, s.width});
    down = drawn({s.experts, s.width, s.hidden});
  }
  std::vector<const Tensor*> inputs() const { return {&x, &experts, &weights, &gate, &up, &down}; }
};

void exchange(const Sizes& s) {
  const Layer l(s);
  SmallVec<Meta, 4> metas;
  SmallVec<const GlobalSpec*, 4> specs;
  SmallVec<const Array*, 4> in;
  for (const Tensor* t : l.inputs()) {
    metas.push_back({t->shape(), t->dtype()});
    specs.push_back(t->spec());
    in.push_back(&t->array());
  }
  const Meta out_meta[] = {metas[0]};
  const GlobalSpec* const out_spec[] = {specs[0]};
  const LocalCall local = local_call(metas, specs, out_meta, out_spec, Context::current().rank());
  Array out = Array::empty(local.out_shape[0], float32);
  SmallVec<Array*, 3> outs{&out};
  const OpDef& op = find_op("expert_swiglu");
  const Attrs attrs{};
  KernelCall call(op, attrs, in, outs);
  call.set_global(&local.part);
  const ops::ExpertExchange::Inputs places{.x = 0, .experts = 1, .weights = 2, .gate = 3};

  const ops::ExpertExchange known(call, places);
  const Array rows = known.dispatch(l.x.array());
  // As many bytes as both ranks get together, in equal parts.
  int64_t all_rows[kRanks];
  const int64_t mine = known.rows();
  both().all_gather_bytes({"rows"}, &mine, sizeof mine, all_rows);
  const int64_t each = (all_rows[0] + all_rows[1]) / (kRanks * kRanks) * s.width;
  const Array from = Array::empty({kRanks * each}, float32), to = Array::empty({kRanks * each}, float32);
  std::fill_n(from.data<float>(), from.numel(), 1.0F);
  const std::vector<int64_t> counts(kRanks, each);
  auto limit = [&] { both().all_to_all(from.bytes(), to.bytes(), counts, counts, float32); };
  const std::string bytes = "all_to_all of " + std::to_string(kRanks * each * 4 >> 20) + " MiB";
  measure(
      "expert dispatch, " + s.text(), bytes, [&] { known.dispatch(l.x.array()); }, limit);
  measure(
      "expert combine, " + s.text(), bytes, [&] { known.combine(rows, out); }, limit);
  measure(
      "expert exchange with choices, " + s.text(), bytes + " and back",
      [&] {
        const ops::ExpertExchange fresh(call, places);
        fresh.combine(fresh.dispatch(l.x.array()), out);
      },
      [&] {
        limit();
        both().all_to_all(to.bytes(), from.bytes(), counts, counts, float32);
      });
}

void step(const Sizes& s) {
  Layer l(s);
  const NdSbp rows = sbp::split(0), whole = sbp::broadcast();
  const Placement all = l.x.placement();
  for (Tensor* t : {&l.x, &l.weights, &l.gate, &l.up, &l.down}) {
    *t = t->detach();
    t->set_requires_grad();
  }
  const Tensor dy = randn(l.x.shape(), {.placement = all, .sbp = sbp::split(0)});
  auto exchanged = [&] { expert_swiglu(l.x, l.experts, l.weights, l.gate, l.up, l.down).backward(dy); };
  auto gathered = [&] {
    expert_swiglu(l.x.to_global(all, whole), l.experts.to_global(all, whole), l.weights.to_global(all, whole), l.gate,
                  l.up, l.down)
        .to_global(all, rows)
        .backward(dy);
  };
  measure("step of experts of " + std::to_string(s.hidden) + ", rows exchanged, " + s.text(), "rows gathered",
          exchanged, gathered);
}

}  // namespace

int main(int, char** argv) {
  if (!std::getenv("WORLD_SIZE")) return bench::run_rank_processes(kRanks, argv);
  cpu_set_t cpu;
  CPU_ZERO(&cpu);
  CPU_SET(static_cast<size_t>(Context::current().rank()) % static_cast<size_t>(sysconf(_SC_NPROCESSORS_ONLN)), &cpu);
  sched_setaffinity(0, sizeof cpu, &cpu);
  manual_seed(1);
  exchange({.tokens = 8192, .width = 1024, .hidden = 1, .experts = 8, .k = 2});
  exchange({.tokens = 2048, .width = 1024, .hidden = 1, .experts = 8, .k = 2});
  exchange({.tokens = 2048, .width = 1024, .hidden = 1, .experts = 64, .k = 1});
  exchange({.tokens = 512, .width = 1024, .hidden = 1, .experts = 8, .k = 2});
  exchange({.tokens = 64, .width = 256, .hidden = 1, .experts = 8, .k = 2});
  step({.tokens = 512, .width = 256, .hidden = 512, .experts = 8, .k = 1});
  step({.tokens = 512, .width = 1024, .hidden = 32, .experts = 8, .k = 1});
  return 0;
}
