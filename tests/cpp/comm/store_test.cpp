#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <random>
#include <thread>

#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/comm/bootstrap/handshake.h"
#include "holon/comm/bootstrap/store.h"

namespace holon::comm {
namespace {

using Outcome = StoreClient::Gathered::Outcome;

struct Store {
  StoreServer server{"127.0.0.1", 0, "secret"};
  std::unique_ptr<StoreClient> client() {
    return std::make_unique<StoreClient>("127.0.0.1", server.port(), "secret", 5);
  }
};

int connected(int port) {
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in a{};
  a.sin_family = AF_INET;
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  a.sin_port = htons(static_cast<uint16_t>(port));
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&a), sizeof a), 0);
  timeval limit{20, 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  return fd;
}

// Greets as a client does. False: the server has closed the connection, or says that the token is wrong.
bool greet(int fd, const std::string& token) {
  Handshake handshake(Handshake::Side::kConnects, token, kStorePurpose);
  std::string out = handshake.begin();
  char buffer[64];
  while (handshake.state() == Handshake::State::kGoesOn) {
    if (send(fd, out.data(), out.size(), MSG_NOSIGNAL) < 0) return false;
    out.clear();
    ssize_t n = recv(fd, buffer, handshake.wanted(), 0);
    if (n <= 0) return false;
    handshake.take(buffer, static_cast<size_t>(n), &out);
  }
  return handshake.state() == Handshake::State::kDone;
}

// Sends these bytes; true: the server has closed the connection. With a token, it is greeted first.
bool dropped_after(int port, const std::string& bytes, std::optional<std::string> token = std::nullopt) {
  int fd = connected(port);
  if (token) greet(fd, *token);
  bool closed = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) < 0;
  char buffer[256];
  ssize_t n = 0;
  while (!closed && (n = recv(fd, buffer, sizeof buffer, 0)) > 0) {
  }
  closed = closed || n == 0 || errno == ECONNRESET;
  close(fd);
  return closed;
}

size_t most_resident_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<size_t>(usage.ru_maxrss) << 10;
}

std::string frame(const std::string& body) {
  std::string f;
  for (int i = 0; i < 4; ++i) f.push_back(static_cast<char>(body.size() >> 8 * i));
  return f + body;
}

TEST(Store, SetGetAdd) {
  Store s;
  auto a = s.client(), b = s.client();
  a->set("k", std::string("v\0w", 3));
  EXPECT_EQ(b->get("k", 1), std::string("v\0w", 3));
  a->set("k", "new");
  EXPECT_EQ(b->get("k", 1), "new");
  EXPECT_EQ(s.server.peek("k"), "new");
  EXPECT_EQ(s.server.peek("other"), std::nullopt);
  EXPECT_EQ(a->add("n", 5), 5);
  EXPECT_EQ(b->add("n", -7), -2);
  EXPECT_THROW(a->add("k", 1), Error);
  EXPECT_EQ(a->add("n", 1), -1);
}

TEST(Store, GetWaits) {
  Store s;
  auto a = s.client(), b = s.client();
  std::jthread setter([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    b->set("late", "here");
  });
  EXPECT_EQ(a->get("late", 5), "here");
  auto start = std::chrono::steady_clock::now();
  EXPECT_THROW(a->get("never", 0.1), Error);
  auto took = std::chrono::steady_clock::now() - start;
  EXPECT_GE(took, std::chrono::milliseconds(90));
  EXPECT_LT(took, std::chrono::seconds(2));
}

TEST(Store, GatherAndBarrier) {
  Store s;
  std::vector<std::jthread> threads;
  for (int i = 0; i < 5; ++i)
    threads.emplace_back([&, i] {
      auto c = s.client();
      for (int round = 0; round < 20; ++round) {
        auto key = "round" + std::to_string(round);
        auto g = c->gather(key, i, 5, key + "/" + std::to_string(i), 10);
        ASSERT_EQ(g.outcome, Outcome::kComplete);
        for (int k = 0; k < 5; ++k) ASSERT_EQ(g.values[static_cast<size_t>(k)], key + "/" + std::to_string(k));
      }
      c->barrier("end", i, 5, 10);
    });
}

