// Who may join: proofs by HMAC, and what a stranger can do with what he has recorded.
#include "holon/comm/bootstrap/handshake.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <thread>

#include "holon/base/error.h"
#include "holon/comm/bootstrap/tcp.h"
#include "holon/comm/bootstrap/token.h"

namespace holon::comm {
namespace {

using Side = Handshake::Side;
using State = Handshake::State;

// All that a side sends, in order.
struct Record {
  std::string connecting, listening;
};

// Lets two sides talk until neither has anything to say, in pieces of so many bytes.
Record talk(Handshake& c, Handshake& l, size_t piece = 1000) {
  Record sent;
  std::string to_l = c.begin(), to_c;
  while (!to_l.empty() || !to_c.empty()) {
    sent.connecting += to_l, sent.listening += to_c;
    std::string next_c, next_l;
    for (size_t at = 0; at < to_l.size(); at += piece)
      l.take(to_l.data() + at, std::min(piece, to_l.size() - at), &next_c);
    for (size_t at = 0; at < to_c.size(); at += piece)
      c.take(to_c.data() + at, std::min(piece, to_c.size() - at), &next_l);
    to_c = next_c, to_l = next_l;
  }
  return sent;
}

TEST(Handshake, BothKnowTheToken) {
  for (size_t piece : {1u, 3u, 32u, 1000u}) {
    Handshake c(Side::kConnects, "secret", "store", 7), l(Side::kListens, "secret", "store");
    talk(c, l, piece);
    EXPECT_EQ(c.state(), State::kDone);
    EXPECT_EQ(l.state(), State::kDone);
    EXPECT_EQ(l.from(), 7u);
    EXPECT_EQ(c.wanted() + l.wanted(), 0u);
  }
}

TEST(Handshake, AnotherTokenOrConnection) {
  struct {
    std::string token, purpose;
  } others[] = {{"", "store"},      {"secre", "store"}, {"secret2", "store"}, {std::string("secret\0", 7), "store"},
                {"secret", "data"}, {"secret", "storE"}};
  for (auto& o : others) {
    Handshake c(Side::kConnects, o.token, o.purpose), l(Side::kListens, "secret", "store");
    Record sent = talk(c, l);
    EXPECT_EQ(c.state(), State::kRefused) << o.token << " " << o.purpose;
    EXPECT_EQ(l.state(), State::kRefused);
    EXPECT_EQ(sent.listening.size(), 8 + 32 + 1u) << "nothing that the token could be guessed from";
  }
}

TEST(Handshake, TheTokenIsNeverSent) {
  Handshake c(Side::kConnects, "secret", "store"), l(Side::kListens, "secret", "store");
  Record sent = talk(c, l);
  EXPECT_EQ((sent.connecting + sent.listening).find("secret"), std::string::npos);
}

TEST(Handshake, WhatWasRecordedIsOfNoUse) {
  Handshake c(Side::kConnects, "secret", "store", 1), l(Side::kListens, "secret", "store");
  Record sent = talk(c, l);
  std::string reply;
  Handshake later(Side::kListens, "secret", "store");
  EXPECT_EQ(later.take(sent.connecting.data(), sent.connecting.size(), &reply), State::kRefused);
  Handshake rank(Side::kConnects, "secret", "store", 1);
  rank.begin();
  EXPECT_EQ(rank.take(sent.listening.data(), sent.listening.size(), &reply), State::kRefused);
}

// A stranger that listens says to a rank what another one says to him: only both together could.
TEST(Handshake, ProofsCannotBeSentBack) {
  Handshake c(Side::kConnects, "secret", "store");
  std::string hello = c.begin(), proof, reply;
  const std::string number = hello.substr(12);
  std::string challenge = "HOLONs02" + number;
  EXPECT_EQ(c.take(challenge.data(), challenge.size(), &proof), State::kGoesOn);
  std::string verdict = '\1' + proof;
  EXPECT_EQ(c.take(verdict.data(), verdict.size(), &reply), State::kRefused);
  // That of one connection on another, whose listener claims the same rank.
  Handshake a(Side::kConnects, "secret", "data of rank 0 id0", 3), b(Side::kListens, "secret", "data of rank 1 id1");
  talk(a, b);
  EXPECT_EQ(b.state(), State::kRefused);
}

TEST(Handshake, RandomBytes) {
  std::mt19937 random(5);
  const std::string hello = Handshake(Side::kConnects, "secret", "store").begin();
  for (int i = 0; i < 20000; ++i) {
    Handshake h(i % 2 ? Side::kConnects : Side::kListens, "secret", "store");
    std::string bytes = i % 4 < 2 ? hello : "HOLONs02" + hello.substr(12) + "\1", reply;
    bytes.resize(bytes.size() + random() % 80);
    for (size_t n = random() % 4; n > 0; --n) bytes[random() % bytes.size()] = static_cast<char>(random());
    for (size_t at = 0; at < bytes.size() && h.state() == State::kGoesOn;) {
      ASSERT_LE(h.wanted(), 44u);
      const size_t n = std::min<size_t>(1 + random() % h.wanted(), bytes.size() - at);
      h.take(bytes.data() + at, n, &reply);
      at += n;
    }
    ASSERT_NE(h.state(), State::kDone);
    ASSERT_LE(reply.size(), 41u);
  }
}

TEST(Handshake, NumbersAreNew) {
  std::set<std::string> seen;
  for (int i = 0; i < 1000; ++i) seen.insert(Handshake(Side::kConnects, "", "").begin());
  EXPECT_EQ(seen.size(), 1000u);
}

class Token : public testing::Test {
 protected:
  Token() {
    char name[] = "/tmp/holon-token-XXXXXX";
    folder_ = mkdtemp(name);
    unsetenv("HOLON_STORE_TOKEN");
    setenv("HOLON_STORE_TOKEN_FILE", path().c_str(), 1);
  }
  ~Token() override {
    unsetenv("HOLON_STORE_TOKEN_FILE");
    std::filesystem::remove_all(folder_);
  }
  std::string path() const { return folder_ + "/token"; }
  static std::string error() {
    try {
      store_token(false, 0.05);
      return "";
    } catch (const Error& e) {
      return e.what();
    }
  }
  std::string folder_;
};

TEST_F(Token, TheFirstMakesTheFileAndOthersWaitForIt) {
  std::string theirs;
  std::jthread other([&] { theirs = store_token(false, 20); });
  const std::string mine = store_token(true, 20);
  other.join();
  EXPECT_EQ(mine.size(), 32u);
  EXPECT_EQ(theirs, mine);
  EXPECT_EQ(store_token(true, 20), mine) << "it stays";
  using std::filesystem::perms;
  EXPECT_EQ(std::filesystem::status(path()).permissions(), perms::owner_read | perms::owner_write);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);
}

TEST_F(Token, OfTheUser) {
  std::ofstream(path()) << "my own secret\n";
  EXPECT_EQ(store_token(true, 1), "my own secret");
  EXPECT_EQ(store_token(false, 1), "my own secret");
  setenv("HOLON_STORE_TOKEN", "the variable", 1);
  EXPECT_EQ(store_token(false, 1), "the variable");
  unsetenv("HOLON_STORE_TOKEN");
}

TEST_F(Token, Wrong) {
  EXPECT_NE(error().find("did not appear within 0.05 s"), std::string::npos) << error();
  std::ofstream(path()) << "\n";
  EXPECT_NE(error().find("holds nothing"), std::string::npos) << error();
  std::ofstream(path()) << std::string(5000, 'x');
  EXPECT_NE(error().find("holds too much"), std::string::npos) << error();
  std::filesystem::remove(path());
  std::filesystem::create_directory(path());
  EXPECT_NE(error().find("is not a regular file"), std::string::npos) << error();
}

TEST(Tcp, Names) {
  EXPECT_TRUE(names_this_machine("localhost") && names_this_machine("127.0.1.1") && names_this_machine("::1"));
  EXPECT_FALSE(names_this_machine("127.example.org") || names_this_machine("10.0.0.1") || names_this_machine(""));
  EXPECT_EQ(place_text("node1", 29500), "node1:29500");
  EXPECT_EQ(place_text("fd00::1", 29500), "[fd00::1]:29500");
  std::string why;
  auto six = resolve("[fd00::1]", 80, &why);
  ASSERT_EQ(six.size(), 1u) << why;
  EXPECT_EQ(six[0].str(), "[fd00::1]:80");
  EXPECT_FALSE(six[0].loopback());
  EXPECT_TRUE(resolve("::ffff:127.0.0.1", 80, &why).at(0).loopback());
  EXPECT_EQ(resolve("::ffff:127.0.0.1", 80, &why).at(0).ip(), "127.0.0.1");
  EXPECT_LE(resolve("localhost", 80, &why).size(), 1u) << "of IPv4's and IPv6's the two sides must choose alike";
}

TEST(Tcp, ANameThatIsNeverKnown) {
  const std::string name(70, 'x');  // longer than names may be: nobody has to be asked
  try {
    resolve_within(name, 80, 0.3);
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("MASTER_ADDR \"" + name + "\" has no network address: "), std::string::npos)
        << e.what();
  }
}

}  // namespace
}  // namespace holon::comm
