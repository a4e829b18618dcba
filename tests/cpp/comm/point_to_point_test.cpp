// What a transfer is between ranks, without boxing. (tests/cpp/boxing/point_to_point_test.cpp has values, failures and
// hosts.)
#include "holon/comm/point_to_point.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/comm/device/link_mail.h"
#include "holon/comm/run_ranks.h"
#include "tests/cpp/comm/messages.h"

namespace holon::comm {
namespace {

using test::messages;

// Every receiver gets all that each sender shows: count elements of each, one sender after the other.
PullsOf all_of(int senders, int64_t count) {
  return [=](int) {
    std::vector<Pull> pulls;
    for (int g = 0; g < senders; ++g) pulls.push_back(row_pull({g}, 0, g * count, count));
    return pulls;
  };
}

struct Line {
  PointToPoint h;
  std::vector<int64_t> in, out;
  Line(const std::vector<int>& senders, const std::vector<int>& receivers, int number, int64_t count)
      : h(senders, receivers, number, int64, all_of(static_cast<int>(senders.size()), count)),
        in(static_cast<size_t>(count)),
        out(senders.size() * in.size()) {}
  CallInfo info() const { return {"hand over", int64, {static_cast<int64_t>(in.size())}}; }
  void send(int64_t value) {
    h.release();
    std::iota(in.begin(), in.end(), value);
    h.send(info(), in.data(), in.size() * sizeof(int64_t));
  }
  // The first element of each sender.
  std::vector<int64_t> receive() {
    h.receive(info(), out.data(), out.size() * sizeof(int64_t));
    std::vector<int64_t> firsts;
    for (size_t i = 0; i < out.size(); i += in.size()) firsts.push_back(out[i]);
    return firsts;
  }
};

using Values = std::vector<int64_t>;

// The same ranks and the same number, but other senders.
TEST(PointToPoint, SendersAndReceiversTellObjectsApart) {
  for (int64_t count : {3, 3000})
    run_ranks(3, [&](int rank) {
      Line one({0}, {1, 2}, 0, count), two({0, 1}, {2}, 0, count), back({2}, {0, 1}, 0, count);
      for (int64_t i = 0; i < 50; ++i) {
        if (rank == 0) one.send(1000 * i);
        if (rank < 2) two.send(1000 * i + 100 * (rank + 1));
        if (rank == 2) {
          EXPECT_EQ(two.receive(), (Values{1000 * i + 100, 1000 * i + 200}));
          EXPECT_EQ(one.receive(), Values{1000 * i});
          back.send(-i);
        }
        if (rank == 1) {
          EXPECT_EQ(one.receive(), Values{1000 * i});
        }
        if (rank < 2) {
          EXPECT_EQ(back.receive(), Values{-i});
        }
      }
      for (Line* line : {&one, &two, &back}) line->h.release();
    });
}

TEST(PointToPoint, EveryKeyIsAnother) {
  run_ranks(4, [&](int rank) {
    for (int64_t i = 0; i < 3; ++i) {
      std::vector<std::unique_ptr<Line>> lines;
      const std::vector<int> all = {0, 1, 2, 3};
      for (int split = 1; split < 4; ++split)
        for (int number = 0; number < 8; ++number)
          lines.push_back(std::make_unique<Line>(std::vector<int>(all.begin(), all.begin() + split),
                                                 std::vector<int>(all.begin() + split, all.end()), number, 4));
      for (size_t k = 0; k < lines.size(); ++k) lines[k]->send(1000 * static_cast<int64_t>(k) + rank);
      for (size_t k = 0; k < lines.size(); ++k) {
        Values expected;
        for (int g = 0; g <= static_cast<int>(k) / 8; ++g) expected.push_back(1000 * static_cast<int64_t>(k) + g);
        if (rank > static_cast<int>(k) / 8) {
          EXPECT_EQ(lines[k]->receive(), expected) << k;
        }
      }
    }
  });
}

TEST(PointToPoint, ALaterObjectGoesOnWhereTheFirstOneEnded) {
  for (int64_t count : {3, 3000})
    run_ranks(2, [&](int rank) {
      for (int64_t object = 0; object < 20; ++object) {
        Line line({1}, {0}, 4, count);
        for (int64_t i = 0; i < 1 + object % 3; ++i) {
          if (rank == 1) line.send(object * 10 + i);
          if (rank == 0) {
            EXPECT_EQ(line.receive(), Values{object * 10 + i});
          }
        }
        line.h.release();
      }
    });
}

// A sender may be two small sends ahead, and then waits for the first.
TEST(PointToPoint, SmallPostsStayUntilTheyAreTaken) {
  run_ranks(2, [&](int rank) {
    Line line({0}, {1}, 0, 2);
    for (int64_t i = 0; i < 2000; ++i) {
      if (rank == 0) line.send(i);
      if (rank == 1) {
        ASSERT_EQ(line.receive(), Values{i});
      }
    }
  });
}

// Two senders, two receivers: each send says for each receiver whether its data is there, or goes another way.
TEST(PointToPoint, APostTellsOfOtherWays) {
  for (const bool hosts : {false, true})
    for (int64_t count : {3, 3000}) {
      auto check = [&](int rank) {
        PointToPoint h({0, 1}, {2, 3}, 0, int64, all_of(2, count), true);
        const CallInfo info{"hand over", int64, {count}};
        const auto n = static_cast<size_t>(count), bytes = n * sizeof(int64_t);
        std::vector<int64_t> in(n), out(2 * n);
        for (uint64_t round = 1; round < 40; ++round) {
          auto way = [&](uint64_t sender, uint64_t receiver) {
            return (round + sender * 2 + receiver) % 3 == 0 ? 100 * round + 10 * sender + receiver : 0;
          };
          if (rank < 2) {
            h.release();
            const auto sender = static_cast<uint64_t>(rank);
            std::fill(in.begin(), in.end(), static_cast<int64_t>(round * 10 + sender));
            ASSERT_EQ(std::vector<int>(h.readers().begin(), h.readers().end()), (std::vector<int>{0, 1}));
            const std::vector<uint64_t> ways{way(sender, 0), way(sender, 1)};
            const bool shown = !ways[0] || !ways[1];
            h.send(info, shown ? in.data() : nullptr, shown ? bytes : 0, ways);
            continue;
          }
          const auto receiver = static_cast<uint64_t>(rank - 2);
          std::fill(out.begin(), out.end(), -1);
          std::vector<uint64_t> ways(2);
          h.receive(info, out.data(), 2 * bytes, ways);
          for (uint64_t g = 0; g < 2; ++g) {
            ASSERT_EQ(ways[g], way(g, receiver));
            const int64_t expected = ways[g] ? -1 : static_cast<int64_t>(round * 10 + g);
            for (size_t i = 0; i < n; ++i) ASSERT_EQ(out[g * n + i], expected) << round;
          }
        }
        h.release();
      };
      if (hosts)
        run_ranks(std::vector<int>{0, 0, 0, 1}, check);
      else
        run_ranks(4, check);
    }
}

TEST(LinkMail, CardsAndSizesArrive) {
  for (const auto& hosts : {std::vector<int>{0, 0}, {0, 1}})
    run_ranks(hosts, [](int rank) {
      auto never = [] { return std::string(); };
      auto mail = make_link_mail(world(), 1, 0, 0);
      for (int round = 0; round < 2; ++round) {
        std::vector<char> mine(LinkMail::kCardBytes, static_cast<char>(10 * round + rank)), theirs(mine.size());
        mail->exchange(round, mine.data(), theirs.data(), never);
        EXPECT_EQ(theirs, std::vector<char>(mine.size(), static_cast<char>(10 * round + 1 - rank)));
      }
      // As many as are told of at once on one host, and more.
      const std::array<int, 2> both{0, 1};
      for (uint64_t n = 1; n <= 1500; n += 500) {
        for (uint64_t i = n; rank == 1 && i < n + 500; ++i) {
          ASSERT_TRUE(mail->has_room(i));
          mail->tell_size(i, 7 * i);
          mail->note_done(n - 1);
        }
        communicator(both).barrier();
        for (uint64_t i = n; rank == 0 && i < n + 500; ++i) ASSERT_EQ(mail->size_of(i, never), 7 * i);
        communicator(both).barrier();
      }
    });
  run_ranks(2, [](int rank) {
    auto mail = make_link_mail(world(), 0, 1, 1);
    if (rank == 1) return;
    EXPECT_FALSE(mail->has_room(Communicator::kInlineBytes / sizeof(uint64_t) + 1));
    std::vector<char> card(LinkMail::kCardBytes);
    EXPECT_THROW(mail->exchange(0, card.data(), card.data(), [] { return std::string("enough"); }), Error);
  });
}

TEST(PointToPoint, OutlivesTheRank) {
  std::vector<std::unique_ptr<Line>> lines(2);
  run_ranks(2, [&](int rank) {
    auto& line = lines[static_cast<size_t>(rank)];
    line = std::make_unique<Line>(std::vector<int>{0}, std::vector<int>{1}, 0, 5000);
    if (rank == 0) line->send(7);
    if (rank == 1) {
      EXPECT_EQ(line->receive(), Values{7});
    }
    line->h.release();
  });
}

TEST(PointToPoint, RanksOutsideDoNothing) {
  run_ranks(3, [&](int rank) {
    Line line({0}, {1}, 0, 5000);
    line.send(5);
    if (rank == 1) {
      EXPECT_EQ(line.receive(), Values{5});
    }
    if (rank == 2) {
      EXPECT_EQ(line.receive(), Values{0});
    }
    line.h.release();
    EXPECT_TRUE(line.h.try_release());
  });
}

TEST(PointToPoint, RanksThatTheWorldDoesNotHave) {
  auto heard = messages(2, [](int) { Line({0}, {1, 2}, 0, 5); });
  for (auto& text : heard)
    EXPECT_HAS(text, "the transfer [0] -> [1, 2] names rank 2, but the world has the ranks 0 to 1");
}

}  // namespace
}  // namespace holon::comm
