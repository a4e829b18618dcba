#include "holon/checkpoint/checkpointer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint/folder.h"
#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/checkpoint/formats/folder.h"
#include "holon/checkpoint/formats/saving.h"
#include "holon/checkpoint/verify.h"
#include "holon/comm/run_ranks.h"
#include "holon/graph/nn_graph.h"
#include "holon/nn/layers.h"
#include "holon/ops/create.h"
#include "holon/ops/random.h"
#include "holon/ops/reduce.h"
#include "holon/ops/shape.h"
#include "holon/optim/optimizer.h"
#include "tests/cpp/error_of.h"

namespace holon::checkpoint {
namespace {

namespace fs = std::filesystem;

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// All elements are `value`. Pre: called by every rank of a world.
Value state(int64_t value, int64_t rows = 9) {
  auto everywhere = Placement::all("cpu");
  return {{"a", full({rows, 5}, value, {.placement = everywhere, .sbp = sbp::split(0)})},
          {"b", full({rows, 5}, value, {.placement = everywhere, .sbp = sbp::broadcast()})},
          {"local", full({3}, value)},
          {"step", value}};
}

// The number of a state that is whole; -1: of one that is mixed.
int64_t number_of(const Value& found) {
  const int64_t number = found["step"].integer();
  for (auto* name : {"a", "b", "local"}) {
    Tensor t = found[name].tensor();
    t = contiguous(t.is_global() ? t.full() : t).to(int64);
    for (int64_t i = 0; i < t.numel(); ++i)
      if (t.array().data<int64_t>()[i] != number) return -1;
  }
  return number;
}

using Steps = std::vector<int64_t>;

class CheckpointerOnRanks : public ::testing::TestWithParam<std::tuple<int, bool>> {};
INSTANTIATE_TEST_SUITE_P(Worlds, CheckpointerOnRanks,
                         ::testing::Combine(::testing::Values(1, 2, 3), ::testing::Bool()));

TEST_P(CheckpointerOnRanks, KeepsTheNewest) {
  Folder folder;
  auto [n, asynchronous] = GetParam();
  comm::run_ranks(n, [&, asynchronous = asynchronous](int rank) {
    Checkpointer checkpoints(folder / "run" / "deep", {.keep = 2, .asynchronous = asynchronous});
    EXPECT_FALSE(checkpoints.load());
    EXPECT_FALSE(checkpoints.latest());
    for (int64_t step : {10, 20, 5, 30}) EXPECT_TRUE(checkpoints.save(step, state(step), rank * 100 + step));
    checkpoints.wait();
    EXPECT_EQ(checkpoints.steps(), (Steps{20, 30}));
    auto found = checkpoints.load();
    ASSERT_TRUE(found);
    EXPECT_EQ(found->step, 30);
    EXPECT_EQ(number_of(found->value), 30);
    EXPECT_EQ(found->own.integer(), rank * 100 + 30);
    EXPECT_EQ(number_of(checkpoints.load(20)->value), 20);
    EXPECT_TRUE(contains(error_of([&] { checkpoints.load(10); }), "no checkpoint of step 10"));
    EXPECT_TRUE(contains(error_of([&] { checkpoints.load(10); }), "there are 20, 30"));
    EXPECT_EQ(number_of(load(checkpoints.path(30))), 30);
    // The same step again.
    EXPECT_TRUE(checkpoints.save(30, state(31), rank));
    EXPECT_EQ(number_of(checkpoints.load()->value), 31);
  });
  EXPECT_EQ(verify(folder / "run" / "deep" / "step-00000030").tensors, 3);
}

// Each save that is interrupted when its checkpoint is complete leaves one too many, which the next removes first.
TEST_P(CheckpointerOnRanks, SavesThatFailDoNotAddUp) {
  Folder folder;
  auto [n, asynchronous] = GetParam();
  comm::run_ranks(n, [&, asynchronous = asynchronous](int rank) {
    Checkpointer all(folder / "x", {.keep = {}, .asynchronous = false});
    for (int64_t step : {1, 2, 3, 4}) all.save(step, state(step));
    if (rank == 0) std::ofstream(folder / "x/step-00000005") << "not a folder";
    Checkpointer two(folder / "x", {.keep = 2, .asynchronous = asynchronous});
    EXPECT_TRUE(contains(error_of([&] { two.save(5, state(5)), two.wait(); }), "step 5 was not saved"));
    EXPECT_EQ(two.steps(), (Steps{3, 4}));
  });
}

// A run that continues from an older step is not continued, after its next save, from what it has left behind.
TEST_P(CheckpointerOnRanks, ContinuesFromAnOlderStep) {
  const auto [n, asynchronous] = GetParam();
  Folder folder;
  comm::run_ranks(n, [&, asynchronous = asynchronous](int) {
    const CheckpointerOptions options{.keep = 2, .asynchronous = asynchronous};
    {
      Checkpointer checkpoints(folder.path, options);
      for (int64_t step : {10, 20, 30}) checkpoints.save(step, state(step));
      checkpoints.wait();
      EXPECT_EQ(number_of(checkpoints.load(20)->value), 20);
      EXPECT_EQ(checkpoints.latest(), 30);  // until it is left
      checkpoints.save(25, state(25));
      checkpoints.wait();
      EXPECT_EQ(checkpoints.steps(), (Steps{20, 25}));
      checkpoints.save(35, state(35));
      checkpoints.wait();
    }
    comm::barrier();
    Checkpointer again(folder.path, options);
    EXPECT_EQ(again.steps(), (Steps{25, 35}));
    EXPECT_EQ(number_of(again.load()->value), 35);
    EXPECT_EQ(number_of(load(folder / "abandoned-step-00000030")), 30);
    // The same steps are left a second time.
    again.load(25);
    again.save(30, state(31));
    again.load(25);
    again.save(30, state(32));
    again.wait();
    EXPECT_EQ(number_of(load(folder / "abandoned-step-00000030-2")), 31);
    EXPECT_EQ(number_of(again.load()->value), 32);
    EXPECT_TRUE(fs::exists(folder / "abandoned-step-00000035"));
  });
}

TEST(Checkpointer, MistakesAreErrors) {
  Folder folder;
  comm::run_ranks(2, [&](int rank) {
    EXPECT_TRUE(contains(error_of([&] { Checkpointer(folder / "x", {.keep = 0}); }), "keep is 0"));
    EXPECT_TRUE(contains(error_of([&] { Checkpointer(folder / "x", {.keep = 1 + rank}); }), "rank 1 keep 2"));
    Checkpointer checkpoints(folder / "x");
    EXPECT_TRUE(contains(error_of([&] { checkpoints.save(-1, 1); }), "step is -1"));
    EXPECT_TRUE(contains(error_of([&] { checkpoints.save(rank, state(1)); }), "step-00000000; rank 1"));
    EXPECT_TRUE(contains(error_of([&] { checkpoints.save(1, 1, ones({2})); }), "'own' is a tensor"));
    EXPECT_TRUE(contains(error_of([&] { checkpoints.save(1, rank == 1 ? Value(Tensor()) : Value(1)); }), "rank 1"));
    EXPECT_TRUE(contains(error_of([&] { checkpoints.load({}, {.global_src_rank = 0}); }), "global_src_rank"));
    checkpoints.save(3, state(3));
    EXPECT_TRUE(contains(error_of([&] { checkpoints.load(rank == 0 ? std::optional<int64_t>(3) : std::nullopt); }),
                         "rank 1 step latest"));
    EXPECT_EQ(checkpoints.steps(), Steps{3});
  });
  write_text(folder / "file", "mine");
  EXPECT_TRUE(contains(error_of([&] { Checkpointer(folder / "file"); }), "cannot create the folder"));
}

TEST(Checkpointer, WhatIsChangedBehindAnAsynchronousSaveIsNotSaved) {
  Folder folder;
  comm::run_ranks(2, [&](int) {
    Checkpointer checkpoints(folder / "x", {.asynchronous = true});
    constexpr int64_t kRows = 200'000;  // 8 MB
    Value v = state(7, kRows);
    checkpoints.save(1, v);
    NoGradGuard guard;
    for (auto* name : {"a", "b", "local"}) {
      Tensor t = v[name].tensor();
      fill_(t, 8);
    }
    // The ranks' own communication goes on meanwhile.
    for (int i = 0; i < 50; ++i) EXPECT_EQ(v["a"].tensor().sum().full().array().data<int64_t>()[0], 8 * 5 * kRows);
    checkpoints.wait();
    EXPECT_EQ(number_of(checkpoints.load()->value), 7);
  });
}

TEST(Checkpointer, SkipsWhileASaveIsUnderWay) {
  Folder folder;
  std::atomic<int> skipped{0};
  comm::run_ranks(2, [&](int) {
    Checkpointer checkpoints(folder / "x", {.keep = {}, .asynchronous = true, .while_saving = WhileSaving::kSkip});
    const Value v = state(1, 400'000);
    Steps saved;
    for (int64_t step = 0; step < 10; ++step) {
      if (checkpoints.save(step, v))
        saved.push_back(step);
      else
        ++skipped;
    }
    checkpoints.wait();
    EXPECT_EQ(checkpoints.steps(), saved);
    EXPECT_EQ(saved[0], 0);
    EXPECT_TRUE(checkpoints.save(10, v));
  });
  EXPECT_GT(skipped, 0);
  EXPECT_EQ(skipped % 2, 0);  // alike on both ranks
}

TEST(Checkpointer, AFailedSaveIsAnErrorOfTheNext) {
  Folder folder;
  comm::run_ranks(2, [&](int rank) {
    Checkpointer checkpoints(folder / "x", {.asynchronous = true});
    checkpoints.save(1, state(1));
    checkpoints.wait();
    if (rank == 0) write_text(folder / "x" / "step-00000002", "something else");
    comm::barrier();
    checkpoints.save(2, state(2));
    std::string text = error_of([&] { checkpoints.save(3, state(3)); });
    EXPECT_TRUE(contains(text, "step 2 was not saved")) << text;
    EXPECT_TRUE(contains(text, (folder / "x" / "step-00000002").string())) << text;
    EXPECT_EQ(checkpoints.steps(), Steps{1});
    EXPECT_EQ(number_of(checkpoints.load()->value), 1);
    checkpoints.save(2, state(2));
    EXPECT_TRUE(contains(error_of([&] { checkpoints.wait(); }), "step 2 was not saved"));
    checkpoints.wait();  // once
    comm::barrier();
    if (rank == 0) fs::remove(folder / "x" / "step-00000002");
    comm::barrier();
    checkpoints.save(2, state(2));
    EXPECT_EQ(number_of(checkpoints.load()->value), 2);
    // One that is synchronous says the same at once.
    if (rank == 0) write_text(folder / "x" / "step-00000003", "something else");
    comm::barrier();
    Checkpointer other(folder / "x");
    EXPECT_TRUE(contains(error_of([&] { other.save(3, state(3)); }), "step 3 was not saved"));
    EXPECT_EQ(other.steps(), (Steps{1, 2}));
  });
}

TEST(Checkpointer, CollectsWhatDeadSavesHaveLeft) {
  Folder folder;
  comm::run_ranks(2, [&](int) { Checkpointer(folder / "x").save(1, state(1)); });
  const fs::path dead = folder / "x" / "step-00000002", mine = folder / "x" / "step-00000003",
                 alive = folder / "x" / "step-00000004";
  for (auto& path : {dead, mine, alive}) fs::create_directory(path);
  for (auto* name : {"part-0badcafe-0-of-2.safetensors", ".holon-saving-0badcafe", ".holon-tmp-1-0"}) {
    write_text(dead / name, "of a save that has died");
    write_text(folder / "x" / "step-00000001" / name, "of a save that has died");
  }
  write_text(mine / "notes", "mine");
  SaveUnderWay other(alive);
  write_text(alive / part_file(other.id(), 0, 2), "of a save that goes on");
  comm::run_ranks(2, [&](int) { EXPECT_EQ(Checkpointer(folder / "x").steps(), Steps{1}); });
  EXPECT_FALSE(fs::exists(dead));
  EXPECT_TRUE(fs::exists(mine / "notes"));
  EXPECT_TRUE(fs::exists(alive / part_file(other.id(), 0, 2)));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder / "x" / "step-00000001"), {}), 3);
}

