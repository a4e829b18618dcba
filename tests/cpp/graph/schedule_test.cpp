#include "holon/graph/schedule/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <random>

#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/graph/schedule/check.h"
#include "holon/graph/schedule/list_scheduler.h"
#include "holon/graph/schedule/picture.h"
#include "holon/graph/schedule/simulate.h"
#include "holon/graph/schedule/textbooks.h"
#include "tests/cpp/error_of.h"

namespace holon::graph {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr auto F = Phase::kForward, B = Phase::kBackward, W = Phase::kWeight;

size_t at(int i) { return static_cast<size_t>(i); }

std::vector<int> in_turn(int devices, int stages) {
  std::vector<int> mapping;
  for (int s = 0; s < stages; ++s) mapping.push_back(s % devices);
  return mapping;
}

int largest(const std::vector<int>& values) { return *std::max_element(values.begin(), values.end()); }

double time_of(const Schedule& s) { return simulate(s, Costs::equal(s.stages)).time; }

// What a task waits for, said once more and independently of the code under test.
std::vector<Task> needs(const Schedule& s, const Task& t) {
  std::vector<Task> result;
  if (t.phase == F && t.stage > 0) result.push_back({t.stage - 1, t.micro_batch, F});
  if (t.phase == B) result.push_back({t.stage, t.micro_batch, F});
  if (t.phase == B && t.stage + 1 < s.stages) result.push_back({t.stage + 1, t.micro_batch, B});
  if (t.phase == W) result.push_back({t.stage, t.micro_batch, B});
  return result;
}

using Key = std::tuple<int, int, int>;
Key key(const Task& t) { return {t.stage, t.micro_batch, static_cast<int>(t.phase)}; }

// Runs the lists, device after device, as far as they go. With rendezvous, every task is a receive, work and a send
// that takes part in the receiver's receive.
bool comes_to_an_end(const Schedule& s, bool rendezvous) {
  std::map<Key, int> state;  // 1: its inputs are there, 2: done, 3: sent
  std::vector<size_t> place(s.tasks.size());
  auto device = [&](const Task& t) { return s.device_of_stage[at(t.stage)]; };
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t d = 0; d < s.tasks.size(); ++d) {
      if (place[d] == s.tasks[d].size()) continue;
      const Task& t = s.tasks[d][place[d]];
      int& own = state[key(t)];
      if (own == 0) {
        bool there = true;
        for (const Task& n : needs(s, t))
          there = there && state[key(n)] >= (rendezvous && device(n) != device(t) ? 3 : 2);
        // A sender waits for this very moment: hand over.
        for (const Task& n : needs(s, t))
          if (rendezvous && device(n) != device(t) && state[key(n)] == 2) {
            state[key(n)] = 3;
            moved = true;
          }
        if (!there) continue;
        own = 2, moved = true;
      }
      const int next = t.phase == F ? t.stage + 1 : t.stage - 1;
      const bool sends = t.phase != W && next >= 0 && next < s.stages && s.device_of_stage[at(next)] != device(t);
      if (rendezvous && sends && own < 3) continue;
      ++place[d], moved = true;
    }
  }
  for (size_t d = 0; d < s.tasks.size(); ++d)
    if (place[d] < s.tasks[d].size()) return false;
  return true;
}

// Each task once and in order, by counting.
bool complete(const Schedule& s) {
  std::map<std::pair<int, Phase>, int> next;
  for (size_t d = 0; d < s.tasks.size(); ++d)
    for (const Task& t : s.tasks[d])
      if (s.device_of_stage[at(t.stage)] != static_cast<int>(d) || next[{t.stage, t.phase}]++ != t.micro_batch)
        return false;
  for (int stage = 0; stage < s.stages; ++stage)
    for (Phase phase : {F, B, W}) {
      const bool wanted = phase == F || (s.training && (phase == B || s.splits_backward));
      if (next[{stage, phase}] != (wanted ? s.micro_batches : 0)) return false;
    }
  return true;
}

void expect_valid(const Schedule& s) {
  ASSERT_TRUE(complete(s)) << s.name << "\n" << str(s);
  ASSERT_TRUE(comes_to_an_end(s, false)) << s.name << "\n" << str(s);
  ASSERT_EQ(value_error_of([&] { check(s); }), "no error") << str(s);
}

