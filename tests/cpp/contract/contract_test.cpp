// Contracts of programs: recorded, kept, and broken.
#include "holon/contract/contract.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "../error_of.h"
#include "holon/base/context.h"
#include "holon/base/fmt.h"
#include "holon/comm/core/communicator.h"
#include "holon/comm/run_ranks.h"
#include "holon/contract/cost.h"
#include "holon/cost/machine.h"
#include "holon/dispatch/record.h"
#include "holon/graph/virtual_rank.h"
#include "holon/ops/activation.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/create.h"
#include "holon/ops/matmul.h"
#include "holon/ops/reduce.h"
#include "holon/ops/to_global.h"
#include "holon/optim/optimizer.h"

namespace holon::contract {
namespace {

using sbp::broadcast;
using sbp::split;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class ContractTest : public testing::Test {
 protected:
  ContractTest() : file_(std::filesystem::temp_directory_path() / fmt::format("contract-{}.txt", getpid())) {}
  ~ContractTest() override { std::filesystem::remove(file_); }

  std::string text() const {
    std::ifstream in(file_);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void rewrite(const std::string& from, const std::string& to) const {
    std::string t = text();
    const size_t at = t.find(from);
    ASSERT_NE(at, std::string::npos) << t;
    t.replace(at, from.size(), to);
    std::ofstream(file_) << t;
  }

  std::string file_;
};

// A line of the program, as a host language would tell it.
void line(const char* text) { set_line(text); }

struct Program {
  int steps = 3;
  int64_t rows = 8;
  bool extra = false, twice = false, less = false, log_last = false;
  int extra_first = 1, extra_last = 1;  // steps

  double operator()() const {
    const Placement p("cpu", {0, 1, 2, 3});
    line("build");
    auto made = [&](const Dims& shape, const NdSbp& sbp, double scale) {
      Tensor x = ones(shape, {.placement = p, .sbp = sbp}) * Scalar(scale);
      return x.detach();
    };
    Tensor up = made({16, 8}, split(1), 0.1).set_requires_grad(),
           down = made({8, 16}, split(1), 0.2).set_requires_grad();
    optim::SGD sgd({up, down}, {.lr = 0.1});
    double loss_value = 0;
    for (int step = 0; step < steps; ++step) {
      Tensor x = made({rows, 16}, split(0), 0.5);
      line("x @ up");
      Tensor y = relu(matmul(x, up));
      line("y @ down");
      Tensor z = matmul(y, down);
      if (extra && step >= extra_first && step <= extra_last) {
        line("planted");
        z = z.to_global(p, broadcast());
      }
      line("loss");
      Tensor loss = mean(z * z);
      line("backward");
      if (!less || step != 1) loss.backward();
      line("step");
      sgd.step();
      sgd.zero_grad();
      if (twice && step == 1) {
        line("x @ up");
        matmul(x, up);
      }
      if (log_last && step + 1 == steps) {
        line("log");
        loss_value = loss.item().as_double();
      }
    }
    line("");
    return loss_value;
  }
};

TEST_F(ContractTest, AReplayIsTheSameStepWithoutThePlanner) {
  const Program program{.log_last = true};
  comm::run_ranks(4, [&](int) {
    double loss = 0;
    {
      Guard record(file_, Mode::kRecord);
      loss = program();
    }
    comm::CommStats before = comm::stats();
    const int64_t planned = boxing::planner_calls();
    {
      Guard replay(file_);
      EXPECT_TRUE(is_replaying());
      EXPECT_EQ(program(), loss);
      EXPECT_EQ(boxing::planner_calls(), planned);
    }
    EXPECT_FALSE(is_watching());
    EXPECT_GT(comm::stats().bytes_read, before.bytes_read);
  });
  EXPECT_THAT(text(),
              AllOf(HasSubstr("== start  -  -  step"), HasSubstr("== step  -  -  step  # 2 recorded"),
                    HasSubstr("-  -  x @ up\n  x1 "), HasSubstr("backward of relu: "), HasSubstr("== end")));
}

TEST_F(ContractTest, BytesAreThoseOfTheTransport) {
  for (int steps : {1, 4}) {
    uint64_t read = 0;
    std::vector<uint64_t> of_rank(4);
    comm::run_ranks(4, [&](int rank) {
      machine();
      Guard record(file_, Mode::kRecord);
      const uint64_t before = comm::stats().bytes_read;
      Program{.steps = steps, .log_last = true}();
      at_index(of_rank, rank) = comm::stats().bytes_read - before;
    });
    for (uint64_t b : of_rank) read += b;
    uint64_t written = 0;
    for (const Section& s : read_document(file_).sections)
      for (const Lines& l : s.lines)
        for (const Entry& e : l.entries) {
          EXPECT_EQ(e.least, e.most);
          written += static_cast<uint64_t>(e.all_bytes * e.most * s.times);
        }
    EXPECT_EQ(written, read);
    EXPECT_GT(read, 0u);
  }
}

TEST_F(ContractTest, ItIsTheSameHoweverOftenItIsRecorded) {
  std::string first;
  for (int i = 0; i < 2; ++i) {
    comm::run_ranks(4, [&](int) {
      set_machine({});
      Guard record(file_, Mode::kRecord);
      Program{}();
    });
    if (i == 0) first = text();
  }
  EXPECT_EQ(text(), first);
  EXPECT_EQ(read_document(file_).str(), first);
}

TEST_F(ContractTest, WithoutValuesItIsTheSame) {
  comm::run_ranks(4, [&](int) {
    set_machine({});
    Guard record(file_, Mode::kRecord);
    Program{.extra = true}();
  });
  const std::string real = text();
  std::filesystem::remove(file_);
  {
    const graph::VirtualRank rank(0, 4);
    set_machine({});
    Guard record(file_, Mode::kRecordAlone);
    Program{.extra = true}();
  }
  EXPECT_EQ(text(), real);
  std::filesystem::remove(file_);
  {
    const graph::VirtualRank rank(0, 4);
    EXPECT_THAT(error_of([&] {
                  Guard record(file_, Mode::kRecordAlone);
                  Program{.log_last = true}();
                }),
                AllOf(HasSubstr("item: the tensor float32 [] has a shape and no value"),
                      HasSubstr("one of a world that is not there")));
    EXPECT_THAT(error_of([] { comm::barrier(); }), HasSubstr("has no other ranks to communicate with"));
    line("");
  }
  EXPECT_FALSE(std::filesystem::exists(file_));
}

TEST_F(ContractTest, DeviationsAreToldOnEveryRankAlike) {
  comm::run_ranks(4, [&](int) {
    Guard record(file_, Mode::kRecord);
    Program{}();
  });
  auto told = [&](const Program& program) {
    std::vector<std::string> texts(4);
    comm::run_ranks(4, [&](int rank) {
      at_index(texts, rank) = error_of([&] {
        Guard replay(file_);
        program();
      });
      line("");
      // Nothing is in force any more, and the ranks still communicate.
      EXPECT_EQ(Program{.log_last = true}() > 0, true);
    });
    for (auto& t : texts) EXPECT_EQ(t, texts[0]);
    return texts[0];
  };
  EXPECT_EQ(told({}), "no error");
  EXPECT_THAT(told({.extra = true}),
              AllOf(HasSubstr("planted moves data that is not in the contract"), HasSubstr("nothing on this line"),
                    HasSubstr("one more to_global"), HasSubstr("bytes before")));
  EXPECT_THAT(told({.twice = true}), AllOf(HasSubstr("x @ up"), HasSubstr("more often"), HasSubstr("x2")));
  EXPECT_THAT(told({.less = true}), AllOf(HasSubstr("backward moves less"), HasSubstr("of it left out")));
  EXPECT_THAT(told({.rows = 16}),
              AllOf(HasSubstr("x @ up"), HasSubstr("2 times the elements"), HasSubstr("bytes more each time")));
  // What only the first step may do, a later one may not.
  const Program once{.extra = true, .extra_first = 0, .extra_last = 0};
  comm::run_ranks(4, [&](int) {
    Guard record(file_, Mode::kRecord);
    once();
  });
  EXPECT_EQ(told(once), "no error");
  EXPECT_THAT(told({.extra = true, .extra_first = 0}),
              AllOf(HasSubstr("x1 in start"), HasSubstr("it is in another part of the program")));
  comm::run_ranks(4, [&](int) {
    Guard record(file_, Mode::kRecord);
    Program{}();
  });
  // A program that goes on for longer does the same in each step.
  EXPECT_EQ(told({.steps = 7}), "no error");
  EXPECT_THAT(told({.log_last = true}), HasSubstr("log moves data that is not in the contract"));
}

TEST_F(ContractTest, TheFilesPathsAndLayoutsAreTaken) {
  // A tensor that all ranks hold as addends: the planner of a machine without latency sums in one phase or two.
  auto program = [] {
    const Placement p("cpu", {0, 1, 2, 3});
    line("sum");
    Tensor x = ones({1 << 20}, {.placement = p, .sbp = sbp::partial_sum()});
    x.to_global(p, broadcast());
  };
  comm::run_ranks(4, [&](int) {
    set_machine({});
    Guard record(file_, Mode::kRecord);
    program();
  });
  const Document d = read_document(file_);
  const bool two_phase = d.sections.at(0).lines.at(0).entries.at(0).path.at(0).two_phase;
  ASSERT_TRUE(two_phase);
  rewrite("all_reduce in two phases", "all_reduce");
  comm::run_ranks(4, [&](int) {
    EXPECT_THAT(error_of([&] {
                  Guard replay(file_);
                  program();
                }),
                HasSubstr("but the path that it names reads most"));
  });
  rewrite("most 6291456, all 25165824 bytes", "most 12582912, all 50331648 bytes");
  comm::run_ranks(4, [&](int) {
    Guard replay(file_);
    const uint64_t before = comm::stats().bytes_read;
    program();
    EXPECT_EQ(comm::stats().bytes_read - before, 3u * (1 << 20) * 4);
  });
}

TEST_F(ContractTest, AnotherWorldIsRefused) {
  comm::run_ranks(2, [&](int) { Guard(file_, Mode::kRecord).end(); });
  comm::run_ranks(3, [&](int) {
    EXPECT_THAT(value_error_of([&] { Guard replay(file_); }), HasSubstr("it is of 2 ranks, and this world has 3"));
  });
  EXPECT_THAT(value_error_of([] { read_document("/nowhere/c"); }), HasSubstr("cannot be read"));
}

TEST_F(ContractTest, RanksThatDoOtherThingsAreToldWhenItIsRecorded) {
  comm::run_ranks(2, [&](int rank) {
    EXPECT_THAT(error_of([&] {
                  Guard record(file_, Mode::kRecord);
                  line(rank == 0 ? "here" : "there");
                  const Placement p("cpu", {0, 1});
                  ones({4}, {.placement = p, .sbp = split(0)}).to_global(p, broadcast());
                }),
                HasSubstr("rank 1 has recorded other boxings than rank 0"));
  });
  EXPECT_FALSE(std::filesystem::exists(file_));
}

TEST_F(ContractTest, CostsAndDiffsAreTold) {
  comm::run_ranks(4, [&](int) {
    set_machine({});
    Guard record(file_, Mode::kRecord);
    Program{}();
  });
  const Document a = read_document(file_);
  comm::run_ranks(4, [&](int) {
    set_machine({});
    Guard record(file_, Mode::kRecord);
    Program{.rows = 16}();
  });
  const Document b = read_document(file_);
  EXPECT_EQ(diff_text(a, a), "");
  EXPECT_THAT(diff_text(a, b),
              AllOf(HasSubstr("x @ up"), HasSubstr("[8, 16]"), HasSubstr("[16, 16]"), HasSubstr("2 times the elements"),
                    HasSubstr("read by all ranks")));
  const std::string one = cost_text(a, {parse_costs(a.machine, {}), {}});
  EXPECT_THAT(one, AllOf(HasSubstr("== step  -  -  step: "), HasSubstr("x @ up"), Not(HasSubstr("another path"))));
  const std::string two = cost_text(a, {parse_costs("net=1e6", parse_costs(a.machine, {})), spread_over(4, 2)});
  EXPECT_NE(one, two);
  EXPECT_THAT(error_of([] { spread_over(2, 3); }), HasSubstr("3 hosts for 2 ranks"));
}

}  // namespace
}  // namespace holon::contract