TEST(Checkpointer, JobsThatSaveIntoOneFolderAtOnce) {
  Folder folder;
  std::atomic<int> failed{0};
  auto job = [&](int first) {
    comm::run_ranks(2, [&](int) {
      Checkpointer checkpoints(folder / "x", {.keep = 3, .asynchronous = first == 0});
      for (int64_t step = first; step < 12; ++step) try {
          checkpoints.save(step, state(step));
        } catch (const Error& e) {
          ADD_FAILURE() << e.what();
          ++failed;
        }
    });
  };
  std::thread one(job, 0), two(job, 1);
  one.join();
  two.join();
  comm::run_ranks(2, [&](int) {
    Checkpointer checkpoints(folder / "x");
    ASSERT_GE(checkpoints.steps().size(), 1u);
    EXPECT_EQ(checkpoints.latest(), 11);
    for (int64_t step : checkpoints.steps()) EXPECT_EQ(number_of(checkpoints.load(step)->value), step);
  });
}

// A job that samples from the newest checkpoint, while the one that trains removes old ones.
TEST(Checkpointer, WhoReadsTheLatestMeanwhileGetsOneWhole) {
  Folder folder;
  comm::run_ranks(2, [&](int) { Checkpointer(folder / "x").save(0, state(0)); });
  std::atomic<bool> done{false};
  std::thread writer([&] {
    comm::run_ranks(2, [&](int) {
      Checkpointer checkpoints(folder / "x", {.keep = 1, .asynchronous = true});
      for (int64_t step = 1; step <= 30; ++step) checkpoints.save(step, state(step));
    });
    done = true;
  });
  int64_t last = 0;
  for (int reads = 0; !done || reads < 3; ++reads)
    comm::run_ranks(2, [&](int rank) {
      auto found = Checkpointer(folder / "x").load();
      ASSERT_TRUE(found);
      EXPECT_EQ(number_of(found->value), found->step);
      EXPECT_GE(found->step, last);
      comm::barrier();
      if (rank == 0) last = found->step;
    });
  writer.join();
  EXPECT_EQ(last, 30);
}