Schedule random_table(std::mt19937& random, bool splits) {
  Schedule s;
  s.name = "random";
  s.stages = 1 + static_cast<int>(random() % 5), s.devices = 1 + static_cast<int>(random() % 3);
  s.micro_batches = 1 + static_cast<int>(random() % 4);
  s.training = splits || random() % 4 != 0;
  s.splits_backward = splits;
  for (int i = 0; i < s.stages; ++i) s.device_of_stage.push_back(static_cast<int>(random()) & 1 ? i % s.devices : 0);
  s.tasks.resize(at(s.devices));
  std::map<Key, bool> done;
  for (;;) {
    std::vector<Task> ready;
    for (int stage = 0; stage < s.stages; ++stage)
      for (Phase phase : {F, B, W})
        for (int m = 0; m < s.micro_batches; ++m) {
          const Task t{stage, m, phase};
          if ((phase == B && !s.training) || (phase == W && !splits) || done[key(t)]) continue;
          bool can = m == 0 || done[{stage, m - 1, static_cast<int>(phase)}];
          for (const Task& n : needs(s, t)) can = can && done[key(n)];
          if (can) ready.push_back(t);
        }
    if (ready.empty()) return s;
    const Task t = ready[random() % ready.size()];
    done[key(t)] = true;
    s.tasks[at(s.device_of_stage[at(t.stage)])].push_back(t);
  }
}

TEST(Schedule, Tables) {
  EXPECT_EQ(str(gpipe(2, 3)), "0: F0 F1 F2 B0 B1 B2\n1: F0 F1 F2 B0 B1 B2\n");
  EXPECT_EQ(str(one_f_one_b(3, 4)),
            "0: F0 F1 F2 B0 F3 B1 B2 B3\n1: F0 F1 B0 F2 B1 F3 B2 B3\n2: F0 B0 F1 B1 F2 B2 F3 B3\n");
  EXPECT_EQ(str(one_f_one_b(2, 3, false)), "0: F0 F1 F2\n1: F0 F1 F2\n");
  EXPECT_EQ(str(zero_bubble_h1(3, 4)),
            "0: F0 F1 F2 B0 W0 F3 B1 W1 B2 W2 B3 W3\n1: F0 F1 B0 F2 B1 W0 F3 B2 W1 B3 W2 W3\n"
            "2: F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 W2 W3\n");
  EXPECT_EQ(str(interleaved_1f1b(2, 2, 2)),
            "0: F0@0 F1@0 F0@2 F1@2 B0@2 B1@2 B0@0 B1@0\n1: F0@1 F1@1 F0@3 B0@3 F1@3 B1@3 B0@1 B1@1\n");
  EXPECT_EQ(str(sequential(2, 2)), "0: F0@0 F0@1 B0@1 B0@0 F1@0 F1@1 B1@1 B1@0\n");
  EXPECT_EQ(str(sequential(2, 1, false)), "0: F0@0 F0@1\n");
  EXPECT_EQ(str(forward_only({1, 1, 0}, 2)), "0: F0 F1\n1: F0@0 F0@1 F1@0 F1@1\n");
  EXPECT_EQ((Task{1, 2, B}).str(), "stage 1 B(2)");
}

TEST(Schedule, NamesSayWhatItIs) {
  EXPECT_EQ(gpipe(2, 2).name, "gpipe");
  EXPECT_EQ(interleaved_1f1b(2, 2, 2).name, "interleaved");
  EXPECT_EQ(make_schedule("zero_bubble", {0, 1}, 2, false).name, "forward_only");
  EXPECT_FALSE(make_schedule("zero_bubble", {0, 1}, 2, false).splits_backward);
  EXPECT_TRUE(make_schedule("gpipe", {0, 1, 2}, 4) == gpipe(3, 4));
  EXPECT_TRUE(make_schedule("1f1b", {0, 1, 2}, 4) == one_f_one_b(3, 4));
  EXPECT_TRUE(make_schedule("zero_bubble", {0, 1, 2}, 4) == zero_bubble_h1(3, 4));
  EXPECT_TRUE(make_schedule("interleaved", {0, 1, 0, 1}, 4) == interleaved_1f1b(2, 2, 4));
  EXPECT_TRUE(make_schedule("interleaved", {0, 1, 2}, 4).tasks == one_f_one_b(3, 4).tasks);
  EXPECT_TRUE(make_schedule("1f1b", {0, 0, 0}, 4).tasks == sequential(3, 4).tasks);
}

