// A small key-value store over TCP, through which ranks find each other before anything else connects them. It is
// served by one thread, in the launcher or in rank 0. Only clients that know the token are listened to, and they listen
// to no other server (handshake.h); whoever sends anything else is dropped, and so is who says nothing for long.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "holon/base/fork.h"
#include "holon/comm/bootstrap/tcp.h"

namespace holon::comm {

class StoreServer {
 public:
  // Listens at all of them, which have the same port; port 0 lets the system choose one. Errors: it is in use or may
  // not be bound.
  StoreServer(const std::vector<Address>& at, std::string token);
  // At the addresses of this name alone.
  StoreServer(const std::string& host, int port, std::string token);
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;
  int port() const { return port_; }
  // The value of a key, without waiting.
  std::optional<std::string> peek(const std::string& key) const;

 private:
  class Loop;
  const ForkMark mark_;
  int port_ = 0;
  std::unique_ptr<Loop> loop_;
  std::thread thread_;
};

class StoreClient {
 public:
  // Connects, trying again until timeout_s have passed: the server may not have started yet, its name may not be known
  // yet. Errors: nobody answers in time, what answers is not a store of Holon's, or they do not know the same token.
  StoreClient(const std::string& host, int port, const std::string& token, double timeout_s);
  ~StoreClient();
  StoreClient(const StoreClient&) = delete;
  StoreClient& operator=(const StoreClient&) = delete;

  // Where this side of the connection is.
  Address local_address() const { return comm::local_address(fd_); }

  // Seconds that the server gets to answer; it is stopped if it takes longer, which is an error of any call.
  static constexpr double kAnswerSeconds = 10;
  void set(const std::string& key, const std::string& value, double answer_s = kAnswerSeconds);
  // Waits for the key. Errors: it is not set within timeout_s.
  std::string get(const std::string& key, double timeout_s);
  // The same, but while nothing is wrong: trouble is asked now and then for a reason to give up, which is raised.
  std::string get(const std::string& key, double timeout_s, const std::function<std::string()>& trouble);
  // Waits for the key as get() does; nothing if nobody has set it within timeout_s, or the server ends in order first.
  std::optional<std::string> find(const std::string& key, double timeout_s);
  // Adds to a number that starts at 0; returns the sum.
  int64_t add(const std::string& key, int64_t amount, double answer_s = kAnswerSeconds);
  // The server sets the key, if nobody else has, when this connection ends; an empty key: nothing any more.
  void will(const std::string& key, const std::string& value, double answer_s = kAnswerSeconds);
  // Participant `index` will never hand in anything: all that gather there, now or later, are told so.
  void leave(const std::string& key, int index, const std::string& reason, double answer_s = kAnswerSeconds);

  // Hands in value as participant `index` of `count` and returns everybody's, when all have come. When one's time is
  // over, all that wait are told.
  struct Gathered {
    enum class Outcome { kComplete, kTimeout, kTaken, kOtherCount, kLeft } outcome;
    std::vector<std::string> values;  // kComplete: all; kTaken: the value that holds this index
    std::vector<int> missing;         // kTimeout
    std::vector<std::string> counts;  // kOtherCount: "rank 1 of 3", one for each side
    int left = -1;                    // kLeft: who, and values[0] says why
  };
  Gathered gather(const std::string& key, int index, int count, const std::string& value, double timeout_s);
  // Errors: not all `count` have come within timeout_s.
  void barrier(const std::string& key, int index, int count, double timeout_s);

 private:
  struct Reply;
  Reply call(const std::string& body, double timeout_s);

  const ForkMark mark_;
  std::string where_;
  int fd_ = -1;
  bool broken_ = false;  // a call got no answer: what comes later would be taken for another's
  std::mutex mutex_;
};

// The gathering at which all ranks hand themselves in, and the key of the first failure in a world of several hosts,
// "RANK REASON".
inline constexpr const char *kRanksKey = "ranks", *kAbortedKey = "aborted";
// Set by the server: its own address at which the first client from another host has come.
inline constexpr const char* kStoreReachedAt = "store/reached_at";

// The bytes on the wire, for tests that speak them. After the handshake come frames both ways: the length of the body,
// 4 bytes little-endian, and the body: 1 byte of operation or status, and strings, each after its 4-byte length.
inline constexpr const char* kStorePurpose = "store";
inline constexpr uint32_t kStoreMaxFrame = 1 << 20;
inline constexpr uint32_t kStoreMaxWill = 1 << 10;
enum class StoreOp : uint8_t { kSet, kGet, kAdd, kGather, kWill, kLeave };
enum class StoreStatus : uint8_t { kOk, kTimeout, kTaken, kOtherCount, kError, kLeft };
std::string store_body(uint8_t first, std::span<const std::string> fields);

}  // namespace holon::comm
