// Programs on one rank and on several, as threads of this process: what is found, and that nothing is found.
// tests/python/test_check.py has whole programs, with their lines.
#include "holon/verify/report.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <functional>

#include "error_of.h"
#include "holon/base/context.h"
#include "holon/base/fmt.h"
#include "holon/comm/run_ranks.h"
#include "holon/dispatch/random_state.h"
#include "holon/ops/activation.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/create.h"
#include "holon/ops/matmul.h"
#include "holon/ops/random.h"
#include "holon/ops/reduce.h"
#include "holon/ops/to_global.h"
#include "holon/ops/unary.h"
#include "holon/optim/clip.h"
#include "holon/optim/optimizer.h"
#include "holon/verify/recorder.h"

namespace holon::verify {
namespace {

namespace fs = std::filesystem;

class CheckTest : public testing::Test {
 protected:
  void SetUp() override { fs::create_directory(folder_); }
  void TearDown() override { fs::remove_all(folder_); }

  std::vector<std::string> record(int ranks, const std::function<void()>& program, uint64_t perturbation = 0) {
    const std::string run = (folder_ / std::to_string(runs_++)).string();
    std::vector<std::string> paths;
    for (int r = 0; r < ranks; ++r) paths.push_back(fmt::format("{}-{}", run, r));
    try {
      comm::run_ranks(ranks, [&](int rank) {
        manual_seed(7);
        Recorder recorder(paths[static_cast<size_t>(rank)], {.perturbation = perturbation});
        try {
          program();
          recorder.end("");
        } catch (const Error& e) {
          recorder.end(e.what());
          throw;
        }
      });
    } catch (const Error&) {
    }
    return paths;
  }

  Report check(int ranks, const std::function<void()>& program) {
    const auto one = record(1, program), rounded = record(1, program, 3), several = record(ranks, program);
    return check_recordings(one[0], rounded, several);
  }

  std::string kind(int ranks, const std::function<void()>& program) {
    const Report r = check(ranks, program);
    return r.fault ? std::string(name(r.fault->kind)) : r.compared > 0 ? "none" : "nothing";
  }

 private:
  const fs::path folder_ = fs::temp_directory_path() / fmt::format("holon_check_{}", getpid());
  int runs_ = 0;
};

Placement everyone() { return Placement::all("cpu"); }
int rank() { return Context::current().rank(); }
int world() { return Context::current().world_size(); }
Tensor rows(int64_t n, int64_t k, Sbp sbp, bool grad = false) {
  return randn({n, k}, {.placement = everyone(), .sbp = sbp, .requires_grad = grad});
}

void train(const std::function<void(Tensor& w)>& before_step) {
  Tensor w = rows(6, 4, sbp::broadcast(), true);
  optim::Adam adam({w}, {.lr = 0.01});
  for (int i = 0; i < 3; ++i) {
    adam.zero_grad();
    square(matmul(rows(8, 6, sbp::split(0)), w)).mean().backward();
    before_step(w);
    adam.step();
  }
}

TEST_F(CheckTest, FindsNothingInASoundProgram) {
  auto program = [] {
    train([](Tensor& w) { optim::clip_grad_norm_({w}, 0.1); });
    Tensor y = matmul(rows(5, 8, sbp::split(1)), rows(8, 3, sbp::split(0)));  // partial
    y.full();
  };
  for (int ranks : {2, 3, 4})
    EXPECT_EQ(check(ranks, program).fault.has_value() ? check(ranks, program).fault->str() : "", "");
}

TEST_F(CheckTest, TellsWrongScales) {
  const Report r = check(2, [] { train([](Tensor& w) { w.grad() *= Scalar(world()); }); });
  ASSERT_TRUE(r.fault);
  EXPECT_EQ(name(r.fault->kind), "wrong scale");
  EXPECT_NE(r.fault->what.find("2 times, the number of ranks"), std::string::npos) << r.fault->what;
}

TEST_F(CheckTest, TellsMissingAndDoubleSums) {
  auto addends = [] { return matmul(rows(5, 8, sbp::split(1)), rows(8, 3, sbp::split(0))).to_local(); };
  EXPECT_EQ(kind(2, [&] { addends().to_global(everyone(), sbp::broadcast()).full(); }), "missing sum");
  EXPECT_EQ(kind(2, [&] { addends().to_global(everyone(), sbp::partial_sum()).full(); }), "none");
  EXPECT_EQ(kind(2, [&] { relu(addends()).to_global(everyone(), sbp::partial_sum()).full(); }), "missing sum");
  EXPECT_EQ(kind(3,
                 [&] {
                   Tensor whole = rows(4, 4, sbp::broadcast()).to_local();
                   whole.to_global(everyone(), sbp::partial_sum()).full();
                 }),
            "sum twice");
}

TEST_F(CheckTest, TellsWhatTypesCannot) {
  EXPECT_EQ(kind(2,
                 [] {
                   Tensor p = exp(rows(4, 6, sbp::split(1)));
                   Tensor part = p.to_local();
                   (part / sum(part, Dims{1}, true)).to_global(everyone(), sbp::split(1)).full();
                 }),
            "missing sum");
  EXPECT_EQ(kind(2,
                 [] {
                   Tensor w = rows(4, 4, sbp::broadcast());
                   if (rank() == 1) w.to_local() += Scalar(1);
                   (w * Scalar(2)).full();
                 }),
            "rank-dependent branch");
  EXPECT_EQ(kind(2,
                 [] {
                   Tensor w = rows(4, 4, sbp::broadcast());
                   w.to_local() += Scalar(rank());
                   (w * Scalar(2)).full();
                 }),
            "drifted replicas");
  EXPECT_EQ(kind(2,
                 [] {
                   manual_seed(static_cast<uint64_t>(rank()));
                   Tensor noise = randn({4, 6});
                   Tensor x = rows(4, 6, sbp::split(1));
                   (x.to_local() +
                    noise.to_global(everyone(), sbp::broadcast())
                        .to_local()[{indexing::Slice(), indexing::Slice(0, 6 / world())}])
                       .to_global(everyone(), sbp::split(1))
                       .full();
                 }),
            "wrong slice");
}

TEST_F(CheckTest, RanksThatPartAreNamed) {
  const Report r = check(2, [] {
    Tensor x = rows(4, 4, sbp::split(0));
    if (rank() == 1) (x * Scalar(2)).full();
    x.sum().full();
  });
  ASSERT_TRUE(r.fault);
  EXPECT_FALSE(r.is_sound());
}

TEST_F(CheckTest, WantsAProgramThatRunsOnOneRank) {
  EXPECT_NE(error_of([&] { check(2, [] { fail_value("not today"); }); }).find("not today"), std::string::npos);
  EXPECT_FALSE(check(2, [] {}).is_sound());
}

}  // namespace
}  // namespace holon::verify