TEST(Schedule, AllAreValidAndBounded) {
  for (int p = 1; p <= 6; ++p)
    for (int m = 1; m <= 9; ++m) {
      SCOPED_TRACE(fmt::format("p = {}, m = {}", p, m));
      for (bool training : {true, false}) {
        expect_valid(gpipe(p, m, training));
        expect_valid(one_f_one_b(p, m, training));
        expect_valid(sequential(p, m, training));
      }
      expect_valid(zero_bubble_h1(p, m));
      const auto all = peak_in_flight(gpipe(p, m)), few = peak_in_flight(one_f_one_b(p, m)),
                 split = peak_in_flight(zero_bubble_h1(p, m)), one = peak_in_flight(sequential(p, m));
      for (int s = 0; s < p; ++s) {
        EXPECT_EQ(all[at(s)], m);
        EXPECT_EQ(few[at(s)], std::min(p - s, m));
        EXPECT_LE(split[at(s)], std::min(p, m));
        EXPECT_EQ(one[at(s)], 1);
      }
      EXPECT_EQ(largest(split), largest(few));
      EXPECT_LE(time_of(zero_bubble_h1(p, m)), time_of(one_f_one_b(p, m)));
      EXPECT_EQ(time_of(sequential(p, m)), 3 * p * m);
      for (int v = 1; v <= 3; ++v) {
        SCOPED_TRACE(v);
        const Schedule s = interleaved_1f1b(p, v, m);
        expect_valid(s);
        const Simulation run = simulate(s, Costs::equal(s.stages));
        for (int d = 0; d < p && p > 1 && v > 1; ++d)
          EXPECT_LE(run.peak_on_device[at(d)], std::min(v * m, (v - 1) * p + 2 * (p - 1 - d) + 1));
        if (v > 1 && m % p == 0 && m > p) {
          EXPECT_EQ(run.peak_on_device[0], p == 1 ? v : (v - 1) * p + 2 * (p - 1) + 1);
        }
      }
    }
}

TEST(Schedule, BubblesAreTheFormulas) {
  for (int p = 1; p <= 6; ++p)
    for (int m = 1; m <= 9; ++m) {
      SCOPED_TRACE(fmt::format("p = {}, m = {}", p, m));
      for (auto [f, b, w] : {std::array{1.0, 1.0, 1.0},
                             {1.0, 1.0, 0.5},
                             {2.0, 3.0, 1.0},
                             {1.0, 2.0, 1.0},
                             {2.0, 1.0, 2.0},
                             {1.0, 1.0, 2.0},
                             {1.0, 3.0, 2.0},
                             {0.5, 1.25, 4.0},
                             {3.0, 2.0, 2.5}}) {
        const Costs costs = Costs::equal(p, f, b, w);
        EXPECT_NEAR(simulate(gpipe(p, m), costs).bubble, bubble_formula("gpipe", p, m), 1e-12);
        EXPECT_NEAR(simulate(one_f_one_b(p, m), costs).bubble, bubble_formula("1f1b", p, m), 1e-12);
        if (m >= p) {
          EXPECT_NEAR(simulate(zero_bubble_h1(p, m), costs).bubble, bubble_formula("zero_bubble", p, m, 1, f, b, w),
                      1e-12);
        }
        for (int v = 1; v <= 3; ++v) {
          const double bubble = simulate(interleaved_1f1b(p, v, m), Costs::equal(p * v, f, b, w)).bubble;
          const double formula = p == 1 ? 0 : bubble_formula("interleaved", p, m, v);
          if (m % p == 0) {
            EXPECT_NEAR(bubble, formula, 1e-12);
          }
          EXPECT_GE(bubble, formula - 1e-12);
        }
      }
    }
  EXPECT_DOUBLE_EQ(bubble_formula("1f1b", 4, 8), 3.0 / 11);
  EXPECT_DOUBLE_EQ(bubble_formula("interleaved", 4, 8, 2), 3.0 / 19);
  EXPECT_DOUBLE_EQ(bubble_formula("zero_bubble", 4, 8), 3.0 / 27);
  EXPECT_THAT(value_error_of([] { bubble_formula("dualpipe", 4, 8); }),
              HasSubstr("there is no formula for 'dualpipe'. There are '1f1b'"));
  EXPECT_THAT(value_error_of([] { bubble_formula("1f1b", 0, 8); }), HasSubstr("got 0 devices, 8 micro-batches"));
  EXPECT_THAT(value_error_of([] { bubble_formula("zero_bubble", 2, 8, 1, -1); }), HasSubstr("the costs -1, 1 and 1"));
}

