// What a job holds moves between layouts: the same bits, the fewest bytes, little memory, and training goes on.
#include "holon/optim/relayout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "holon/array/storage.h"
#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/index.h"
#include "holon/comm/run_ranks.h"
#include "holon/dispatch/dispatch.h"
#include "holon/global/slice.h"
#include "holon/nn/layers.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/class_loss.h"
#include "holon/ops/create.h"
#include "holon/ops/random.h"
#include "values.h"

namespace holon::optim {
namespace {

using comm::run_ranks;
using holon::testing::values_of;
using sbp::broadcast;
using sbp::split;

Placement row(std::vector<int64_t> ranks) { return Placement("cpu", std::move(ranks)); }
Placement grid2x2() { return Placement("cpu", Dims{2, 2}, {0, 1, 2, 3}); }

Layout data_parallel(const std::string&, const Tensor&) { return {row({0, 1, 2, 3}), broadcast()}; }
Layout tensor_parallel(const std::string& name, const Tensor&) {
  return {row({0, 1, 2, 3}), split(name.starts_with("0.") ? 0 : 1)};
}
Layout data_and_tensor_parallel(const std::string& name, const Tensor&) {
  return {grid2x2(), {broadcast(), split(name.starts_with("0.") ? 0 : 1)}};
}
Layout two_stages(const std::string& name, const Tensor&) {
  return {name.starts_with("0.") ? row({0, 1}) : row({2, 3}), broadcast()};
}
Layout three_ranks(const std::string&, const Tensor&) { return {row({0, 1, 2}), split(0)}; }

// Whether each rank holds element i of a tensor, by the definition of the layouts.
std::vector<std::vector<bool>> held(const Tensor& t) {
  std::vector<std::vector<bool>> all;
  const Dims shape = t.shape();
  for (int r = 0; r < Context::current().world_size(); ++r) {
    auto& mine = all.emplace_back(to_size(shape.numel()));
    const int at = t.placement().index_of(r);
    if (at < 0) continue;
    const Region region = region_of(shape, t.placement(), t.nd_sbp(), at);
    for (int64_t i = 0; i < shape.numel(); ++i) {
      bool inside = true;
      int64_t rest = i;
      for (int a = shape.size() - 1; a >= 0; --a) {
        const int64_t place = rest % shape[a];
        rest /= shape[a];
        inside &= place >= region.offset[a] && place < region.offset[a] + region.shape[a];
      }
      mine[to_size(i)] = inside;
    }
  }
  return all;
}

std::vector<Tensor> everything(const nn::Module& model, const Optimizer& optimizer) {
  std::vector<Tensor> all = model.parameters();
  for (auto& [name, t] : model.named_buffers()) all.push_back(t);
  for (auto& [name, t] : optimizer.state()) all.push_back(t);
  return all;
}

nn::Sequential perceptron() {
  const Placement p = row({0, 1, 2, 3});
  return nn::Sequential{nn::Linear(7, 13, {.placement = p, .sbp = broadcast()}), nn::GELU(),
                        nn::Linear(13, 5, {.placement = p, .sbp = broadcast()}),
                        nn::BatchNorm1d(5, {.placement = p, .sbp = broadcast()})};
}

double step(nn::Sequential& model, Optimizer& adam) {
  const Placement p = row({0, 1, 2, 3});
  const Tensor x = randn({8, 7}, {.placement = p, .sbp = split(0)});
  const Tensor target = randint(0, 5, {8}, {.placement = p, .sbp = split(0)});
  Tensor loss = cross_entropy(model(x), target);
  adam.zero_grad();
  loss.backward();
  adam.step();
  return loss.item().as_double();
}

// Every layout after every other: the values keep their bits, the tensors are the same, and each rank has taken what it
// lacked, once.
TEST(Relayout, MovesEachElementThatARankLacksOnce) {
  run_ranks(4, [](int rank) {
    manual_seed(3);
    auto model = perceptron();
    AdamW adam(model.parameters(), {.lr = 0.01});
    step(model, adam);
    const LayoutOf layouts[] = {data_parallel, tensor_parallel, data_and_tensor_parallel, two_stages, three_ranks};
    for (auto& from : layouts)
      for (auto& to : layouts) {
        relayout({model}, {&adam}, from);
        auto tensors = everything(model, adam);
        for (auto& t : model.parameters()) tensors.push_back(t.grad());
        std::vector<std::vector<double>> values;
        std::vector<std::vector<std::vector<bool>>> had;
        for (auto& t : tensors) {
          values.push_back(values_of(t.full().array()));
          had.push_back(held(t));
        }
        const int64_t moved = relayout({model}, {&adam}, to);
        int64_t lacking = 0;
        for (size_t i = 0; i < tensors.size(); ++i) {
          auto has = held(tensors[i]);
          for (size_t e = 0; e < values[i].size(); ++e)
            if (at_index(has, rank)[e] && !at_index(had[i], rank)[e])
              lacking += static_cast<int64_t>(size_bytes(tensors[i].dtype()));
          EXPECT_EQ(values_of(tensors[i].full().array()), values[i]);
        }
        EXPECT_EQ(moved, lacking);
        for (auto& [name, t] : model.named_parameters()) {
          EXPECT_EQ(t.placement(), to(name, t).placement) << name;
          EXPECT_EQ(t.grad().spec(), t.spec()) << name;
        }
        for (auto& slot : adam.slots(0)) EXPECT_EQ(slot.state[0].spec(), slot.param.spec());
      }
  });
}

// The losses of a training whose state is moved to these layouts, one after the other, after four steps.
std::vector<double> losses_moved_to(const std::vector<LayoutOf>& layouts) {
  std::vector<double> losses;
  run_ranks(4, [&](int rank) {
    manual_seed(5);
    auto model = perceptron();
    AdamW adam(model.parameters(), {.lr = 0.01});
    for (int i = 0; i < 24; ++i) {
      if (i == 4)
        for (auto& layout : layouts) relayout({model}, {&adam}, layout);
      const double loss = step(model, adam);
      if (rank == 0) losses.push_back(loss);
    }
  });
  return losses;
}

// Training that has been moved there and back has the bits of training that has not.
TEST(Relayout, TrainingGoesOn) {
  const auto losses = losses_moved_to({});
  EXPECT_EQ(losses_moved_to({tensor_parallel, two_stages, data_parallel}), losses);
  const auto in_new_layout = losses_moved_to({tensor_parallel});
  for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(in_new_layout[i], losses[i], 1e-5) << i;
}

// The ranks together hold as much either way; one half of the tensors shrinks as the other grows.
Layout first_half_spread(const std::string& name, const Tensor&) {
  return {name.starts_with("0.") ? row({0, 1, 2, 3}) : row({0}), broadcast()};
}
Layout second_half_spread(const std::string& name, const Tensor&) {
  return {name.starts_with("0.") ? row({0}) : row({0, 1, 2, 3}), broadcast()};
}

// A rank holds no more at any time than before or after, and the parts of one tensor. Ranks are threads here, so that
// the process holds the sum.
TEST(Relayout, TakesLittleMemory) {
  constexpr int64_t kTensors = 24, kMiB = 1 << 20;
  run_ranks(4, [&](int rank) {
    std::vector<Tensor> tensors;
    auto to = [&](const LayoutOf& layout) {
      std::vector<Move> moves;
      for (int64_t i = 0; i < kTensors; ++i) {
        const std::string name = fmt::format("{}.{}", i < kTensors / 2 ? 0 : 1, i);
        moves.push_back({name, at_index(tensors, i), layout(name, at_index(tensors, i))});
      }
      return moves;
    };
    for (int64_t i = 0; i < kTensors; ++i)
      tensors.push_back(
          full({512, 512}, 1.0 + static_cast<double>(i), {.placement = row({0, 1, 2, 3}), .sbp = broadcast()}));
    const LayoutOf layouts[] = {tensor_parallel,   data_parallel,      data_and_tensor_parallel, two_stages,
                                first_half_spread, second_half_spread, first_half_spread,        tensor_parallel};
    for (auto& layout : layouts) {
      auto moves = to(layout);
      comm::barrier();
      const auto before = memory_stats().in_use_bytes;
      comm::barrier();
      if (rank == 0) reset_peak_memory();
      comm::barrier();
      relayout(std::move(moves));
      comm::barrier();
      const auto after = memory_stats();
      comm::barrier();
      EXPECT_LE(after.peak_bytes, std::max(before, after.in_use_bytes) + 4 * 3 * to_size(kMiB));
    }
    for (int64_t i = 0; i < kTensors; ++i)
      EXPECT_EQ(values_of(at_index(tensors, i).full().array())[7], 1.0 + static_cast<double>(i));
  });
}

std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "none";
}

TEST(Relayout, BadInput) {
  run_ranks(2, [](int rank) {
    const Placement p = row({0, 1});
    nn::Linear model(4, 6, {.placement = p, .sbp = broadcast()}), other(4, 6, {.placement = p, .sbp = broadcast()});
    SGD sgd(other.parameters(), {.lr = 0.1, .momentum = 0.9});
    auto whole = [&](const std::string&, const Tensor&) { return Layout{p, split(0)}; };
    auto fails = [&](const Layout& layout, const char* with) {
      const std::string e =
          error_of([&] { relayout({model}, {}, [&](const std::string&, const Tensor&) { return layout; }); });
      EXPECT_NE(e.find(with), std::string::npos) << e;
    };
    fails({p, sbp::partial_sum()}, "'weight'");
    fails({p, {split(0), split(1)}}, "does not fit");
    EXPECT_NE(error_of([&] { relayout({model}, {&sgd}, whole); }).find("in none of the modules"), std::string::npos);
    EXPECT_NE(error_of([&] { relayout({nn::Linear(3, 4)}, {}, whole); }).find("is local"), std::string::npos);
    EXPECT_NE(error_of([&] { relayout({{"t", Tensor(), {p, split(0)}}}); }).find("undefined"), std::string::npos);
    const Tensor w = model.parameters()[0];
    EXPECT_NE(error_of([&] {
                relayout({{"a", w, {p, split(0)}}, {"b", w, {p, split(1)}}});
              }).find("are one tensor"),
              std::string::npos);
    EXPECT_EQ(relayout({{"a", w, {p, split(0)}}, {"b", w, {p, split(0)}}}), 0);
    relayout({{"a", w, {p, broadcast()}}});
    const std::string differ = error_of([&] {
      relayout({model}, {}, [&](const std::string&, const Tensor&) { return Layout{p, split(rank)}; });
    });
    EXPECT_NE(differ.find("ranks 0 and 1 move different tensors"), std::string::npos) << differ;
    EXPECT_EQ(model.parameters()[0].nd_sbp(), NdSbp(broadcast()));  // nothing has been moved
    EXPECT_EQ(relayout({model}, {}, [](const std::string&, const Tensor&) { return Layout{}; }), 0);
  });
}

}  // namespace
}  // namespace holon::optim
