// Both sides of a connection prove to each other that they know the token, which itself is never sent: each answers the
// other's random number by HMAC-SHA-256. What one has recorded is of no use to him later, nor on another connection.
//
//   connects -> listens   "HOLONc02", who it is (4 bytes), a random number (32)
//   listens -> connects   "HOLONs02", a random number (32)
//   connects -> listens   proof (32)
//   listens -> connects   1 and its own proof (32), or 0
//
// What is sent afterwards is neither encrypted nor signed: who can change packets on their way is not kept out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace holon::comm {

class Handshake {
 public:
  enum class Side { kConnects, kListens };
  enum class State {
    kGoesOn,
    kDone,      // both know the token
    kRefused,   // the other knows another token, or means another connection
    kStranger,  // the other does not speak this language
  };

  // purpose: what both sides must mean by this connection. from: who connects; the listening side is told.
  Handshake(Side side, std::string token, std::string purpose, uint32_t from = 0);

  // What is to be sent first; nothing on the listening side.
  std::string begin();
  // Bytes of the other's next message; whoever reads no more than these leaves alone what comes after the handshake.
  size_t wanted() const;
  // Takes the bytes in pieces of any size up to wanted(), and adds to *reply what is to be sent.
  State take(const char* data, size_t size, std::string* reply);
  State state() const { return state_; }
  uint32_t from() const { return from_; }

 private:
  std::string proof(const char* side) const;

  const Side side_;
  const std::string token_, purpose_;
  uint32_t from_;
  std::string mine_, theirs_;  // random numbers
  std::string in_;
  int step_ = 0;
  State state_ = State::kGoesOn;
};

// n bytes from the system. Errors: it gives none.
std::string random_bytes(size_t n);
// 128 random bits, as text.
std::string random_token();

}  // namespace holon::comm