// Every mapping of up to 5 stages to 3 devices, some of which then have none.
TEST(Schedule, AnyMapping) {
  for (int stages = 1; stages <= 5; ++stages) {
    const int mappings = static_cast<int>(std::pow(3, stages));
    for (int code = 0; code < mappings; ++code) {
      std::vector<int> mapping;
      for (int s = 0, rest = code; s < stages; ++s, rest /= 3) mapping.push_back(rest % 3);
      for (const char* name : {"gpipe", "1f1b", "interleaved", "zero_bubble"})
        for (int m : {1, 2, 3, 5}) {
          const Schedule s = make_schedule(name, mapping, m);
          SCOPED_TRACE(fmt::format("{} {} {}", name, code, m));
          expect_valid(s);
          expect_valid(make_schedule(name, mapping, m, false));
          EXPECT_LE(time_of(s), 3 * stages * m);  // of the tasks one after the other
          for (const auto& list : s.tasks)        // GPipe: all forwards first
            EXPECT_TRUE(s.name != "gpipe" ||
                        std::is_partitioned(list.begin(), list.end(), [](const Task& t) { return t.phase == F; }));
          // The bounds are in runs of consecutive stages.
          const std::vector<int> bounds = in_flight_bounds(name, mapping, m);
          std::vector<int> held(s.tasks.size());
          for (size_t d = 0; d < s.tasks.size(); ++d)
            for (const Task& t : s.tasks[d]) {
              const bool first = t.stage == 0 || mapping[at(t.stage) - 1] != mapping[at(t.stage)];
              if (!first) continue;
              if (t.phase == F) {
                EXPECT_LE(++held[d], bounds[d]);
              }
              if (t.phase == (s.splits_backward ? W : B)) --held[d];
            }
        }
    }
  }
}

TEST(Schedule, ConsecutiveStagesOfADeviceAreOne) {
  const Schedule s = make_schedule("1f1b", {0, 0, 1, 1, 1}, 4);
  EXPECT_THAT(peak_in_flight(s), ElementsAre(2, 2, 1, 1, 1));
  EXPECT_EQ(s.tasks[1][3], (Task{4, 0, B}));
  // W may wait, but not for more stages than 1F1B's fullest device may hold: here device 2.
  const std::vector<int> mapping{0, 1, 2, 3, 3, 2, 1, 0};
  EXPECT_THAT(in_flight_bounds("1f1b", mapping, 12), ElementsAre(5, 7, 9, 4));
  EXPECT_THAT(in_flight_bounds("zero_bubble", mapping, 12), ElementsAre(9, 9, 9, 4));
  EXPECT_THAT(in_flight_bounds("gpipe", mapping, 12), ElementsAre(24, 24, 24, 12));
  EXPECT_THAT(simulate(make_schedule("zero_bubble", mapping, 12), Costs::equal(8)).peak_on_device,
              testing::Each(testing::Le(9)));
  EXPECT_THAT(peak_in_flight(make_schedule("zero_bubble", {0, 1, 1}, 8)), ElementsAre(2, 1, 1));
}

TEST(Schedule, ListSchedulerFindsTheTextbooks) {
  for (int p = 1; p <= 6; ++p)
    for (int m = 1; m <= 9; ++m) {
      SCOPED_TRACE(fmt::format("p = {}, m = {}", p, m));
      ListRules rules;
      rules.bounds = in_flight_bounds("1f1b", in_turn(p, p), m);
      EXPECT_TRUE(list_schedule(in_turn(p, p), p, std::vector<int>(at(p), 1), m, rules) == one_f_one_b(p, m).tasks);
      Schedule s = zero_bubble_h1(p, m);
      const double time = time_of(s);
      rules.splits_backward = true;
      rules.bounds = in_flight_bounds("zero_bubble", in_turn(p, p), m);
      s.tasks = list_schedule(in_turn(p, p), p, std::vector<int>(at(p), 1), m, rules);
      expect_valid(s);
      EXPECT_EQ(time_of(s), time);
      rules.splits_backward = false;
      for (int v = 2; v <= 3 && p > 1; ++v) {
        Schedule t = interleaved_1f1b(p, v, m);
        rules.bounds = in_flight_bounds("interleaved", in_turn(p, p * v), m);
        const double by_round = time_of(t);
        t.tasks = list_schedule(in_turn(p, p * v), p, std::vector<int>(at(p * v), 1), m, rules);
        expect_valid(t);
        EXPECT_EQ(time_of(t), by_round);
      }
    }
}

