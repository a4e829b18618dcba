#include "holon/checkpoint/formats/saving.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "checkpoint/folder.h"
#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/checkpoint/checkpoint.h"
#include "holon/checkpoint/core/world.h"
#include "holon/checkpoint/formats/folder.h"
#include "holon/comm/run_ranks.h"
#include "holon/ops/create.h"
#include "holon/ops/shape.h"
#include "tests/cpp/error_of.h"

namespace holon::checkpoint {
namespace {

namespace fs = std::filesystem;

size_t files_in(const fs::path& folder) {
  return static_cast<size_t>(std::distance(fs::directory_iterator(folder), {}));
}

// All elements are `value`. Pre: called by every rank of a world.
Value state(int value) {
  return {{"a", full({9, 5}, value, {.placement = Placement::all("cpu"), .sbp = sbp::split(0)})},
          {"b", full({9, 5}, value, {.placement = Placement::all("cpu"), .sbp = sbp::split(1)})},
          {"step", value}};
}

// The value of a state that is whole; -1: of one that is mixed.
int value_of(const Value& found) {
  const auto step = static_cast<int>(found["step"].integer());
  for (auto* name : {"a", "b"}) {
    Tensor t = found[name].tensor();
    t = contiguous(t.is_global() ? t.full() : t).to(int64);
    for (int64_t i = 0; i < t.numel(); ++i)
      if (t.array().data<int64_t>()[i] != step) return -1;
  }
  return step;
}

TEST(Saving, SweepsWhatNobodyNeeds) {
  Folder folder;
  comm::run_ranks(2, [&](int) { save(state(1), folder / "x"); });
  ASSERT_EQ(files_in(folder / "x"), 3u);
  for (auto* name : {"part-0badcafe-0-of-2.safetensors", "part-0badcafe-1-of-2.safetensors", ".holon-saving-0badcafe",
                     ".holon-tmp-1-0"})
    write_text(folder / "x" / name, "of a save that has died");
  // What looks alike is the user's.
  for (auto* name : {"part-1.safetensors", "part-x-0-of-2.safetensors", "part-0badcafe-0-of-2.txt", "notes"})
    write_text(folder / "x" / name, "mine");
  SaveUnderWay other(folder / "x");
  write_text(folder / "x" / part_file(other.id(), 0, 2), "of a save that goes on");
  sweep(folder / "x");
  EXPECT_EQ(files_in(folder / "x"), 3u + 4 + 2);
  EXPECT_TRUE(fs::exists(folder / "x" / part_file(other.id(), 0, 2)));
  EXPECT_EQ(value_of(load(folder / "x", {.device = Device()})), 1);
  // Where the index cannot be read, nobody knows what it names.
  write_text(folder / "x" / kIndexFile, "{");
  sweep(folder / "x");
  EXPECT_EQ(files_in(folder / "x"), 3u + 4 + 2);
}

TEST(Saving, JobsThatSaveAtOnceLeaveTheStateOfOne) {
  Folder folder;
  std::atomic<int> failed{0};
  auto job = [&](int from) {
    comm::run_ranks(2, [&](int) {
      for (int i = 0; i < 4; ++i) try {
          save(state(from + i), folder / "x");
        } catch (const Error& e) {
          ADD_FAILURE() << e.what();
          ++failed;
        }
    });
  };
  std::thread first(job, 100), second(job, 200);
  first.join();
  second.join();
  int found = value_of(load(folder / "x", {.device = Device()}));
  EXPECT_TRUE(found == 103 || found == 203) << found;
  job(300);
  EXPECT_EQ(files_in(folder / "x"), 3u);
}

TEST(Saving, WhoReadsMeanwhileGetsOneStateWhole) {
  Folder folder;
  comm::run_ranks(2, [&](int) { save(state(0), folder / "x"); });
  std::atomic<bool> done{false};
  std::thread writer([&] {
    comm::run_ranks(2, [&](int) {
      for (int i = 1; i <= 10; ++i) save(state(i), folder / "x");
    });
    done = true;
  });
  int reads = 0;
  while (!done || reads < 3) {
    comm::run_ranks(2, [&](int) {
      EXPECT_GE(value_of(load(folder / "x")), 0);
      EXPECT_GE(value_of(load(folder / "x", {.global_src_rank = 1})), 0);
      EXPECT_GE(value_of(load(folder / "x", {.device = Device()})), 0);
    });
    ++reads;
  }
  writer.join();
  EXPECT_EQ(value_of(load(folder / "x", {.device = Device()})), 10);
}

TEST(Saving, APartThatIsGoneWithItsIndexIsSuperseded) {
  Folder folder;
  auto save_as = [&](int value) { comm::run_ranks(2, [&](int) { save(state(value), folder / "x"); }); };
  save_as(1);
  FolderReader reader(folder / "x");
  save_as(2);
  EXPECT_THROW(reader.read("a"), Superseded);
  FolderReader damaged(folder / "x");
  for (auto& entry : fs::directory_iterator(folder / "x"))
    if (entry.path().string().find("-1-of-2") != std::string::npos) fs::remove(entry.path());
  try {
    damaged.read("a");
    ADD_FAILURE();
  } catch (const Superseded&) {
    ADD_FAILURE() << "the index is the same";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("cannot open"), std::string::npos);
  }
}

// A process has few descriptors; a folder has as many parts as there were ranks.
TEST(Saving, AFolderOfManyPartsIsReadWithFewOpen) {
  Folder folder;
  fs::create_directory(folder / "x");
  constexpr int kParts = 200;
  Index index{R"({"tensor":"t"})", {}, {}, {}};
  IndexEntry entry{int64, {kParts, 2}, {}, {}};
  for (int i = 0; i < kParts; ++i) {
    const std::string name = part_file("0", i, kParts);
    SafetensorsWriter writer(folder / "x" / name, {{"t", int64, {1, 2}, 0, 0}}, {}, true);
    writer.write(full({1, 2}, i).to(int64).array());
    index.files[name] = writer.commit();
    entry.parts.push_back({name, {i, 0}, {1, 2}});
  }
  index.tensors["t"] = entry;
  write_text(folder / "x" / kIndexFile, index_text(index));
  auto open_now = [] { return std::distance(fs::directory_iterator("/proc/self/fd"), {}); };
  const auto before = open_now();
  FolderReader reader(folder / "x");
  for (int i = 0; i < 2; ++i) {
    Array found = reader.read("t");
    for (int64_t k = 0; k < 2 * kParts; ++k) EXPECT_EQ(found.data<int64_t>()[k], k / 2);
  }
  EXPECT_LT(open_now() - before, 100);
}

// What one rank's disk takes counts for nobody. (The world reads its time-out when it is made.)
TEST(Together, WaitsForFilesLongerThanForCollectives) {
  ASSERT_EQ(::setenv("HOLON_COMM_TIMEOUT_S", "8", 1), 0);
  std::atomic<int> ended{0};
  comm::run_ranks(3, [&](int rank) {
    together("save", [&] {
      if (rank == 1) run_io(SIZE_MAX, [] { std::this_thread::sleep_for(std::chrono::seconds(10)); });
    });
    ++ended;
  });
  EXPECT_EQ(ended, 3);
  ::unsetenv("HOLON_COMM_TIMEOUT_S");
}

TEST(Together, AFailureEndsTheStepsThatGoOn) {
  std::atomic<int> stopped{0};
  comm::run_ranks(3, [&](int rank) {
    const std::string text = error_of([&] {
      together("save", [&] {
        if (rank == 2) fail_value("the disk is full");
        // Ends before the ten minutes are over.
        for (int i = 0; i < 6000; ++i)
          run_io(SIZE_MAX, [] { std::this_thread::sleep_for(std::chrono::milliseconds(100)); });
      });
    });
    EXPECT_EQ(text, "save: rank 2: the disk is full");
    ++stopped;
    // The world goes on.
    EXPECT_EQ(results_together("save", [&] { return std::to_string(rank); })[1], "1");
  });
  EXPECT_EQ(stopped, 3);
}

TEST(Together, WhatFilesThrowIsEverybodys) {
  comm::run_ranks(2, [&](int rank) {
    EXPECT_EQ(error_of([&] {
                together("load", [&] {
                  if (rank == 1) run_io(SIZE_MAX, [] { fail_runtime("no such file"); });
                });
              }),
              "load: rank 1: no such file");
    EXPECT_THROW(together("load",
                          [&] {
                            if (rank == 0) throw Superseded(ErrorKind::kRuntime, "another index");
                          }),
                 Superseded);
  });
}

}  // namespace
}  // namespace holon::checkpoint
