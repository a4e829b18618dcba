// Schemes as data: what is registered is found, checked and played like the library's own; the schedules on a V.
#include "holon/graph/schedule/scheme.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <thread>

#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/comm/run_ranks.h"
#include "holon/graph/capture/capture.h"
#include "holon/graph/program/program.h"
#include "holon/graph/schedule/check.h"
#include "holon/graph/schedule/picture.h"
#include "holon/graph/schedule/simulate.h"
#include "holon/graph/schedule/textbooks.h"
#include "holon/graph/step.h"
#include "holon/ops/activation.h"
#include "holon/ops/matmul.h"
#include "holon/ops/random.h"
#include "holon/ops/reduce.h"
#include "holon/optim/update.h"
#include "holon/tensor.h"
#include "tests/cpp/error_of.h"

namespace holon::graph {
namespace {

using testing::HasSubstr;

constexpr auto F = Phase::kForward, B = Phase::kBackward, W = Phase::kWeight;

// Registered while it lives.
struct Registered {
  std::string name;
  explicit Registered(Scheme scheme) : name(scheme.name) { register_scheme(std::move(scheme)); }
  ~Registered() { unregister_scheme(name); }
};

std::vector<int> v(int devices) {
  std::vector<int> mapping;
  for (int s = 0; s < 2 * devices; ++s) mapping.push_back(s < devices ? s : 2 * devices - 1 - s);
  return mapping;
}

// Micro-batch after micro-batch on each device.
TaskLists one_by_one(const Mapping& mapping) {
  TaskLists lists(static_cast<size_t>(mapping.devices));
  const int stages = static_cast<int>(mapping.device_of_stage.size());
  auto list = [&](int s) -> std::vector<Task>& {
    return lists[static_cast<size_t>(mapping.device_of_stage[static_cast<size_t>(s)])];
  };
  for (int m = 0; m < mapping.micro_batches; ++m) {
    for (int s = 0; s < stages; ++s) list(s).push_back({s, m, F});
    for (int s = stages; mapping.training && s-- > 0;) list(s).push_back({s, m, B});
  }
  return lists;
}

TEST(Scheme, TablesOfTheV) {
  EXPECT_EQ(str(make_schedule("zero_bubble_v", v(2), 3)),
            "0: F0@0 F1@0 F2@0 F0@3 B0@3 W0@3 F1@3 B1@3 W1@3 B0@0 W0@0 F2@3 B2@3 W2@3 B1@0 W1@0 B2@0 W2@0\n"
            "1: F0@1 F0@2 F1@1 F1@2 B0@2 W0@2 F2@1 B0@1 W0@1 F2@2 B1@2 W1@2 B1@1 B2@2 B2@1 W1@1 W2@2 W2@1\n");
  EXPECT_EQ(str(make_schedule("dualpipe_v", v(2), 4)),
            "0: F0@0 F1@0 F2@0 F0@3 B0@3 W0@3 F1@3 F3@0 B1@3 W1@3 F2@3 B0@0 W0@0 B2@3 W2@3 F3@3 B1@0 W1@0 B3@3 W3@3 "
            "B2@0 W2@0 B3@0 W3@0\n"
            "1: F0@1 F0@2 F1@1 F1@2 F2@1 B0@2 W0@2 F2@2 B0@1 W0@1 F3@1 B1@2 W1@2 F3@2 B1@1 W1@1 B2@2 W2@2 B2@1 W2@1 "
            "B3@2 B3@1 W3@2 W3@1\n");
}

TEST(Scheme, OnAVNoDeviceIsFullerThanOneThatHasAllStages) {
  for (int p = 1; p <= 6; ++p)
    for (int m = 1; m <= 3 * p + 2; ++m)
      for (auto [name, most] : {std::pair{"zero_bubble_v", 2 * p}, {"dualpipe_v", 2 * p + 1}}) {
        SCOPED_TRACE(fmt::format("{}, p = {}, m = {}", name, p, m));
        const Schedule s = make_schedule(name, v(p), m);
        EXPECT_TRUE(s.splits_backward);
        const Simulation run = simulate(s, Costs::equal(2 * p));
        const bool full = std::string_view(name) == "zero_bubble_v" || m >= 2 * p;
        if (full) {
          EXPECT_THAT(run.peak_on_device, testing::Each(testing::Le(std::min(most, 2 * m))));
        }
        EXPECT_EQ(value_error_of([&] { check(make_schedule(name, v(p), m, false)); }), "no error");
      }
}

TEST(Scheme, BubblesOfTheVAreTheFormulas) {
  for (int p = 1; p <= 6; ++p)
    for (int m : {2 * p, 2 * p + 1, 3 * p + 1, 5 * p})
      for (auto [f, w] : {std::pair{1.0, 1.0}, {1.0, 0.5}, {3.0, 0.5}, {1.0, 2.0}, {2.0, 1.5}, {0.5, 4.0}, {1.0, 0.0}})
        for (const char* name : {"zero_bubble_v", "dualpipe_v"}) {
          SCOPED_TRACE(fmt::format("{}, p = {}, m = {}, F = B = {}, W = {}", name, p, m, f, w));
          EXPECT_NEAR(simulate(make_schedule(name, v(p), m), Costs::equal(2 * p, f, f, w)).bubble,
                      bubble_formula(name, p, m, 2, f, f, w), 1e-12);
        }
  // Half a stage is a chunk: as many forwards of a chunk are idle as ZB-H1 has idle forwards of two.
  EXPECT_DOUBLE_EQ(bubble_formula("zero_bubble_v", 4, 8, 2), 3.0 / (2 * 24 + 3));
  EXPECT_LT(bubble_formula("zero_bubble_v", 4, 8, 2), bubble_formula("zero_bubble", 4, 8));
  EXPECT_DOUBLE_EQ(bubble_formula("dualpipe_v", 4, 8, 2, 1, 1, 0.5), 4.5 / (2 * 20 + 4.5));
  EXPECT_THAT(value_error_of([] { bubble_formula("zero_bubble_v", 4, 8); }), HasSubstr("2 chunks per device"));
  EXPECT_THAT(value_error_of([] { bubble_formula("dualpipe_v", 4, 8, 2, 1, 2, 1); }), HasSubstr("as long as forwards"));
}

TEST(Scheme, EveryOneKnowsAnyMapping) {
  for (const auto& scheme : schemes())
    for (const std::vector<int>& mapping :
         {std::vector{0}, {0, 0, 0}, {0, 1, 1, 0}, {1, 0, 2, 1}, {0, 1, 2, 2, 1, 0}, {0, 0, 1, 1, 0, 0}, {2, 0, 2}})
      for (int m : {1, 2, 3, 7})
        for (bool training : {true, false}) {
          SCOPED_TRACE(fmt::format("{} {}", scheme->name, m));
          const Schedule s = make_schedule(scheme->name, mapping, m, training);
          EXPECT_EQ(s.splits_backward, training && scheme->splits_backward);
          const std::vector<int> bounds = in_flight_bounds(scheme->name, mapping, m);
          std::vector<int> held(s.tasks.size());
          for (size_t d = 0; d < s.tasks.size() && training; ++d)
            for (const Task& t : s.tasks[d]) {
              const auto stage = static_cast<size_t>(t.stage);
              if (stage > 0 && mapping[stage - 1] == mapping[stage]) continue;
              if (t.phase == F) {
                EXPECT_LE(++held[d], bounds[d]);
              }
              if (t.phase == (s.splits_backward ? W : B)) --held[d];
            }
        }
}

TEST(Scheme, HasALineAndAPicture) {
  for (const auto& scheme : schemes()) {
    EXPECT_FALSE(scheme->doc.empty()) << scheme->name;
    EXPECT_EQ(scheme->doc.find('\n'), std::string::npos);
  }
  const Schedule s = make_schedule("dualpipe_v", v(3), 6);
  const std::string svg = schedule_svg(s, simulate(s, Costs::equal(6)));
  EXPECT_THAT(svg, HasSubstr("dualpipe_v"));
  EXPECT_THAT(svg, HasSubstr("6 stages on 3 devices, 6 micro-batches"));
}

TEST(Scheme, IsFoundByItsNames) {
  EXPECT_EQ(find_scheme("test", "zb-h1"), find_scheme("test", "zero_bubble"));
  EXPECT_TRUE(make_schedule("zb-v", v(2), 4) == make_schedule("zero_bubble_v", v(2), 4));
  EXPECT_EQ(automatic_scheme(true)->name, "zero_bubble");
  EXPECT_EQ(automatic_scheme(false)->name, "1f1b");
  Registered own({.name = "one_by_one", .doc = "for this test", .aliases = {"slow"}, .lists = one_by_one});
  EXPECT_EQ(make_schedule("slow", {0, 1}, 2).name, "one_by_one");
  EXPECT_EQ(str(make_schedule("one_by_one", {0, 1}, 2)), "0: F0 B0 F1 B1\n1: F0 B0 F1 B1\n");
  EXPECT_EQ(str(make_schedule("one_by_one", {0, 1}, 2, false)), "0: F0 F1\n1: F0 F1\n");
  EXPECT_THAT(in_flight_bounds("one_by_one", {0, 1, 0}, 3), testing::ElementsAre(6, 3));
  EXPECT_THAT(value_error_of([] { bubble_formula("one_by_one", 4, 8); }),
              HasSubstr("there is no formula for 'one_by_one'"));
  EXPECT_THAT(value_error_of([] { make_schedule("none", {0}, 1); }),
              HasSubstr("'interleaved', 'one_by_one', 'zero_bubble'"));
}

TEST(Scheme, WrongRegistrations) {
  auto error = [](Scheme scheme) { return value_error_of([&] { register_scheme(std::move(scheme)); }); };
  EXPECT_THAT(error({.lists = one_by_one}), HasSubstr("has no name"));
  EXPECT_THAT(error({.name = "x"}), HasSubstr("'x' has no function"));
  EXPECT_THAT(error({.name = "gpipe", .lists = one_by_one}),
              HasSubstr("there is a schedule 'gpipe' already. Choose another name, or unregister that one first."));
  EXPECT_THAT(error({.name = "x", .aliases = {"zb-h1"}, .lists = one_by_one}), HasSubstr("'zb-h1' already"));
  EXPECT_THAT(error({.name = "x", .aliases = {"x"}, .lists = one_by_one}), HasSubstr("'x' already"));
  EXPECT_THAT(error({.name = "auto", .lists = one_by_one}), HasSubstr("Choose another name"));
  EXPECT_THAT(error({.name = "x", .automatic = true, .lists = one_by_one}), HasSubstr("means the schedule '1f1b'"));
  EXPECT_THAT(value_error_of([] { unregister_scheme("x"); }), HasSubstr("there is no schedule 'x'"));
  EXPECT_THAT(value_error_of([] { unregister_scheme("zb-h1"); }),
              HasSubstr("'zb-h1' is another name of 'zero_bubble'"));
}

TEST(Scheme, WrongListsNameTheSchemeTheDeviceAndTheTask) {
  auto error = [](const std::function<void(TaskLists*)>& change) {
    Registered own({.name = "own", .lists = [&](const Mapping& mapping) {
                      TaskLists lists = one_by_one(mapping);
                      change(&lists);
                      return lists;
                    }});
    return value_error_of([] { make_schedule("own", {0, 1}, 2); });
  };
  EXPECT_EQ(error([](TaskLists* l) { l->at(1).pop_back(); }),
            "schedule own: device 1 lacks stage 1 B(1). Correct the lists of tasks that 'own' returns for the devices "
            "0, 1 of the stages, 2 micro-batches and training.");
  EXPECT_THAT(error([](TaskLists* l) {
                l->at(0).push_back({1, 0, F});
              }),
              HasSubstr("schedule own: device 0 has stage 1 F(0), and the stage is on device 1."));
  EXPECT_THAT(error([](TaskLists* l) { l->at(0).push_back({0, 0, W}); }), HasSubstr("splits_backward is false"));
  EXPECT_THAT(error([](TaskLists* l) { l->at(0).push_back({0, 9, F}); }), HasSubstr("device 0 has stage 0 F(9)"));
  EXPECT_THAT(error([](TaskLists* l) { l->pop_back(); }), HasSubstr("1 lists for 2 devices"));
  EXPECT_THAT(error([](TaskLists* l) { std::swap(l->at(1)[0], l->at(1)[1]); }), HasSubstr("wait for each other"));
}

TEST(Scheme, ThreadsRegisterAtOnce) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([t] {
      for (int i = 0; i < 100; ++i) {
        Registered own({.name = fmt::format("thread_{}", t), .lists = one_by_one});
        EXPECT_EQ(make_schedule(own.name, {0, 1}, 1).name, own.name);
      }
    });
  for (auto& t : threads) t.join();
}

// Linear layers, one a stage, each on one rank.
std::unique_ptr<Step> pipeline(const std::vector<int>& rank_of_stage, const std::string& schedule, int micro_batches,
                               std::vector<Tensor>* weights) {
  const bool one = rank_of_stage.empty();
  const size_t stages = one ? 4 : rank_of_stage.size();
  auto options = [&](size_t s) {
    RandnOptions o;
    o.seed = static_cast<int64_t>(s);
    if (!one) o.placement = Placement("cpu", {rank_of_stage[s]}), o.sbp = sbp::broadcast();
    return o;
  };
  Capture capture;
  capture.set_micro_batches(micro_batches);
  Tensor h = one ? capture.input({2, 4}, float32, nullptr, {})
                 : capture.input({2, 4}, float32, intern_spec(options(0).placement, sbp::broadcast()), {});
  for (size_t s = 0; s < stages; ++s) {
    TracerPause untraced;
    weights->push_back(randn({4, 4}, options(s)).detach());
    weights->back().set_requires_grad();
  }
  for (size_t s = 0; s < stages; ++s) {
    capture.push_scope(fmt::format("net.stage{}", s), static_cast<int>(s));
    if (!one) h = h.to_global(options(s).placement, sbp::broadcast());
    h = tanh(matmul(h, (*weights)[s]));
    capture.pop_scope();
  }
  Tensor loss = mean(h);
  loss.backward();
  capture.add_update(optim::rule_of(optim::SgdOptions{.lr = 0.5}), *weights);
  CompileOptions step;
  step.schedule = schedule;
  return std::make_unique<Step>(capture.finish({&loss, 1}), step);
}

TEST(Scheme, ARegisteredOneRunsAGraph) {
  Registered own({.name = "one_by_one", .lists = one_by_one});
  constexpr int kMicroBatches = 3;
  RandnOptions o;
  o.seed = 99;
  std::vector<Tensor> reference;
  auto alone = pipeline({}, "auto", kMicroBatches, &reference);
  alone->run(std::vector<Tensor>{randn({2 * kMicroBatches, 4}, o)});
  comm::run_ranks(2, [&](int) {
    std::vector<Tensor> weights;
    auto step = pipeline({0, 1, 1, 0}, "one_by_one", kMicroBatches, &weights);
    EXPECT_EQ(step->program().schedule.name, "one_by_one");
    RandnOptions on = o;
    on.placement = Placement("cpu", {0}), on.sbp = sbp::broadcast();
    step->run(std::vector<Tensor>{randn({2 * kMicroBatches, 4}, on)});
    for (size_t w = 0; w < weights.size(); ++w) {
      Tensor whole = weights[w].full();
      for (size_t i = 0; i < 16; ++i) EXPECT_EQ(whole.data<float>()[i], reference[w].data<float>()[i]) << w;
    }
  });
}

TEST(Scheme, RanksAgreeOnTheTable) {
  Registered own({.name = "own", .lists = [](const Mapping& mapping) {
                    return Context::current().rank() == 0 ? one_by_one(mapping)
                                                          : gpipe(2, mapping.micro_batches, mapping.training).tasks;
                  }});
  std::vector<std::string> errors(2);
  comm::run_ranks(2, [&](int rank) {
    std::vector<Tensor> weights;
    errors[static_cast<size_t>(rank)] = error_of([&] { pipeline({0, 1}, "own", 2, &weights); }, ErrorKind::kRuntime);
  });
  for (const std::string& e : errors) {
    EXPECT_THAT(e, HasSubstr("the ranks order the tasks of a graph differently"));
    EXPECT_THAT(e, HasSubstr("on rank 0: own, task 1 of device 0: stage 0 B(0)"));
    EXPECT_THAT(e, HasSubstr("on rank 1: own, task 1 of device 0: stage 0 F(1)"));
  }
}

}  // namespace
}  // namespace holon::graph