TEST(Schedule, WrongArguments) {
  EXPECT_EQ(value_error_of([] {
              make_schedule("dualpipe", {0, 1}, 4);
            }),
            "make_schedule: there is no schedule 'dualpipe'. There are '1f1b', 'dualpipe_v', 'gpipe', "
            "'interleaved', 'zero_bubble' and 'zero_bubble_v'.");
  EXPECT_EQ(value_error_of([] { make_schedule("1f1b", {}, 4); }),
            "make_schedule: a pipeline has at least 1 stage; got 0.");
  EXPECT_EQ(value_error_of([] { gpipe(2, 0); }), "gpipe: a step has at least 1 micro-batch; got 0.");
  EXPECT_EQ(value_error_of([] { one_f_one_b(-1, 1); }), "one_f_one_b: a pipeline has at least 1 stage; got -1.");
  EXPECT_THAT(value_error_of([] {
                make_schedule("1f1b", {0, -1}, 4);
              }),
              HasSubstr("stage 1 is on device -1. Devices are numbered from 0"));
  EXPECT_THAT(value_error_of([] { make_schedule("1f1b", {2147483647}, 4); }),
              HasSubstr("stage 0 is on device 2147483647"));
  EXPECT_THAT(value_error_of([] { zero_bubble_h1(1000, 1 << 30); }), HasSubstr("Use fewer micro-batches"));
  EXPECT_THAT(value_error_of([] { sequential(2147483647, 2147483647); }), HasSubstr("Use fewer micro-batches"));
  EXPECT_THAT(value_error_of([] { interleaved_1f1b(2, 0, 4); }), HasSubstr("got 2 and 0"));
  EXPECT_THAT(value_error_of([] { interleaved_1f1b(2147483647, 2147483647, 4); }),
              HasSubstr("Use fewer micro-batches"));
  EXPECT_THAT(value_error_of([] { forward_only({0}, -3); }), HasSubstr("got -3"));
}

TEST(Check, NamesTheBrokenRule) {
  auto broken = [](auto change) {
    Schedule s = one_f_one_b(2, 3);  // 0: F0 F1 B0 F2 B1 B2, 1: F0 B0 F1 B1 F2 B2
    change(s);
    return value_error_of([&] { check(s); });
  };
  EXPECT_EQ(broken([](Schedule&) {}), "no error");
  EXPECT_EQ(broken([](Schedule& s) { s.tasks[0].pop_back(); }), "schedule 1f1b: device 0 lacks stage 0 B(2).");
  EXPECT_EQ(broken([](Schedule& s) { s.tasks[0].erase(s.tasks[0].begin()); }),
            "schedule 1f1b: device 0 lacks stage 0 F(0).");
  EXPECT_EQ(broken([](Schedule& s) {
              s.tasks[1].push_back({1, 2, B});
            }),
            "schedule 1f1b: device 1 has stage 1 B(2) twice or after a later one.");
  EXPECT_EQ(broken([](Schedule& s) { std::swap(s.tasks[0][0], s.tasks[0][1]); }),
            "schedule 1f1b: stage 0 F(1) comes before stage 0 F(0). Each phase of a stage must run in the order of the "
            "micro-batches, so that sums of gradients do not depend on the schedule.");
  EXPECT_THAT(broken([](Schedule& s) { std::swap(s.tasks[0][4], s.tasks[0][5]); }),
              HasSubstr("stage 0 B(2) comes before stage 0 B(1)"));
  EXPECT_EQ(broken([](Schedule& s) { std::swap(s.tasks[0], s.tasks[1]); }),
            "schedule 1f1b: device 0 has stage 1 F(0), and the stage is on device 1.");
  EXPECT_EQ(broken([](Schedule& s) { s.tasks[0][0].stage = 2; }),
            "schedule 1f1b: device 0 has stage 2 F(0), and there are 2 stages and 3 micro-batches, counted from 0.");
  EXPECT_THAT(broken([](Schedule& s) { s.tasks[0][0].micro_batch = -1; }), HasSubstr("device 0 has stage 0 F(-1)"));
  EXPECT_THAT(broken([](Schedule& s) { s.tasks[0][2].phase = W; }),
              HasSubstr("only a schedule that splits backwards has W"));
  EXPECT_THAT(broken([](Schedule& s) { s.tasks[0][2].phase = static_cast<Phase>(7); }),
              HasSubstr("only a schedule that splits"));
  EXPECT_THAT(broken([](Schedule& s) { s.training = false; }), HasSubstr("inference has only forwards"));
  EXPECT_THAT(broken([](Schedule& s) { s.splits_backward = true; }), HasSubstr("lacks stage 0 W(0)"));
  EXPECT_THAT(broken([](Schedule& s) { s.training = false, s.splits_backward = true; }),
              HasSubstr("splits backwards but has none"));
  EXPECT_THAT(broken([](Schedule& s) { s.micro_batches = 4; }), HasSubstr("lacks stage 0 F(3)"));
  EXPECT_THAT(broken([](Schedule& s) { s.micro_batches = 2147483647; }), HasSubstr("lacks stage 0 F(3)"));
  EXPECT_THAT(broken([](Schedule& s) { s.micro_batches = 0; }), HasSubstr("0 micro-batches, and needs at least one"));
  EXPECT_THAT(broken([](Schedule& s) { s.device_of_stage.pop_back(); }), HasSubstr("1 entries for 2 stages"));
  EXPECT_THAT(broken([](Schedule& s) { s.tasks.pop_back(); }), HasSubstr("1 lists for 2 devices"));
  EXPECT_THAT(broken([](Schedule& s) { s.device_of_stage[1] = 2; }),
              HasSubstr("stage 1 is on device 2, and the devices are 0 to 1"));
}