TEST(Checkpointer, ARankThatFailsMeanwhileEndsTheSave) {
  for (int i = 0; i < 10; ++i) {
    Folder folder;
    comm::run_ranks(2, [&](int) { Checkpointer(folder / "x").save(1, state(1)); });
    EXPECT_EQ(error_of([&] {
                comm::run_ranks(2, [&](int rank) {
                  Checkpointer checkpoints(folder / "x", {.asynchronous = true});
                  checkpoints.save(2, state(2, 10'000));
                  if (rank == 1) fail_value("rank 1 fails");
                  checkpoints.wait();
                  checkpoints.save(3, state(3));
                });
              }),
              "rank 1 fails");
    comm::run_ranks(2, [&](int) {
      auto found = Checkpointer(folder / "x").load();
      EXPECT_EQ(number_of(found->value), found->step);
    });
  }
}

TEST(Checkpointer, OnSeveralHosts) {
  Folder folder;
  const std::vector<int> hosts{0, 0, 1};
  comm::run_ranks(hosts, [&](int rank) {
    Checkpointer checkpoints(folder / "x", {.keep = 2, .asynchronous = true});
    for (int64_t step = 1; step <= 3; ++step) {
      checkpoints.save(step, state(step), rank);
      EXPECT_EQ(full({3}, 1, {.placement = Placement::all("cpu"), .sbp = sbp::split(0)}).sum().full().numel(), 1);
    }
    auto found = checkpoints.load();
    EXPECT_EQ(number_of(found->value), 3);
    EXPECT_EQ(found->own.integer(), rank);
  });
}

class Step : public nn::Graph {
 public:
  Step() : net(4, 3), adam(net.parameters(), {.lr = 0.1}) {
    register_module("net", net);
    add_optimizer(adam);
  }
  std::vector<Tensor> build(TensorList inputs) override {
    Tensor loss = dropout(net(inputs[0]), 0.3).mean();
    loss.backward();
    return {loss};
  }
  nn::Linear net;
  optim::AdamW adam;
};

TEST(Checkpointer, Graphs) {
  Folder folder;
  auto losses = [](Step& step) {
    std::vector<float> out;
    for (int i = 0; i < 5; ++i) out.push_back(step(ones({2, 4}))[0].array().data<float>()[0]);
    return out;
  };
  Step first, second;
  Checkpointer checkpoints(folder / "x");
  losses(first);
  checkpoints.save(5, {{"graph", first.state_dict()}});
  const auto want = losses(first);
  auto found = checkpoints.load();
  second.load_state_dict(found->value["graph"].graph_state());
  found->restore_random_state();
  EXPECT_EQ(losses(second), want);
  EXPECT_NE(want[0], want[4]);
}

// Weights split over two ranks; dropout draws random numbers.
std::vector<float> train(const nn::Linear& model, optim::Optimizer& optimizer, const Tensor& x, int steps) {
  std::vector<float> losses;
  for (int i = 0; i < steps; ++i) {
    Tensor y = dropout(model(x), 0.3);
    Tensor loss = (y * y).mean();
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    loss = loss.is_global() ? loss.full() : loss;
    losses.push_back(loss.array().data<float>()[0]);
  }
  return losses;
}

TEST_P(CheckpointerOnRanks, TrainingGoesOnAsIfItHadNotBeenInterrupted) {
  Folder folder;
  auto [n, asynchronous] = GetParam();
  const CheckpointerOptions options{.asynchronous = asynchronous};
  std::vector<std::vector<float>> losses(2);
  auto run = [&](bool first, int world) {
    comm::run_ranks(world, [&](int rank) {
      manual_seed(first ? 5 : 6);
      auto everywhere = Placement::all("cpu");
      nn::Linear model(8, 6);
      model.to_global(everywhere, sbp::broadcast());
      model.to_global(everywhere, sbp::split(0));
      optim::AdamW adam(model.parameters(), {.lr = 0.1});
      Tensor x = full({4, 8}, 0.5, {.placement = everywhere, .sbp = sbp::broadcast()});
      Checkpointer checkpoints(folder / "run", options);
      if (first) {
        train(model, adam, x, 10);
        checkpoints.save(10, {{"model", model.state_dict()}, {"optimizer", adam.state_dict()}});
      } else {
        auto found = checkpoints.load();
        ASSERT_TRUE(found);
        model.load_state_dict(found->value["model"].state_dict());
        adam.load_state_dict(found->value["optimizer"].optimizer_state());
        found->restore_random_state();
      }
      auto own = train(model, adam, x, 20);
      if (rank == 0) losses[first ? 0 : 1] = own;
    });
  };
  run(true, n);
  run(false, n);
  EXPECT_EQ(losses[0], losses[1]);
  EXPECT_NE(losses[0][0], losses[0][19]);
  run(false, n + 1);  // other numbers may be summed up in another order
  for (size_t i = 0; i < 20; ++i) EXPECT_NEAR(losses[0][i], losses[1][i], 1e-5f + 1e-4f * losses[0][i]);
}

TEST(Verify, FindsWhatIsDamaged) {
  Folder folder;
  comm::run_ranks(2, [&](int) { save(state(1, 20'000), folder / "x"); });
  Verified found = verify(folder / "x");
  EXPECT_EQ(found.files, 2);
  EXPECT_EQ(found.tensors, 3);
  EXPECT_EQ(found.bytes, 2 * 20'000 * 5 * 8 + 3 * 8u);
  EXPECT_EQ(found.unchecked_bytes, 0u);
  save({{"w", ones({100})}}, folder / "file");
  EXPECT_EQ(verify(folder / "file").bytes, 400u);
  EXPECT_TRUE(contains(error_of([&] { verify(folder.path); }), "is a folder without"));
  std::vector<fs::path> files;
  for (auto& entry : fs::directory_iterator(folder / "x")) files.push_back(entry.path());
  for (auto& file : files) {
    const std::string text = read_text(file);
    const bool index = file.filename() == kIndexFile;
    for (size_t at : {text.size() - 1, text.size() / 2, size_t{20}}) {
      std::string damaged = text;
      damaged[at] = static_cast<char>(damaged[at] ^ 4);
      write_text(file, damaged);
      const std::string error = error_of([&] { verify(folder / "x"); });
      EXPECT_TRUE(contains(error, file.string())) << error << " at " << at;
      if (!index && at > 20) {
        EXPECT_TRUE(contains(error, "'a'") || contains(error, "'b'") || contains(error, "'local'")) << error;
      }
    }
    write_text(file, text.substr(0, text.size() / 2));
    EXPECT_TRUE(contains(error_of([&] { verify(folder / "x"); }), file.string()));
    fs::remove(file);
    EXPECT_NE(error_of([&] { verify(folder / "x"); }), "no error");
    write_text(file, text);
  }
  EXPECT_EQ(verify(folder / "x").files, 2);
}

}  // namespace
}  // namespace holon::checkpoint