TEST(Store, GatherNamesTheMissing) {
  Store s;
  auto g = s.client()->gather("g", 1, 4, "", 0.1);
  EXPECT_EQ(g.outcome, Outcome::kTimeout);
  EXPECT_EQ(g.missing, (std::vector<int>{0, 2, 3}));
  EXPECT_THROW(s.client()->barrier("b", 0, 2, 0.05), Error);
}

TEST(Store, GatherOfAnIndexThatIsTaken) {
  Store s;
  auto a = s.client(), b = s.client();
  std::jthread first([&] {
    StoreClient::Gathered g;
    while ((g = a->gather("g", 0, 2, "first", 5)).outcome == Outcome::kTaken) {
    }
    EXPECT_EQ(g.outcome, Outcome::kComplete);
  });
  while (true) {
    auto g = b->gather("g", 0, 2, "second", 0);
    if (g.outcome == Outcome::kTaken && g.values.at(0) == "first") break;
    b = s.client();  // it came first itself: leaving makes room again
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_EQ(s.client()->gather("g", 1, 2, "", 5).outcome, Outcome::kComplete);
  EXPECT_EQ(s.client()->gather("g", 1, 2, "", 5).outcome, Outcome::kTaken);
}

TEST(Store, AParticipantThatLeavesMakesRoom) {
  Store s;
  EXPECT_EQ(s.client()->gather("g", 0, 2, "old", 0.05).outcome, Outcome::kTimeout);
  auto again = s.client();
  std::jthread other([&] { EXPECT_EQ(s.client()->gather("g", 1, 2, "", 5).values.at(0), "new"); });
  auto g = again->gather("g", 0, 2, "new", 5);
  EXPECT_EQ(g.outcome, Outcome::kComplete);
}

TEST(Store, DifferentCountsReachBothSides) {
  Store s;
  auto a = s.client();
  std::jthread first([&] {
    auto g = a->gather("g", 0, 2, "", 5);
    EXPECT_EQ(g.outcome, Outcome::kOtherCount);
    EXPECT_EQ(g.counts, (std::vector<std::string>{"rank 0 of 2", "rank 1 of 3"}));
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_EQ(s.client()->gather("g", 1, 3, "", 5).outcome, Outcome::kOtherCount);
}

TEST(Store, WrongTokenIsRefused) {
  Store s;
  for (const char* token : {"", "secre", "secret2", "Secret"}) {
    try {
      StoreClient c("127.0.0.1", s.server.port(), token, 2);
      FAIL() << "token \"" << token << "\" was accepted";
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("its token is different"), std::string::npos) << e.what();
    }
  }
  EXPECT_TRUE(dropped_after(s.server.port(), "", "wrong"));
}

TEST(Store, StrangersAreDroppedAndTheOthersServed) {
  Store s;
  auto c = s.client();
  const int port = s.server.port();
  std::string set_fields[] = {"k", "stolen"};
  std::string set = frame(store_body(static_cast<uint8_t>(StoreOp::kSet), set_fields));
  const std::string hello = Handshake(Handshake::Side::kConnects, "secret", kStorePurpose).begin();
  for (const std::string& bytes :
       {std::string("GET / HTTP/1.1\r\n\r\n"), std::string("\x16\x03\x01", 3), set, hello + set + set,
        hello + std::string(32, '\xff'), hello + hello, std::string(44, '\0')})
    EXPECT_TRUE(dropped_after(port, bytes));
  for (const std::string& bytes :
       {std::string("\xff\xff\xff\x7f", 4), frame("\x63"), frame(std::string("\x01\xff\xff\xff\xff", 5)),
        frame(store_body(static_cast<uint8_t>(StoreOp::kGet), set_fields)), std::string("\0\0\0\0", 4)})
    EXPECT_TRUE(dropped_after(port, bytes, "secret"));
  std::mt19937 random(7);
  for (int i = 0; i < 200; ++i) {
    std::string bytes = i % 4 < 2 ? "" : hello;
    for (int n = static_cast<int>(random() % 300); n > 0; --n) bytes.push_back(static_cast<char>(random()));
    bytes += std::string(8, '\xff');
    int fd = connected(port);
    if (i % 4 == 0) greet(fd, "secret");
    send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    close(fd);
  }
  EXPECT_EQ(s.server.peek("k"), std::nullopt);
  c->set("still", "here");
  EXPECT_EQ(s.client()->get("still", 1), "here");
}

// Conversations that are valid until somebody changes, cuts or repeats bytes of them, many at a time and in pieces.
// What they may not do: end the server, reach its values without the token, or keep the others from being served.
TEST(Store, Fuzz) {
  Store s;
  auto c = s.client();
  c->set("mine", "stays");
  std::mt19937 random(11);
  auto any = [&](size_t n) { return random() % n; };
  auto request = [&] {
    auto number = [&] {
      const char* odd[] = {"0",
                           "1",
                           "-1",
                           "2",
                           "999999",
                           "1000001",
                           "9223372036854775807",
                           "-9223372036854775808",
                           "99999999999999999999",
                           "",
                           "x",
                           "1 "};
      return std::string(odd[any(std::size(odd))]);
    };
    std::string key(1 + any(3), static_cast<char>('a' + any(2)));
    std::vector<std::string> fields;
    switch (any(5)) {
      case 0: fields = {key, std::string(any(2000), 'v')}; break;
      case 1: fields = {key, number()}; break;
      case 2: fields = {key, number(), number(), key, number()}; break;
      case 3: fields = {key}; break;
      default: fields.resize(any(7)); break;
    }
    return frame(store_body(static_cast<uint8_t>(any(7)), fields));
  };
  std::vector<int> open;
  for (int round = 0; round < 2000; ++round) {
    const bool knows = any(4) != 0;
    std::string bytes;
    for (size_t n = 1 + any(5); n > 0; --n) bytes += request();
    for (size_t n = any(4); n > 0; --n) {
      const size_t at = any(bytes.size());
      switch (any(4)) {
        case 0: bytes[at] = static_cast<char>(random()); break;
        case 1: bytes.resize(at + 1); break;
        case 2: bytes.insert(at, bytes.substr(any(bytes.size()), any(40))); break;
        default:
          bytes.replace(at, std::min<size_t>(4, bytes.size() - at), any(2) ? "\xff\xff\xff\x7f" : "\xff\xff\x0f");
      }
    }
    int fd = connected(s.server.port());
    greet(fd, knows ? "secret" : "guess");
    const size_t cut = any(bytes.size());
    send(fd, bytes.data(), cut, MSG_NOSIGNAL | MSG_DONTWAIT);
    send(fd, bytes.data() + cut, bytes.size() - cut, MSG_NOSIGNAL | MSG_DONTWAIT);
    open.push_back(fd);
    if (open.size() > 100) {
      std::swap(open[any(open.size())], open.back());
      close(open.back());
      open.pop_back();
    }
    if (round % 500 == 0) {
      EXPECT_EQ(c->get("mine", 1), "stays");
    }
  }
  EXPECT_EQ(c->get("mine", 1), "stays");
  auto other = s.client();
  other->set("after", "all");
  EXPECT_EQ(c->get("after", 1), "all");
  for (int fd : open) close(fd);
}

TEST(Store, WithoutTheTokenNothingIsChanged) {
  Store s;
  auto c = s.client();
  c->set("k", "v");
  std::string fields[] = {"k", "stolen"}, added[] = {"n", "5"};
  const std::string requests = frame(store_body(static_cast<uint8_t>(StoreOp::kSet), fields)) +
      frame(store_body(static_cast<uint8_t>(StoreOp::kAdd), added));
  for (auto& token : {std::string(""), std::string("guess"), std::string("secret\0", 7), std::string(900, 's')})
    EXPECT_TRUE(dropped_after(s.server.port(), requests, token));
  EXPECT_TRUE(dropped_after(s.server.port(), requests));
  EXPECT_EQ(c->get("k", 1), "v");
  EXPECT_EQ(s.server.peek("n"), std::nullopt);
}

TEST(Store, ACrowdOfSilentStrangersKeepsNobodyOut) {
  Store s;
  std::vector<int> crowd;
  for (int i = 0; i < 400; ++i) crowd.push_back(connected(s.server.port()));
  auto start = std::chrono::steady_clock::now();
  auto c = s.client();
  c->set("k", "v");
  EXPECT_EQ(s.client()->get("k", 1), "v");
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2));
  // The first of them have been let go.
  char byte;
  timeval limit{2, 0};
  setsockopt(crowd[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  EXPECT_EQ(recv(crowd[0], &byte, 1, 0), 0);
  for (int fd : crowd) close(fd);
}

// They begin as ranks do, and more come all the time.
TEST(Store, ACrowdThatGreetsKeepsNobodyOut) {
  Store s;
  const std::string hello = Handshake(Handshake::Side::kConnects, "guess", kStorePurpose).begin();
  std::vector<int> crowd;
  auto one_more = [&] {
    crowd.push_back(connected(s.server.port()));
    send(crowd.back(), hello.data(), hello.size(), MSG_NOSIGNAL);
  };
  for (int i = 0; i < 300; ++i) one_more();
  std::jthread flood([&](std::stop_token stop) {
    while (!stop.stop_requested()) {
      one_more();
      if (crowd.size() <= 350) continue;
      for (int i = 0; i < 50; ++i) close(crowd[static_cast<size_t>(i)]);
      crowd.erase(crowd.begin(), crowd.begin() + 50);
    }
  });
  auto client = [&] { return std::make_unique<StoreClient>("127.0.0.1", s.server.port(), "secret", 60); };
  client()->set("k", "v");
  for (int i = 0; i < 20; ++i) EXPECT_EQ(client()->get("k", 60), "v");
  flood.request_stop();
  flood.join();
  for (int fd : crowd) close(fd);
}

TEST(Store, WithoutFreeDescriptorsStrangersMakeRoom) {
  Store s;
  std::vector<int> crowd;
  for (int i = 0; i < 20; ++i) crowd.push_back(connected(s.server.port()));
  EXPECT_TRUE(s.client() != nullptr);  // by now all of them have been accepted
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  // Lower numbers may be free; they are filled.
  int next = dup(crowd[0]);
  for (const int last = crowd.back(); next < last + 8; next = dup(crowd[0])) crowd.push_back(next);
  close(next);
  rlimit tight{static_cast<rlim_t>(next) + 1, before.rlim_max};  // for the client's end, but not for the server's
  setrlimit(RLIMIT_NOFILE, &tight);
  std::unique_ptr<StoreClient> c;
  EXPECT_NO_THROW(c = s.client());
  if (c) c->set("k", "v");
  setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_EQ(s.server.peek("k"), "v");
  for (int fd : crowd) close(fd);
}

// Reads one frame from each of them as it comes; returns how many are as long as this and end in these bytes.
int frames_that_end_in(std::span<const int> fds, size_t size, const std::string& end) {
  struct Read {
    size_t bytes = 0;
    std::string tail;
  };
  std::vector<Read> read(fds.size());
  std::vector<pollfd> polled;
  for (int fd : fds) polled.push_back({fd, POLLIN, 0});
  std::vector<char> buffer(256 << 10);
  int right = 0;
  for (size_t left = fds.size(); left > 0;) {
    if (poll(polled.data(), polled.size(), 120'000) <= 0) return right;
    for (size_t i = 0; i < fds.size(); ++i) {
      if (!polled[i].revents) continue;
      const ssize_t n = recv(fds[i], buffer.data(), buffer.size(), MSG_DONTWAIT);
      Read& r = read[i];
      if (n > 0) {
        r.bytes += static_cast<size_t>(n);
        const size_t last = std::min(static_cast<size_t>(n), end.size());
        r.tail.append(buffer.data() + n - last, last);
        r.tail.erase(0, r.tail.size() - std::min(r.tail.size(), end.size()));
      }
      if (n > 0 && r.bytes < size) continue;
      right += r.bytes == size && r.tail == end;
      polled[i].fd = -1;
      --left;
    }
  }
  return right;
}

// As many as a large cluster has. Each hands itself in as ranks do (rendezvous.cpp) and gets what all have handed in:
// 4,096 answers of half a megabyte, which the server must not hold at once.
TEST(Store, FourThousandRanksConnect) {
  constexpr int kRanks = 4096, kReaders = 8;
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  const rlim_t wanted = 2 * kRanks + 256;
  if (before.rlim_max < wanted)
    GTEST_SKIP() << "a process here may have " << before.rlim_max << " descriptors, and both ends take " << wanted;
  const rlimit more{std::max(before.rlim_cur, wanted), before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &more), 0);
  const size_t before_bytes = most_resident_bytes();
  {
    Store s;
    auto value = [](int r) { return fmt::format("{:0100}\n{:06}", 0, r); };
    std::vector<int> fds;
    for (int r = 0; r < kRanks; ++r) {
      fds.push_back(connected(s.server.port()));
      ASSERT_TRUE(greet(fds.back(), "secret")) << r;
      const std::string f[] = {kRanksKey, std::to_string(r), std::to_string(kRanks), value(r), "600000"};
      const std::string request = frame(store_body(static_cast<uint8_t>(StoreOp::kGather), f));
      ASSERT_EQ(send(fds.back(), request.data(), request.size(), MSG_NOSIGNAL), static_cast<ssize_t>(request.size()));
    }
    const size_t size = 4 + 1 + kRanks * (4 + value(0).size());
    std::atomic<int> right{0};
    {
      std::vector<std::jthread> readers;
      for (int t = 0; t < kReaders; ++t)
        readers.emplace_back([&, t] {
          const std::span mine =
              std::span(fds).subspan(static_cast<size_t>(t) * (kRanks / kReaders), kRanks / kReaders);
          right += frames_that_end_in(mine, size, value(kRanks - 1));
        });
    }
    EXPECT_EQ(right, kRanks);
    for (int fd : fds) close(fd);
  }
  setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_LT(most_resident_bytes() - before_bytes, size_t{512} << 20);
}

// An answer that comes too late must not be taken for that of the next call.
TEST(Store, AfterALateAnswerTheConnectionIsNotUsedAnyMore) {
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in a{};
  a.sin_family = AF_INET;
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof a;
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&a), sizeof a), 0);
  ASSERT_EQ(listen(fd, 5), 0);
  getsockname(fd, reinterpret_cast<sockaddr*>(&a), &size);
  std::jthread slow([&] {
    int c = accept(fd, nullptr, nullptr);
    std::string seven[] = {"7"};
    const std::string late = frame(store_body(static_cast<uint8_t>(StoreStatus::kOk), seven));
    Handshake handshake(Handshake::Side::kListens, "", kStorePurpose);
    while (handshake.state() == Handshake::State::kGoesOn) {
      char buffer[64];
      std::string out;
      ssize_t n = recv(c, buffer, handshake.wanted(), 0);
      if (n <= 0) break;
      handshake.take(buffer, static_cast<size_t>(n), &out);
      send(c, out.data(), out.size(), MSG_NOSIGNAL);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    send(c, late.data(), late.size(), MSG_NOSIGNAL);
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    close(c);
  });
  StoreClient c("127.0.0.1", ntohs(a.sin_port), "", 2);
  EXPECT_THROW(c.add("n", 1, 0.1), Error);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_THROW(c.add("n", 1, 0.1), Error);
  close(fd);
}

TEST(Store, SomethingElseListens) {
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in a{};
  a.sin_family = AF_INET;
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof a;
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&a), sizeof a), 0);
  ASSERT_EQ(listen(fd, 5), 0);
  getsockname(fd, reinterpret_cast<sockaddr*>(&a), &size);
  std::jthread web([&] {
    int c = accept(fd, nullptr, nullptr);
    const char text[] = "HTTP/1.1 400 Bad Request\r\n\r\n";
    send(c, text, sizeof text, MSG_NOSIGNAL);
    close(c);
  });
  try {
    StoreClient c("127.0.0.1", ntohs(a.sin_port), "", 2);
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("is not a store of Holon"), std::string::npos) << e.what();
  }
  close(fd);
}

}  // namespace
}  // namespace holon::comm