TEST(Check, NamesTheCycle) {
  Schedule s = one_f_one_b(2, 2);  // 0: F0 F1 B0 B1, 1: F0 B0 F1 B1
  std::swap(s.tasks[0][1], s.tasks[0][2]);
  check(s);  // 0: F0 B0 F1 B1 waits, but comes to an end
  std::swap(s.tasks[0][0], s.tasks[0][1]);
  EXPECT_EQ(value_error_of([&] { check(s); }),
            "schedule 1f1b: the devices would wait for each other: stage 0 B(0) waits for stage 0 F(0), which waits "
            "for stage 0 B(0) before it on device 0. Reverse the order of two of these tasks on one device.");
  s.tasks[0] = {{0, 0, F}, {0, 0, B}, {0, 1, F}, {0, 1, B}};
  s.tasks[1] = {{1, 0, F}, {1, 1, F}, {1, 0, B}, {1, 1, B}};
  EXPECT_EQ(value_error_of([&] { check(s); }),
            "schedule 1f1b: the devices would wait for each other: stage 0 B(0) waits for stage 1 B(0), which waits "
            "for stage 1 F(1) before it on device 1, which waits for stage 0 F(1), which waits for stage 0 B(0) before "
            "it on device 0. Reverse the order of two of these tasks on one device.");
  // Device 0 waits too, for a cycle that it has no part in.
  s = one_f_one_b(3, 1);
  std::swap(s.tasks[2][0], s.tasks[2][1]);
  EXPECT_THAT(value_error_of([&] { check(s); }),
              HasSubstr("each other: stage 2 B(0) waits for stage 2 F(0), which waits for stage 2 B(0) before it on"));
}

TEST(Check, RandomTables) {
  std::mt19937 random(7);
  int bad = 0, stuck = 0;
  for (int i = 0; i < 1500; ++i) {
    Schedule s = random_table(random, random() % 2 == 0);
    expect_valid(s);
    std::string why;
    const bool free = comes_to_an_end(s, true);
    EXPECT_EQ(deadlock_free_with_rendezvous(s, &why), free) << str(s) << why;
    EXPECT_EQ(why.empty(), free);
    stuck += !free;
    // Two tasks of a device change places: as valid as the plain player says.
    auto& list = s.tasks[random() % s.tasks.size()];
    if (list.empty()) continue;
    std::swap(list[random() % list.size()], list[random() % list.size()]);
    const bool valid = complete(s) && comes_to_an_end(s, false);
    EXPECT_EQ(value_error_of([&] { check(s); }) == "no error", valid) << str(s);
    bad += !valid;
  }
  EXPECT_GT(bad, 100);
  EXPECT_GT(stuck, 100);
}

TEST(Check, Rendezvous) {
  for (int p = 1; p <= 5; ++p)
    for (int m = 1; m <= 6; ++m) {
      EXPECT_TRUE(deadlock_free_with_rendezvous(gpipe(p, m)));
      EXPECT_TRUE(deadlock_free_with_rendezvous(gpipe(p, m, false)));
      EXPECT_TRUE(deadlock_free_with_rendezvous(sequential(p, m)));
      for (const Schedule& s : {one_f_one_b(p, m), zero_bubble_h1(p, m), interleaved_1f1b(p, 2, m)})
        EXPECT_EQ(deadlock_free_with_rendezvous(s), comes_to_an_end(s, true)) << str(s);
    }
  std::string why = "stale";
  EXPECT_TRUE(deadlock_free_with_rendezvous(one_f_one_b(3, 1), &why));
  EXPECT_FALSE(deadlock_free_with_rendezvous(one_f_one_b(2, 2), &why));
  EXPECT_EQ(
      why,
      "device 0 sends the result of stage 0 F(1) and waits for device 1, device 1 sends the result of stage 1 B(0) "
      "and waits for device 0");
  Schedule s = one_f_one_b(2, 2);
  s.tasks[0].pop_back();
  EXPECT_THAT(value_error_of([&] { deadlock_free_with_rendezvous(s); }), HasSubstr("lacks"));
}

TEST(Simulate, TimesAndSends) {
  Costs costs = Costs::equal(2);
  costs.forward = {1, 2}, costs.backward = {3, 1}, costs.weight = {1, 0.5}, costs.send = 0.25;
  const Simulation r = simulate(one_f_one_b(2, 2), costs);
  // 0: F0 F1 B0 B1, 1: F0 B0 F1 B1
  auto starts = [&](size_t d) {
    std::vector<double> result;
    for (const Span& span : r.spans[d]) result.push_back(span.start);
    return result;
  };
  EXPECT_THAT(starts(0), ElementsAre(0, 1, 5, 9));
  EXPECT_THAT(starts(1), ElementsAre(1.25, 3.25, 4.75, 6.75));
  EXPECT_EQ(r.time, 13);
  EXPECT_THAT(r.busy, ElementsAre(10, 7));
  EXPECT_DOUBLE_EQ(r.bubble, 1 - 17.0 / 26);
  // On one device nothing is sent.
  EXPECT_EQ(simulate(sequential(2, 2), costs).time, 2 * (1 + 2 + 3 + 1 + 1 + 0.5));
  EXPECT_EQ(simulate(sequential(2, 2), Costs::equal(2, 0, 0, 0)).bubble, 0);
}

TEST(Simulate, Bytes) {
  Costs costs = Costs::equal(2);
  costs.activation_bytes = {100, 10}, costs.weight_bytes = {30, 4};
  EXPECT_THAT(simulate(gpipe(2, 4), costs).peak_bytes, ElementsAre(400, 40));
  EXPECT_THAT(simulate(one_f_one_b(2, 4), costs).peak_bytes, ElementsAre(200, 10));
  EXPECT_THAT(simulate(one_f_one_b(2, 4, false), costs).peak_bytes, ElementsAre(100, 10));
  EXPECT_THAT(simulate(sequential(2, 4), costs).peak_bytes, ElementsAre(110));
  // 0: F0 F1 B0 W0 F2 B1 ...: never more than two; 1: F0 B0 F1 B1 W0: while F1 is held, W's part of 0.
  EXPECT_THAT(simulate(zero_bubble_h1(2, 4), costs).peak_bytes, ElementsAre(200, 14));
  EXPECT_THAT(simulate(zero_bubble_h1(2, 4), Costs::equal(2)).peak_bytes, ElementsAre(0, 0));
  costs.weight_bytes = {300, 4};  // more than the activations: seen at the end of B
  EXPECT_THAT(simulate(zero_bubble_h1(2, 4), costs).peak_bytes, ElementsAre(400, 14));
}

// What is held at once, from the times alone.
TEST(Simulate, PeaksFollowFromTheTable) {
  std::mt19937 random(11);
  auto cost = [&] { return 0.1 + static_cast<double>(random() % 1000) / 100; };
  for (int i = 0; i < 300; ++i) {
    const Schedule s = random_table(random, i % 2 == 0);
    Costs costs = Costs::equal(s.stages);
    for (auto* list : {&costs.forward, &costs.backward, &costs.weight})
      for (double& c : *list) c = cost();
    costs.send = cost();
    const Simulation r = simulate(s, costs);
    std::map<Key, Span> spans;
    for (size_t d = 0; d < s.tasks.size(); ++d)
      for (size_t t = 0; t < s.tasks[d].size(); ++t) spans[key(s.tasks[d][t])] = r.spans[d][t];
    double end = 0;
    for (size_t d = 0; d < s.tasks.size(); ++d)
      for (size_t t = 0; t < s.tasks[d].size(); ++t) {
        const Task& task = s.tasks[d][t];
        double start = t ? r.spans[d][t - 1].end : 0;
        for (const Task& n : needs(s, task))
          start =
              std::max(start,
                       spans[key(n)].end + (s.device_of_stage[at(n.stage)] == static_cast<int>(d) ? 0 : costs.send));
        EXPECT_EQ(r.spans[d][t].start, start);
        end = std::max(end, r.spans[d][t].end);
      }
    EXPECT_EQ(r.time, end);
    const int release = static_cast<int>(s.splits_backward ? W : s.training ? B : F);
    auto held = [&](int stage, double now) {
      int n = 0;
      for (int m = 0; m < s.micro_batches; ++m)
        n += spans[{stage, m, 0}].start <= now && now < spans[{stage, m, release}].end;
      return n;
    };
    std::vector<int> by_stage(at(s.stages)), by_device(at(s.devices));
    for (auto& [k, span] : spans) {
      std::vector<int> on_device(at(s.devices));
      for (int stage = 0; stage < s.stages; ++stage) {
        const int n = held(stage, span.start);
        by_stage[at(stage)] = std::max(by_stage[at(stage)], n);
        on_device[at(s.device_of_stage[at(stage)])] += n;
      }
      for (size_t d = 0; d < on_device.size(); ++d) by_device[d] = std::max(by_device[d], on_device[d]);
    }
    EXPECT_EQ(r.peak_in_flight, by_stage) << str(s);
    EXPECT_EQ(r.peak_on_device, by_device) << str(s);
  }
}

TEST(Simulate, WrongCosts) {
  const Schedule s = gpipe(2, 2);
  auto broken = [&](auto change) {
    Costs costs = Costs::equal(2);
    change(costs);
    return value_error_of([&] { simulate(s, costs); });
  };
  EXPECT_EQ(broken([](Costs& c) { c.forward.pop_back(); }), "simulate: forward has 1 entries for 2 stages.");
  EXPECT_EQ(broken([](Costs& c) { c.weight[1] = -1; }),
            "simulate: weight of stage 1 is -1; it must be finite and at least 0.");
  EXPECT_THAT(broken([](Costs& c) { c.backward[0] = std::nan(""); }), HasSubstr("backward of stage 0 is nan"));
  EXPECT_THAT(broken([](Costs& c) { c.activation_bytes = {1}; }), HasSubstr("activation_bytes has 1 entries"));
  EXPECT_THAT(broken([](Costs& c) { c.send = INFINITY; }), HasSubstr("send is inf"));
  EXPECT_THAT(value_error_of([] { Costs::equal(0); }), HasSubstr("at least 1 stage; got 0"));
  Costs forward;
  forward.forward = {1, 1};
  EXPECT_EQ(simulate(gpipe(2, 2, false), forward).time, 3);
}

TEST(Picture, Svg) {
  const Schedule s = zero_bubble_h1(3, 4);
  const Simulation r = simulate(s, Costs::equal(3));
  const std::string svg = schedule_svg(s, r);
  auto count = [&](const std::string& text) {
    int n = 0;
    for (size_t i = svg.find(text); i != std::string::npos; i = svg.find(text, i + 1)) ++n;
    return n;
  };
  EXPECT_EQ(count("<title>"), 36);
  EXPECT_EQ(count("<title>stage 2 W(3): "), 1);
  EXPECT_EQ(count("W gradients of the weights"), 1);
  EXPECT_EQ(count(">device 2<"), 1);
  EXPECT_EQ(count("nan"), 0);
  EXPECT_THAT(svg, HasSubstr("3 stages on 3 devices, 4 micro-batches, time 14, bubble 14.3 %"));
  EXPECT_THAT(schedule_svg(gpipe(1, 1, false), simulate(gpipe(1, 1, false), Costs::equal(1))),
              testing::AllOf(HasSubstr("1 stage on 1 device, 1 micro-batch, time 1,"),
                             testing::Not(HasSubstr("backward"))));
  EXPECT_THAT(value_error_of([&] { schedule_svg(gpipe(3, 4), r); }),
              HasSubstr("the simulation belongs to another schedule than gpipe"));
  Schedule named = sequential(1, 1);
  named.name = "a<b & c";
  EXPECT_THAT(schedule_svg(named, simulate(named, Costs::equal(1, 0, 0, 0))), HasSubstr("a&lt;b &amp; c"));
}

}  // namespace
}  // namespace holon::graph
